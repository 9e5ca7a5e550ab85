//! The faults that a stage survives, and the faults that end it (custom-executor.md §8, §12).

use rustix::process::Signal;

use crate::custom_executor::runner::{Runner, Running, Seen};
use crate::support::{Daemon, Setup, contains, kill, names, wait_for};

/// Starts a stage that prints, waits until `go` exists, prints again and exits with 6.
fn waiting(runner: &mut Runner) -> Running {
    let (begun, go) = (runner.file("begun"), runner.file("go"));
    for file in [&begun, &go] {
        std::fs::remove_file(file).ok();
    }
    let running = runner.start_stage(
        "build_script",
        format!(
            "seq 1 2000; touch {}; until [ -e {} ]; do sleep 0.02; done; seq 2001 4000; exit 6",
            begun.display(),
            go.display()
        ),
    );
    wait_for("the script", || begun.exists().then_some(()));
    running
}

fn numbers(to: u32) -> String {
    crate::support::numbered(to, "")
}

/// T8 in custom-executor.md §15.
#[test]
fn a_private_daemon_that_dies_is_brought_back_and_the_stage_goes_on() {
    let mut runner = Runner::new().prepared();
    let running = waiting(&mut runner);
    for _ in 0..3 {
        let daemon = runner.daemon_pid();
        kill(daemon, Signal::KILL);
        wait_for("a new daemon", || (runner.daemon_pid() != daemon).then_some(()));
    }
    std::fs::write(runner.file("go"), "").unwrap();
    let call = running.end().is(&Seen::BuildFailure(6));
    assert_eq!(call.stdout(), numbers(4000));
    assert_eq!(call.stderr(), "");
    // The daemon is also restarted if it dies between two stages.
    kill(runner.daemon_pid(), Signal::KILL);
    runner.stage("after_script", "true").is(&Seen::Success);
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

#[test]
fn a_private_daemon_is_not_brought_back_for_ever() {
    let mut runner = Runner::new().prepared();
    let running = waiting(&mut runner);
    let mut daemon = 0;
    for _ in 0..4 {
        wait_for("a new daemon", || (runner.daemon_pid() != daemon).then_some(()));
        daemon = runner.daemon_pid();
        kill(daemon, Signal::KILL);
    }
    let call = running.end().fails_with(&["has died 4 times"]);
    assert!(numbers(2000).starts_with(&call.stdout()), "as far as a daemon lived to serve it");
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

/// T8 in custom-executor.md §15.
#[test]
fn a_shared_daemon_that_comes_back_goes_on_with_the_stage() {
    let mut daemon = Daemon::start();
    let mut runner = Runner::shared(&daemon.socket).prepared();
    let running = waiting(&mut runner);
    daemon.kill();
    std::fs::write(runner.file("go"), "").unwrap();
    daemon.restart();
    let call = running.end().is(&Seen::BuildFailure(6));
    assert_eq!(call.stdout(), numbers(4000));
    runner.call(&["cleanup"]).is(&Seen::Success);
}

/// T8: the effect of the stage is unknown, so this is a system failure and the stage is never run again.
#[test]
fn a_stage_whose_keeper_dies_is_a_failure_of_the_system() {
    for shared in [false, true] {
        let daemon = Daemon::start();
        let runner = if shared { Runner::shared(&daemon.socket) } else { Runner::new() };
        let mut runner = runner.prepared();
        let running = waiting(&mut runner);
        let keeper = if shared { daemon.keeper_pid().unwrap() } else { runner.keeper_pid() };
        // Bytes still in a pipe are lost with the keeper.
        let jobs = if shared { daemon.state_dir() } else { runner.state().join("d") }.join("jobs");
        let log = |key: &String| std::fs::read(jobs.join(key).join("log")).unwrap_or_default();
        let is_logged = || names(&jobs).iter().any(|key| contains(&log(key), " 01O 2000\n"));
        wait_for("the log", || is_logged().then_some(()));
        kill(keeper, Signal::KILL);
        let call = running.end().fails_with(&["interrupted", "effect is unknown"]);
        assert_eq!(call.stdout(), numbers(2000));
        // The next stage gets a new keeper.
        runner.stage("after_script", "true").is(&Seen::Success);
        runner.call(&["cleanup"]).is(&Seen::Success);
        runner.left_nothing();
    }
}

#[test]
fn a_shared_daemon_that_stays_away_is_named() {
    let mut daemon = Daemon::start();
    let mut runner = Runner::shared(&daemon.socket).option("--reconnect-timeout=1s").prepared();
    let running = waiting(&mut runner);
    // Before, the daemon is away from the request for the stage.
    running.wait_until_printed();
    daemon.kill();
    running.end().fails_with(&["out of reach", daemon.socket.to_str().unwrap()]);
}

/// A repeated call joins the running stage instead of running it twice.
#[test]
fn a_second_run_of_the_same_stage_joins_the_first() {
    let daemon = Daemon::start();
    let mut runner = Runner::shared(&daemon.socket).prepared();
    let (begun, go) = (runner.file("begun"), runner.file("go"));
    let content = format!(
        "echo run >>{}; until [ -e {} ]; do sleep 0.02; done; echo end",
        begun.display(),
        go.display()
    );
    let script = runner.script(content.as_bytes());
    let words = ["run", script.to_str().unwrap(), "build_script"];
    let (one, two) = (runner.start(&words), runner.start(&words));
    wait_for("the script", || begun.exists().then_some(()));
    // Both calls follow the stage.
    let socket = daemon.socket.clone();
    wait_for("two followers", || (connections(&socket) >= 2).then_some(()));
    std::fs::write(go, "").unwrap();
    let ends = [one.end(), two.end()];
    assert!(ends.iter().any(|call| call.seen == Seen::Success && call.stdout() == "end\n"), "{ends:?}");
    assert_eq!(std::fs::read_to_string(begun).unwrap(), "run\n");
}

/// Returns the number of open connections to a socket, from the kernel's list.
fn connections(socket: &std::path::Path) -> usize {
    let list = std::fs::read_to_string("/proc/net/unix").unwrap();
    // State 03: connected.
    list.lines().filter(|line| line.ends_with(socket.to_str().unwrap()) && line.contains(" 03 ")).count()
}

#[test]
fn a_full_queue_is_waited_out() {
    let daemon = Setup::new().option("max-running", "1").option("max-queued", "0").start();
    let mut first = Runner::shared(&daemon.socket).prepared();
    let mut second = Runner::shared(&daemon.socket).variable("CI_JOB_ID", "78").prepared();
    let running = waiting(&mut first);
    let refused = second.script(b"echo never");
    let refused =
        second.call(&["--admission-timeout=100ms", "run", refused.to_str().unwrap(), "build_script"]);
    refused.fails_with(&["refused for now", "queue_full"]);
    let patient = second.start_stage("build_script", "echo mine");
    std::fs::write(first.file("go"), "").unwrap();
    running.end().is(&Seen::BuildFailure(6));
    assert_eq!(patient.end().is(&Seen::Success).stdout(), "mine\n");
}

#[test]
fn the_daemons_own_limit_is_a_failure_of_the_system() {
    let daemon = Setup::new().option("runaway-after", "3s").option("reap-interval", "1s").start();
    let mut runner = Runner::shared(&daemon.socket).prepared();
    let call = runner.stage("build_script", "echo begun; sleep 600");
    assert_eq!(call.fails_with(&["time limit"]).stdout(), "begun\n");
}
