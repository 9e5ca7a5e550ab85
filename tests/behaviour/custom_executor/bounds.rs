//! The driver removes and kills only what it made itself, whatever variables, command line and files say.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::custom_executor::runner::{Runner, Seen};
use crate::support::{is_alive, kill, wait_for};

/// Makes a folder with a file that the driver must not touch.
fn bystander(runner: &Runner, name: &str) -> PathBuf {
    let folder = runner.file(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(folder.join("file"), "kept").unwrap();
    folder
}

#[track_caller]
fn is_untouched(folder: &Path) {
    assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "kept");
    assert_eq!(crate::support::names(folder), ["file"]);
}

/// An unrelated process. Dropped, it is killed.
struct Stranger(Child);

impl Stranger {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_folder_that_a_variable_and_an_option_name_together_is_left_alone() {
    let runner = Runner::new();
    let root = bystander(&runner, "home");
    let folder = bystander(&runner, "home/own");
    let tmpdir = runner.file("elsewhere/own");
    let mut runner = runner.root(root.to_str().unwrap());
    for call in ["prepare", "cleanup", "cleanup"] {
        let mut command = runner.command(&[call]);
        runner
            .started(command.env("TMPDIR", &tmpdir))
            .end()
            .fails_with(&[folder.to_str().unwrap(), "not ours"]);
        is_untouched(&folder);
    }
    for relative in ["home", "../home"] {
        runner = runner.root(relative);
        runner.call(&["prepare"]).is(&Seen::BuildFailure(1));
        runner.call(&["cleanup"]).fails_with(&["is not absolute"]);
    }
    is_untouched(&folder);
    assert!(runner.processes().is_empty());
}

/// What a script of the job does to the state of its attempt, in its folder `$STATE`. `$FORGED` has a record of a
/// stranger in every form that a driver, a daemon and a keeper have ever read.
const DEEDS: [&str; 9] = [
    "rm step-runner-custom-executor",
    "rm -r step-runner-custom-executor; mkdir step-runner-custom-executor",
    "cp $FORGED meta.json; cp $FORGED d/keeper.json; echo ../bystander >>jobs; ln -s $BYSTANDER bin/link",
    "rm -f meta.json jobs d/keeper.json",
    "echo '{' >meta.json; echo '{' >d/keeper.json; head -c 100000 /dev/urandom >jobs",
    "rm -f s d/keeper.sock; ln -s $BYSTANDER/file s",
    "rm -rf d; ln -s $BYSTANDER d",
    "cd /; rm -rf $STATE",
    "cd /; mv $STATE $STATE-moved",
];

/// The files of an attempt say nothing about who is who: the kernel does.
#[test]
fn fault_100_what_a_script_writes_into_the_state_saves_no_process_and_ends_no_stranger() {
    for deed in DEEDS {
        let stranger = Stranger::start();
        let pid = stranger.0.id();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let start: u64 = stat.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap().parse().unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let mut runner = Runner::new().prepared();
        let (daemon, keeper) = (runner.daemon_pid(), runner.keeper_pid());
        let folder = bystander(&runner, "bystander");
        let forged = serde_json::json!({
            "version": "1", "prefix": "", "address": format!("unix:{}/file", folder.display()), "private": false,
            "daemon": {"boot_id": boot.trim(), "pid": pid, "start_time": start, "lifetime": 0},
            "owner": {"runner": {"boot_id": boot.trim(), "pid": pid, "start_time": start}, "private_dir": "/"},
            "boot_id": boot.trim(), "pid": pid, "start_time": start, "protocol": 1, "cgroups": [folder],
        });
        let file = runner.file("forged");
        std::fs::write(&file, forged.to_string()).unwrap();
        let begun = runner.file("begun");
        let script = format!(
            "STATE={}; FORGED={}; BYSTANDER={}; cd $STATE; (exec -a {}/child setsid sleep 600) & {deed}; touch {}; sleep 600",
            runner.state().display(),
            file.display(),
            folder.display(),
            begun.display(),
            begun.display(),
        );
        let mut running = runner.start_stage("build_script", script);
        // A stage whose log is removed is lost, and ended by the driver itself, perhaps before the script goes on.
        wait_for("the script", || (begun.exists() || running.has_ended()).then_some(()));
        // The driver is killed, so that nothing but `cleanup` ends the stage.
        if !running.has_ended() {
            running.signal(Signal::KILL);
        }
        drop(running.end());
        let call = runner.call(&["cleanup"]);
        assert_eq!(call.seen, Seen::Success, "{deed}: {}", call.stderr());
        assert!(is_alive(pid as i32), "{deed}");
        is_untouched(&folder);
        assert!(!is_alive(daemon) && !is_alive(keeper), "{deed}");
        // Nobody can know where a script has moved it to.
        std::fs::remove_dir_all(format!("{}-moved", runner.state().display())).ok();
        runner.left_nothing();
    }
}

/// A process of the job that looks like the private daemon or its keeper is ended like the others.
#[test]
fn fault_100_a_process_in_disguise_is_ended_and_saves_none() {
    let mut runner = Runner::new().prepared();
    let (daemon, keeper) = (runner.daemon_pid(), runner.keeper_pid());
    let (state, begun) = (runner.state(), runner.file("begun"));
    // Each has the argument of its namesake; `sleep` sees them as the arguments of a shell.
    let script = format!(
        "cat >{begun}.sh <<'END'\nsleep 600 & wait\nEND\ncp /bin/sh {begun}.bin\n\
         printf '#!/bin/sh\nexec sleep 600\n' >serve; cp serve keeper\n\
         {begun}.bin serve --socket {state}/s --state-dir {state}/d &\n\
         {begun}.bin keeper --state-dir {state}/d &\n\
         touch {begun}; wait; sleep 600",
        begun = begun.display(),
        state = state.display(),
    );
    let running = runner.start_stage("build_script", script);
    wait_for("the script", || begun.exists().then_some(()));
    running.signal(Signal::KILL);
    drop(running.end());
    kill(daemon, Signal::KILL);
    runner.call(&["cleanup"]).is(&Seen::Success);
    assert!(!is_alive(daemon) && !is_alive(keeper));
    runner.left_nothing();
}

#[test]
fn links_that_a_script_leaves_are_removed_and_not_followed() {
    let mut runner = Runner::new().prepared();
    let folder = bystander(&runner, "bystander");
    let (state, target) = (runner.state(), folder.display());
    let script = format!(
        "cd {} && ln -s {target} here && ln -s {target} d/there && rm -f daemon.log && ln -s {target}/file daemon.log",
        state.display()
    );
    runner.stage("build_script", script).is(&Seen::Success);
    runner.stage("after_script", "true").is(&Seen::Success);
    runner.call(&["cleanup"]).is(&Seen::Success);
    is_untouched(&folder);
    runner.left_nothing();
}

#[test]
fn only_a_file_in_the_private_directory_takes_the_exit_code() {
    let runner = Runner::new();
    let folder = bystander(&runner, "bystander");
    let file = folder.join("file");
    let inside = runner.tmpdir().join("../bystander/file");
    for named in [&file, &inside] {
        let mut runner = Runner::new().prepared().env("BUILD_EXIT_CODE_FILE", named.to_str().unwrap());
        for script in ["true", "exit 9"] {
            let call = runner.stage("build_script", script);
            assert!(call.stderr().contains("warning: BUILD_EXIT_CODE_FILE"), "{}", call.stderr());
        }
        is_untouched(&folder);
    }
    // A link in place of the file is replaced; its target is not changed.
    let mut runner = runner.prepared();
    symlink(&file, runner.code_file()).unwrap();
    runner.stage("build_script", "exit 9").is(&Seen::BuildFailure(9));
    is_untouched(&folder);
}
