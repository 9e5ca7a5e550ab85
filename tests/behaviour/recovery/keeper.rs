//! The keeper dies or loses its daemon.

use std::time::Duration;

use super::{end, freeze, wait_until_exists};
use crate::support::{
    Daemon, OwnSleep, Setup, contains, is_alive, is_root, kill, logs, patiently, refused, request, script,
    scripts, tree, until, wait_for,
};
use rustix::process::Signal;
use step_runner::model::JobId;
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{self, RunRequest, State};
use tokio::time::timeout;
use tonic::Code;

/// Returns the number of unreaped child processes of `pid`.
fn zombies_of(pid: i32) -> usize {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let zombie = format!(" Z {pid} ");
    stats.filter(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(&zombie))).count()
}

#[tokio::test]
async fn fault_42_the_death_of_the_keeper_interrupts_running_jobs_at_once() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let (pid, left) = (daemon.file("pid"), OwnSleep::new());
    let steps = [
        ("a", "echo fine"),
        ("b", &format!("setsid -f {left}; echo $$ > {}; echo on; exec sleep 600", pid.display())),
    ];
    client.run_steps("1", &scripts(&steps)).await;
    let mut follow = client.follow("1", 0).await;
    follow.until(" on\n").await;
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    let log = follow.rest().await.unwrap();
    let status = client.status("1").await;
    assert_eq!(end(&status), (State::Interrupted, -4));
    assert!(status.finished && status.start_time.is_some());
    assert_eq!(status.steps_done, 1);
    assert_eq!(status.log_bytes, log.len() as i64);
    assert!(logs::daemon_lines(&log).last().unwrap().starts_with("job interrupted: "));
    let root = client.steps("1").await.pop().unwrap();
    assert_eq!((root.step, root.status), (None, StepStatus::Failure as i32));
    let pid = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    wait_for("the job's end", || (!is_alive(pid)).then_some(()));
    wait_for("the end of what had left", || left.processes().is_empty().then_some(()));
    wait_for("the daemon to reap what came to it", || (zombies_of(daemon.pid()) == 0).then_some(()));
    assert_eq!(client.run_to_end("2", &script("echo next")).await.exit_code, 0);
}

#[tokio::test]
async fn fault_42_a_keeper_that_was_stopped_goes_on_with_the_next_daemon() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    let steps = [("a", &*format!("echo on; {}; echo done", wait_until_exists(&go))), ("b", "echo next")];
    client.run_steps("1", &scripts(&steps)).await;
    client.prints("1", "on").await;
    freeze(daemon.keeper_pid().unwrap());
    daemon.kill();
    daemon.restart();
    wait_for("a word to the operator", || daemon.said().contains("the keeper does not answer").then_some(()));
    let client = daemon.client().await;
    assert_eq!(client.status("1").await.state(), State::Running);
    std::fs::write(&go, "").unwrap();
    assert_eq!(end(&client.ended("1").await), (State::Success, 0));
    assert_eq!(client.output("1").await, "on\ndone\nnext\n");
}

#[tokio::test]
async fn fault_48_a_late_duplicate_starts_nothing_after_a_restart_or_the_death_of_the_keeper() {
    let mut daemon = Daemon::start();
    let ran = daemon.file("ran");
    let once = script(&format!("echo ran >> {}", ran.display()));
    daemon.client().await.run_to_end("1", &once).await;
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    client.finish("1").await;
    client.try_run(request("1", &once)).await.unwrap();
    refused(client.try_status("1").await, Code::NotFound, "unknown_job");

    client.run_to_end("2", &once).await;
    client.finish("2").await;
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    // A Run that reaches the dying keeper is refused for now.
    let taken = async {
        while let Err(refusal) = client.try_run(request("3", &script("true"))).await {
            assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
        }
    };
    patiently("a keeper", Box::pin(taken)).await;
    client.ended("3").await;
    client.try_run(request("2", &once)).await.unwrap();
    refused(client.try_status("2").await, Code::NotFound, "unknown_job");
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "ran\nran\n");
}

#[tokio::test]
async fn fault_42_the_death_of_both_interrupts_at_the_next_start() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let variable = v1::Variable { key: "CERT".into(), value: "canary".into(), file: true, masked: true };
    let build_dir = daemon.file("build").to_str().unwrap().to_owned();
    let job = Some(v1::Job { variables: vec![variable], build_dir, ..v1::Job::default() });
    let left = OwnSleep::new();
    let second = format!("setsid -f {left}; printf 'no line end'; echo ready >&2; exec sleep 600");
    let steps = scripts(&[("a", "echo fine"), ("b", &second)]);
    client.try_run(RunRequest { job, ..request("1", &steps) }).await.unwrap();
    client.prints("1", "ready").await;
    let seen = client.log_so_far("1").await;
    let running = client.status("1").await;
    assert!(daemon.file("build.tmp/CERT").exists());
    let keeper = daemon.keeper_pid().unwrap();
    daemon.kill();
    kill(keeper, Signal::KILL);
    wait_for("the keeper's end", || (!is_alive(keeper)).then_some(()));
    daemon.restart();
    let client = daemon.client().await;
    let status = client.ended("1").await;
    assert_eq!(end(&status), (State::Interrupted, -4));
    assert_eq!((&status.start_time, status.steps_done), (&running.start_time, 1));
    let log = client.log("1").await;
    assert!(log.starts_with(&seen) && log.ends_with(b"\n"));
    assert!(logs::daemon_lines(&log).last().unwrap().starts_with("job interrupted: "));
    assert_eq!(left.processes(), Vec::<i32>::new());
    assert!(!daemon.file("build.tmp").exists(), "the secret stays on disk");
    let steps = client.steps("1").await;
    assert_eq!((steps.len(), steps[1].status()), (2, StepStatus::Failure));
    assert_eq!(client.run_to_end("2", &script("echo next")).await.exit_code, 0);
    // A further start adds nothing.
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await, status);
    assert_eq!(client.steps("1").await, steps);
    client.finish("1").await;
}

