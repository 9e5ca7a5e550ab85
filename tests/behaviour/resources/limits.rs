//! Limits of jobs: from the request, from the settings, and limits that cannot be enforced.

use super::{CROWD, HOG, MIB, holds, limited, memory, open_files, processes, run_limited};
use crate::support::{Daemon, Setup, refused, script};
use rustix::process::Resource;
use step_runner::model::LimitName;
use step_runner::pb::v1::{Limits, State};
use tonic::Code;

/// Script that prints the processor quota of the step's cgroup in microseconds, for version 1 or 2.
const SHOW_CPUS: &str = "v1=$(sed -n 's/^[0-9]*:\\(cpu\\|cpu,cpuacct\\)://p' /proc/self/cgroup); \
     v2=$(sed -n 's/^0:://p' /proc/self/cgroup); \
     cat /sys/fs/cgroup/cpu$v1/cpu.cfs_quota_us 2>/dev/null || cat /sys/fs/cgroup$v2/cpu.max";

#[tokio::test]
async fn the_limits_of_a_request_hold() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    run_limited(&client, "files", "ulimit -Sn; ulimit -Hn", open_files(40)).await;
    assert_eq!(client.output("files").await, "40\n40\n");
    if holds("the_limits_of_a_request_hold", &[LimitName::Cpus]) {
        let half = Limits { cpus: 0.5, ..Limits::default() };
        run_limited(&client, "cpus", SHOW_CPUS, half).await;
        assert_eq!(client.output("cpus").await.split_whitespace().next(), Some("50000"));
    }
    if holds("the_limits_of_a_request_hold", &[LimitName::Processes, LimitName::Memory]) {
        let status = run_limited(&client, "processes", CROWD, processes(16)).await;
        assert_eq!(status.state(), State::Failure, "{status:?}");
        let status = run_limited(&client, "memory", HOG, memory(32 * MIB)).await;
        assert_eq!((status.state(), status.exit_code), (State::Failure, 137), "{status:?}");
    }
    // A job beside the limited ones has no limit.
    client.run("free", "ulimit -Sn; ulimit -Hn").await;
    let soft = rustix::process::getrlimit(Resource::Nofile).current;
    let first = client.output("free").await.lines().next().map(str::to_owned);
    assert_eq!(first, soft.map(|soft| soft.to_string()));
}

#[tokio::test]
async fn the_smaller_of_request_and_setting_holds() {
    let daemon = Setup::new().option("limit-open-files", "50").start();
    let client = daemon.client().await;
    client.run("setting", "ulimit -n").await;
    assert_eq!(client.output("setting").await, "50\n");
    for (id, asked, in_force) in [("less", 30, "30\n"), ("more", 70, "50\n"), ("none", 0, "50\n")] {
        run_limited(&client, id, "ulimit -n", open_files(asked)).await;
        assert_eq!(client.output(id).await, in_force, "{id}");
    }
    assert!(!daemon.said().contains("cannot be enforced"), "{}", daemon.said());
}

#[tokio::test]
async fn the_limits_of_the_settings_hold_for_every_job() {
    let all = [LimitName::Processes, LimitName::Memory, LimitName::Cpus];
    if !holds("the_limits_of_the_settings_hold_for_every_job", &all) {
        return;
    }
    let daemon = Setup::new()
        .option("limit-memory", "48MiB")
        .option("limit-processes", "20")
        .option("limit-cpus", "0.25")
        .start();
    let client = daemon.client().await;
    let status = client.run_to_end("memory", &script(HOG)).await;
    assert!(status.message.contains("limit is 50331648 bytes"), "{}", status.message);
    let status = client.run_to_end("processes", &script(CROWD)).await;
    assert!(status.message.contains("limit of 20 processes"), "{}", status.message);
    client.run_to_end("cpus", &script(SHOW_CPUS)).await;
    assert_eq!(client.output("cpus").await.split_whitespace().next(), Some("25000"));
    let status = run_limited(&client, "smaller", HOG, memory(24 * MIB)).await;
    assert!(status.message.contains("limit is 25165824 bytes"), "{}", status.message);
    let status = run_limited(&client, "larger", HOG, memory(96 * MIB)).await;
    assert!(status.message.contains("limit is 50331648 bytes"), "{}", status.message);
}

#[tokio::test]
async fn a_limit_that_cannot_be_enforced_refuses_the_request_and_names_itself() {
    let daemon = Setup::new().option("cgroup", "off").start();
    let client = daemon.client().await;
    let mut asked = vec![
        ("memory", memory(MIB)),
        ("cpus", Limits { cpus: 1.5, ..Limits::default() }),
        ("cpus", Limits { cpus: 1e-9, ..Limits::default() }),
    ];
    if rustix::process::geteuid().is_root() {
        // Without a cgroup, the kernel enforces a user's process limit on everybody but root.
        asked.push(("processes", processes(10)));
    }
    for (name, limits) in asked {
        let answer = client.try_run(limited("1", &script("true"), limits)).await;
        let text = refused(answer, Code::FailedPrecondition, "limit_unavailable");
        assert!(text.contains(&format!("limit {name} cannot be enforced")), "{text}");
        assert!(limits.cpus > 0.0 && limits.cpus < 1e-3 || text.contains("set cgroup = auto"), "{text}");
    }
    assert!(client.jobs().await.is_empty() && daemon.folders().is_empty(), "nothing is left behind");
    run_limited(&client, "1", "ulimit -n", open_files(33)).await;
    assert_eq!(client.output("1").await, "33\n");
}

#[tokio::test]
async fn a_limit_of_the_settings_that_cannot_be_enforced_is_one_warning() {
    let options = |setup: Setup| setup.option("cgroup", "off").option("limit-memory", "1MiB");
    let daemon = options(Setup::new()).option("limit-cpus", "2").start();
    let client = daemon.client().await;
    assert_eq!(client.run_to_end("1", &script("true")).await.exit_code, 0);
    assert_eq!(client.run_to_end("2", &script("true")).await.exit_code, 0);
    let said = daemon.said();
    assert_eq!(said.matches("jobs run without these limits").count(), 1, "{said}");
    assert!(said.contains("limit_memory") && said.contains("limit_cpus"), "{said}");
}

#[tokio::test]
async fn values_that_are_no_limits_are_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    for limits in [
        memory(-1),
        processes(-1),
        open_files(i64::MIN),
        Limits { cpus: -0.5, ..Limits::default() },
        Limits { cpus: f64::NAN, ..Limits::default() },
        Limits { cpus: f64::INFINITY, ..Limits::default() },
    ] {
        let answer = client.try_run(limited("1", &script("true"), limits)).await;
        refused(answer, Code::InvalidArgument, "malformed_request");
    }
    // Limits above all resources of the machine limit nothing, but they are accepted.
    if holds("values_that_are_no_limits_are_refused", &LimitName::ALL) {
        let huge = Limits { processes: i64::MAX, memory: i64::MAX, cpus: 1e18, open_files: i64::MAX };
        assert_eq!(run_limited(&client, "huge", "true", huge).await.exit_code, 0);
    }
}
