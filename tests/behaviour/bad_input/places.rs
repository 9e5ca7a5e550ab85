//! Paths that a daemon must not use: sockets and state folders that are something else or belong to another user.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Beside, refuses_to_start};
use crate::support::user::{ORDINARY, command_as, copy_of_the_program, words};
use crate::support::{Daemon, Setup, is_root, names};

#[test]
fn fault_53_a_socket_path_that_is_something_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "content").unwrap();
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let link = dir.path().join("link");
    symlink(&file, &link).unwrap();
    let dangling = dir.path().join("dangling");
    symlink(dir.path().join("nothing"), &dangling).unwrap();
    for path in [&file, &folder, &link, &dangling] {
        let before = std::fs::symlink_metadata(path).unwrap();
        let said = refuses_to_start(Setup::new(), path, 1);
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        let after = std::fs::symlink_metadata(path).unwrap();
        assert_eq!(before.file_type(), after.file_type());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
    assert!(!dir.path().join("nothing").exists());
    let long = dir.path().join("x".repeat(101));
    let before = names(dir.path());
    let said = refuses_to_start(Setup::new(), &long, 1);
    assert!(said.contains("100"), "{said}");
    assert_eq!(names(dir.path()), before);
}

#[tokio::test]
async fn fault_52_of_two_daemons_on_a_path_the_second_ends() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let expected = format!("already serving on {} (pid {})", daemon.socket.display(), daemon.pid());
    // Starts a second daemon with the same state folder, and one with another state folder.
    let said = refuses_to_start(Setup::new(), &daemon.socket, 1);
    assert!(said.contains(&expected), "{said}");
    let other = daemon.file("other-state");
    let said = refuses_to_start(Setup::new().option("state-dir", other.to_str().unwrap()), &daemon.socket, 1);
    assert!(said.contains(&expected), "{said}");
    // Starts one with the same state folder and another socket path, which nobody serves.
    let elsewhere = daemon.file("other.sock");
    let setup = Setup::new().option("state-dir", daemon.state_dir().to_str().unwrap());
    let said = refuses_to_start(setup, &elsewhere, 1);
    let folder = daemon.state_dir();
    let taken = format!("already serving with the state folder {} (pid {})", folder.display(), daemon.pid());
    assert!(said.contains(&taken) && !said.contains(elsewhere.to_str().unwrap()), "{said}");
    beside.unaffected(&daemon).await;
}

#[test]
fn fault_52_of_many_starters_exactly_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let mut starters: Vec<_> = (0..10)
        .map(|_| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
            command.arg("serve").arg("--socket").arg(&socket).stderr(std::process::Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    crate::support::wait_for("all but one to end", || {
        let ended = starters.iter_mut().filter_map(|starter| starter.try_wait().unwrap());
        let codes: Vec<_> = ended.map(|status| status.code()).collect();
        assert!(codes.iter().all(|code| *code == Some(1)), "{codes:?}");
        assert!(codes.len() < 10, "none is left");
        (codes.len() == 9).then_some(())
    });
    let winner =
        starters.iter_mut().find_map(|starter| starter.try_wait().unwrap().is_none().then_some(starter));
    let winner = winner.unwrap();
    let connected = std::panic::catch_unwind(|| {
        crate::support::wait_for("the winner to listen", || {
            std::os::unix::net::UnixStream::connect(&socket).ok()
        })
    });
    winner.kill().unwrap();
    winner.wait().unwrap();
    connected.unwrap();
}

#[test]
fn fault_74_a_state_folder_that_is_a_link_or_open_to_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o700)).unwrap();
    let link = dir.path().join("link");
    symlink(&target, &link).unwrap();
    let state = |path: &Path| Setup::new().option("state-dir", path.to_str().unwrap());
    let said = refuses_to_start(state(&link), &socket, 1);
    assert!(said.contains("symbolic link"), "{said}");
    let file = dir.path().join("file");
    std::fs::write(&file, "content").unwrap();
    refuses_to_start(state(&file), &socket, 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    refuses_to_start(state(&open), &socket, 1);
    assert_eq!(names(&open), Vec::<String>::new());
    assert_eq!(names(&target), Vec::<String>::new());
    assert!(!socket.exists());
}

