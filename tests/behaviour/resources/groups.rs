//! Cgroups: none outlives its job, and limits outlive the daemon.

use std::fs;
use std::path::{Path, PathBuf};

use super::{MIB, holds, limited, run_limited};
use crate::support::{Daemon, Setup, is_alive, kill, names, script, scripts, wait_for};
use rustix::process::Signal;
use step_runner::model::LimitName;
use step_runner::pb::v1::{Limits, State};

/// Returns the directories of the cgroups of the daemon's keeper.
pub(super) fn groups(daemon: &Daemon) -> Vec<PathBuf> {
    let json = fs::read(daemon.state_dir().join("keeper.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let groups = json["cgroups"].as_array().unwrap();
    groups.iter().map(|group| group.as_str().unwrap().into()).collect()
}

/// Returns the names of the version 1 cgroups of all current jobs.
fn groups_of_jobs(groups: &[PathBuf]) -> Vec<String> {
    let is_group = |group: &Path, name: &str| group.join(name).is_dir();
    let below = |group: &PathBuf| {
        let all = names(group);
        all.into_iter().filter(|name| is_group(group, name)).collect::<Vec<_>>()
    };
    groups.iter().filter(|group| !group.join("cgroup.events").exists()).flat_map(below).collect()
}

const BOTH: Limits = Limits { processes: 50, memory: 64 * MIB, cpus: 1.5, open_files: 0 };

#[tokio::test]
async fn no_group_outlives_its_job_nor_its_keeper() {
    let all = [LimitName::Processes, LimitName::Memory, LimitName::Cpus];
    if !holds("no_group_outlives_its_job_nor_its_keeper", &all) {
        return;
    }
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let steps = scripts(&[("a", "sleep 600 & setsid -f sleep 601"), ("b", "(echo on); sleep 600")]);
    client.try_run(limited("1", &steps, BOTH)).await.unwrap();
    client.prints("1", "on").await;
    let all = groups(&daemon);
    assert!(!all.is_empty());
    client.finish("1").await;
    wait_for("the job's groups are gone", || groups_of_jobs(&all).is_empty().then_some(()));
    assert_eq!(run_limited(&client, "2", "true", BOTH).await.exit_code, 0);
    wait_for("the job's groups are gone", || groups_of_jobs(&all).is_empty().then_some(()));
    daemon.stop();
    wait_for("the keeper's groups are gone", || all.iter().all(|group| !group.exists()).then_some(()));
}

#[tokio::test]
async fn groups_of_a_killed_keeper_are_removed_by_its_daemon_and_by_the_next() {
    let all = [LimitName::Processes, LimitName::Memory, LimitName::Cpus];
    if !holds("groups_of_a_killed_keeper_are_removed_by_its_daemon_and_by_the_next", &all) {
        return;
    }
    let mut daemon = Daemon::start();
    let start = async |daemon: &Daemon, id| {
        let client = daemon.client().await;
        client
            .try_run(limited(id, &script("setsid -f sleep 601; (echo on); sleep 600"), BOTH))
            .await
            .unwrap();
        client.prints(id, "on").await;
        let groups = groups(daemon);
        assert!(groups.iter().any(|group| group.exists()), "{groups:?}");
        groups
    };
    let of_first = start(&daemon, "1").await;
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    let client = daemon.client().await;
    assert_eq!(client.ended("1").await.state(), State::Interrupted);
    assert!(of_first.iter().all(|group| !group.exists()), "{of_first:?}");
    let of_second = start(&daemon, "2").await;
    let keeper = daemon.keeper_pid().unwrap();
    daemon.kill();
    kill(keeper, Signal::KILL);
    wait_for("the keeper's end", || (!is_alive(keeper)).then_some(()));
    daemon.restart();
    assert!(of_second.iter().all(|group| !group.exists()), "before it serves: {of_second:?}");
    assert_eq!(daemon.client().await.status("2").await.state(), State::Interrupted);
}

#[tokio::test]
async fn limits_outlive_the_daemon_that_set_them() {
    let mut daemon = Setup::new().option("limit-open-files", "45").start();
    let client = daemon.client().await;
    let gate = daemon.file("gate");
    let first = format!("echo on; while [ ! -e {} ]; do sleep 0.05; done", gate.display());
    client.run_steps("1", &scripts(&[("a", &first), ("b", "ulimit -n")])).await;
    client.prints("1", "on").await;
    daemon.kill();
    daemon.restart_with(Setup::new().option("limit-open-files", "90"));
    fs::write(&gate, "").unwrap();
    let client = daemon.client().await;
    assert_eq!(client.ended("1").await.exit_code, 0);
    assert_eq!(client.output("1").await, "on\n45\n");
    client.run_to_end("2", &script("ulimit -n")).await;
    assert_eq!(client.output("2").await, "90\n");
}
