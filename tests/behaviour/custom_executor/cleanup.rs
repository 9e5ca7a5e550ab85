//! Tests `cleanup` in every situation (custom-executor.md §9).

use std::os::unix::fs::symlink;

use rustix::process::Signal;

use crate::custom_executor::runner::{Runner, Seen};
use crate::support::{Daemon, Setup, kill, wait_for};

/// Starts a stage that runs until it is ended, and waits for its begin.
fn endless(runner: &mut Runner) -> crate::custom_executor::runner::Running {
    let begun = runner.file("begun");
    let running = runner.start_stage(
        "build_script",
        format!(
            "echo begun; (exec -a {}/child sleep 600) & touch {}; wait",
            begun.display(),
            begun.display()
        ),
    );
    wait_for("the script", || begun.exists().then_some(()));
    running
}

/// T7 in custom-executor.md §15.
#[test]
fn cleanup_ends_a_stage_that_is_still_running() {
    let daemon = Daemon::start();
    for runner in [Runner::new(), Runner::shared(&daemon.socket)] {
        let mut runner = runner.prepared();
        let running = endless(&mut runner);
        runner.call(&["cleanup"]).is(&Seen::Success);
        let call = running.end().fails_with(&["someone else"]);
        assert_eq!(call.stdout(), "begun\n");
        runner.left_nothing();
    }
    assert_eq!(daemon.folders(), [""; 0]);
}

/// T7 in custom-executor.md §15.
#[test]
fn cleanup_has_nothing_to_say_where_nothing_is_left() {
    let mut runner = Runner::new();
    let nothing = |runner: &Runner| {
        let call = runner.call(&["cleanup"]).is(&Seen::Success);
        assert_eq!((call.stdout(), call.stderr()), (String::new(), String::new()));
    };
    // There was no prepare, and the state root need not exist.
    nothing(&runner);
    runner.config().is(&Seen::Success);
    nothing(&runner);
    let runner = runner.prepared();
    nothing(&runner);
    nothing(&runner);
    runner.left_nothing();
    // Without a private directory cleanup touches nothing.
    let runner = Runner::new().prepared();
    let mut command = runner.command(&["cleanup"]);
    runner.started(command.env("TMPDIR", "")).end().is(&Seen::Success);
    assert!(runner.state().join("meta.json").exists());
}

/// T7: one of them cleans up, the others wait.
#[test]
fn many_cleanups_at_once_are_one() {
    let mut runner = Runner::new().prepared();
    let running = endless(&mut runner);
    let cleanups: Vec<_> = (0..4).map(|_| runner.start(&["cleanup"])).collect();
    for cleanup in cleanups {
        cleanup.end().is(&Seen::Success);
    }
    running.end().is(&Seen::SystemFailure);
    runner.left_nothing();
}

#[test]
fn cleanup_after_a_killed_preparation_leaves_no_daemon() {
    for delay in [0, 5, 20, 40, 80, 160] {
        let runner = Runner::new();
        let prepare = runner.start(&["prepare"]);
        std::thread::sleep(std::time::Duration::from_millis(delay));
        prepare.signal(Signal::KILL);
        drop(prepare.end());
        runner.call(&["cleanup"]).is(&Seen::Success);
        runner.left_nothing();
    }
}

/// T6 in custom-executor.md §15.
#[test]
fn cleanup_after_a_killed_driver_ends_the_stage() {
    let daemon = Daemon::start();
    for runner in [Runner::new(), Runner::shared(&daemon.socket)] {
        let mut runner = runner.prepared();
        let running = endless(&mut runner);
        running.signal(Signal::KILL);
        assert!(matches!(running.end().seen, Seen::Unknown(_)));
        runner.call(&["cleanup"]).is(&Seen::Success);
        runner.left_nothing();
    }
    assert_eq!(daemon.folders(), [""; 0]);
}

/// Starts a job with a private daemon and kills its driver. Returns the pids of daemon and keeper.
fn abandoned() -> (Runner, i32, i32) {
    let mut runner = Runner::new().prepared();
    let running = endless(&mut runner);
    running.signal(Signal::KILL);
    drop(running.end());
    let (daemon, keeper) = (runner.daemon_pid(), runner.keeper_pid());
    (runner, daemon, keeper)
}

