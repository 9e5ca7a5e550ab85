//! Clients are told the resources that a job has used.

use std::time::{Duration, Instant};

use super::{MIB, holds, memory, run_limited};
use crate::support::parts::skipped;
use crate::support::{Daemon, Setup, scripts};
use step_runner::model::LimitName;
use step_runner::pb::v1::{self};

/// Script that keeps a processor busy for a while.
const BURN: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

fn cpu_time(status: &v1::Status) -> Duration {
    status.cpu_time.map(|time| time.try_into().unwrap()).unwrap_or_default()
}

#[tokio::test]
async fn what_a_job_used_is_in_its_status() {
    for mode in ["auto", "off"] {
        let daemon = Setup::new().option("cgroup", mode).start();
        let client = daemon.client().await;
        let start = Instant::now();
        let orphan = format!("(setsid sh -c '{BURN}' &); {BURN}; echo on; exec sleep 600");
        client.run_steps("1", &scripts(&[("a", BURN), ("b", &orphan)])).await;
        client.prints("1", "on").await;
        let so_far = cpu_time(&client.status("1").await);
        assert!(so_far >= Duration::from_millis(20), "{mode}: {so_far:?} after the first step");
        client.cancel("1").await;
        let all = cpu_time(&client.ended("1").await);
        assert!(all > so_far, "{mode}: {all:?} after {so_far:?}");
        let most = start.elapsed() * std::thread::available_parallelism().unwrap().get() as u32;
        assert!(all <= most, "{mode}: {all:?} in {most:?}");
    }
}

#[tokio::test]
async fn a_running_step_has_its_use_in_the_status() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "while :; do :; done").await;
    client.reaches("1", "it runs", |status| status.state() == v1::State::Running).await;
    if !daemon.said().contains("a control group holds") {
        return skipped("a_running_step_has_its_use_in_the_status", "control group");
    }
    let first = client.reaches("1", "some use", |status| !cpu_time(status).is_zero()).await;
    client.reaches("1", "more use", |status| cpu_time(status) > cpu_time(&first)).await;
    client.finish("1").await;
}

#[tokio::test]
async fn the_peak_of_a_limited_jobs_memory_is_in_its_status() {
    if !holds("the_peak_of_a_limited_jobs_memory_is_in_its_status", &[LimitName::Memory]) {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let text = "head -c 40M /dev/zero | tail -n 1 | wc -c";
    let status = run_limited(&client, "1", text, memory(128 * MIB)).await;
    assert_eq!(status.exit_code, 0, "{status:?}");
    assert!((40 * MIB..=128 * MIB).contains(&status.peak_memory), "{status:?}");
}
