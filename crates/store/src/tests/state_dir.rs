use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::*;

fn place() -> StatePathInputs {
    StatePathInputs { temp_dir: "/tmp".into(), uid: 7, ..StatePathInputs::default() }
}

#[test]
fn default_place_follows_setting_then_socket_then_xdg_then_temporary_directory() {
    let all = StatePathInputs {
        state_dir: Some("/s".into()),
        socket: Some("/run/a.sock".into()),
        xdg_state_home: Some("/x".into()),
        ..place()
    };
    assert_eq!(default_path(&all), Path::new("/s"));
    let socket = StatePathInputs { state_dir: None, ..all };
    assert_eq!(default_path(&socket), Path::new("/run/a.sock.state"));
    let xdg = StatePathInputs { socket: None, ..socket };
    assert_eq!(default_path(&xdg), Path::new("/x/step-runner"));
    let relative = StatePathInputs { xdg_state_home: Some("x".into()), ..xdg };
    assert_eq!(default_path(&relative), Path::new("/tmp/step-runner-7"));
    assert_eq!(default_path(&place()), Path::new("/tmp/step-runner-7"));
}

#[test]
fn folder_and_files_are_private() {
    let temp = temp();
    let state = open(&temp);
    create(&state, "1").append(&Event::Started { at: 1, boot: None }).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(state.path()), 0o700);
    assert_eq!(mode(&folder(&state, "1").path("")), 0o700);
    for name in ["job.json", "journal"] {
        assert_eq!(mode(&folder(&state, "1").path(name)), 0o600, "{name}");
    }
    assert_eq!(mode(&state.path().join("daemon.json")), 0o600);
}

#[test]
fn second_daemon_is_refused_with_the_pid_of_the_first() {
    let temp = temp();
    let state = open(&temp);
    let error = StateDir::open(state.path(), &daemon()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { pid: Some(pid), .. } if pid == std::process::id()), "{error}");
    drop(state);
    open(&temp);
}

#[test]
fn of_many_daemons_at_once_one_wins() {
    let temp = temp();
    let path = temp.path().join("state");
    let won: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| StateDir::open(&path, &daemon()).ok())).collect();
        starts.into_iter().filter_map(|start| start.join().unwrap()).collect()
    });
    assert_eq!(won.len(), 1);
}

#[test]
fn fault_46_newer_format_is_refused_and_not_touched() {
    let temp = temp();
    let path = temp.path().join("state");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let json = format!("{{\"format\":{},\"new\":[1]}}", FORMAT + 1);
    fs::write(path.join("daemon.json"), &json).unwrap();
    let error = StateDir::open(&path, &daemon()).unwrap_err();
    assert!(matches!(error, OpenError::NewerFormat { found, .. } if found == FORMAT + 1), "{error}");
    let names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["daemon.json"]);
    assert_eq!(fs::read_to_string(path.join("daemon.json")).unwrap(), json);
}

#[test]
fn fault_44_damaged_daemon_record_does_not_stop_the_start() {
    let temp = temp();
    for text in ["", "{", "[]", "{\"format\":\"x\"}", "{\"format\":1}", "\0\0\0"] {
        let path = open(&temp).path().join("daemon.json");
        fs::write(path, text).unwrap();
        open(&temp);
    }
}

#[test]
fn what_is_no_private_folder_of_ours_is_refused_and_left_alone() {
    let temp = temp();
    let at = |name: &str| temp.path().join(name);
    fs::create_dir(at("real")).unwrap();
    fs::set_permissions(at("real"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink(at("real"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    fs::write(at("file"), "x").unwrap();
    fs::create_dir(at("open")).unwrap();
    fs::set_permissions(at("open"), fs::Permissions::from_mode(0o750)).unwrap();
    for (name, expected) in [
        ("link", "is a symbolic link: remove it"),
        ("link/", "is a symbolic link: remove it"),
        ("dangling", "is a symbolic link: remove it"),
        ("file", "is not a directory: remove it"),
        ("open", "is open to others (mode 0750): run `chmod 700`"),
    ] {
        let error = StateDir::open(&at(name), &daemon()).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    assert_eq!(fs::read_dir(at("real")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(at("open")).unwrap().count(), 0);
    assert!(StateDir::open(&at("file").join("below"), &daemon()).is_err());
}

#[test]
fn folder_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return; // only root can make one
    }
    let temp = temp();
    let path = temp.path().join("state");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
    let error = StateDir::open(&path, &daemon()).unwrap_err();
    assert!(matches!(error, OpenError::WrongOwner { owner: 12_345, .. }), "{error}");
}

#[test]
fn fault_26_free_space_is_measured_and_the_reserve_is_on_disk() {
    let temp = temp();
    let state = open(&temp);
    assert!(state.free_space().unwrap().bytes > 0);
    assert_eq!(fs::metadata(state.path().join("reserve")).unwrap().len(), 64 << 10);
    assert!(state.shared.release_reserve());
    assert!(!state.shared.release_reserve());
    state.replenish_reserve();
    assert!(state.path().join("reserve").exists());
}

#[test]
fn the_pid_in_a_lock_is_that_of_its_holder_whatever_was_there_before() {
    let temp = temp();
    let path = open(&temp).path().to_owned();
    for before in ["", "4194304\n", "no pid"] {
        fs::write(path.join("lock"), before).unwrap();
        let _state = open(&temp);
        assert_eq!(fs::read_to_string(path.join("lock")).unwrap(), format!("{}\n", std::process::id()));
    }
}

#[test]
fn fault_26_a_reserve_that_gives_no_space_takes_no_file() {
    let temp = temp();
    let state = open(&temp);
    assert!(state.shared.release_reserve());
    let in_the_way = state.path().join("reserve");
    fs::create_dir(&in_the_way).unwrap();
    state.replenish_reserve();
    assert!(!state.shared.release_reserve());
    fs::remove_dir(&in_the_way).unwrap();
    state.replenish_reserve();
    let full = || Err::<(), _>(std::io::Error::from(std::io::ErrorKind::StorageFull));
    let times = std::cell::Cell::new(0);
    let work = || {
        times.set(times.get() + 1);
        full()
    };
    state.with_reserve(work).unwrap_err();
    assert_eq!(times.take(), 2);
    assert!(!in_the_way.exists());
    state.with_reserve(work).unwrap_err();
    assert_eq!(times.take(), 1, "there was none to give back");
}
