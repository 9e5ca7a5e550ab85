//! Large numbers of processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::groups::groups;
use super::{CROWD, holds, limited, processes, run_limited};
use crate::support::parts::skipped;
use crate::support::user::{Place, lonely};
use crate::support::{Daemon, SOON, contains, is_root, logs, names, processes_with, script, until, wait_for};
use step_runner::model::LimitName;
use step_runner::pb::v1::State;

#[tokio::test]
async fn fault_06_without_groups_the_limit_of_the_user_bounds_processes() {
    if !is_root("fault_06_without_groups_the_limit_of_the_user_bounds_processes") {
        return;
    }
    let place = Place::of(lonely());
    let setup = place.setup().option("cgroup", "off");
    let daemon = setup.start_in(place.path());
    let client = daemon.client().await;
    let status = run_limited(&client, "1", CROWD, processes(30)).await;
    assert_eq!(status.state(), State::Failure, "{status:?}");
    assert!(!contains(&client.log("1").await, "all"));
    let status = run_limited(&client, "2", "true; (true); (true)", processes(30)).await;
    assert_eq!(status.exit_code, 0, "{status:?}");
}

/// Returns the number at the end of a cgroup file, or `None` without such a file.
fn number(group: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(group.join(file)).ok()?.split_whitespace().last()?.parse().ok()
}

/// Returns the cgroup that counts the processes of the only job with a process limit. `None` if the limit is the
/// user's.
fn counting(daemon: &Daemon) -> Option<PathBuf> {
    let below = |group: PathBuf| names(&group).into_iter().map(move |name| group.join(name));
    groups(daemon).into_iter().flat_map(below).find(|group| number(group, "pids.max").is_some())
}

/// Waits until the step with the first process `leader` has reached the process limit `most`. Returns false if that
/// cannot be known.
fn meets_its_limit(daemon: &Daemon, leader: &str, most: u64) -> bool {
    // A list of processes is never exact while they come and go: it can hold an ended process and its successor. The
    // count of the cgroup is exact, because every process is born in the cgroup of its parent.
    let Some(group) = counting(daemon) else {
        let limits = fs::read_to_string(format!("/proc/{leader}/limits")).unwrap();
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max processes")).unwrap();
        assert!(limit.split_whitespace().next().unwrap().parse::<u64>().unwrap() >= most, "{limit}");
        return false;
    };
    assert_eq!(number(&group, "pids.max"), Some(most));
    let members = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert!(members.lines().any(|member| member == leader), "{leader} is not among {members}");
    wait_for("a process to be refused", || number(&group, "pids.events").filter(|&refused| refused > 0));
    // Not every kernel records the peak.
    let peak = number(&group, "pids.peak");
    assert!(peak.is_none_or(|peak| peak <= most), "{peak:?}");
    true
}

#[tokio::test]
async fn fault_06_a_fork_bomb_ends_as_a_failed_job_and_by_finish() {
    let test = "fault_06_a_fork_bomb_ends_as_a_failed_job_and_by_finish";
    if !holds(test, &[LimitName::Processes]) {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let mark = format!("bomb-{}", std::process::id());
    let bomb = format!("echo $$ is on; bomb() {{ : {mark}; bomb | bomb & }}; bomb; sleep 600; : {mark}");
    client.try_run(limited("bomb", &script(&bomb), processes(64))).await.unwrap();
    let mut follow = client.follow("bomb", 0).await;
    follow.until(" is on\n").await;
    let said = String::from_utf8(follow.bytes).unwrap();
    let leader = said.split_once(" is on\n").unwrap().0.rsplit(' ').next().unwrap();
    until("it has grown", || processes_with(&mark).len() >= 32).await;
    let is_counted = meets_its_limit(&daemon, leader, 64);
    for _ in 0..20 {
        let asked = Instant::now();
        assert_eq!(client.status("bomb").await.state(), State::Running);
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    }
    assert_eq!(client.run_to_end("other", &script("(echo x)")).await.exit_code, 0);
    client.finish("bomb").await;
    assert_eq!(processes_with(&mark), Vec::<i32>::new());
    // A job that ends by itself because of the limit says so.
    let status = run_limited(&client, "crowd", CROWD, processes(16)).await;
    assert_eq!(status.state(), State::Failure);
    if !is_counted {
        return skipped(test, "control group for limit processes");
    }
    let message = &status.message;
    assert!(message.contains("resource: the job has reached its limit of 16 processes"), "{message}");
    assert!(message.ends_with(&format!("exec: exit status {}", status.exit_code)), "{message}");
    assert!(contains(&client.log("crowd").await, "job failed: step \"s\": resource: "));
}

#[tokio::test]
async fn fault_06_a_step_that_copes_with_refused_processes_succeeds_with_a_warning() {
    let name = "fault_06_a_step_that_copes_with_refused_processes_succeeds_with_a_warning";
    if !holds(name, &[LimitName::Processes]) {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("first", &script("true")).await;
    if groups(&daemon).is_empty() {
        return skipped(name, "control group for limit processes");
    }
    let text = format!("sh -c \"{}\" || true", CROWD.replace("exec sh -c ", "").replace(['\'', '"'], ""));
    let text = text.replace('$', "\\$");
    let status = run_limited(&client, "1", &text, processes(12)).await;
    assert_eq!((status.state(), status.exit_code), (State::Success, 0), "{status:?}");
    let said = logs::daemon_lines(&client.log("1").await);
    assert!(said.iter().any(|line| line.starts_with("warning: step s: processes were refused")), "{said:?}");
}
