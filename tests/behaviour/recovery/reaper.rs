//! The reaper ends and removes jobs.

use super::{end, wait_until_exists};
use crate::support::{Daemon, Setup, contains, refused, script};
use step_runner::pb::v1::State;
use tonic::Code;

fn reaping() -> Setup {
    Setup::new().option("reap-interval", "1s")
}

#[tokio::test]
async fn fault_60_jobs_that_nobody_finishes_are_removed() {
    let daemon = reaping().option("stale-after", "500ms").start();
    let client = daemon.client().await;
    client.run("running", "echo on; exec sleep 600").await;
    let go = daemon.file("go");
    client.run("1", &format!("echo on; {}; seq 1 100000", wait_until_exists(&go))).await;
    let behind = daemon.client().await;
    let mut follow = behind.follow("1", 0).await;
    follow.until("on").await;
    std::fs::write(&go, "").unwrap();
    let removed = async { while client.try_status("1").await.is_ok() {} };
    crate::support::patiently("the job is removed", removed).await;
    assert!(!daemon.folder("1").exists());
    let text = refused(client.try_status("1").await, Code::NotFound, "unknown_job");
    assert!(text.contains("finished at"), "{text}");
    assert!(follow.rest().await.unwrap().len() > 100_000, "its followers get the rest");
    assert_eq!(client.status("running").await.state(), State::Running);
    assert_eq!(daemon.folders().len(), 1);
}

#[tokio::test]
async fn after_a_restart_nothing_is_stale_before_the_floor() {
    let mut daemon = Daemon::start();
    daemon.client().await.run_to_end("1", &script("echo x")).await;
    daemon.stop();
    let setup = reaping().option("runaway-after", "1s");
    let setup = setup.option("stale-after", "100ms").option("stale-floor", "1h");
    daemon.restart_with(setup);
    let client = daemon.client().await;
    // The ends of these jobs show that the reaper has run.
    for id in ["2", "3"] {
        client.run(id, "exec sleep 600").await;
        assert_eq!(end(&client.ended(id).await), (State::Timeout, -3));
        assert!(client.try_status("1").await.is_ok(), "reaped too early");
    }
    daemon.stop();
    daemon.restart_with(reaping().option("stale-after", "100ms").option("stale-floor", "100ms"));
    crate::support::until("the job is removed", || !daemon.folder("1").exists()).await;
}

#[tokio::test]
async fn fault_61_jobs_that_run_for_too_long_are_ended() {
    let daemon = reaping().option("runaway-after", "1s").start();
    let client = daemon.client().await;
    client.run("1", "while :; do echo on; sleep 0.1; done").await;
    let status = client.ended("1").await;
    assert_eq!(end(&status), (State::Timeout, -3));
    assert!(contains(&client.log("1").await, "job ended by time limit: "));
}

#[tokio::test]
async fn jobs_that_say_nothing_for_too_long_are_ended() {
    let daemon = reaping().option("silent-after", "2s").start();
    let client = daemon.client().await;
    client.run("silent", "exec sleep 600").await;
    client.run("talks", "i=0; while [ $i -lt 50 ]; do echo on; sleep 0.1; i=$((i+1)); done").await;
    assert_eq!(end(&client.ended("silent").await), (State::Timeout, -3));
    assert_eq!(end(&client.ended("talks").await), (State::Success, 0));
}