#[tokio::test]
async fn a_keeper_whose_daemon_does_not_come_back_ends_its_jobs() {
    let mut daemon = Setup::new().option("keeper-wait", "300ms").option("cancel-grace", "600s").start();
    let client = daemon.client().await;
    let variable = v1::Variable { key: "CERT".into(), value: "canary".into(), file: true, masked: true };
    let build_dir = daemon.file("build").to_str().unwrap().to_owned();
    let job = Some(v1::Job { variables: vec![variable], build_dir, ..v1::Job::default() });
    // The step continues for a while after SIGTERM, so that a second SIGTERM would be noticed.
    let text = "trap 'asked=1; echo caught' TERM; cp $CERT ${{ export_file }}; echo on; until [ $asked ]; do sleep 0.01; done; sleep 0.3";
    let steps = scripts(&[("a", "echo fine"), ("b", text)]);
    client.try_run(RunRequest { job, ..request("1", &steps) }).await.unwrap();
    client.prints("1", " on\n").await;
    let keeper = daemon.keeper_pid().unwrap();
    daemon.kill();
    wait_for("the keeper's end", || (!is_alive(keeper)).then_some(()));
    assert!(!daemon.file("build.tmp/CERT").exists(), "the secret stays on disk");
    for (path, bytes) in tree(&daemon.state_dir()) {
        assert!(!contains(&bytes, "canary"), "the secret stays in {}", path.display());
    }
    daemon.restart();
    let client = daemon.client().await;
    let status = client.ended("1").await;
    assert_eq!(end(&status), (State::Interrupted, -4));
    assert!(status.message.contains("no daemon came back"), "{}", status.message);
    assert_eq!(status.steps_done, 1);
    assert_eq!(client.output("1").await, "fine\non\ncaught\n", "it was asked gently, once");
    let steps = client.steps("1").await;
    assert_eq!((steps.len(), steps[1].status()), (2, StepStatus::Failure));
}

/// Attaches strace to a process, until that ends. strace kills it before its first call on `path`.
fn kill_at(pid: i32, call: &str, path: &str) -> std::process::Child {
    trace(pid, &["-P", path, "-e", &format!("inject={call}:signal=KILL:when=1")])
}

/// Attaches strace with these options to a process, until that ends.
fn trace(pid: i32, options: &[&str]) -> std::process::Child {
    let pid = pid.to_string();
    let mut strace = std::process::Command::new("strace");
    strace.args(["-q", "-o", "/dev/null"]).args(options).args(["-p", &pid]);
    let strace = strace.spawn().unwrap();
    wait_for("strace to trace the process", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        (!status.contains("TracerPid:\t0")).then_some(())
    });
    strace
}

#[tokio::test]
async fn fault_47_a_process_that_was_started_and_not_recorded_is_found_and_killed() {
    if !is_root("fault_47_a_process_that_was_started_and_not_recorded_is_found_and_killed") {
        return;
    }
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        return crate::support::parts::skipped("fault_47", "strace");
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("first", &script("true")).await;
    let keeper = daemon.keeper_pid().unwrap();
    let key = JobId::parse("1").unwrap().key();
    let mut strace = kill_at(keeper, "openat", &format!("jobs/{key}/journal"));
    let (leaves, stays) = (OwnSleep::new(), OwnSleep::new());
    client.run("1", &format!("setsid {leaves} & {stays}")).await;
    let ended = client.ended("1").await;
    assert_eq!(end(&ended), (State::Interrupted, -4));
    let journal = std::fs::read_to_string(daemon.folder("1").join("journal")).unwrap();
    assert!(!journal.contains("step_started"), "the keeper was killed too late: {journal}");
    for started in [leaves, stays] {
        wait_for("the end of what it had started", || started.processes().is_empty().then_some(()));
    }
    strace.wait().unwrap();
    assert_eq!(client.run_to_end("2", &script("echo next")).await.exit_code, 0);
}

