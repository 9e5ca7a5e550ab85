//! A file system that is full or has no free inodes (faults.md rows 25, 26).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Small, wait_until_exists};
use crate::support;
use crate::support::{Client, Setup, numbered, refused, request, script, wait_for};
use step_runner::journal;
use step_runner::journal::event::Event;
use step_runner::pb::v1::State;
use tempfile::TempDir;
use tonic::Code;

#[tokio::test]
async fn fault_25_output_waits_for_space_and_goes_on_when_there_is_some() {
    let Some(small) = Small::mount("fault_25", "size=3m") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let (go, done) = (elsewhere.path().join("go"), elsewhere.path().join("done"));
    let daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    client
        .run(
            "waits",
            &format!("echo ready; {}; seq 1 30000; touch {}", wait_until_exists(&go), done.display()),
        )
        .await;
    client.run("silent", &format!("echo ready; {}; exit 7", wait_until_exists(&done))).await;
    client.prints("waits", "ready").await;
    client.prints("silent", "ready").await;
    let ballast = small.fill();
    std::fs::write(&go, "").unwrap();
    // More than the pipe and one read of the keeper hold, 64 KiB each, so the step is blocked.
    let seen = client.log_so_far("waits").await;
    refused(client.try_run(request("new", &script("true"))).await, Code::ResourceExhausted, "disk_full");
    assert!(!done.exists());
    std::fs::remove_file(ballast).unwrap();
    assert_eq!(client.ended("waits").await.state(), State::Success);
    assert_eq!(client.output("waits").await, format!("ready\n{}", numbered(30_000, "")));
    assert!(client.log("waits").await.starts_with(&seen));
    assert_eq!(client.ended("silent").await.exit_code, 7);
    assert_eq!(client.run_to_end("new", &script("echo new")).await.state(), State::Success);
}

#[tokio::test]
async fn fault_86_a_full_disk_is_told_by_status_and_to_the_operator() {
    const FULL: &str = "paused: the disk of the state folder is full";
    let Some(small) = Small::mount("fault_86", "size=3m") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let go = elsewhere.path().join("go");
    let mut daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    client.run("1", &format!("echo ready; {}; seq 1 20000", wait_until_exists(&go))).await;
    client.prints("1", "ready").await;
    assert_eq!(client.status("1").await.message, "");
    let ballast = small.fill();
    std::fs::write(&go, "").unwrap();
    let status = client.reaches("1", "it is paused", |status| !status.message.is_empty()).await;
    assert_eq!((status.state(), status.message.as_str()), (State::Running, FULL));
    support::until("the operator is told", || daemon.said().contains(FULL)).await;
    assert_eq!(daemon.said().matches(FULL).count(), 1);
    // The next daemon reports it as well.
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    let status = client.reaches("1", "it is paused", |status| !status.message.is_empty()).await;
    assert_eq!((status.state(), status.message.as_str()), (State::Running, FULL));
    std::fs::remove_file(ballast).unwrap();
    let status = client.ended("1").await;
    assert_eq!((status.state(), status.message.as_str()), (State::Success, ""));
    support::until("the operator is told", || daemon.said().contains("takes logs again")).await;
    assert_eq!(client.output("1").await, format!("ready\n{}", numbered(20_000, "")));
}

#[tokio::test]
async fn fault_26_an_end_on_a_full_disk_is_told_and_survives_a_restart() {
    let Some(small) = Small::mount("fault_26", "size=3m") else { return };
    let mut daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    let job = Waiting::run(&client).await;
    let ballast = small.fill();
    job.go_on();
    let status = client.reaches("1", "its end", |status| status.finished).await;
    assert_eq!((status.state(), status.exit_code), (State::Failure, 7));
    daemon.kill();
    if let Some(keeper) = daemon.keeper_pid() {
        support::kill(keeper, rustix::process::Signal::KILL);
        wait_for("the keeper's end", || (!support::is_alive(keeper)).then_some(()));
    }
    std::fs::remove_file(ballast).unwrap();
    daemon.restart();
    let again = daemon.client().await.status("1").await;
    assert_eq!((again.state(), again.exit_code), (State::Failure, 7), "the reserve was not used");
    assert_eq!(again.end_time, status.end_time);
}

#[tokio::test]
async fn fault_26_without_room_for_files_a_job_is_refused_and_leaves_nothing() {
    let Some(small) = Small::mount("fault_26", "size=8m,nr_inodes=60") else { return };
    let daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    client.run_to_end("before", &script("echo served")).await;
    let folders = daemon.folders();
    // Tries every number of free inodes that is too small for a job.
    let mut files = Vec::new();
    let mut refusals = 0;
    for number in 0.. {
        let file = small.path().join(format!("file-{number}"));
        if std::fs::write(&file, "").is_err() {
            break;
        }
        files.push(file);
        let id = format!("job-{number}");
        match client.try_run(request(&id, &script("true"))).await {
            Ok(()) => {
                client.ended(&id).await;
                client.finish(&id).await;
            }
            refusal => {
                refused(refusal, Code::ResourceExhausted, "disk_full");
                refusals += 1;
            }
        }
        assert_eq!(daemon.folders(), folders, "job {number} left something");
    }
    assert!(refusals > 0);
    assert_eq!(client.output("before").await, "served\n");
    for file in files {
        std::fs::remove_file(file).unwrap();
    }
    assert_eq!(client.run_to_end("after", &script("echo after")).await.state(), State::Success);
}

/// The job `1`. It has printed `ready`, and exits with 7 once it is told to go on.
struct Waiting {
    go: PathBuf,
    /// Not on the file system that gets full.
    _dir: TempDir,
}

