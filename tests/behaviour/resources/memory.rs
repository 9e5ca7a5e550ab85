//! Processes that the kernel kills when memory runs out.

use std::fs;

use super::{HOG, MIB, holds, memory, run_limited};
use crate::support::user::{ORDINARY, Place};
use crate::support::{Daemon, contains, is_root, logs, script, until};
use step_runner::model::LimitName;
use step_runner::pb::v1::State;

fn oom_score_adj(pid: i32) -> i32 {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn fault_12_a_step_is_ended_for_want_of_memory_and_the_daemon_lives() {
    if !holds("fault_12_a_step_is_ended_for_want_of_memory_and_the_daemon_lives", &[LimitName::Memory]) {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("beside", "echo on; exec sleep 600").await;
    client.prints("beside", "on").await;
    let keeper = daemon.keeper_pid().unwrap();
    for (id, text, end) in [
        ("itself", HOG, "exec: signal: killed"),
        ("child", "tail /dev/zero; exit 3", "exec: exit status 3"),
        ("deep", "(setsid tail /dev/zero & wait $!); exit 9", "exec: exit status 9"),
    ] {
        let status = run_limited(&client, id, text, memory(64 * MIB)).await;
        assert_eq!(status.state(), State::Failure, "{status:?}");
        let reason = "step \"s\": oom-killed: out of memory: the job's memory limit is 67108864 bytes";
        assert!(status.message.starts_with(reason), "{}", status.message);
        assert!(status.message.ends_with(end), "{}", status.message);
        assert!(contains(&client.log(id).await, "job failed: step \"s\": oom-killed: "));
    }
    let status = run_limited(&client, "copes", "tail /dev/zero; exit 0", memory(64 * MIB)).await;
    assert_eq!(status.exit_code, 0);
    assert!(contains(&client.log("copes").await, "warning: step s: processes were killed"));
    // With this limit the process cannot even start.
    let status = run_limited(&client, "none", "true", memory(1)).await;
    assert_eq!(status.state(), State::Failure, "{status:?}");
    assert_eq!(daemon.keeper_pid(), Some(keeper));
    assert_eq!(client.status("beside").await.state(), State::Running);
}

/// True if this process has `CAP_SYS_RESOURCE`.
fn may_lower_oom_score() -> bool {
    const BIT: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(capabilities.trim(), 16).unwrap() & BIT != 0
}

#[tokio::test]
async fn fault_12_steps_are_ended_before_the_daemon_and_its_keeper() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "cat /proc/self/oom_score_adj; echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let output = logs::source(&client.log_so_far("1").await, "01O");
    let step: i32 = String::from_utf8(output).unwrap().lines().next().unwrap().parse().unwrap();
    let own = oom_score_adj(std::process::id() as i32);
    let (of_daemon, of_keeper) = (oom_score_adj(daemon.pid()), oom_score_adj(daemon.keeper_pid().unwrap()));
    assert!(of_daemon <= own && of_daemon < step, "daemon {of_daemon}, step {step}, started with {own}");
    assert_eq!(of_keeper, of_daemon);
    assert!(step >= own, "a step is not better off than what started the daemon");
    if may_lower_oom_score() {
        assert_eq!((of_daemon, step), (-500, own.max(0)));
    } else {
        assert_eq!((of_daemon, step), (own, (own + 500).min(1000)));
    }
}

#[tokio::test]
async fn fault_12_a_daemon_without_rights_still_lets_steps_end_first() {
    if !is_root("fault_12_a_daemon_without_rights_still_lets_steps_end_first") {
        return;
    }
    let place = Place::of(ORDINARY);
    let daemon = place.setup().start_in(place.path());
    let client = daemon.client().await;
    client.run_to_end("1", &script("cat /proc/self/oom_score_adj")).await;
    let own = oom_score_adj(std::process::id() as i32);
    assert_eq!(client.output("1").await, format!("{}\n", (own + 500).min(1000)));
    assert_eq!(oom_score_adj(daemon.pid()), own);
    assert_eq!(oom_score_adj(daemon.keeper_pid().unwrap()), own);
}

/// Returns how many KiB of the program file are mapped read-only into a process.
fn mapped_program(pid: i32) -> u64 {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let mut is_program = false;
    let mut total = 0;
    for line in fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
        if let Some(size) = line.strip_prefix("Rss:") {
            let kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
            total += if is_program { kib } else { 0 };
        } else if let Some((_, rest)) = line.split_once('-')
            && let Some(flags) = rest.split(' ').nth(1)
        {
            is_program = !flags.contains('w') && line.ends_with(program.to_str().unwrap());
        }
    }
    total
}

/// Waits until daemon and keeper have given back half of the program's pages that they use now.
async fn give_pages_back(daemon: &Daemon) {
    let pids = [daemon.pid(), daemon.keeper_pid().unwrap()];
    let before = pids.map(mapped_program);
    until("pages are given back", || {
        pids.iter().zip(before).all(|(pid, before)| mapped_program(*pid) < before / 2)
    })
    .await;
}

#[tokio::test]
async fn a_daemon_and_a_keeper_without_work_give_the_pages_of_the_program_back() {
    // Only root can read the daemon's memory maps.
    if !is_root("a_daemon_and_a_keeper_without_work_give_the_pages_of_the_program_back") {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on").await;
    client.ended("1").await;
    client.try_finish("1").await.unwrap();
    give_pages_back(&daemon).await;
    client.run("2", "echo on").await;
    assert_eq!(client.ended("2").await.exit_code, 0);
}

/// A daemon asks its keeper for a sign of life meanwhile, which is no work.
#[tokio::test]
async fn a_keeper_whose_jobs_say_nothing_gives_the_pages_of_the_program_back() {
    if !is_root("a_keeper_whose_jobs_say_nothing_gives_the_pages_of_the_program_back") {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    give_pages_back(&daemon).await;
    client.finish("1").await;
}