/// T8 in custom-executor.md §15.
#[test]
fn cleanup_after_a_killed_daemon_leaves_no_process() {
    let (runner, daemon, _) = abandoned();
    kill(daemon, Signal::KILL);
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

/// T8 in custom-executor.md §15.
#[test]
fn cleanup_after_a_killed_keeper_leaves_no_process() {
    let (runner, _, keeper) = abandoned();
    kill(keeper, Signal::KILL);
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

/// T8 in custom-executor.md §15.
#[test]
fn cleanup_after_a_killed_daemon_and_keeper_leaves_no_process() {
    let (runner, daemon, keeper) = abandoned();
    kill(daemon, Signal::KILL);
    kill(keeper, Signal::KILL);
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

/// T8: cleanup ends the recorded process, whoever listens on the socket now.
#[test]
fn cleanup_after_the_socket_was_replaced_leaves_no_process() {
    let runner = Runner::new().prepared();
    let socket = runner.state().join("s");
    std::fs::remove_file(&socket).unwrap();
    let other = Daemon::start();
    symlink(&other.socket, &socket).unwrap();
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
    assert!(crate::support::is_alive(other.pid()));
}

/// Cleanup ends only jobs whose ids have the prefix of the attempt.
#[tokio::test]
async fn cleanup_touches_no_other_job_of_a_shared_daemon() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    for id in ["other", "ce-77-custom-executor11-s-build_script", "ce-78-custom-executor1-s-build_script"] {
        client.run(id, "exec sleep 600").await;
    }
    client.run("ce-77-custom-executor1-lost-build_script", "exec sleep 600").await;
    let runner = Runner::shared(&daemon.socket).prepared();
    runner.call(&["cleanup"]).is(&Seen::Success);
    let jobs = client.jobs().await;
    assert_eq!(jobs.len(), 3);
    assert!(jobs.iter().all(|job| !job.finished));
}

#[test]
fn keep_leaves_the_state_and_the_log() {
    let mut runner = Runner::new().option("--keep").prepared();
    runner.stage("build_script", "true").is(&Seen::Success);
    runner.call(&["cleanup"]).is(&Seen::Success);
    assert!(
        std::fs::read_to_string(runner.state().join("daemon.log")).unwrap().contains("listening on socket")
    );
    wait_for("the daemon's end", || runner.processes().is_empty().then_some(()));
}

#[test]
fn a_daemon_that_cannot_be_reached_is_named() {
    let mut daemon = Daemon::start();
    let runner = Runner::shared(&daemon.socket).option("--connect-timeout=1s").prepared();
    daemon.kill();
    let call = runner.call(&["cleanup"]).fails_with(&["cannot reach the daemon"]);
    assert_eq!(call.stderr().lines().count(), 1, "{}", call.stderr());
}

/// Starts a job on a daemon, kills driver and daemon, and cleans up in vain.
fn cleaned_up_in_vain() -> (Daemon, Runner) {
    let mut daemon = Daemon::start();
    let mut runner = Runner::shared(&daemon.socket).option("--connect-timeout=1s").prepared();
    runner.stage("prepare_script", "true").is(&Seen::Success);
    let running = endless(&mut runner);
    running.signal(Signal::KILL);
    drop(running.end());
    daemon.kill();
    let call =
        runner.call(&["cleanup"]).fails_with(&["build_script may be left there", "call cleanup again"]);
    assert!(!call.stderr().contains("prepare_script"), "a stage that has ended: {}", call.stderr());
    assert_eq!(call.stderr().lines().count(), 1, "{}", call.stderr());
    assert!(!runner.processes().is_empty(), "the stage goes on");
    (daemon, runner)
}

/// A job of a daemon that is away is ended once the daemon is back (custom-executor.md §9).
#[test]
fn fault_115_jobs_of_a_daemon_that_is_away_are_ended_by_the_next_cleanup() {
    for by_another in [false, true] {
        let (mut daemon, runner) = cleaned_up_in_vain();
        daemon.restart();
        if by_another {
            // The Runner has removed the private directory.
            std::fs::remove_dir_all(runner.tmpdir()).unwrap();
            let mut other = Runner::shared(&daemon.socket).root(runner.file("state").to_str().unwrap());
            // The Runner names each private directory differently.
            other.attempt();
            let other = other.variable("CI_JOB_ID", "78").option("--abandon-after=0s");
            other.call(&["cleanup"]).is(&Seen::Success);
        } else {
            runner.call(&["cleanup"]).is(&Seen::Success);
        }
        runner.left_nothing();
        assert_eq!(daemon.folders(), [""; 0]);
    }
}

/// No job lives as long as that, so nobody is asked for it any more.
#[test]
fn fault_115_the_list_of_jobs_is_not_kept_for_ever() {
    let (_daemon, runner) = cleaned_up_in_vain();
    let mark = std::fs::File::open(runner.state().join("step-runner-custom-executor")).unwrap();
    mark.set_modified(std::time::UNIX_EPOCH).unwrap();
    runner.call(&["cleanup"]).is(&Seen::SystemFailure);
    assert!(!runner.state().exists());
}

/// A stage that waits for its place is not started after a `cleanup` that has found nothing to end.
#[test]
fn fault_116_a_stage_that_waits_for_admission_does_not_outlive_cleanup() {
    let daemon = Setup::new().option("max-running", "1").option("max-queued", "0").start();
    let mut first = Runner::shared(&daemon.socket).prepared();
    let mut second = Runner::shared(&daemon.socket).variable("CI_JOB_ID", "78").prepared();
    let running = endless(&mut first);
    let begun = second.file("begun");
    let waiting = second.start_stage("build_script", format!("touch {}", begun.display()));
    let jobs = second.state().join("jobs");
    wait_for("the note of the stage", || jobs.exists().then_some(()));
    second.call(&["cleanup"]).is(&Seen::Success);
    first.call(&["cleanup"]).is(&Seen::Success);
    drop(running.end());
    waiting.end().fails_with(&["cleanup has ended this job"]);
    assert!(!begun.exists());
    second.left_nothing();
    assert_eq!(daemon.folders(), [""; 0]);
}
