//! Run, Status, Cancel and Finish as clients see them (service.md §3, §6).
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{self, RunRequest, State, Status};
use support::{Client, Daemon, Setup, contains, exec, logs, refused, request, script, scripts};
use tonic::{Code, Request};

fn seconds(seconds: f64) -> prost_types::Duration {
    Duration::from_secs_f64(seconds).try_into().unwrap()
}

/// State, exit code.
fn end(status: &Status) -> (State, i32) {
    (status.state(), status.exit_code)
}

#[tokio::test]
async fn a_job_runs_to_success_and_its_states_are_told() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo hello; read x < fifo; echo bye").await;
    // Without a fifo the shell fails to read and goes on: the job is over at once.
    let status = client.ended("1").await;
    assert_eq!(end(&status), (State::Success, 0), "{status:?}");
    assert_eq!((status.id.as_str(), status.message.as_str(), status.steps_done), ("1", "", 1));
    let (start, stop) = (status.start_time.unwrap(), status.end_time.unwrap());
    assert!((start.seconds, start.nanos) <= (stop.seconds, stop.nanos));
    assert_eq!(client.output("1").await, "hello\nbye\n");
    let log = client.log("1").await;
    assert_eq!(logs::daemon_lines(&log), ["Running step name=s"]);
}

#[tokio::test]
async fn a_running_job_is_neither_finished_nor_ended() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; sleep 600").await;
    client.prints("1", "on").await;
    let status = client.status("1").await;
    assert_eq!((status.finished, end(&status)), (false, (State::Running, 0)));
    assert!(status.start_time.is_some() && status.end_time.is_none());
    client.finish("1").await;
    refused(client.try_status("1").await, Code::NotFound, "unknown_job");
}

#[tokio::test]
async fn fault_09_exit_codes_of_processes_are_those_of_the_job() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    for code in [1, 2, 42, 126, 127, 128, 254, 255] {
        let id = format!("exit-{code}");
        let status = client.run_to_end(&id, &script(&format!("exit {code}"))).await;
        assert_eq!(end(&status), (State::Failure, code), "{status:?}");
        assert!(status.message.ends_with(&format!("exit status {code}")), "{}", status.message);
    }
    for (name, number) in [("HUP", 1), ("KILL", 9), ("USR1", 10), ("SEGV", 11), ("TERM", 15), ("RTMIN", 34)] {
        let id = format!("signal-{name}");
        let status = client.run_to_end(&id, &script(&format!("kill -{name} $$"))).await;
        assert_eq!(end(&status), (State::Failure, 128 + number), "{status:?}");
    }
}

#[tokio::test]
async fn fault_09_what_cannot_start_ends_with_minus_one_and_its_cause() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let plain = daemon.file("plain");
    std::fs::write(&plain, "no program").unwrap();
    let plain = plain.to_str().unwrap();
    let binary = daemon.file("binary");
    std::fs::write(&binary, "\x7fELF nonsense").unwrap();
    std::fs::set_permissions(&binary, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let binary = binary.to_str().unwrap();
    let link = daemon.file("loop");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    let link = link.to_str().unwrap();
    for (id, command) in [
        ("absent", "/no/such/program"),
        ("nowhere", "no-such-program"),
        ("plain", plain),
        ("binary", binary),
        ("link", link),
    ] {
        let status = client.run_to_end(id, &exec(&daemon, &format!("f_{id}"), &[command])).await;
        assert_eq!(end(&status), (State::Failure, -1), "{id}: {status:?}");
        assert!(!status.message.is_empty(), "{id}");
        assert!(status.start_time.is_some(), "{id}");
    }
    let causes = [
        ("absent", "no file at /no/such/program"),
        ("nowhere", "`no-such-program` is in no folder"),
        ("plain", "plain is not executable"),
        ("binary", "Exec format error"),
        ("link", "Too many levels of symbolic links"),
    ];
    for (id, cause) in causes {
        let message = client.status(id).await.message;
        assert!(message.contains(cause), "{id}: {message}");
    }
    let long = exec(&daemon, "f_long", &["echo", &"x".repeat(200 << 10)]);
    let status = client.run_to_end("long", &long).await;
    assert_eq!(end(&status), (State::Failure, -1), "{status:?}");
    assert!(status.message.contains("Argument list too long"), "{}", status.message);
}