#[test]
fn fault_74_a_state_folder_of_another_user_is_refused() {
    if !is_root("fault_74_a_state_folder_of_another_user_is_refused") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::set_permissions(&foreign, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&foreign, Some(1_000), None).unwrap();
    let setup = Setup::new().option("state-dir", foreign.to_str().unwrap());
    let said = refuses_to_start(setup, &dir.path().join("s.sock"), 1);
    assert!(said.contains("1000"), "{said}");
    assert_eq!(names(&foreign), Vec::<String>::new());
}

/// Returns a folder in which every user can make files, like `/tmp`, and a copy of the program in it.
fn shared_folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let program = copy_of_the_program(dir.path());
    (dir, program)
}

/// Returns a command that runs the program as an ordinary user, with `folder` for temporary files.
fn as_ordinary_user(program: &Path, folder: &Path) -> Command {
    let mut command = command_as(ORDINARY, program);
    command.env("TMPDIR", folder).env_remove("XDG_STATE_HOME").env_remove("STEP_RUNNER_SOCKET");
    command
}

/// User who makes the traps.
const ATTACKER: u32 = 1_001;

/// Makes a trap at the first path; the second path is the victim's file, which a link can point to.
type Trap = fn(&Path, &Path);

#[test]
fn fault_74_paths_that_another_user_has_taken_are_refused_and_left_alone() {
    if !is_root("fault_74_paths_that_another_user_has_taken_are_refused_and_left_alone") {
        return;
    }
    let state = "step-runner-1000";
    let own = |path: &Path| std::os::unix::fs::lchown(path, Some(ATTACKER), Some(ATTACKER)).unwrap();
    let folder: Trap = |path, _| {
        std::fs::create_dir(path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    let file: Trap = |path, _| {
        std::fs::write(path, "bait").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    };
    let link: Trap = |path, victim| symlink(victim, path).unwrap();
    let stale: Trap = |path, _| {
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    let cases: [(&str, Trap); 10] = [
        (state, folder),
        (state, file),
        (state, link),
        ("step-runner.sock", folder),
        ("step-runner.sock", file),
        ("step-runner.sock", link),
        ("step-runner.sock", stale),
        ("step-runner.sock.lock", file),
        ("step-runner.sock.lock", link),
        ("step-runner.sock.lock", folder),
    ];
    for (number, (name, trap)) in cases.into_iter().enumerate() {
        let (dir, program) = shared_folder();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let path = dir.path().join(name);
        trap(&path, &victim);
        own(&path);
        let before = std::fs::symlink_metadata(&path).unwrap();
        let output = as_ordinary_user(&program, dir.path()).arg("serve").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{number} {name}: {said}");
        assert!(said.contains(name) && !said.contains("is listening on"), "{number} {name}: {said}");
        let after = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!((before.file_type(), before.len()), (after.file_type(), after.len()), "{number} {name}");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious", "{number} {name}");
        if after.is_dir() {
            assert_eq!(names(&path), Vec::<String>::new(), "{number} {name}");
        }
    }
}

#[tokio::test]
async fn fault_74_a_client_does_not_speak_to_a_stranger_on_the_default_socket() {
    if !is_root("fault_74_a_client_does_not_speak_to_a_stranger_on_the_default_socket") {
        return;
    }
    let (dir, program) = shared_folder();
    let home = dir.path().join("attacker");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(ATTACKER), Some(ATTACKER)).unwrap();
    let wrapper = words(ATTACKER);
    let setup = Setup::new().program(&program).wrapper(&wrapper.each_ref().map(String::as_str));
    let daemon = setup.option("socket-mode", "0666").start_in(&home);
    let default = dir.path().join("step-runner.sock");
    symlink(&daemon.socket, &default).unwrap();
    for call in [&["status"][..], &["proxy"]] {
        let mut command = as_ordinary_user(&program, dir.path());
        let output = command.args(call).stdin(std::process::Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("user 1001"), "{call:?}: {said}");
    }
}