#[tokio::test]
async fn a_daemon_killed_while_it_starts_its_keeper_leaves_room_for_the_next() {
    if !is_root("a_daemon_killed_while_it_starts_its_keeper_leaves_room_for_the_next") {
        return;
    }
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        return crate::support::parts::skipped("a_daemon_killed_while_it_starts_its_keeper", "strace");
    }
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    // The keeper is a copy of the daemon, with its locks, until it has executed its program.
    let mut strace =
        trace(daemon.pid(), &["-f", "-e", "trace=execve", "-e", "inject=execve:delay_enter=500000:when=1"]);
    let asked = tokio::spawn(async move { client.try_run(request("1", &script("echo lost"))).await });
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    until("the start of the keeper", || !std::fs::read_to_string(&children).unwrap().is_empty()).await;
    daemon.kill();
    assert!(asked.await.unwrap().is_err(), "it was answered");
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.run_to_end("1", &script("echo ran")).await.exit_code, 0);
    assert_eq!(client.output("1").await, "ran\n");
    // Whichever keeper ran it ends with its daemon.
    daemon.stop();
    strace.wait().unwrap();
}

/// Runs a step that stops the keeper, its parent, once or again and again. Other calls are answered in time, and the job ends
/// as it is asked to.
async fn stops_its_keeper(cgroup: &str, steals_keeper_json: bool) {
    let mut daemon = Setup::new().option("cgroup", cgroup).option("cancel-grace", "100ms").start();
    let client = daemon.client().await;
    client.run("first", "true").await;
    client.ended("first").await;
    let keeper = daemon.keeper_pid().unwrap();
    let identity = daemon.state_dir().join("keeper.json");
    let spoil = if steals_keeper_json { format!("rm {}; ", identity.display()) } else { String::new() };
    client.run("1", &format!("{spoil}echo on; kill -STOP {keeper}; exec sleep 600")).await;
    client.prints("1", "on").await;
    let start = std::time::Instant::now();
    client.run("2", "echo fine").await;
    assert_eq!(end(&client.ended("2").await), (State::Success, 0));
    client.cancel("1").await;
    assert_eq!(end(&client.ended("1").await), (State::Cancelled, -2));
    client.finish("1").await;
    client.finish("2").await;
    assert!(start.elapsed() < crate::support::SOON, "{:?}", start.elapsed());
    wait_for("a word to the operator", || daemon.said().contains("the keeper does not answer").then_some(()));
    daemon.stop();
}

#[tokio::test]
async fn fault_97_a_keeper_that_a_step_stops_is_continued() {
    for cgroup in ["auto", "off"] {
        stops_its_keeper(cgroup, false).await;
    }
    stops_its_keeper("auto", true).await;
}

#[tokio::test]
async fn fault_97_a_keeper_that_is_frozen_is_thawed() {
    let test = "fault_97_a_keeper_that_is_frozen_is_thawed";
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "exec sleep 600").await;
    client.reaches("1", "it runs", |status| status.state() == State::Running).await;
    let identity = std::fs::read_to_string(daemon.state_dir().join("keeper.json")).unwrap();
    let identity: serde_json::Value = serde_json::from_str(&identity).unwrap();
    let groups = identity["cgroups"].as_array().unwrap().iter().filter_map(|group| group.as_str());
    let group = groups.map(std::path::Path::new).find(|group| group.join("cgroup.freeze").exists());
    let Some(group) = group else { return crate::support::parts::skipped(test, "writable cgroup v2") };
    let frozen = group.parent().unwrap().join(format!("step-runner-test-{}", std::process::id()));
    std::fs::create_dir(&frozen).unwrap();
    std::fs::write(frozen.join("cgroup.procs"), daemon.keeper_pid().unwrap().to_string()).unwrap();
    std::fs::write(frozen.join("cgroup.freeze"), "1").unwrap();
    client.cancel("1").await;
    assert_eq!(end(&client.ended("1").await), (State::Cancelled, -2));
    let status = std::fs::read_to_string(frozen.join("cgroup.freeze")).unwrap();
    assert_eq!(status, "0\n");
    drop(daemon);
    wait_for("the end of the group", || std::fs::remove_dir(&frozen).ok());
}

/// The keeper gets little time to work. Calls are answered in time all the same, if only with a refusal for now.
#[tokio::test]
async fn fault_97_calls_are_answered_while_a_step_stops_the_keeper_again_and_again() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("first", "true").await;
    client.ended("first").await;
    let keeper = daemon.keeper_pid().unwrap();
    let on = daemon.file("on");
    let step = format!("touch {}; while kill -STOP {keeper}; do :; done; exec sleep 600", on.display());
    client.run("1", &step).await;
    wait_for("the step", || on.exists().then_some(()));
    // A keeper that is silent for 30 s is killed, and what waits for it is answered.
    let longest = Duration::from_secs(30) + crate::support::SOON;
    for _ in 0..3 {
        let run = timeout(longest, client.try_run(request("2", &script("true")))).await.unwrap();
        let finish = timeout(longest, client.try_finish("2")).await.unwrap();
        for refusal in [run, finish].into_iter().filter_map(Result::err) {
            assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
        }
    }
    client.cancel("1").await;
    // Either the keeper ends it, or the keeper is ended for its silence.
    let ended = end(&client.ended("1").await);
    assert!([(State::Interrupted, -4), (State::Cancelled, -2)].contains(&ended), "{ended:?}");
}
