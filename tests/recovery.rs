//! Crashes, restarts, stops and the reaper (service.md §6.3, §6.4).
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

mod support;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::Signal;
use step_runner::journal::{self, Reader};
use step_runner::model::JobId;
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{self, RunRequest, State, Status};
use support::{Daemon, Setup, contains, is_alive, kill, logs, refused, request, script, scripts, wait_for};
use tonic::Code;

fn end(status: &Status) -> (State, i32) {
    (status.state(), status.exit_code)
}

/// Children of process `pid` that have ended and are not reaped.
fn zombies_of(pid: i32) -> usize {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let zombie = format!(" Z {pid} ");
    stats.filter(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(&zombie))).count()
}

/// A loop that ends when `file` is there.
fn wait_until_exists(file: &std::path::Path) -> String {
    format!("until [ -e {} ]; do sleep 0.02; done", file.display())
}

#[tokio::test]
async fn fault_42_a_job_goes_on_over_the_death_of_the_daemon() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    let first = format!("echo before; {}; seq 1 5000; echo after", wait_until_exists(&go));
    client.run_steps("1", &scripts(&[("a", &first), ("b", "echo second")])).await;
    client.prints("1", "before").await;
    let seen = client.log_so_far("1").await;
    let running = client.status("1").await;
    let keeper = daemon.keeper_pid();
    daemon.kill();
    // Written while nobody listens.
    std::fs::write(&go, "").unwrap();
    daemon.restart();
    assert_eq!(daemon.keeper_pid(), keeper);
    let client = daemon.client().await;
    let status = client.ended("1").await;
    assert_eq!((end(&status), status.steps_done), ((State::Success, 0), 2), "{status:?}");
    assert_eq!(status.start_time, running.start_time);
    let log = client.log("1").await;
    assert!(log.starts_with(&seen), "bytes that were seen have changed");
    let expected = support::numbered(5_000, "");
    assert_eq!(client.output("1").await, format!("before\n{expected}after\nsecond\n"));
    let names: Vec<_> =
        client.steps("1").await.into_iter().map(|step| step.step.unwrap_or_default().name).collect();
    assert_eq!(names, ["a", "b", ""]);
}

#[tokio::test]
async fn fault_41_whatever_was_seen_is_there_after_any_number_of_crashes() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let text = "i=1; while [ $i -le 400 ]; do echo $i of 400; sleep 0.005; i=$((i+1)); done";
    client.run_steps("1", &scripts(&[("a", text), ("b", "echo between"), ("c", text)])).await;
    let start_time = client.reaches("1", "it runs", |status| status.start_time.is_some()).await.start_time;
    let mut seen = Vec::new();
    for round in 0..8 {
        let client = daemon.client().await;
        let mut follow = client.follow("1", i32::try_from(seen.len()).unwrap()).await;
        for _ in 0..=round {
            if follow.next().await.unwrap().is_none() {
                break;
            }
        }
        seen.extend_from_slice(&follow.bytes);
        daemon.kill();
        daemon.restart();
        let status = daemon.client().await.status("1").await;
        assert!(status.log_bytes >= seen.len() as i64, "the log has become shorter");
        assert_eq!(status.start_time, start_time);
    }
    let client = daemon.client().await;
    assert_eq!(client.ended("1").await.exit_code, 0);
    let log = client.log("1").await;
    assert!(log.starts_with(&seen));
    let lines = support::numbered(400, " of 400");
    assert_eq!(client.output("1").await, format!("{lines}between\n{lines}"));
}

#[tokio::test]
async fn fault_41_followers_of_a_daemon_that_died_go_on_at_their_offset() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    client.run("1", &format!("seq 1 100; {}; seq 101 200", wait_until_exists(&go))).await;
    let mut follow = client.follow("1", 0).await;
    follow.until(" 01O 100\n").await;
    let mut received = follow.bytes.clone();
    daemon.kill();
    assert!(follow.next().await.is_err(), "the stream of a dead daemon must not end well");
    daemon.restart();
    std::fs::write(&go, "").unwrap();
    let client = daemon.client().await;
    let rest = client.follow("1", i32::try_from(received.len()).unwrap()).await.rest().await.unwrap();
    received.extend(rest);
    assert!(received == client.log("1").await);
}

