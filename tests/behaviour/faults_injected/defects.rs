//! Defects of the daemon itself: a panic in any of its parts (faults.md row 59).

use std::time::Instant;

use step_runner::pb::v1::{State, Status};
use tonic::Code;

use crate::support::{Client, Daemon, OwnSleep, SOON, Setup, contains, request, script, until};

/// Text of the injected panic. No client must see it.
const PAYLOAD: &str = "failpoint";

/// Starts a daemon with one failpoint that panics once, after `passing` passes. First shows that the daemon works.
async fn broken_at(point: &str, passing: u32) -> (Daemon, Client) {
    let daemon = Setup::new()
        .env("FAILPOINTS", &format!("{point}={passing}*off->1*panic(payload)->off"))
        .option("max-running", "8")
        .start();
    let client = daemon.client().await;
    (daemon, client)
}

/// Asserts that other jobs continue, new ones are accepted, and nothing is left behind.
async fn goes_on(daemon: &Daemon, client: &Client, ids: &[&str]) {
    assert_eq!(client.run_to_end("after", &script("echo after")).await.state(), State::Success);
    assert_eq!(client.output("after").await, "after\n");
    for id in ids.iter().chain(&["after"]) {
        client.finish(id).await;
    }
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

fn is_internal(status: &Status) -> bool {
    status.state() == State::Failure && status.exit_code == -1 && status.message.starts_with("internal: ")
}

#[tokio::test]
async fn fault_59_a_panic_in_a_call_answers_internal_and_ends_that_call_alone() {
    for name in ["run", "status", "cancel", "finish", "follow_logs", "follow_steps", "stream"] {
        let (daemon, client) = broken_at(&format!("grpc::{name}"), 0).await;
        let ran = client.try_run(request("1", &script("echo x"))).await;
        let failed = match name {
            "run" => ran.unwrap_err(),
            "status" => client.try_status("1").await.unwrap_err(),
            "cancel" => client.try_cancel("1").await.unwrap_err(),
            "finish" => client.try_finish("1").await.unwrap_err(),
            "follow_logs" => match client.try_follow("1", 0).await {
                Err(status) => status,
                Ok(_) => panic!("{name} goes on"),
            },
            "stream" => client.follow("1", 0).await.rest().await.unwrap_err(),
            _ => client.try_steps("1").await.unwrap_err(),
        };
        assert_eq!(failed.code(), Code::Internal, "{name}: {failed}");
        assert!(!failed.message().contains(PAYLOAD) && !failed.message().contains("payload"), "{failed}");
        // Runs the same job again.
        client.try_run(request("1", &script("echo x"))).await.unwrap();
        assert_eq!(client.ended("1").await.state(), State::Success, "{name}");
        assert_eq!(client.output("1").await, "x\n");
        goes_on(&daemon, &client, &["1"]).await;
    }
}

/// Failpoints in the parts of a job: name, passes before the panic, and true if the job's end is known by then.
const PARTS: [(&str, u32, bool); 9] = [
    ("actors::job::begin", 0, false),
    ("actors::job::step_done", 0, false),
    ("actors::job::step_done", 1, true),
    ("actors::job::keeper_said", 0, false),
    ("actors::job::end", 0, true),
    ("actors::step::started", 0, false),
    ("actors::step::ended", 0, false),
    ("actors::trace_sink::append", 0, false),
    ("actors::log_sink::grew", 0, true),
];

const STEPS: &str = "[{name: a, script: 'echo one # ${{ output_file }}'}, {name: b, script: echo two}]";

/// With another step. The keeper closes the log by itself when the last step has ended well, and that can come before the
/// daemon's last line when the defect hits a result of the step before.
const LONGER: &str = "[{name: a, script: 'echo one # ${{ output_file }}'}, {name: b, script: echo two}, \
                      {name: c, script: echo three}]";

#[tokio::test]
async fn fault_59_a_step_that_the_keeper_started_ends_with_the_job_whose_actor_panicked() {
    let (daemon, client) = broken_at("actors::job::step_done", 0).await;
    let go = daemon.file("go");
    let first = format!("until [ -e {} ]; do sleep 0.02; done; echo one", go.display());
    client
        .run_steps("1", &format!("[{{name: a, script: '{first}'}}, {{name: b, script: exec sleep 600}}]"))
        .await;
    std::fs::write(&go, "").unwrap();
    let status = client.ended("1").await;
    assert!(is_internal(&status), "{status:?}");
    assert!(contains(&client.log("1").await, "job failed: internal: "));
    assert_eq!(client.output("1").await, "one\n");
    goes_on(&daemon, &client, &["1"]).await;
}

#[tokio::test]
async fn fault_59_a_job_whose_actor_panics_fails_as_internal_with_its_log() {
    for (point, passing, ends_well) in PARTS {
        let (daemon, client) = broken_at(point, passing).await;
        // The first step could return values, so the keeper does not start the second one by itself.
        client.run_steps("1", if point == "actors::trace_sink::append" { LONGER } else { STEPS }).await;
        client.run("other", "echo other; sleep 0.2; echo end").await;
        let ids = ["1", "other"];
        let mut broken = 0;
        for id in ids {
            let status = client.ended(id).await;
            if is_internal(&status) {
                broken += 1;
                assert!(!status.message.contains(PAYLOAD), "{point}: {status:?}");
                let log = String::from_utf8_lossy(&client.log(id).await).into_owned();
                assert!(log.contains("job failed: internal: "), "{point}: {log}");
            } else {
                assert_eq!(status.state(), State::Success, "{point}: {status:?}");
            }
            assert_eq!(status.log_bytes, client.log(id).await.len() as i64, "{point}");
            assert!(!client.steps(id).await.is_empty(), "{point}");
        }
        assert_eq!(broken, u32::from(!ends_well), "{point}");
        goes_on(&daemon, &client, &ids).await;
    }
}

#[tokio::test]
async fn fault_59_a_job_that_breaks_again_and_again_is_ended_all_the_same() {
    let daemon = Setup::new().env("FAILPOINTS", "actors::job::end=panic").start();
    let client = daemon.client().await;
    client.run("1", "echo x").await;
    let status = client.ended("1").await;
    assert_eq!((status.state(), status.exit_code), (State::Interrupted, -4), "{status:?}");
    assert!(contains(&client.log("1").await, "x"));
    client.finish("1").await;
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn fault_59_a_panic_in_a_cancel_still_ends_the_job() {
    let (daemon, client) = broken_at("actors::job::cancel", 0).await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    client.cancel("1").await;
    let status = client.ended("1").await;
    assert!(is_internal(&status), "{status:?}");
    goes_on(&daemon, &client, &["1"]).await;
}

/// Parts of the supervisor, named by the call that reaches them.
const SUPERVISOR: [&str; 6] = ["admit", "cancel", "finish", "job_ended", "operate", "reap"];

#[tokio::test]
async fn fault_59_without_its_supervisor_the_daemon_ends_and_the_next_one_takes_its_jobs_up() {
    for part in SUPERVISOR {
        let mut daemon = Setup::new()
            .env("FAILPOINTS", &format!("actors::supervisor::{part}=1*off->1*panic->off"))
            .option("reap-interval", "1s")
            .start();
        let client = daemon.client().await;
        let mark = daemon.file("go");
        client
            .run("1", &format!("echo on; while ! test -e {}; do sleep 0.05; done; echo end", mark.display()))
            .await;
        client.prints("1", "on").await;
        for round in 0..2 {
            let id = format!("x{round}");
            // The results do not matter: one of these calls, or a timer, reaches the failpoint.
            drop(client.try_run(request(&id, &script("echo x"))).await);
            drop(client.try_cancel(&id).await);
            drop(client.try_finish(&id).await);
            daemon.signal(rustix::process::Signal::USR2);
        }
        let code = daemon.wait();
        assert_eq!(code, Some(70), "{part}: {}", daemon.said());
        let setup = Setup::new();
        daemon.restart_with(setup);
        let client = daemon.client().await;
        std::fs::write(&mark, "").unwrap();
        assert_eq!(client.ended("1").await.state(), State::Success, "{part}");
        assert_eq!(client.output("1").await, "on\nend\n", "{part}");
    }
}

#[tokio::test]
async fn fault_59_a_stop_waits_for_a_job_whose_actor_has_just_died() {
    let mut daemon = Setup::new().env("FAILPOINTS", "actors::job::cancel=1*panic->off").start();
    let client = daemon.client().await;
    let sleep = OwnSleep::new();
    client.run("1", &format!("echo on; exec {sleep}")).await;
    client.prints("1", "on").await;
    until("it sleeps", || sleep.processes().len() == 1).await;
    let start = Instant::now();
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
    assert!(start.elapsed() < SOON);
    daemon.restart_with(Setup::new());
    let client = daemon.client().await;
    let status = client.status("1").await;
    assert!(status.finished, "{status:?}");
    until("nothing of it lives", || sleep.processes().is_empty()).await;
}
