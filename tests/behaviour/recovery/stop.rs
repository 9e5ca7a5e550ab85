//! Intended ends of the daemon: by a signal, after a drain, or when idle.

use std::time::Instant;

use super::{end, freeze, wait_until_exists};
use crate::support::{
    Daemon, OwnSleep, SOON, Setup, contains, is_alive, refused, request, script, until, wait_for,
};
use futures_util::future::join_all;
use rustix::process::Signal;
use step_runner::pb::v1::{CancelCause, RunRequest, State};
use tonic::Code;

#[tokio::test]
async fn fault_58_a_gentle_stop_ends_jobs_and_gives_a_hundred_followers_the_rest() {
    let mut daemon = Setup::new().option("shutdown-grace", "4s").option("cancel-grace", "600s").start();
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
    let rests = join_all(follows.into_iter().map(crate::support::Follow::rest)).await;
    assert_eq!(daemon.wait(), Some(0));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    for rest in rests {
        assert!(contains(&rest.unwrap(), "job cancelled: "), "every follower gets the end");
    }
    assert!(!daemon.socket.exists());
    assert_eq!(daemon.keeper_pid(), None);
    daemon.restart();
    let client = daemon.client().await;
    for id in ["stubborn", "meek"] {
        let status = client.ended(id).await;
        assert_eq!((end(&status), status.cancel_cause()), ((State::Cancelled, -2), CancelCause::Shutdown));
    }
    refused(client.try_status("late").await, Code::NotFound, "unknown_job");
}

/// When its stream has ended, a client can still ask for the job's status and finish it.
#[tokio::test]
async fn fault_90_a_follower_still_finishes_its_job_when_everything_else_of_the_daemon_has_ended() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    let mut follow = client.follow("1", 0).await;
    follow.until("on").await;
    let keeper = daemon.keeper_pid().unwrap();
    daemon.signal(Signal::TERM);
    assert!(contains(&follow.rest().await.unwrap(), "job cancelled: "));
    until("the keeper has ended", || !is_alive(keeper)).await;
    assert_eq!(end(&client.try_status("1").await.unwrap()), (State::Cancelled, -2));
    client.try_finish("1").await.unwrap();
    assert_eq!(daemon.wait(), Some(0));
    daemon.restart();
    refused(daemon.client().await.try_status("1").await, Code::NotFound, "unknown_job");
}

#[tokio::test]
async fn fault_58_a_second_signal_ends_it_at_once() {
    let mut daemon = Setup::new().option("shutdown-grace", "600s").option("cancel-grace", "600s").start();
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
    // The next daemon reports the end of the job.
    refused(follow.rest().await, Code::Unavailable, "shutting_down");
    assert_eq!(daemon.wait(), Some(1));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let pid = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    wait_for("the job's end", || (!is_alive(pid)).then_some(()));
}

/// Ends a daemon whose job has a stopped keeper. With `again` it gets a second signal.
async fn stop_with_a_stopped_keeper(grace: &str, again: bool) {
    let mut daemon = Setup::new().option("shutdown-grace", grace).option("kill-wait", "200ms").start();
    let client = daemon.client().await;
    let (runs, left) = (OwnSleep::new(), OwnSleep::new());
    client.run("1", &format!("setsid -f {left}; echo on; exec {runs}")).await;
    let mut follow = client.follow("1", 0).await;
    follow.until("on").await;
    freeze(daemon.keeper_pid().unwrap());
    daemon.signal(Signal::TERM);
    if again {
        client.reaches("1", "it is cancelled", |status| status.state() == State::Cancelling).await;
        daemon.signal(Signal::TERM);
        refused(follow.rest().await, Code::Unavailable, "shutting_down");
    } else {
        // The daemon continues it. Either the keeper hears the cancel then, or it is killed before.
        let rest = follow.rest().await.unwrap();
        let is_ended = ["job interrupted: ", "job cancelled: "].iter().any(|end| contains(&rest, end));
        assert!(is_ended, "{}", String::from_utf8_lossy(&rest));
    }
    assert_eq!(daemon.wait(), Some(i32::from(again)));
    for started in [runs, left] {
        assert_eq!(started.processes(), Vec::<i32>::new());
    }
    assert_eq!(daemon.keeper_pid(), None);
    daemon.restart();
    let ended = end(&daemon.client().await.ended("1").await);
    assert!([(State::Interrupted, -4), (State::Cancelled, -2)].contains(&ended), "{ended:?}");
}