#[tokio::test]
async fn ended_jobs_are_served_as_before() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let mut before = Vec::new();
    for (id, text) in [("good", "echo fine"), ("bad", "echo oh >&2; exit 7"), ("dead", "kill -9 $$")] {
        let status = client.run_to_end(id, &script(text)).await;
        before.push((status, client.log(id).await, client.steps(id).await));
    }
    client.run("cancelled", "echo on; exec sleep 600").await;
    client.prints("cancelled", "on").await;
    client.cancel("cancelled").await;
    let status = client.ended("cancelled").await;
    before.push((status, client.log("cancelled").await, client.steps("cancelled").await));
    for crash in [true, false, true] {
        if crash {
            daemon.kill();
        } else {
            daemon.stop();
        }
        daemon.restart();
        let client = daemon.client().await;
        for (status, log, steps) in &before {
            let now = client.status(&status.id).await;
            assert_eq!((now.state(), &now.message), (status.state(), &status.message));
            assert_eq!(now, *status);
            assert!(client.log(&status.id).await == *log);
            assert_eq!(client.steps(&status.id).await, *steps);
        }
        let ids: Vec<_> = client.jobs().await.into_iter().map(|job| job.id).collect();
        assert_eq!(ids, ["good", "bad", "dead", "cancelled"], "in the order of their registration");
    }
}

#[tokio::test]
async fn fault_61_time_limits_survive_a_restart() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let timeout = Some(prost_types::Duration { seconds: 2, nanos: 0 });
    let run = RunRequest { timeout, ..request("1", &script("echo on; exec sleep 600")) };
    let start = Instant::now();
    client.try_run(run).await.unwrap();
    client.prints("1", "on").await;
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(end(&client.ended("1").await), (State::Timeout, -3));
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(1_900) && took < Duration::from_secs(10), "{took:?}");
}

#[tokio::test]
async fn a_cancel_that_was_begun_is_completed_by_the_next_daemon() {
    let mut daemon = Setup::new().option("cancel-grace", "1s").start();
    let client = daemon.client().await;
    client
        .run_steps(
            "1",
            &scripts(&[("a", "trap '' TERM; echo on; while :; do sleep 1; done"), ("b", "echo never")]),
        )
        .await;
    client.prints("1", "on").await;
    client.cancel("1").await;
    client.reaches("1", "it is cancelling", |status| status.state() == State::Cancelling).await;
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(end(&client.ended("1").await), (State::Cancelled, -2));
    assert!(!contains(&client.log("1").await, "never"));
}