#[tokio::test]
async fn an_output_that_was_not_written_fails_the_job() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let folder = daemon.file("f");
    std::fs::create_dir(&folder).unwrap();
    let function = "spec:\n  outputs:\n    word: {type: string}\n---\nexec: {command: ['true']}\n";
    std::fs::write(folder.join("func.yml"), function).unwrap();
    let steps = serde_json::json!([{"name": "a", "func": folder}, {"name": "b", "script": "echo never"}]);
    let status = client.run_to_end("1", &steps.to_string()).await;
    assert_eq!(end(&status), (State::Failure, -1), "{status:?}");
    assert!(status.message.contains("word") && status.message.contains("default"), "{}", status.message);
    assert!(!client.output("1").await.contains("never"));
}

#[tokio::test]
async fn steps_run_in_order_and_the_first_failure_ends_the_list() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let steps = scripts(&[("a", "echo 1"), ("b", "echo 2; exit 3"), ("c", "echo 4")]);
    let status = client.run_to_end("1", &steps).await;
    assert_eq!((end(&status), status.steps_done), ((State::Failure, 3), 2), "{status:?}");
    assert_eq!(status.message, r#"step "b": exec: exit status 3"#);
    assert_eq!(client.output("1").await, "1\n2\n");
    let results = client.steps("1").await;
    let names: Vec<_> = results.iter().map(|r| r.step.clone().unwrap_or_default().name).collect();
    assert_eq!(names, ["a", "b", ""]);
    let statuses: Vec<_> = results.iter().map(v1::StepResult::status).collect();
    assert_eq!(statuses, [StepStatus::Success, StepStatus::Failure, StepStatus::Failure]);
    assert_eq!(results[2].sub_step_results.len(), 2);
    assert_eq!(results, client.steps("1").await, "a second call replays the same");
}

#[tokio::test]
async fn outputs_and_exports_of_a_step_reach_the_next() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let folder = daemon.file("f");
    std::fs::create_dir(&folder).unwrap();
    let function = r#"spec:
  inputs:
    who: {type: string}
  outputs:
    greeting: {type: string}
---
exec:
  command:
    - sh
    - -c
    - |
      echo '{"name":"greeting","value":"hello ${{inputs.who}}"}' > ${{output_file}}
      echo '{"name":"MOOD","value":"good"}' > ${{export_file}}
"#;
    std::fs::write(folder.join("func.yml"), function).unwrap();
    let steps = serde_json::json!([
        {"name": "a", "func": folder, "inputs": {"who": "world"}},
        {"name": "b", "script": "echo \"${{steps.a.outputs.greeting}} $MOOD $EXTRA\"", "env": {"EXTRA": "x"}},
    ]);
    let status = client.run_to_end("1", &steps.to_string()).await;
    assert_eq!(end(&status), (State::Success, 0), "{status:?}");
    assert_eq!(client.output("1").await, "hello world good x\n");
    let results = client.steps("1").await;
    assert_eq!(results[0].exports, BTreeMap::from([("MOOD".to_owned(), "good".to_owned())]));
    assert!(results[0].outputs.contains_key("greeting"));
}

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
async fn fault_50_the_first_request_of_an_id_wins_and_only_the_operator_hears_of_another() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let marks = daemon.file("marks");
    let steps = |word: &str| script(&format!("echo {word} >> {}", marks.display()));
    client.run_steps("1", &steps("first")).await;
    // The same again is no reason for a warning.
    client.run_steps("1", &steps("first")).await;
    assert!(!daemon.said().contains("WARN"), "{}", daemon.said());
    client.run_steps("1", &steps("other")).await;
    client.ended("1").await;
    // Also of an ended job.
    client.run_steps("1", &steps("other")).await;
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "first\n");
    support::until("the operator is warned twice", || daemon.said().matches("WARN").count() == 2).await;
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
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let start = Instant::now();
    client.finish("1").await;
    assert!(start.elapsed() < Duration::from_secs(4), "the grace was waited for: {:?}", start.elapsed());
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
    // A large request takes a while to be admitted.
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
        // Whichever was first: a second Finish leaves nothing.
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
    client.run_steps("1", &steps).await;
    let text = refused(client.try_status("1").await, Code::NotFound, "unknown_job");
    assert!(text.contains("finished at"), "{text}");
    assert_eq!(daemon.folders(), Vec::<String>::new());
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "run\n");
    // Another request is a new job with a new log.
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
async fn cancel_keeps_result_and_log() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_steps("1", &scripts(&[("a", "echo on; exec sleep 600"), ("b", "echo never")])).await;
    client.prints("1", "on").await;
    client.cancel("1").await;
    client.cancel("1").await;
    let status = client.ended("1").await;
    assert_eq!(end(&status), (State::Cancelled, -2), "{status:?}");
    client.cancel("1").await;
    assert_eq!(client.status("1").await, status, "cancelling an ended job changes nothing");
    let log = client.log("1").await;
    assert!(contains(&log, "job cancelled: "));
    assert!(!contains(&log, "never"));
    let root = client.steps("1").await.pop().unwrap();
    assert_eq!(root.status(), StepStatus::Cancelled);
    client.finish("1").await;
    refused(client.try_cancel("1").await, Code::NotFound, "unknown_job");
}

