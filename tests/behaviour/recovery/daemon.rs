//! The daemon is killed and started again.

use std::time::{Duration, Instant};

use super::{end, freeze, wait_until_exists};
use crate::support::{
    Daemon, Setup, at_rest, contains, is_root, kill, patiently, refused, request, script, scripts,
};
use futures_util::future::join_all;
use rustix::process::Signal;
use step_runner::journal::{self, Reader};
use step_runner::pb::v1::{self, RunRequest, State};
use tonic::Code;

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
    // The step writes this while no daemon runs.
    std::fs::write(&go, "").unwrap();
    daemon.restart();
    assert_eq!(daemon.keeper_pid(), keeper);
    let client = daemon.client().await;
    let status = client.ended("1").await;
    assert_eq!((end(&status), status.steps_done), ((State::Success, 0), 2), "{status:?}");
    assert_eq!(status.start_time, running.start_time);
    let log = client.log("1").await;
    assert!(log.starts_with(&seen), "bytes that were seen have changed");
    let expected = crate::support::numbered(5_000, "");
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
    let lines = crate::support::numbered(400, " of 400");
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
    // Long enough to kill and restart the daemon, on any machine.
    let timeout = Some(prost_types::Duration { seconds: 6, nanos: 0 });
    let run = RunRequest { timeout, ..request("1", &script("echo on; exec sleep 600")) };
    let start = Instant::now();
    client.try_run(run).await.unwrap();
    client.prints("1", "on").await;
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(end(&client.ended("1").await), (State::Timeout, -3));
    assert!(start.elapsed() >= Duration::from_millis(5_900), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_cancel_that_was_begun_is_completed_by_the_next_daemon() {
    // Long enough to kill the daemon within the grace.
    let mut daemon = Setup::new().option("cancel-grace", "4s").start();
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
    let mut daemon = Setup::new().option("cancel-grace", "600s").start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    client.run("1", &format!("trap 'echo caught' TERM; echo on; {}", wait_until_exists(&go))).await;
    let mut follow = client.follow("1", 0).await;
    follow.until("on").await;
    let finishing = client.clone();
    let call = tokio::spawn(async move { finishing.try_finish("1").await });
    follow.until("caught").await;
    daemon.kill();
    call.await.unwrap().unwrap_err();
    daemon.restart();
    std::fs::write(&go, "").unwrap();
    let client = daemon.client().await;
    // The client repeats the call that was not answered.
    client.finish("1").await;
    refused(client.try_status("1").await, Code::NotFound, "unknown_job");
    assert_eq!(daemon.folders(), Vec::<String>::new());
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
            // Jobs whose Run was answered exist. A Run without an answer can be repeated with the same effect.
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

#[tokio::test]
async fn a_daemon_killed_after_a_finish_leaves_nothing_that_the_job_wrote() {
    let mut daemon = Setup::new().start();
    let client = daemon.client().await;
    let jobs = (0..20).map(|id| {
        let client = client.clone();
        async move {
            client.run_to_end(&id.to_string(), &script("echo a line")).await;
            client.finish(&id.to_string()).await;
        }
    });
    join_all(jobs).await;
    daemon.kill();
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn an_id_that_was_finished_too_long_ago_starts_a_job_though_the_keeper_slept_meanwhile() {
    let remembered = Duration::from_secs(2);
    let mut daemon = Setup::new().option("remember-finished", "2s").start();
    let count = daemon.file("count");
    let counted = script(&format!("echo x >> {}", count.display()));
    let client = daemon.client().await;
    client.run_to_end("1", &counted).await;
    // The keeper hears that the job has ended, and then of nothing any more.
    tokio::time::sleep(Duration::from_millis(500)).await;
    client.finish("1").await;
    let finished = Instant::now();
    client.try_run(request("1", &counted)).await.unwrap();
    let is_repeat = client.try_status("1").await.is_err();
    assert!(is_repeat || finished.elapsed() > remembered);
    tokio::time::sleep(remembered + Duration::from_millis(500)).await;
    daemon.kill();
    daemon.restart();
    daemon.client().await.run_to_end("1", &counted).await;
    assert!(!is_repeat || std::fs::read_to_string(count).unwrap() == "x\nx\n");
}

/// Returns the number of read calls since the daemon's start, and of its open descriptors, once its start is complete.
fn reads_and_descriptors(daemon: &Daemon) -> (u64, usize) {
    let pid = daemon.pid();
    at_rest(pid, || {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let reads = io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap();
        (reads, std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
    })
}

/// Copies the folder of job 0 to the folders of ended jobs `from..to`.
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
    if !is_root("fault_45_a_thousand_old_jobs_cost_a_restart_linear_work_and_no_descriptor") {
        return;
    }
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

#[tokio::test]
async fn a_finish_that_a_crash_cut_off_leaves_the_grace_that_it_gave() {
    let mut daemon = Setup::new().option("cancel-grace", "60s").start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    let text = format!(
        "trap 'echo asked; {}; echo tidied; exit 0' TERM; echo ready; while :; do sleep 0.02; done",
        wait_until_exists(&go)
    );
    client.run("1", &text).await;
    client.prints("1", "ready").await;
    let finish = tokio::spawn(async move { client.try_finish("1").await });
    let client = daemon.client().await;
    client.prints("1", "asked").await;
    daemon.kill();
    finish.await.unwrap().unwrap_err();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await.state(), State::Cancelling);
    std::fs::write(&go, "").unwrap();
    assert_eq!(end(&client.ended("1").await), (State::Cancelled, -2));
    assert!(client.output("1").await.contains("tidied"), "it was killed in its grace");
}

#[tokio::test]
async fn a_job_that_goes_on_is_masked_as_it_was_when_it_was_registered() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    // The second `echo` prints the phrase in base64, which is one of its masked forms.
    let text = format!("echo on; {}; echo YSBzZWNyZXQgcGhyYXNl", wait_until_exists(&go));
    let masking = Some(v1::Masking { phrases: vec!["a secret phrase".into()], token_prefixes: vec![] });
    client.try_run(RunRequest { masking, ..request("1", &script(&text)) }).await.unwrap();
    client.prints("1", "on").await;
    daemon.kill();
    daemon.restart_with(Setup::new().option("mask-forms", "false"));
    std::fs::write(&go, "").unwrap();
    let client = daemon.client().await;
    assert_eq!(end(&client.ended("1").await), (State::Success, 0));
    let results = format!("{:?}", client.steps("1").await);
    assert!(results.contains("MASKED") && !results.contains("YSBzZWNyZXQgcGhyYXNl"), "{results}");
    assert!(!client.output("1").await.contains("YSBzZWNyZXQgcGhyYXNl"));
}

#[tokio::test]
async fn fault_43_results_behind_one_that_was_cut_off_are_served() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    client
        .run_steps("1", &scripts(&[("a", "echo a"), ("b", &wait_until_exists(&go)), ("c", "echo c")]))
        .await;
    client.reaches("1", "its first step is over", |status| status.steps_done == 1).await;
    daemon.kill();
    let steps = daemon.folder("1").join("steps");
    let torn = std::fs::read(&steps).unwrap();
    std::fs::write(&steps, &torn[..torn.len() - 3]).unwrap();
    daemon.restart();
    std::fs::write(&go, "").unwrap();
    let client = daemon.client().await;
    assert_eq!(client.ended("1").await.steps_done, 3);
    let names: Vec<_> =
        client.steps("1").await.into_iter().map(|step| step.step.unwrap_or_default().name).collect();
    assert_eq!(names, ["a", "b", "c", ""]);
}

/// Sends a Run to a daemon whose keeper is stopped, and kills the daemon before it can answer.
async fn die_with_an_unanswered_run(daemon: &mut Daemon, id: &str, steps: &str) {
    let client = daemon.client().await;
    client.run_to_end("first", &script("true")).await;
    freeze(daemon.keeper_pid().unwrap());
    let asked = {
        let run = request(id, steps);
        tokio::spawn(async move { client.try_run(run).await })
    };
    let folder = daemon.folder(id);
    patiently("the job's folder", async {
        while !folder.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    daemon.kill();
    assert!(asked.await.unwrap().is_err(), "it was answered");
}

#[tokio::test]
async fn a_run_that_its_daemon_could_not_answer_goes_on_and_runs_once() {
    let mut daemon = Daemon::start();
    let ran = daemon.file("ran");
    let once = script(&format!("echo ran >> {}", ran.display()));
    die_with_an_unanswered_run(&mut daemon, "1", &once).await;
    kill(daemon.keeper_pid().unwrap(), Signal::CONT);
    daemon.restart();
    let client = daemon.client().await;
    client.try_run(request("1", &once)).await.unwrap();
    assert_eq!(end(&client.ended("1").await), (State::Success, 0));
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "ran\n");
}

#[tokio::test]
async fn a_run_that_reached_no_keeper_leaves_nothing_and_may_come_again() {
    let mut daemon = Daemon::start();
    let ran = daemon.file("ran");
    let once = script(&format!("echo ran >> {}", ran.display()));
    die_with_an_unanswered_run(&mut daemon, "1", &once).await;
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    daemon.restart();
    let client = daemon.client().await;
    assert!(client.try_status("1").await.is_err());
    assert_eq!(client.run_to_end("1", &once).await.state(), State::Success);
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "ran\n");
}