#[tokio::test]
async fn a_finish_that_was_begun_does_not_bring_the_job_back() {
    let mut daemon = Setup::new().option("cancel-grace", "1s").start();
    let client = daemon.client().await;
    client.run("1", "trap 'echo caught' TERM; echo on; while :; do sleep 0.1; done").await;
    let mut follow = client.follow("1", 0).await;
    follow.until("on").await;
    let finishing = client.clone();
    let call = tokio::spawn(async move { finishing.try_finish("1").await });
    follow.until("caught").await;
    daemon.kill();
    call.await.unwrap().unwrap_err();
    daemon.restart();
    let client = daemon.client().await;
    // The client repeats what was not answered.
    client.finish("1").await;
    refused(client.try_status("1").await, Code::NotFound, "unknown_job");
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn fault_58_a_gentle_stop_ends_jobs_and_gives_a_hundred_followers_the_rest() {
    let mut daemon = Setup::new().option("shutdown-grace", "1s").option("cancel-grace", "60s").start();
    let client = daemon.client().await;
    client.run("stubborn", "trap '' TERM; echo on; while :; do sleep 1; done").await;
    client.run("meek", "echo on; exec sleep 600").await;
    client.prints("meek", "on").await;
    let mut follows = Vec::new();
    for n in 0..100 {
        let another = daemon.client().await;
        let mut follow = another.follow(if n % 2 == 0 { "stubborn" } else { "meek" }, 0).await;
        follow.until("on").await;
        follows.push(follow);
    }
    let start = Instant::now();
    daemon.signal(Signal::TERM);
    let late =
        client.reaches("stubborn", "it is cancelled", |status| status.state() == State::Cancelling).await;
    assert!(!late.finished);
    refused(client.try_run(request("late", &script("true"))).await, Code::Unavailable, "shutting_down");
    let rests = join_all(follows.into_iter().map(support::Follow::rest)).await;
    assert_eq!(daemon.wait(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(1 + 2), "{:?}", start.elapsed());
    for rest in rests {
        assert!(contains(&rest.unwrap(), "job cancelled: "), "every follower gets the end");
    }
    assert!(!daemon.socket.exists());
    assert_eq!(daemon.keeper_pid(), None);
    daemon.restart();
    let client = daemon.client().await;
    for id in ["stubborn", "meek"] {
        assert_eq!(end(&client.ended(id).await), (State::Cancelled, -2));
    }
    refused(client.try_status("late").await, Code::NotFound, "unknown_job");
}

#[tokio::test]
async fn fault_58_a_second_signal_ends_it_at_once() {
    let mut daemon = Setup::new().option("shutdown-grace", "60s").option("cancel-grace", "60s").start();
    let client = daemon.client().await;
    let pid = daemon.file("pid");
    client
        .run("1", &format!("trap '' TERM; echo $$ > {}; echo on; while :; do sleep 1; done", pid.display()))
        .await;
    let mut follow = client.follow("1", 0).await;
    follow.until("on").await;
    daemon.signal(Signal::TERM);
    client.reaches("1", "it is cancelled", |status| status.state() == State::Cancelling).await;
    let start = Instant::now();
    daemon.signal(Signal::INT);
    // The job's end is the next daemon's to tell.
    refused(follow.rest().await, Code::Unavailable, "shutting_down");
    assert_eq!(daemon.wait(), Some(1));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let pid = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    wait_for("the job's end", || (!is_alive(pid)).then_some(()));
}

#[tokio::test]
async fn drain_waits_for_jobs() {
    let mut daemon = Setup::new().option("on-stop", "drain").start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    client.run("1", &format!("echo on; {}; echo done", wait_until_exists(&go))).await;
    let mut follow = client.follow("1", 0).await;
    follow.until("on").await;
    daemon.signal(Signal::TERM);
    let start = Instant::now();
    loop {
        match client.try_run(request("late", &script("true"))).await {
            Ok(()) => assert!(start.elapsed() < support::PATIENCE),
            refusal => break drop(refused(refusal, Code::Unavailable, "shutting_down")),
        }
        client.finish("late").await;
    }
    std::fs::write(&go, "").unwrap();
    assert!(contains(&follow.rest().await.unwrap(), "done"));
    assert_eq!(daemon.wait(), Some(0));
    daemon.restart();
    assert_eq!(end(&daemon.client().await.ended("1").await), (State::Success, 0));
}

#[tokio::test]
async fn fault_42_the_death_of_the_keeper_interrupts_running_jobs_at_once() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let pid = daemon.file("pid");
    let steps = [
        ("a", "echo fine"),
        ("b", &format!("setsid -f sleep 602; echo $$ > {}; echo on; exec sleep 600", pid.display())),
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
    wait_for("the end of what had left", || support::processes_with("sleep\x00602").is_empty().then_some(()));
    wait_for("the daemon to reap what came to it", || (zombies_of(daemon.pid()) == 0).then_some(()));
    assert_eq!(client.run_to_end("2", &script("echo next")).await.exit_code, 0);
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
    // Who meets the dying keeper is refused for now.
    while let Err(refusal) = client.try_run(request("3", &script("true"))).await {
        assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
    }
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
    let second = "setsid -f sleep 603; printf 'no line end'; echo ready >&2; exec sleep 600";
    let steps = scripts(&[("a", "echo fine"), ("b", second)]);
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
    assert_eq!(support::processes_with("sleep\x00603"), Vec::<i32>::new());
    assert!(!daemon.file("build.tmp").exists(), "the secret stays on disk");
    let steps = client.steps("1").await;
    assert_eq!((steps.len(), steps[1].status()), (2, StepStatus::Failure));
    assert_eq!(client.run_to_end("2", &script("echo next")).await.exit_code, 0);
    // Nothing is added again by a further start.
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await, status);
    assert_eq!(client.steps("1").await, steps);
    client.finish("1").await;
}

#[tokio::test]
async fn a_keeper_whose_daemon_does_not_come_back_ends_its_jobs() {
    let mut daemon = Setup::new().option("keeper-wait", "300ms").option("cancel-grace", "300ms").start();
    let client = daemon.client().await;
    let variable = v1::Variable { key: "CERT".into(), value: "canary".into(), file: true, masked: true };
    let build_dir = daemon.file("build").to_str().unwrap().to_owned();
    let job = Some(v1::Job { variables: vec![variable], build_dir, ..v1::Job::default() });
    let text = "trap 'echo caught' TERM; echo on; while :; do sleep 0.01; done";
    let steps = scripts(&[("a", "echo fine"), ("b", text)]);
    client.try_run(RunRequest { job, ..request("1", &steps) }).await.unwrap();
    client.prints("1", " on\n").await;
    let keeper = daemon.keeper_pid().unwrap();
    daemon.kill();
    wait_for("the keeper's end", || (!is_alive(keeper)).then_some(()));
    assert!(!daemon.file("build.tmp/CERT").exists(), "the secret stays on disk");
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

#[tokio::test]
async fn fault_51_a_stale_socket_is_taken_over_again_and_again() {
    let mut daemon = Daemon::start();
    for _ in 0..20 {
        daemon.kill();
        assert!(daemon.socket.exists());
        daemon.restart();
    }
    assert!(daemon.client().await.jobs().await.is_empty());
}

#[tokio::test]
async fn fault_47_a_crash_between_many_jobs_leaves_none_behind() {
    let mut daemon = Daemon::start();
    for round in 0..5 {
        let client = daemon.client().await;
        let runs = (0..10).map(|n| {
            let client = client.clone();
            async move {
                let id = format!("r{round}-{n}");
                let answered = client.calls.clone().run(request(&id, &script("echo x"))).await.is_ok();
                (id, answered)
            }
        });
        let all = join_all(runs);
        let kill = async {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(3 * round)).await;
            daemon.kill();
        };
        let (runs, ()) = tokio::join!(all, kill);
        daemon.restart();
        let client = daemon.client().await;
        for (id, answered) in runs {
            // What was answered is there; the rest may be repeated with the same effect.
            if answered {
                client.try_status(&id).await.unwrap();
            }
            client.run(&id, "echo x").await;
            assert_eq!(client.ended(&id).await.exit_code, 0, "{id}");
            assert_eq!(client.output(&id).await, "x\n");
            client.finish(&id).await;
        }
        assert_eq!(daemon.folders(), Vec::<String>::new());
    }
}

/// strace on a living process until that dies: kills it before its first call on `path`.
fn kill_at(pid: i32, call: &str, path: &str) -> std::process::Child {
    let inject = format!("inject={call}:signal=KILL:when=1");
    let pid = pid.to_string();
    let mut strace = std::process::Command::new("strace");
    strace.args(["-q", "-o", "/dev/null", "-P", path, "-e", &inject, "-p", &pid]);
    let strace = strace.spawn().unwrap();
    wait_for("strace to trace the keeper", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        (!status.contains("TracerPid:\t0")).then_some(())
    });
    strace
}