#[tokio::test]
async fn a_process_that_succeeds_in_its_grace_is_cancelled_all_the_same() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "trap 'echo caught; exit 0' TERM; echo on; while :; do sleep 0.01; done").await;
    client.prints("1", "on").await;
    client.cancel("1").await;
    assert_eq!(end(&client.ended("1").await), (State::Cancelled, -2));
    assert_eq!(client.output("1").await, "on\ncaught\n");
}

#[tokio::test]
async fn fault_13_an_ended_job_is_left_as_it_is_by_cancel() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let before = client.run_to_end("1", &script("exit 5")).await;
    client.cancel("1").await;
    assert_eq!(client.status("1").await, before);
}

#[tokio::test]
async fn a_time_limit_ends_a_job_with_a_result_of_its_own() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let run = RunRequest { timeout: Some(seconds(0.3)), ..request("1", &script("echo on; exec sleep 600")) };
    client.try_run(run).await.unwrap();
    let status = client.ended("1").await;
    assert_eq!(end(&status), (State::Timeout, -3), "{status:?}");
    assert!(contains(&client.log("1").await, "job ended by time limit: "));
    // A limit that is not reached changes nothing.
    let run = RunRequest { timeout: Some(seconds(300.0)), ..request("2", &script("echo done")) };
    client.try_run(run).await.unwrap();
    assert_eq!(end(&client.ended("2").await), (State::Success, 0));
}

#[tokio::test]
async fn the_grace_of_the_request_bounds_that_of_the_daemon() {
    let daemon = Setup::new().option("cancel-grace", "60s").start();
    let client = daemon.client().await;
    let stubborn = script("trap '' TERM; echo on; while :; do sleep 1; done");
    client.try_run(RunRequest { cancel_grace: Some(seconds(0.2)), ..request("1", &stubborn) }).await.unwrap();
    client.prints("1", "on").await;
    let start = Instant::now();
    client.cancel("1").await;
    client.reaches("1", "it is cancelling", |s| s.finished || s.state() == State::Cancelling).await;
    assert_eq!(end(&client.ended("1").await), (State::Cancelled, -2));
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn durations_that_are_not_positive_are_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    for duration in [(0, 0), (-1, 0), (0, -5)] {
        let duration = Some(prost_types::Duration { seconds: duration.0, nanos: duration.1 });
        let steps = script("true");
        let timed = RunRequest { timeout: duration, ..request("1", &steps) };
        refused(client.try_run(timed).await, Code::InvalidArgument, "malformed_request");
        let timed = RunRequest { cancel_grace: duration, ..request("1", &steps) };
        refused(client.try_run(timed).await, Code::InvalidArgument, "malformed_request");
    }
    assert!(client.jobs().await.is_empty());
}