impl Waiting {
    async fn run(client: &Client) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let go = dir.path().join("go");
        client.run("1", &format!("echo ready; {}; exit 7", wait_until_exists(&go))).await;
        client.prints("1", "ready").await;
        Self { go, _dir: dir }
    }

    fn go_on(&self) {
        std::fs::write(&self.go, "").unwrap();
    }
}

/// Resource that a file system has run out of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Full {
    Bytes,
    Files,
}

#[tokio::test]
async fn fault_26_a_daemon_starts_again_on_a_full_disk_and_its_jobs_go_on() {
    for (full, has_reserve, durability) in
        [(Full::Bytes, true, "power"), (Full::Bytes, false, "crash"), (Full::Files, true, "crash")]
    {
        let Some(small) = Small::mount("fault_26", "size=3m,nr_inodes=60") else { return };
        let mut daemon = small.daemon(Setup::new().option("durability", durability));
        let client = daemon.client().await;
        client.run_to_end("old", &script("seq 1 20000")).await;
        let job = Waiting::run(&client).await;
        daemon.kill();
        let reserve = daemon.state_dir().join("reserve");
        if has_reserve {
            // The socket file was removed, so listening again needs a new file.
            std::fs::remove_file(&daemon.socket).unwrap();
        } else {
            std::fs::remove_file(&reserve).unwrap();
        }
        match full {
            Full::Bytes => drop(small.fill()),
            Full::Files => small.fill_with_files(),
        }
        daemon.restart();
        if !has_reserve {
            wait_for("the warning", || daemon.said().contains("daemon.json was not written").then_some(()));
        }
        assert_eq!(reserve.exists(), has_reserve && full == Full::Bytes, "{full:?}: the reserve is misspent");
        let client = daemon.client().await;
        assert_eq!(client.status("1").await.state(), State::Running);
        job.go_on();
        let status = client.reaches("1", "its end", |status| status.finished).await;
        assert_eq!((status.state(), status.exit_code), (State::Failure, 7));
        assert_eq!(client.output("1").await, "ready\n");
        // Only Finish frees space now.
        for id in ["1", "old"] {
            client.finish(id).await;
        }
        assert_eq!(client.run_to_end("new", &script("echo new")).await.state(), State::Success);
        assert_eq!(daemon.said().contains("daemon.json"), !has_reserve, "{full:?}: {}", daemon.said());
    }
}

#[tokio::test]
async fn fault_26_a_daemon_that_finds_no_room_to_listen_says_so_and_its_jobs_go_on() {
    let Some(small) = Small::mount("fault_26", "size=3m,nr_inodes=60") else { return };
    let mut daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    let job = Waiting::run(&client).await;
    daemon.kill();
    for path in [daemon.state_dir().join("reserve"), daemon.socket.clone()] {
        std::fs::remove_file(path).unwrap();
    }
    small.fill_with_files();
    let refused = Setup::new().option("state-limit", "0").refused(&daemon.socket);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("s.sock: No space left on device"), "{said}");
    assert!(said.contains("make room on its file system"), "{said}");
    std::fs::remove_file(small.path().join("file-0")).unwrap();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await.state(), State::Running);
    job.go_on();
    assert_eq!(client.reaches("1", "its end", |status| status.finished).await.exit_code, 7);
}

#[tokio::test]
async fn fault_26_a_daemon_starts_where_its_own_log_finds_no_room() {
    let Some(small) = Small::mount("fault_26", "size=1m,nr_inodes=4") else { return };
    small.fill_with_files();
    let log = small.path().join("log");
    let daemon = Setup::new().option("log-file", log.to_str().unwrap()).start();
    daemon.client().await;
    wait_for("the warning", || daemon.said().contains("log_file cannot be made").then_some(()));
}

#[tokio::test]
async fn fault_26_a_daemon_starts_where_its_ready_marker_finds_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    let mut daemon = daemon.arg("serve").arg("--socket").arg(&socket).stderr(full).spawn().unwrap();
    wait_for("the socket", || std::os::unix::net::UnixStream::connect(&socket).ok());
    Client::connect(&socket).await;
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}

/// Appends an event that fills the last disk block of a journal, so that the next event needs a new block.
fn fill_last_block(journal: &Path) {
    const BLOCK: usize = 4096;
    let mut lines = std::fs::read(journal).unwrap();
    let of_length = |length| Event::File { path: "x".repeat(length), device: 0, inode: 0 };
    let filling = (0..2 * BLOCK).map(|length| journal::encode(&of_length(length)).unwrap());
    let len = lines.len();
    lines.extend(filling.into_iter().find(|line| (len + line.len()).is_multiple_of(BLOCK)).unwrap());
    std::fs::write(journal, lines).unwrap();
}

#[tokio::test]
async fn fault_26_a_job_whose_interruption_finds_no_space_is_served_as_interrupted() {
    let Some(small) = Small::mount("fault_26", "size=3m") else { return };
    let mut daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    client.run("1", "echo ready; exec sleep 600").await;
    client.prints("1", "ready").await;
    daemon.kill();
    let keeper = daemon.keeper_pid().unwrap();
    support::kill(keeper, rustix::process::Signal::KILL);
    wait_for("the keeper's end", || (!support::is_alive(keeper)).then_some(()));
    fill_last_block(&daemon.folder("1").join("journal"));
    std::fs::remove_file(daemon.state_dir().join("reserve")).unwrap();
    let ballast = small.fill();
    for made_room in [false, true] {
        if made_room {
            std::fs::remove_file(&ballast).unwrap();
            daemon.kill();
        }
        daemon.restart();
        let client = daemon.client().await;
        let status = client.status("1").await;
        assert_eq!((status.state(), status.exit_code), (State::Interrupted, -4));
        assert!(client.output("1").await.starts_with("ready\n"));
    }
}