#[tokio::test]
async fn fault_47_a_process_that_was_started_and_not_recorded_is_found_and_killed() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        return support::parts::skipped("fault_47", "strace");
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("first", &script("true")).await;
    let keeper = daemon.keeper_pid().unwrap();
    let key = JobId::parse("1").unwrap().key();
    let mut strace = kill_at(keeper, "openat", &format!("jobs/{key}/journal"));
    client.run("1", "setsid sleep 604 & sleep 605").await;
    let ended = client.ended("1").await;
    assert_eq!(end(&ended), (State::Interrupted, -4));
    let journal = std::fs::read_to_string(daemon.folder("1").join("journal")).unwrap();
    assert!(!journal.contains("step_started"), "the keeper was killed too late: {journal}");
    for mark in ["sleep\x00604", "sleep\x00605"] {
        wait_for("the end of what it had started", || support::processes_with(mark).is_empty().then_some(()));
    }
    strace.wait().unwrap();
    assert_eq!(client.run_to_end("2", &script("echo next")).await.exit_code, 0);
}

/// Reading calls and open descriptors of the daemon since its start.
fn reads_and_descriptors(daemon: &Daemon) -> (u64, usize) {
    let io = std::fs::read_to_string(format!("/proc/{}/io", daemon.pid())).unwrap();
    let reads = io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap();
    (reads, std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count())
}

