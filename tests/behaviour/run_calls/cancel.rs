//! Cancel, time limits and their grace.

use std::time::Instant;

use super::{end, seconds};
use crate::support::{Daemon, SOON, Setup, contains, refused, request, script, scripts};
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{CancelCause, RunRequest, State};
use tonic::Code;

#[tokio::test]
async fn cancel_keeps_result_and_log() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_steps("1", &scripts(&[("a", "echo on; exec sleep 600"), ("b", "echo never")])).await;
    client.prints("1", "on").await;
    client.cancel("1").await;
    client.cancel("1").await;
    let status = client.ended("1").await;
    assert_eq!(end(&status), (State::Cancelled, -2), "{status:?}");
    assert_eq!(status.cancel_cause(), CancelCause::Cancel);
    client.cancel("1").await;
    assert_eq!(client.status("1").await, status, "cancelling an ended job changes nothing");
    let log = client.log("1").await;
    assert!(contains(&log, "job cancelled: "));
    assert!(!contains(&log, "never"));
    let root = client.steps("1").await.pop().unwrap();
    assert_eq!(root.status(), StepStatus::Cancelled);
    client.finish("1").await;
    refused(client.try_cancel("1").await, Code::NotFound, "unknown_job");
}

#[tokio::test]
async fn a_process_that_succeeds_in_its_grace_is_cancelled_all_the_same() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "trap 'echo caught; exit 0' TERM; echo on; while :; do sleep 0.01; done").await;
    client.prints("1", "on").await;
    client.cancel("1").await;
    assert_eq!(end(&client.ended("1").await), (State::Cancelled, -2));
    assert_eq!(client.output("1").await, "on\ncaught\n");
}

#[tokio::test]
async fn fault_13_an_ended_job_is_left_as_it_is_by_cancel() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let before = client.run_to_end("1", &script("exit 5")).await;
    client.cancel("1").await;
    assert_eq!(client.status("1").await, before);
}

#[tokio::test]
async fn a_time_limit_ends_a_job_with_a_result_of_its_own() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let run = RunRequest { timeout: Some(seconds(0.3)), ..request("1", &script("echo on; exec sleep 600")) };
    client.try_run(run).await.unwrap();
    let status = client.ended("1").await;
    assert_eq!(end(&status), (State::Timeout, -3), "{status:?}");
    assert_eq!(status.cancel_cause(), CancelCause::TimeLimit);
    assert!(contains(&client.log("1").await, "job ended by time limit: "));
    // A limit that is not reached has no effect.
    let run = RunRequest { timeout: Some(seconds(300.0)), ..request("2", &script("echo done")) };
    client.try_run(run).await.unwrap();
    assert_eq!(end(&client.ended("2").await), (State::Success, 0));
}

#[tokio::test]
async fn the_grace_of_the_request_bounds_that_of_the_daemon() {
    let daemon = Setup::new().option("cancel-grace", "60s").start();
    let client = daemon.client().await;
    let stubborn = script("trap '' TERM; echo on; while :; do sleep 1; done");
    client.try_run(RunRequest { cancel_grace: Some(seconds(0.2)), ..request("1", &stubborn) }).await.unwrap();
    client.prints("1", "on").await;
    let start = Instant::now();
    client.cancel("1").await;
    client.reaches("1", "it is cancelling", |s| s.finished || s.state() == State::Cancelling).await;
    assert_eq!(end(&client.ended("1").await), (State::Cancelled, -2));
    assert!(start.elapsed() < SOON);
}

#[tokio::test]
async fn durations_that_are_not_positive_are_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    for duration in [(0, 0), (-1, 0), (0, -5)] {
        let duration = Some(prost_types::Duration { seconds: duration.0, nanos: duration.1 });
        let steps = script("true");
        let timed = RunRequest { timeout: duration, ..request("1", &steps) };
        refused(client.try_run(timed).await, Code::InvalidArgument, "malformed_request");
        let timed = RunRequest { cancel_grace: duration, ..request("1", &steps) };
        refused(client.try_run(timed).await, Code::InvalidArgument, "malformed_request");
    }
    assert!(client.jobs().await.is_empty());
}
