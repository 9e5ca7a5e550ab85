//! Early ends of `run`, before its job's end: Ctrl-C, signals, and a reader that closes the pipe.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::{Scene, failing_job, program, stderr};
use crate::fake::{Daemon, Job, entry, results};
use crate::support::{names, wait_for};
use tonic::Status;

/// Starts `run` with a job that prints one line and goes on running. Waits for the line.
fn run_running_job(stubborn: bool) -> (Scene, Child) {
    let daemon = Daemon::default();
    let log = entry("01O", "up");
    daemon.script.lock().unwrap().next =
        Some(Job { log, running: true, stubborn, results: results(&[], -1), ..Job::default() });
    let scene = Scene::new(daemon);
    let mut command =
        hearing_hangups(&scene.command(&["run", "builtin://x", "--id", "9", "--output", "raw"]));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 35]).unwrap();
    (scene, child)
}

/// Returns the command with the default action of SIGHUP. The tests may run below `nohup`, which ignores it.
pub(super) fn hearing_hangups(command: &Command) -> Command {
    let mut hearing = Command::new("env");
    hearing.arg("--default-signal=HUP").arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        hearing.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => hearing.env(name, value),
            None => hearing.env_remove(name),
        };
    }
    hearing
}

fn send(child: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

fn interrupt(child: &Child) {
    send(child, Signal::INT);
}

#[test]
fn a_signal_ends_a_run_that_waits_for_its_document() {
    use std::os::unix::process::ExitStatusExt as _;
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("steps.yml");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut child = program(&["run", fifo.to_str().unwrap()]).spawn().unwrap();
    // This open returns once the program has opened the FIFO to read it.
    let writer = std::fs::File::options().write(true).open(&fifo).unwrap();
    // Whoever starts the tests may ignore SIGINT and SIGHUP, which the program inherits.
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    drop(writer);
}

#[test]
fn signals_while_the_own_daemon_starts_leave_no_folder() {
    let (temp, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let steps = other.path().join("steps.yml");
    std::fs::write(&steps, "[{name: a, script: 'sleep 0.05'}]").unwrap();
    for _ in 0..20 {
        let mut command = program(&["run", steps.to_str().unwrap()]);
        let mut child =
            command.stdout(Stdio::null()).env("TMPDIR", temp.path()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the daemon's folder", || (!names(temp.path()).is_empty()).then_some(()));
        for _ in 0..2 {
            send(&child, Signal::TERM);
        }
        child.wait().unwrap();
        wait_for("its removal", || names(temp.path()).is_empty().then_some(()));
    }
}

#[test]
fn ctrl_c_cancels_waits_for_the_end_and_ends_with_130() {
    let (scene, child) = run_running_job(false);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(stderr(&output).contains("job 9 was cancelled"), "{output:?}");
    let script = scene.daemon.script.lock().unwrap();
    assert_eq!(
        (script.cancelled.as_slice(), script.finished.as_slice()),
        (["9".into()].as_slice(), ["9".into()].as_slice())
    );
}

#[test]
fn a_second_ctrl_c_does_not_wait() {
    let (scene, mut child) = run_running_job(true);
    interrupt(&child);
    let mut said = BufReader::new(child.stderr.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(scene.daemon.script.lock().unwrap().finished, ["9"]);
}

#[test]
fn a_signal_to_end_cancels_waits_for_the_end_and_the_second_does_not_wait() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let (scene, child) = run_running_job(false);
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(stderr(&output).contains("job 9 was cancelled"), "{output:?}");
        assert_eq!(scene.daemon.script.lock().unwrap().cancelled, ["9"]);

        let (scene, mut child) = run_running_job(true);
        send(&child, signal);
        let mut said = BufReader::new(child.stderr.take().unwrap());
        said.read_line(&mut String::new()).unwrap();
        send(&child, signal);
        if signal == Signal::HUP {
            // Several of them come from a terminal that closes: nobody is impatient.
            assert!(child.try_wait().unwrap().is_none());
            send(&child, Signal::TERM);
        }
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(scene.daemon.script.lock().unwrap().finished, ["9"]);
    }
}

#[test]
fn a_hangup_that_the_caller_ignores_does_not_end_the_job() {
    let daemon = Daemon::default();
    let log = entry("01O", "up");
    daemon.script.lock().unwrap().next =
        Some(Job { log, running: true, results: results(&[], -1), ..Job::default() });
    let scene = Scene::new(daemon);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_step-runner")]);
    command.args(["run", "builtin://x", "--id", "9", "--output", "raw", "--socket", &scene.socket()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 35]).unwrap();
    send(&child, Signal::HUP);
    send(&child, Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert!(!stderr(&output).contains("SIGHUP"), "{output:?}");
}

#[test]
fn a_reader_of_stdout_that_goes_away_ends_run_quietly_and_a_daemons_job_goes_on() {
    let daemon = Daemon::default();
    let log = entry("01O", "much").repeat(100_000);
    daemon.script.lock().unwrap().next = Some(Job { log, results: results(&[], 0), ..Job::default() });
    let scene = Scene::new(daemon);
    let mut command = scene.command(&["run", "builtin://x", "--id", "9"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.is_empty(), "{output:?}");
    let script = scene.daemon.script.lock().unwrap();
    assert!(script.finished.is_empty() && script.cancelled.is_empty());
}

#[test]
fn fault_92_a_finish_that_fails_does_not_change_how_the_job_ended() {
    let success = || Job { log: entry("01O", "done"), results: results(&["s"], 0), ..Job::default() };
    for (job, code) in [(success(), 0), (failing_job(), 3)] {
        for failure in
            [Status::unavailable("shutting_down: the daemon stops"), Status::internal("internal: a defect")]
        {
            let daemon = Daemon::default();
            {
                let mut script = daemon.script.lock().unwrap();
                (script.next, script.finish_failure) = (Some(job.clone()), Some(failure.clone()));
            }
            let scene = Scene::new(daemon);
            let output = scene.run(&["run", "builtin://x", "--id", "9", "--reconnect-timeout", "300ms"]);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{failure}: {said}");
            assert!(
                said.contains("step-runner: job 9 has ended, but was not removed: "),
                "{failure}: {said}"
            );
            assert!(said.contains(failure.message()), "{failure}: {said}");
        }
    }
}