/// Folders of ended jobs `from..to`, after the folder of job 0.
fn copy_job(daemon: &Daemon, from: usize, to: usize) {
    let first = daemon.folder("0");
    let bytes = std::fs::read(first.join("job.json")).unwrap();
    let mut record = Reader::<serde_json::Value>::new(&bytes).next().unwrap().unwrap().event;
    for id in (from..to).map(|n| n.to_string()) {
        let folder = daemon.folder(&id);
        std::fs::create_dir(&folder).unwrap();
        record["id"] = id.into();
        std::fs::write(folder.join("job.json"), journal::encode(&record).unwrap()).unwrap();
        for name in ["journal", "log", "steps"] {
            std::fs::copy(first.join(name), folder.join(name)).unwrap();
        }
    }
}

#[tokio::test]
async fn fault_45_a_thousand_old_jobs_cost_a_restart_linear_work_and_no_descriptor() {
    let mut daemon = Daemon::start();
    daemon.client().await.run_to_end("0", &script("echo x")).await;
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    daemon.kill();
    let mut seen = Vec::new();
    for (from, to) in [(1, 1), (1, 500), (500, 1000)] {
        copy_job(&daemon, from, to);
        daemon.restart();
        seen.push(reads_and_descriptors(&daemon));
        assert_eq!(daemon.client().await.jobs().await.len(), to);
        daemon.kill();
    }
    let mut seen = seen.into_iter();
    let mut next = || seen.next().unwrap();
    let ((none, few), (half, some), (all, many)) = (next(), next(), next());
    assert_eq!((few, few), (some, many), "descriptors");
    let (first, second) = (half - none, all - half);
    assert!(first > 500 && second.abs_diff(first) < first / 10, "reads of each half: {first}, {second}");
    for _ in 0..10 {
        daemon.restart();
        daemon.kill();
    }
    daemon.restart();
    assert_eq!(daemon.client().await.jobs().await.len(), 1000);
}

fn reaping() -> Setup {
    Setup::new().option("reap-interval", "1s")
}

#[tokio::test]
async fn fault_60_jobs_that_nobody_finishes_are_removed() {
    let daemon = reaping().option("stale-after", "500ms").start();
    let client = daemon.client().await;
    client.run("running", "echo on; exec sleep 600").await;
    client.run_to_end("1", &script("seq 1 100000")).await;
    let behind = daemon.client().await;
    let mut follow = behind.follow("1", 0).await;
    follow.next().await.unwrap();
    let removed = async { while client.try_status("1").await.is_ok() {} };
    support::patiently("the job is removed", removed).await;
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
    let setup = reaping().option("stale-after", "100ms").option("stale-floor", "1h");
    daemon.restart_with(setup);
    let client = daemon.client().await;
    // Another job shows that the reaper has passed.
    client.run("2", "echo y").await;
    client.ended("2").await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        assert!(client.try_status("1").await.is_ok(), "reaped too early");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    daemon.stop();
    daemon.restart_with(reaping().option("stale-after", "100ms").option("stale-floor", "100ms"));
    support::until("the job is removed", || !daemon.folder("1").exists()).await;
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

// The client's connection ends while this thread waits for the daemon.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_daemon_ends_and_one_that_lived_long_enough() {
    let mut daemon = Setup::new().option("idle-timeout", "600ms").start();
    let client = daemon.client().await;
    client.run_to_end("1", &script("sleep 1")).await;
    client.finish("1").await;
    drop(client);
    assert_eq!(daemon.wait(), Some(0));
    let mut daemon = Setup::new().option("max-lifetime", "500ms").start();
    let client = daemon.client().await;
    client.run("1", "exec sleep 600").await;
    assert_eq!(daemon.wait(), Some(0));
}
