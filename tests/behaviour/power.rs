//! `durability = power`: everything that clients see is on the disk. Data that cannot be written to it is reported
//! (service.md §6.6, faults.md rows 27 and 43).

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use tonic::Code;

use crate::loop_disk::{LoopDisk, missing_part};
use crate::support::{Daemon, Setup, contains, is_root, parts, patiently, script, wait_for};

fn power() -> Setup {
    Setup::new().option("durability", "power").option("state-limit", "1MiB")
}

/// A running `strace` that records syncs.
struct Strace(Child, #[expect(dead_code, reason = "kept open")] BufReader<ChildStderr>);

impl Strace {
    /// Attaches to a process. Without strace or permission to trace, returns `None` and reports `test` as skipped.
    fn attach(test: &str, daemon: &Daemon, pid: i32, options: &[&str]) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let pid = pid.to_string();
        let mut command = Command::new("strace");
        command.args(["-f", "-o"]).arg(daemon.file("strace")).args(["-e", "trace=syncfs"]).args(options);
        let Ok(mut child) = command.args(["-p", &pid]).stderr(Stdio::piped()).spawn() else {
            parts::skipped(test, "strace");
            return None;
        };
        let mut line = String::new();
        // Stderr is kept open: strace prints more when threads appear.
        let mut said = BufReader::new(child.stderr.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert!(line.contains("attached"), "{line}");
        Some(Self(child, said))
    }

    fn detach(mut self) {
        crate::support::kill(self.0.id() as i32, Signal::TERM);
        self.0.wait().unwrap();
    }
}

/// Returns a script that prints `before`, then `after` once the file exists.
fn in_two_parts(daemon: &Daemon, file: &str) -> String {
    let file = daemon.file(file).to_str().unwrap().to_owned();
    script(&format!("echo before; while [ ! -e {file} ]; do sleep 0.02; done; echo after"))
}

#[tokio::test]
async fn fault_27_a_failed_sync_fails_the_jobs_that_live_and_is_not_tried_again() {
    let test = "fault_27_a_failed_sync_fails_the_jobs_that_live_and_is_not_tried_again";
    let mut daemon = power().start();
    let client = daemon.client().await;
    assert_eq!(client.run_to_end("ended", &script("echo whole")).await.exit_code, 0);
    client.run_steps("lives", &in_two_parts(&daemon, "go")).await;
    client.prints("lives", "before").await;
    let mut follower = client.follow("lives", 0).await;
    follower.until("before").await;

    let options = ["-e", "inject=syncfs:error=EIO"];
    let Some(strace) = Strace::attach(test, &daemon, daemon.pid(), &options) else { return };
    std::fs::write(daemon.file("go"), "").unwrap();
    let lost = loop {
        match follower.next().await {
            Ok(more) => assert!(more.is_some(), "the log ends as if it were whole"),
            Err(lost) => break lost,
        }
    };
    let text = crate::support::refused(Err::<(), _>(lost), Code::DataLoss, "data_loss");
    assert!(text.starts_with("storage error"), "{text}");
    let seen = follower.bytes.clone();
    assert!(contains(&seen, "before") && !contains(&seen, "after"), "{}", String::from_utf8_lossy(&seen));
    let failed = client.reaches("lives", "it has failed", |status| status.finished).await;
    assert_eq!(failed.exit_code, -1, "{failed:?}");
    assert!(failed.message.starts_with("storage error"), "{failed:?}");
    let refused = client.try_run(crate::support::request("refused", &script("true"))).await;
    crate::support::refused(refused, Code::DataLoss, "data_loss");
    strace.detach();

    // The disk works again. Lost data stays lost, also for the next daemon. Other jobs run normally.
    assert_eq!(client.run_to_end("next", &script("echo fine")).await.exit_code, 0);
    for restarted in [false, true] {
        if restarted {
            daemon.kill();
            daemon.restart();
        }
        let client = daemon.client().await;
        let again = client.status("lives").await;
        assert_eq!((again.exit_code, &again.message), (-1, &failed.message), "restarted: {restarted}");
        let rest = client.follow("lives", 0).await.rest().await;
        crate::support::refused(rest, Code::DataLoss, "data_loss");
        let end = i32::try_from(seen.len()).unwrap();
        crate::support::refused(
            client.try_follow("lives", end + 1).await.map(drop),
            Code::DataLoss,
            "data_loss",
        );
        assert!(contains(&client.log("ended").await, "whole"));
        assert!(contains(&client.log("next").await, "fine"));
        assert_eq!(client.ended("ended").await.exit_code, 0);
    }
}

#[tokio::test]
async fn jobs_that_end_at_the_same_time_share_a_sync() {
    const JOBS: usize = 40;
    let daemon = power().start();
    let client = daemon.client().await;
    client.run_to_end("first", &script("true")).await;
    let test = "jobs_that_end_at_the_same_time_share_a_sync";
    let Some(strace) = Strace::attach(test, &daemon, daemon.pid(), &[]) else { return };
    let begun = Instant::now();
    let jobs = (0..JOBS).map(|i| {
        let client = client.clone();
        async move { client.run_to_end(&format!("job-{i}"), &script("echo line; echo line")).await }
    });
    let ended = patiently("all ends", futures_util::future::join_all(jobs)).await;
    assert!(ended.iter().all(|status| status.exit_code == 0));
    // A round makes two syncs. The time limits the number of rounds, whatever the number of jobs.
    let rounds = begun.elapsed().as_millis() as u64 / 500 + 2;
    strace.detach();
    let syncs = std::fs::read_to_string(daemon.file("strace")).unwrap().matches("syncfs(").count() as u64;
    assert!((2..=2 * rounds).contains(&syncs), "{syncs} syncs for {JOBS} jobs in {rounds} rounds");
}

#[tokio::test]
async fn while_no_daemon_is_there_the_keeper_syncs() {
    let mut daemon = power().start();
    let client = daemon.client().await;
    client.run_steps("goes-on", &in_two_parts(&daemon, "go")).await;
    client.prints("goes-on", "before").await;
    let test = "while_no_daemon_is_there_the_keeper_syncs";
    let Some(strace) = Strace::attach(test, &daemon, daemon.keeper_pid().unwrap(), &[]) else { return };
    let output = daemon.file("strace");
    let syncs = || std::fs::read_to_string(&output).unwrap_or_default().matches("= 0").count();
    assert_eq!(syncs(), 0, "its daemon does");
    daemon.kill();
    wait_for("two syncs of the keeper", || (syncs() >= 2).then_some(()));
    strace.detach();
    daemon.restart();
    std::fs::write(daemon.file("go"), "").unwrap();
    let client = daemon.client().await;
    assert_eq!(client.ended("goes-on").await.exit_code, 0);
    assert_eq!(client.output("goes-on").await, "before\nafter\n");
}

#[tokio::test]
async fn fault_43_what_clients_were_told_holds_after_a_power_cut() {
    if let Some(part) = missing_part() {
        return parts::skipped("fault_43_what_clients_were_told_holds_after_a_power_cut", part);
    }
    let scene = tempfile::tempdir().unwrap();
    let mut disk = LoopDisk::new(&scene.path().join("disk")).unwrap();
    let state = scene.path().join("disk").to_str().unwrap().to_owned();
    let setup = || power().option("state-dir", &state);
    let mut daemon = setup().start_in(scene.path());
    let client = daemon.client().await;
    let told = client.run_to_end("ended", &script("echo whole; exit 3")).await;
    let log = client.log("ended").await;
    let steps = client.steps("ended").await;
    client.run_to_end("finished", &script("true")).await;
    client.run_steps("runs", &in_two_parts(&daemon, "never")).await;
    client.prints("runs", "before").await;
    let seen = client.log_so_far("runs").await;
    client.finish("finished").await;

    let keeper = json_pid(&state);
    disk.cut().unwrap();
    daemon.kill();
    crate::support::kill(keeper, Signal::KILL);
    disk.unmount().unwrap();
    disk.mount().unwrap();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.ended("ended").await, told);
    assert_eq!(client.log("ended").await, log);
    assert_eq!(client.steps("ended").await, steps);
    crate::support::refused(client.try_status("finished").await, Code::NotFound, "unknown_job");
    let cut = client.ended("runs").await;
    assert_eq!(cut.exit_code, -4, "{cut:?}");
    let now = client.log("runs").await;
    assert!(
        now.starts_with(&seen) && contains(&now, "job interrupted: "),
        "{}",
        String::from_utf8_lossy(&now)
    );
    let past = i32::try_from(now.len() + 1).unwrap();
    crate::support::refused(
        client.try_follow("runs", past).await.map(drop),
        Code::OutOfRange,
        "offset_past_end",
    );
    daemon.kill();
    disk.unmount().unwrap();
}

fn json_pid(state: &str) -> i32 {
    let json = std::fs::read(format!("{state}/keeper.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    json["pid"].as_i64().unwrap() as i32
}
