//! The operator's log while nobody reads it (docs/internals/faults.md, row 75).

use std::io::{Read, pipe};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::support::{Client, Daemon, SOON, kill, request, script, until};
use rustix::process::Signal;

const MARKER: &str = "step-runner is listening on socket ";

/// Number of lines. They fill the pipe and the queue behind it several times.
const FLOOD: usize = 6_000;

/// A daemon whose stderr only the test reads.
struct Unread {
    child: Child,
    stderr: std::io::PipeReader,
}

impl Unread {
    /// Starts the daemon and reads to the end of its ready marker.
    fn start(folder: &Path) -> Self {
        let (mut stderr, writer) = pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_step-runner"))
            .args(["serve", "--socket"])
            .arg(folder.join("s.sock"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(writer)
            .spawn()
            .unwrap();
        let mut byte = [0];
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            stderr.read_exact(&mut byte).unwrap();
            line.extend(byte);
        }
        assert!(line.starts_with(MARKER.as_bytes()), "{}", String::from_utf8_lossy(&line));
        Self { child, stderr }
    }

    /// Makes many calls; the daemon logs a line about each.
    async fn flood(client: &Client, calls: usize) {
        client.try_run(request("1", &script("exec sleep 600"))).await.unwrap();
        for number in 0..calls {
            client.try_run(request("1", &script(&format!("exit {number}")))).await.unwrap();
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn fault_75_a_log_that_nobody_reads_holds_up_no_call_and_its_lost_lines_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Unread::start(folder.path());
    let client = Client::connect(&folder.path().join("s.sock")).await;
    Unread::flood(&client, FLOOD).await;
    client.status("1").await;
    // The test reads again.
    let mut stderr = daemon.stderr.try_clone().unwrap();
    let (heard, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = stderr.read(&mut chunk) {
            text.extend_from_slice(&chunk[..read]);
            heard.send(text.clone()).ok();
        }
    });
    let mut text = String::new();
    until("the operator hears of lost lines", || {
        text = lines
            .try_iter()
            .last()
            .map_or_else(|| std::mem::take(&mut text), |text| String::from_utf8_lossy(&text).into_owned());
        text.contains(" lines of this log were dropped")
    })
    .await;
    let before = text.split(" lines of this log were dropped").next().unwrap();
    let lost: usize = before.rsplit(' ').next().unwrap().parse().unwrap();
    let told = before.matches("with another content").count();
    assert_eq!(told + lost, FLOOD, "each line is there or counted");
    client.finish("1").await;
    kill(daemon.child.id() as i32, Signal::TERM);
    assert!(daemon.child.wait().unwrap().success());
}

#[tokio::test]
async fn fault_75_a_log_that_nobody_reads_holds_up_no_stop() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Unread::start(folder.path());
    let client = Client::connect(&folder.path().join("s.sock")).await;
    Unread::flood(&client, FLOOD / 6).await;
    client.finish("1").await;
    let start = Instant::now();
    kill(daemon.child.id() as i32, Signal::TERM);
    assert!(daemon.child.wait().unwrap().success());
    assert!(start.elapsed() < SOON);
}

#[tokio::test]
async fn lines_name_the_caller_and_the_duration_in_order_and_have_no_field_without_a_value() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.try_run(request("1", &script("true"))).await.unwrap();
    client.ended("1").await;
    until("the end is told", || daemon.said().contains("job ended")).await;
    let said = daemon.said();
    let line = |text: &str| said.lines().find(|line| line.contains(text)).unwrap().to_owned();
    let (uid, pid) = (rustix::process::geteuid().as_raw(), std::process::id());
    let registered = line("job registered");
    assert!(registered.contains(&format!("peer=uid {uid} pid {pid}")), "{said}");
    let at = |text: &str| said.lines().position(|line| line.contains(text)).unwrap();
    assert!(at("job registered") < at("job ended"), "{said}");
    assert!(registered.contains(" took=") && line("job ended").contains(" took="), "{said}");
    assert!(!said.contains("=\"\""), "{said}");
}