#[tokio::test]
async fn fault_58_a_stopped_keeper_holds_up_no_stop() {
    stop_with_a_stopped_keeper("100ms", false).await;
}

#[tokio::test]
async fn fault_58_a_stopped_keeper_holds_up_no_second_signal() {
    stop_with_a_stopped_keeper("600s", true).await;
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
            Ok(()) => assert!(start.elapsed() < crate::support::PATIENCE),
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

// Needs a second thread: the client's connection is closed while this one waits for the daemon.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_daemon_ends_and_one_that_lived_long_enough() {
    let mut daemon = Setup::new().option("idle-timeout", "2s").start();
    let client = daemon.client().await;
    client.run_to_end("1", &script("sleep 3")).await;
    client.finish("1").await;
    drop(client);
    assert_eq!(daemon.wait(), Some(0));
    let mut daemon = Setup::new().option("max-lifetime", "3s").start();
    let client = daemon.client().await;
    client.run("1", "exec sleep 600").await;
    assert_eq!(daemon.wait(), Some(0));
}

/// A way to end a job.
#[derive(Clone, Copy, Debug)]
enum Way {
    Cancel,
    TimeLimit,
    Finish,
    Stop,
}

/// Many programs take a second SIGTERM as "abort now". The process of the script dies of the first one; the process that it
/// leaves must not get another one when the job is closed.
#[tokio::test]
async fn fault_96_bug_cancel_signals_once_each_process_in_every_way_to_end_a_job() {
    for cgroup in ["auto", "off"] {
        for way in [Way::Cancel, Way::TimeLimit, Way::Finish, Way::Stop] {
            let mut daemon = Setup::new().option("cgroup", cgroup).option("cancel-grace", "1s").start();
            let client = daemon.client().await;
            let (asked, in_session) = (daemon.file("asked"), daemon.file("in-session"));
            let child = |file: &std::path::Path, then: &str| {
                format!(
                    "bash -c 'trap \"echo asked >> {}\" TERM; {then} while :; do sleep 0.02; done' >/dev/null 2>&1",
                    file.display()
                )
            };
            let ready = daemon.file("ready");
            let text = format!(
                "setsid {} & {}; echo after",
                child(&in_session, &format!("touch {0}.1;", ready.display())),
                child(&asked, &format!("touch {0}.2;", ready.display()))
            );
            let timeout =
                matches!(way, Way::TimeLimit).then_some(prost_types::Duration { seconds: 2, nanos: 0 });
            client.try_run(RunRequest { timeout, ..request("1", &script(&text)) }).await.unwrap();
            let are_ready = || [".1", ".2"].iter().all(|end| daemon.file(&format!("ready{end}")).exists());
            wait_for("both processes", || are_ready().then_some(()));
            match way {
                Way::Cancel => client.cancel("1").await,
                Way::TimeLimit => {}
                Way::Finish => client.finish("1").await,
                Way::Stop => daemon.signal(Signal::TERM),
            }
            match way {
                Way::Cancel | Way::TimeLimit => drop(client.ended("1").await),
                Way::Finish => {}
                Way::Stop => drop(daemon.wait()),
            }
            for file in [asked, in_session] {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                assert_eq!(text, "asked\n", "{way:?}, cgroup {cgroup}, {}", file.display());
            }
        }
    }
}