#[tokio::test]
async fn every_limit_has_its_reason() {
    let daemon = Setup::new().option("max-jobs", "2").option("max-followers", "3").start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.run("2", "true").await;
    let full = client.try_run(request("3", &script("true"))).await;
    let status = full.clone().unwrap_err();
    assert!(tonic_types::StatusExt::get_details_retry_info(&status).is_some(), "it says when to come back");
    refused(full, Code::ResourceExhausted, "too_many_jobs");
    client.finish("2").await;
    client.run("3", "true").await;
    let mut followers = Vec::new();
    for _ in 0..3 {
        followers.push(client.follow("1", 0).await);
    }
    refused(client.try_follow("1", 0).await, Code::ResourceExhausted, "too_many_followers");
    followers.clear();
    let start = Instant::now();
    while client.try_follow("1", 0).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(5), "followers that left still count");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn contents_over_their_limits_are_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let steps = script("true");
    let long = request("1", &format!("# {}\n[]", "x".repeat(16 << 20)));
    refused(client.try_run(long).await, Code::InvalidArgument, "too_large");
    let env: BTreeMap<String, String> = (0..4_097).map(|n| (format!("V{n}"), String::new())).collect();
    let many = RunRequest { env, ..request("1", &steps) };
    refused(client.try_run(many).await, Code::InvalidArgument, "too_large");
    let env = BTreeMap::from([("A".to_owned(), "x".repeat(131_070))]);
    let wide = RunRequest { env, ..request("1", &steps) };
    refused(client.try_run(wide).await, Code::InvalidArgument, "too_large");
    let env = BTreeMap::from([("A".to_owned(), "x".repeat(131_069))]);
    client.try_run(RunRequest { env, ..request("fits", &steps) }).await.unwrap();
    assert_eq!(client.ended("fits").await.exit_code, 0);
    let phrases = (0..4_097).map(|n| format!("phrase-{n}")).collect();
    let masking = Some(v1::Masking { phrases, token_prefixes: vec![] });
    let secretive = RunRequest { masking, ..request("1", &steps) };
    refused(client.try_run(secretive).await, Code::InvalidArgument, "too_large");
    let job = Some(v1::Job::default());
    let env = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
    let both = RunRequest { job, env, ..request("1", &steps) };
    refused(client.try_run(both).await, Code::InvalidArgument, "job_and_env");
    client.finish("fits").await;
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn variables_of_a_job_become_environment_files_and_masks() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let build = daemon.file("build");
    let variable = |key: &str, value: &str, file, masked| v1::Variable {
        key: key.into(),
        value: value.into(),
        file,
        masked,
    };
    let variables = vec![
        variable("PLAIN", "a $OTHER c", false, false),
        variable("OTHER", "b", false, false),
        variable("CERT", "of $OTHER", true, false),
        variable("SECRET", "hunter-hunter", false, true),
    ];
    let build_dir = build.to_str().unwrap().to_owned();
    let job = Some(v1::Job { variables, build_dir: build_dir.clone(), ..v1::Job::default() });
    let steps = script(
        "echo $PLAIN; cat $CERT; echo; echo $CERT; echo $SECRET; pwd; stat -c %a $CERT; echo ${{vars.PLAIN}}",
    );
    client.try_run(RunRequest { job, ..request("1", &steps) }).await.unwrap();
    assert_eq!(client.ended("1").await.exit_code, 0);
    let file = format!("{build_dir}.tmp/CERT");
    let expected = format!("a b c\nof b\n{file}\n[MASKED]\n{build_dir}\n600\na b c\n");
    assert_eq!(client.output("1").await, expected);
    assert!(!daemon.file("build.tmp").exists(), "file variables are gone with the job");
    client.finish("1").await;
    assert!(build.exists(), "a working directory that was named is never removed");
}

#[tokio::test]
async fn a_job_runs_in_its_working_directory() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let dir = daemon.file("a/new/dir");
    let work_dir = dir.to_str().unwrap().to_owned();
    client.try_run(RunRequest { work_dir, ..request("1", &script("pwd; touch made")) }).await.unwrap();
    assert_eq!(client.ended("1").await.exit_code, 0);
    assert_eq!(client.output("1").await, format!("{}\n", dir.display()));
    client.finish("1").await;
    assert!(dir.join("made").exists());
    // Without one it has a directory of its own, which goes with it.
    client.run("2", "pwd").await;
    client.ended("2").await;
    let own = client.output("2").await;
    assert!(own.starts_with(daemon.folder("2").to_str().unwrap()), "{own}");
    client.finish("2").await;
    assert!(!daemon.folder("2").exists());
}

#[tokio::test]
async fn deadlines_of_callers_are_honoured() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let mut follow = Request::new(v1::FollowLogsRequest { id: "1".into(), offset: 0 });
    follow.metadata_mut().insert("grpc-timeout", "300m".parse().unwrap());
    let mut stream = client.calls.clone().follow_logs(follow).await.unwrap().into_inner();
    let over = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended well"),
            Err(status) => break status,
        }
    };
    assert_eq!(over.code(), Code::DeadlineExceeded);
    let mut run = Request::new(request("late", &script("true")));
    run.metadata_mut().insert("grpc-timeout", "1n".parse().unwrap());
    let late = client.calls.clone().run(run).await.unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
    refused(client.try_status("late").await, Code::NotFound, "unknown_job");
    assert_eq!(client.jobs().await.len(), 1);
}

/// Sends bytes as they are.
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut tonic::codec::EncodeBuf<'_>) -> Result<(), tonic::Status> {
        bytes::BufMut::put_slice(to, &item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn decode(&mut self, from: &mut tonic::codec::DecodeBuf<'_>) -> Result<Option<Vec<u8>>, tonic::Status> {
        let len = bytes::Buf::remaining(from);
        Ok(Some(bytes::Buf::copy_to_bytes(from, len).to_vec()))
    }
}

