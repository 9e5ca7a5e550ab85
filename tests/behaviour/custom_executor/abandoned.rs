//! What has no Runner any more is removed by the watcher of its daemon, or by the next call (custom-executor.md §9).

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::custom_executor::runner::{Runner, Running, Seen};
use crate::support::{is_alive, kill, names, wait_for};

/// Prepares a job for a Runner that can be killed. Returns the Runner when the job is prepared.
fn prepared_by_another(runner: &Runner) -> Running {
    let done = runner.file("prepared");
    let driver = runner.command(&["prepare"]);
    let mut command = Command::new("sh");
    command.args(["-c", "done=$1; shift; \"$@\" && touch $done && exec sleep 600", "sh"]).arg(&done);
    command.arg(driver.get_program()).args(driver.get_args()).current_dir(runner.tmpdir()).env_clear();
    command.envs(driver.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = runner.started(&mut command);
    wait_for("prepare", || done.exists().then_some(()));
    running
}

/// Returns another job of the same Runner, with the same state root.
fn another_job(runner: &Runner) -> Runner {
    let mut other = Runner::new().root(runner.file("state").to_str().unwrap()).variable("CI_JOB_ID", "78");
    // The Runner names each private directory differently.
    other.attempt();
    other
}

/// Returns what is below the state root, without the folder `but`.
fn others(root: &Path, but: &Runner) -> Vec<String> {
    let own = but.tmpdir().file_name().unwrap().to_str().unwrap().to_owned();
    names(root).into_iter().filter(|name| *name != own).collect()
}

/// Nobody calls again after the Runner's death: the watcher does all the work.
#[test]
fn fault_102_what_a_killed_runner_leaves_is_removed_without_a_call() {
    for kills_daemon in [false, true] {
        let runner = Runner::new().option("--abandon-after=100ms");
        let other = prepared_by_another(&runner);
        let (daemon, keeper) = (runner.daemon_pid(), runner.keeper_pid());
        kill(other.pid(), Signal::KILL);
        if kills_daemon {
            kill(daemon, Signal::KILL);
        }
        drop(other.end());
        runner.left_nothing();
        assert!(!is_alive(daemon) && !is_alive(keeper));
    }
}

/// A driver that outlives its Runner keeps its job until it has ended.
#[test]
fn fault_102_a_call_that_outlives_its_runner_keeps_the_job() {
    let mut runner = Runner::new().option("--abandon-after=0s").option("--cancel-grace=1h");
    let other = prepared_by_another(&runner);
    let (begun, go) = (runner.file("begun"), runner.file("go"));
    let content =
        format!("touch {}; until [ -e {} ]; do sleep 0.02; done; echo done", begun.display(), go.display());
    let stage = runner.start_stage("build_script", content);
    wait_for("the script", || begun.exists().then_some(()));
    kill(other.pid(), Signal::KILL);
    drop(other.end());
    // Another job's call finds it in use, too.
    let mut second = another_job(&runner).option("--abandon-after=0s").prepared();
    assert_eq!(second.stage("build_script", "echo two").is(&Seen::Success).stdout(), "two\n");
    second.call(&["cleanup"]).is(&Seen::Success);
    std::fs::write(go, "").unwrap();
    assert_eq!(stage.end().is(&Seen::Success).stdout(), "done\n");
    runner.left_nothing();
}

/// Without a watcher, any call of another job removes it.
#[test]
fn fault_102_what_a_killed_runner_leaves_is_removed_by_the_next_call() {
    for call in ["prepare", "run", "cleanup"] {
        let runner = Runner::new();
        let other = prepared_by_another(&runner);
        let (watcher, daemon) = (runner.process("watch").unwrap(), runner.daemon_pid());
        let mut second = another_job(&runner).option("--abandon-after=0s");
        if call == "run" {
            second = second.prepared();
        }
        kill(other.pid(), Signal::KILL);
        kill(watcher, Signal::KILL);
        drop(other.end());
        let root = runner.file("state");
        match call {
            "run" => {
                // The stage ends when the other job is gone.
                let gone = runner.state();
                let script = format!("while [ -e {} ]; do sleep 0.02; done", gone.display());
                second.stage("build_script", script).is(&Seen::Success);
            }
            call => drop(second.call(&[call]).is(&Seen::Success)),
        }
        assert!(!runner.state().exists() && !is_alive(daemon), "{call}");
        second.call(&["cleanup"]).is(&Seen::Success);
        assert_eq!(others(&root, &second), [""; 0], "{call}");
        runner.left_nothing();
    }
}

/// The Runner lives, but its `cleanup` was killed: the private directory is gone.
#[test]
fn fault_102_what_a_killed_cleanup_leaves_is_removed_by_the_next_call() {
    let runner = Runner::new().prepared();
    let root = runner.file("state");
    // Other jobs of the Runner have left these: a call that has only made its folder, one that has taken its lock, and
    // one that was removing.
    for name in ["bare", "marked", "gone~gone", "gone~gone/d", "kept", "strange"] {
        let folder = root.join(name);
        std::fs::create_dir(&folder).unwrap();
        rustix::fs::chmod(&folder, rustix::fs::Mode::from_raw_mode(0o700)).unwrap();
    }
    for file in
        ["marked/step-runner-custom-executor", "locked~lock", "gone~lock", "gone~gone/d/file", "strange/file"]
    {
        std::fs::write(root.join(file), "").unwrap();
    }
    // One that was kept on purpose has no record of its Runner any more.
    for file in ["kept/step-runner-custom-executor", "kept/daemon.log"] {
        std::fs::write(root.join(file), "").unwrap();
    }
    let second = another_job(&runner).option("--abandon-after=0s");
    second.call(&["cleanup"]).is(&Seen::Success);
    let own = runner.tmpdir().file_name().unwrap().to_str().unwrap().to_owned();
    let mut left = names(&root);
    left.sort();
    let mut expected = vec![own.clone(), format!("{own}~lock"), "kept".into(), "strange".into()];
    expected.sort();
    left.retain(|name| *name != format!("{own}~lock"));
    expected.retain(|name| *name != format!("{own}~lock"));
    assert_eq!(left, expected, "a job that has its Runner stays");
    assert!(is_alive(runner.daemon_pid()));
    // The Runner removes the private directory, whatever became of `cleanup`.
    std::fs::remove_dir_all(runner.tmpdir()).unwrap();
    second.call(&["cleanup"]).is(&Seen::Success);
    for name in ["kept", "strange"] {
        std::fs::remove_dir_all(root.join(name)).unwrap();
    }
    runner.left_nothing();
}
