//! Daemons that are absent, do not answer, or go away.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{failing_job, program, run, stderr};
use crate::fake::{Daemon, Job};

#[test]
fn no_daemon_is_69_on_one_line_with_a_remedy() {
    for command in [["status"].as_slice(), &["follow", "42"], &["finish", "42"], &["cancel", "42"]] {
        let words = [command, &["--socket", "/no/such.sock", "--connect-timeout", "50ms"]].concat();
        let output = run(&words);
        assert_eq!(output.status.code(), Some(69), "{words:?}");
        let text = stderr(&output);
        assert!(text.contains("/no/such.sock") && text.contains("step-runner serve"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn without_a_socket_only_those_wait_who_start_a_job_or_ask_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    for command in [["status"].as_slice(), &["follow", "42"], &["finish", "42"], &["cancel", "42"]] {
        let start = Instant::now();
        let output = run(&[command, &["--socket", socket.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        // A wait would take 30 s.
        assert!(start.elapsed() < Duration::from_secs(10), "{command:?}");
    }
    let mut waiting: Vec<_> = [["status", "--wait"].as_slice(), &["submit", "builtin://x"]]
        .into_iter()
        .map(|command| {
            let mut command = program(command);
            command.arg("--socket").arg(&socket).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
            assert!(said.next().unwrap().unwrap().contains("waiting for the daemon"));
            child
        })
        .collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let entered = runtime.enter();
    let daemon = Daemon::default();
    daemon.script.lock().unwrap().next = Some(failing_job());
    drop(daemon.serve(&socket));
    drop(entered);
    for child in &mut waiting {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_daemon_that_stands_still_is_waited_for_no_longer_than_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    let output = run(&["status", "--socket", path.to_str().unwrap(), "--connect-timeout", "1s"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(stderr(&output).contains("no answer came in time"), "{output:?}");
    // One attempt without a limit takes 15 s.
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
}

/// Serves a daemon on a runtime of its own, whose end is the daemon's.
fn served(daemon: &Daemon) -> (tempfile::TempDir, std::path::PathBuf, tokio::runtime::Runtime) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let entered = runtime.enter();
    drop(daemon.serve(&socket));
    drop(entered);
    (folder, socket, runtime)
}

#[test]
fn a_daemon_that_is_away_is_told_of_and_the_way_back_names_the_byte() {
    let daemon = Daemon::with_job("42", Job { running: true, ..failing_job() });
    let (_folder, socket, runtime) = served(&daemon);
    let log = failing_job().log;
    let followers = [false, true].map(|quiet| {
        let mut command = program(&["follow", "42", "--output", "raw", "--reconnect-timeout", "3s"]);
        command.arg("--socket").arg(&socket).args(quiet.then_some("--quiet"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut vec![0; log.len()]).unwrap();
        (child, quiet)
    });
    std::fs::remove_file(&socket).unwrap();
    runtime.shutdown_background();
    for (child, quiet) in followers {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        let text = stderr(&output);
        let told = text.matches("step-runner: the daemon is away; the job goes on; trying until ").count();
        assert_eq!(told, usize::from(!quiet), "{text}");
        assert!(text.contains(&format!("{} 42 --offset {}`", socket.display(), log.len())), "{text}");
    }
}

#[test]
fn a_daemon_that_is_back_is_told_of() {
    let daemon = Daemon::with_job("42", Job { running: true, ..failing_job() });
    let (_folder, socket, runtime) = served(&daemon);
    let mut command = program(&["follow", "42", "--output", "raw", "--socket"]);
    let mut child = command.arg(&socket).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut vec![0; failing_job().log.len()]).unwrap();
    std::fs::remove_file(&socket).unwrap();
    runtime.shutdown_background();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().starts_with("step-runner: the daemon is away; "));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let entered = runtime.enter();
    drop(daemon.serve(&socket));
    drop(entered);
    assert_eq!(said.next().unwrap().unwrap(), "step-runner: the daemon is back");
    child.kill().unwrap();
    child.wait().unwrap();
}