async fn raw(client: &Client, path: &'static str, message: Vec<u8>) -> Result<Vec<u8>, tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(client.channel.clone());
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(path);
    grpc.unary(Request::new(message), path, Raw).await.map(tonic::Response::into_inner)
}

fn run_bytes(id: &str, steps: &str) -> Vec<u8> {
    prost::Message::encode_to_vec(&request(id, steps))
}

#[tokio::test]
async fn the_service_answers_under_its_bare_name() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    raw(&client, "/StepRunner/Run", run_bytes("1", &script("echo bare"))).await.unwrap();
    assert_eq!(client.ended("1").await.exit_code, 0);
    assert_eq!(client.output("1").await, "bare\n");
    let unknown = raw(&client, "/steprunner.v1.StepRunner/Nothing", vec![]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    let unknown = raw(&client, "/other.Service/Run", vec![]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
}

#[tokio::test]
async fn health_is_served() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    for service in ["", "steprunner.v1.StepRunner", "StepRunner"] {
        // HealthCheckRequest { 1 service }, HealthCheckResponse { 1 status: SERVING = 1 }.
        let mut message = vec![0x0a, service.len() as u8];
        message.extend_from_slice(service.as_bytes());
        let answer = raw(&client, "/grpc.health.v1.Health/Check", message).await.unwrap();
        assert_eq!(answer, [0x08, 0x01], "{service}");
    }
    let unknown = raw(&client, "/grpc.health.v1.Health/Check", b"\x0a\x01x".to_vec()).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

#[tokio::test]
async fn unknown_fields_are_tolerated() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let mut message = run_bytes("1", &script("echo known"));
    // Field 900, varint; field 901, bytes; field 902, a group that is closed.
    message.extend_from_slice(&[0xa0, 0x38, 0x01, 0xaa, 0x38, 0x02, b'h', b'i', 0xb3, 0x38, 0xb4, 0x38]);
    raw(&client, "/steprunner.v1.StepRunner/Run", message).await.unwrap();
    assert_eq!(client.ended("1").await.exit_code, 0);
}

#[tokio::test]
async fn fault_57_what_is_no_message_is_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("beside", "echo on; exec sleep 600").await;
    let nested: Vec<u8> = (0..10_000).flat_map(|_| [0xb3_u8, 0x38]).collect();
    let messages = [
        b"\xff\xff\xff\xff".to_vec(),
        b"\x0a\x7f".to_vec(),
        b"\x0a\x02\xff\xfe".to_vec(),
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec(),
        b"\x0d".to_vec(),
        nested,
    ];
    for method in ["Run", "Status", "Finish", "Cancel"] {
        for message in &messages {
            let path: &'static str =
                Box::leak(format!("/steprunner.v1.StepRunner/{method}").into_boxed_str());
            let result = raw(&client, path, message.clone()).await;
            refused(result, Code::InvalidArgument, "malformed_request");
        }
    }
    assert_eq!(client.status("beside").await.state(), State::Running);
}

#[tokio::test]
async fn fault_57_a_request_that_is_too_large_is_refused_and_the_daemon_lives() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("beside", "echo on; exec sleep 600").await;
    client.prints("beside", "on").await;
    let large = raw(&client, "/steprunner.v1.StepRunner/Run", vec![0; (32 << 20) + 1]).await.unwrap_err();
    assert!(matches!(large.code(), Code::ResourceExhausted | Code::OutOfRange), "{large:?}");
    let client = daemon.client().await;
    assert_eq!(client.status("beside").await.state(), State::Running);
    assert_eq!(client.jobs().await.len(), 1);
}

#[tokio::test]
async fn fault_64_a_client_that_dies_after_run_loses_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo one; echo two").await;
    drop(client);
    let another = daemon.client().await;
    another.ended("1").await;
    assert_eq!(another.jobs().await[0].id, "1");
    assert_eq!(another.output("1").await, "one\ntwo\n");
}

#[tokio::test]
async fn the_end_of_the_stream_is_the_end_of_the_job() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let jobs = (0..30).map(|n| {
        let client = &client;
        async move {
            let id = format!("j{n}");
            client.run_steps(&id, &script("printf x")).await;
            // Asserts that Status is finished and tells the number of bytes received.
            client.ended(&id).await;
            assert_eq!(client.output(&id).await, "x\n");
        }
    });
    join_all(jobs).await;
}
