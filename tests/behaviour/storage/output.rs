//! More output than allowed, or than the disk can take (faults.md rows 23, 24).

use super::{Small, peak, wait_until_exists};
use crate::support::{Setup, logs, script, until};
use step_runner::pb::v1::State;

#[tokio::test]
async fn fault_23_endless_output_is_dropped_over_the_limit_and_costs_no_memory() {
    let daemon = Setup::new().option("log-limit", "1MiB").start();
    let client = daemon.client().await;
    let status = client.run_to_end("1", &script("yes | head -c 100000000; exit 4")).await;
    assert_eq!(status.exit_code, 4);
    assert!(status.log_bytes <= 1 << 20);
    let log = client.log("1").await;
    let said = logs::daemon_lines(&log);
    let dropped = said.iter().find_map(|line| {
        line.strip_prefix("warning: ")?.strip_suffix(" bytes of output dropped")?.parse::<usize>().ok()
    });
    assert_eq!(dropped.unwrap() + logs::source(&log, "01O").len(), 100_000_000);
    for pid in [daemon.pid(), daemon.keeper_pid().unwrap()] {
        assert!(peak(pid) <= 64 << 20, "{} bytes", peak(pid));
    }
}

#[tokio::test]
async fn fault_24_output_faster_than_the_disk_waits_in_its_pipe() {
    const JOBS: u64 = 20;
    let Some(small) = Small::mount("fault_24", "size=6m") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let go = elsewhere.path().join("go");
    let daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    // Starts the keeper. Most of an idle process is its own program, whose size depends on how it was built.
    client.run("first", "true").await;
    client.ended("first").await;
    client.finish("first").await;
    let processes = [("daemon", daemon.pid()), ("keeper", daemon.keeper_pid().unwrap())];
    let idle = processes.map(|(_, pid)| peak(pid));
    for n in 0..JOBS {
        // More output than the disk takes now and less than after it has grown, so that the ends of the jobs can be
        // recorded.
        let text =
            format!("echo ready; {}; head -c 4000000 /dev/zero; exec sleep 600", wait_until_exists(&go));
        client.run(&format!("job-{n}"), &text).await;
        client.prints(&format!("job-{n}"), "ready").await;
    }
    std::fs::write(&go, "").unwrap();
    until("the disk is full", || small.free() == 0).await;
    for ((name, pid), idle) in processes.into_iter().zip(idle) {
        let bound = idle + (16 << 20) + JOBS * (256 << 10);
        assert!(peak(pid) <= bound, "{name}: {} bytes of {bound}, {idle} of them idle", peak(pid));
    }
    // The jobs wait. Once there is space they can be cancelled.
    assert!(client.jobs().await.iter().all(|job| job.state() == State::Running));
    small.remount("size=200m");
    for n in 0..JOBS {
        client.cancel(&format!("job-{n}")).await;
    }
    for n in 0..JOBS {
        assert_eq!(client.ended(&format!("job-{n}")).await.state(), State::Cancelled);
    }
}
