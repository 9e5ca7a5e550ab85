//! Jobs with large records (faults.md row 77).

use std::path::{Path, PathBuf};

use super::{end, freeze, wait_until_exists};
use crate::support::{Client, Daemon, kill, wait_for};
use rustix::process::Signal;
use step_runner::pb::v1::State;

/// Makes a function whose process returns a text of `len` bytes.
fn returning(daemon: &Daemon, len: usize) -> PathBuf {
    let folder = daemon.file("returning");
    std::fs::create_dir_all(&folder).unwrap();
    let script = format!(
        "{{ printf '{{\"outputs\":{{\"text\":\"'; head -c {len} /dev/zero | tr '\\0' x; printf '\"}}}}'; }} > \"$0\""
    );
    let command = serde_json::json!({"exec": {"command": ["sh", "-c", script, "${{output_file}}"]}});
    std::fs::write(folder.join("func.yml"), format!("spec: {{outputs: delegate}}\n---\n{command}\n"))
        .unwrap();
    folder
}

/// Returns steps that return large texts, followed by a script.
fn steps(returning: &Path, count: usize, script: &str) -> String {
    let large =
        (0..count).map(|number| serde_json::json!({"name": format!("large{number}"), "func": returning}));
    let last = serde_json::json!({"name": "last", "script": script});
    serde_json::to_string(&large.chain([last]).collect::<Vec<_>>()).unwrap()
}

async fn prints_ready(client: &Client, ids: &[&str]) {
    for id in ids {
        client.prints(id, "ready").await;
    }
}

#[tokio::test]
async fn fault_77_jobs_with_large_records_go_on_over_the_death_of_the_daemon() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let go = wait_until_exists(&daemon.file("go"));
    let returning = returning(&daemon, 12 << 20);
    let text = steps(&returning, 2, &format!("echo ready; {go}; echo on"));
    client.run_steps("large", &text).await;
    client.run_steps("cancelled", &text).await;
    client.run_steps("finished", &text).await;
    client.run("small", &format!("echo ready; {go}; echo on")).await;
    prints_ready(&client, &["large", "cancelled", "finished", "small"]).await;
    let before = client.status("large").await;
    assert_eq!((before.state(), before.steps_done), (State::Running, 2));
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    // The status is right, whether or not the record has been replayed yet.
    let after = client.status("large").await;
    assert_eq!((after.state(), after.steps_done, after.start_time), (State::Running, 2, before.start_time));
    assert!(after.log_bytes >= before.log_bytes);
    client.cancel("cancelled").await;
    client.finish("finished").await;
    assert_eq!(client.ended("cancelled").await.state(), State::Cancelled);
    assert!(client.try_status("finished").await.is_err());
    std::fs::write(daemon.file("go"), "").unwrap();
    for id in ["large", "small"] {
        assert_eq!(end(&client.ended(id).await), (State::Success, 0), "{id}");
        assert_eq!(client.output(id).await, "ready\non\n");
    }
    assert_eq!(client.status("large").await.steps_done, 3);
}

#[tokio::test]
async fn fault_77_a_job_whose_record_is_full_fails_and_says_so() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let returning = returning(&daemon, 15 << 20);
    client.run_steps("full", &steps(&returning, 6, "echo never")).await;
    let status = client.ended("full").await;
    assert_eq!(end(&status), (State::Failure, -1));
    let message = &status.message;
    assert!(message.starts_with("step \"large4\": ") && message.contains("limit: "), "{message}");
    assert!(message.contains("64 MiB") && message.contains("files"), "{message}");
    assert!(!client.output("full").await.contains("never"));
}

#[tokio::test]
async fn fault_77_the_death_of_a_keeper_whose_records_are_being_read_interrupts_its_jobs() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let go = wait_until_exists(&daemon.file("go"));
    let returning = returning(&daemon, 12 << 20);
    let ids = ["a", "b", "c"];
    for id in ids {
        client.run_steps(id, &steps(&returning, 2, &format!("echo ready; {go}"))).await;
    }
    prints_ready(&client, &ids).await;
    daemon.kill();
    let keeper = daemon.keeper_pid().unwrap();
    daemon.restart();
    freeze(keeper);
    kill(keeper, Signal::KILL);
    wait_for("the keeper's end", || (!crate::support::is_alive(keeper)).then_some(()));
    let client = daemon.client().await;
    for id in ids {
        assert_eq!(end(&client.ended(id).await), (State::Interrupted, -4), "{id}");
        assert!(client.log(id).await.ends_with(b"\n"));
    }
}
