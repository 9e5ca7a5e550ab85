//! Repeated Run and Finish.

use std::time::Instant;

use super::end;
use crate::support::{Daemon, SOON, Setup, refused, request, script};
use futures_util::future::join_all;
use step_runner::pb::v1::{self, State};
use tonic::{Code, Request};

#[tokio::test]
async fn fault_49_fifty_concurrent_runs_of_one_id_are_one_execution() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let others = [daemon.client().await, daemon.client().await];
    let mut executed: Vec<u32> = Vec::new();
    let marks = daemon.file("marks");
    for round in 0..20 {
        let id = format!("round-{round}");
        let steps = script(&format!("echo {round} >> {}", marks.display()));
        let clients = [&client, &others[0], &others[1]];
        let calls = (0..50).map(|n| clients[n % 3].try_run(request(&id, &steps)));
        join_all(calls).await.into_iter().for_each(|result| result.unwrap());
        client.ended(&id).await;
        client.run_steps(&id, &steps).await;
        client.ended(&id).await;
        executed.push(round);
        let marked = std::fs::read_to_string(&marks).unwrap();
        assert_eq!(marked.lines().map(|line| line.parse().unwrap()).collect::<Vec<u32>>(), executed);
    }
}

#[tokio::test]
async fn fault_50_the_first_request_of_an_id_wins_and_the_caller_and_the_operator_hear_of_another() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let marks = daemon.file("marks");
    let steps = |word: &str| script(&format!("echo {word} >> {}", marks.display()));
    client.run_steps("1", &steps("first")).await;
    // A repetition of the same request causes no warning.
    assert!(!client.answer_to_run(request("1", &steps("first"))).await.other_content);
    assert!(!daemon.said().contains("WARN"), "{}", daemon.said());
    let other = client.answer_to_run(request("1", &steps("other"))).await;
    assert!(other.other_content);
    client.ended("1").await;
    // A different request for an ended job does.
    assert!(client.answer_to_run(request("1", &steps("other"))).await.other_content);
    assert!(!client.answer_to_run(request("1", &steps("first"))).await.other_content);
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "first\n");
    crate::support::until("the operator is warned twice", || daemon.said().matches("WARN").count() == 2)
        .await;
    assert!(!daemon.said().contains("echo other"), "a warning quotes the request");
}

#[tokio::test]
async fn of_racing_runs_a_refused_one_does_not_stand_in_the_way() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let good = script("echo good");
    for round in 0..20 {
        let id = format!("r{round}");
        let (bad, fine) =
            tokio::join!(client.try_run(request(&id, "- {}")), client.try_run(request(&id, &good)));
        fine.unwrap();
        if let Err(status) = bad {
            assert_eq!(status.code(), Code::InvalidArgument);
        }
        assert_eq!(client.ended(&id).await.exit_code, 0);
    }
}

#[tokio::test]
async fn finish_removes_everything_and_may_be_repeated() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("1", &script("echo x")).await;
    assert!(daemon.folder("1").join("log").exists());
    client.finish("1").await;
    assert_eq!(daemon.folders(), Vec::<String>::new());
    client.finish("1").await;
    client.finish("never-there").await;
    assert!(client.jobs().await.is_empty());
    refused(client.try_follow("1", 0).await, Code::NotFound, "unknown_job");
}

#[tokio::test]
async fn finish_ends_a_running_job() {
    let daemon = Setup::new().option("cancel-grace", "600s").start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let start = Instant::now();
    client.finish("1").await;
    assert!(start.elapsed() < SOON, "the grace was waited for: {:?}", start.elapsed());
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn fault_13_racing_finishes_join() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "trap '' TERM; echo on; while :; do sleep 1; done").await;
    client.prints("1", "on").await;
    client.cancel("1").await;
    let finishes = (0..20).map(|_| client.try_finish("1"));
    join_all(finishes).await.into_iter().for_each(|result| result.unwrap());
    refused(client.try_status("1").await, Code::NotFound, "unknown_job");
}

#[tokio::test]
async fn a_finish_is_ordered_after_a_run_that_is_being_admitted() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    // The large request takes a while to be admitted.
    let padding = "x".repeat(4 << 20);
    let steps = format!("# {padding}\n- {{name: s, script: 'sleep 600'}}");
    for round in 0..5 {
        let id = format!("r{round}");
        let run = client.try_run(request(&id, &steps));
        let finish = async {
            tokio::task::yield_now().await;
            client.try_finish(&id).await
        };
        let (ran, finished) = tokio::join!(run, finish);
        ran.unwrap();
        finished.unwrap();
        // In whatever order they were processed, a second Finish leaves nothing.
        client.finish(&id).await;
        refused(client.try_status(&id).await, Code::NotFound, "unknown_job");
    }
}

#[tokio::test]
async fn a_cut_off_finish_goes_on_and_is_joined() {
    let daemon = Setup::new().option("cancel-grace", "700ms").start();
    let client = daemon.client().await;
    client.run("1", "trap '' TERM; echo on; while :; do sleep 1; done").await;
    client.prints("1", "on").await;
    let mut short = Request::new(v1::FinishRequest { id: "1".into() });
    short.metadata_mut().insert("grpc-timeout", "50m".parse().unwrap());
    let cut = client.calls.clone().finish(short).await.unwrap_err();
    assert!(matches!(cut.code(), Code::DeadlineExceeded | Code::Cancelled), "{cut:?}");
    client.finish("1").await;
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn fault_48_run_after_finish_is_a_late_duplicate_if_it_is_the_same() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let marks = daemon.file("marks");
    let steps = script(&format!("echo run >> {}", marks.display()));
    client.run_to_end("1", &steps).await;
    client.finish("1").await;
    let again = client.answer_to_run(request("1", &steps)).await;
    assert!(again.finished_at.is_some() && !again.other_content, "{again:?}");
    let text = refused(client.try_status("1").await, Code::NotFound, "unknown_job");
    assert!(text.contains("finished at"), "{text}");
    assert_eq!(daemon.folders(), Vec::<String>::new());
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "run\n");
    // After Finish, a different request is a new job with a new log.
    let status = client.run_to_end("1", &script("echo other")).await;
    assert_eq!(end(&status), (State::Success, 0));
    assert_eq!(client.output("1").await, "other\n");
}

#[tokio::test]
async fn fault_48_a_duplicate_is_recognised_after_a_restart_too() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let marks = daemon.file("marks");
    let steps = script(&format!("echo run >> {}", marks.display()));
    client.run_to_end("1", &steps).await;
    client.finish("1").await;
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    client.run_steps("1", &steps).await;
    refused(client.try_status("1").await, Code::NotFound, "unknown_job");
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "run\n");
}

#[tokio::test]
async fn fault_48_a_duplicate_of_an_earlier_request_of_an_id_starts_nothing() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let marks = daemon.file("marks");
    let steps = |word: &str| script(&format!("echo {word} >> {}", marks.display()));
    // More would push the first one out (`MOST_OF_A_JOB`).
    let words = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for word in words {
        client.run_to_end("1", &steps(word)).await;
        client.finish("1").await;
    }
    for _ in 0..2 {
        let client = daemon.client().await;
        for word in words {
            client.run_steps("1", &steps(word)).await;
            refused(client.try_status("1").await, Code::NotFound, "unknown_job");
        }
        daemon.kill();
        daemon.restart();
    }
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), words.map(|word| format!("{word}\n")).concat());
}
