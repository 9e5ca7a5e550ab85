//! The differences between the compatible service and the canonical one (service.md §4.1).

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use prost::Message;
use rustix::process::Signal;
use step_runner::pb::compatible::messages::guesses::{self, ErrorKind};
use step_runner::pb::compatible::messages::{Job, RunRequest};
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{State, Variable};

use super::{NAMES, Peer, from_runner, masked, variable, with_job};
use crate::support::{Daemon, Setup, contains, kill, logs, until};

fn output(log: &[u8]) -> String {
    String::from_utf8(logs::source(log, "01O")).unwrap()
}

#[tokio::test]
async fn the_runners_order_of_calls_works_under_both_names() {
    let daemon = Daemon::start();
    for name in NAMES {
        let peer = Peer::named(&daemon, name).await;
        peer.try_run(from_runner("42", "\n- name: one\n  script: echo hello")).await.unwrap();
        assert_eq!(output(&peer.log("42").await), "hello\n");
        assert_eq!(peer.ended("42").await, (StepStatus::Success, None, String::new()));
        let status = peer.status("42").await;
        assert!(status.start_time.is_some());
        assert_eq!(peer.jobs("").await.unwrap(), [status]);
        let results = peer.steps("42").await;
        assert_eq!(results.iter().map(|result| result.sub_step_results.len()).collect::<Vec<_>>(), [0, 1]);
        peer.close("42").await;
        assert_eq!(peer.jobs("").await.unwrap(), []);
        peer.close("42").await;
    }
    assert!(daemon.folders().is_empty());
}

#[tokio::test]
async fn variables_are_taken_literally_and_are_no_environment() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let build_dir = daemon.file("build");
    let show = "echo \"${VALUE-unset} $GIVEN\"; printf '%s\\n' '${{ vars.VALUE }}' '${{ job.PATH_OF }}'; pwd; \
                cat '${{ vars.PATH_OF }}'";
    let run = serde_json::json!([{"name": "s", "script": show}]).to_string();
    let request = with_job(
        from_runner("1", &run),
        vec![variable("VALUE", "$HOME $$ ${A}"), Variable { file: true, ..variable("PATH_OF", "$B$$") }],
    );
    let job = Job { build_dir: build_dir.to_str().unwrap().into(), ..request.job.unwrap() };
    peer.try_run(RunRequest {
        job: Some(job),
        env: [("GIVEN".to_owned(), "$C".to_owned())].into(),
        work_dir: daemon.file("elsewhere").to_str().unwrap().into(),
        ..request
    })
    .await
    .unwrap();
    let build_dir = build_dir.to_str().unwrap();
    let expected = format!("unset $C\n$HOME $$ ${{A}}\n{build_dir}.tmp/PATH_OF\n{build_dir}\n$B$$\n");
    assert_eq!(output(&peer.log("1").await), expected);
    assert!(!daemon.file("elsewhere").exists());
}

#[tokio::test]
async fn without_directories_a_job_runs_where_the_daemon_does_and_its_files_are_temporary() {
    let temp = tempfile::tempdir().unwrap();
    let temp_dir = temp.path().to_str().unwrap();
    let daemon = Setup::new().env("TMPDIR", temp_dir).start();
    let peer = Peer::of(&daemon).await;
    let run = r#"[{"name": "s", "script": "pwd; echo '${{ vars.FILE }}'; cat '${{ vars.FILE }}'"}]"#;
    let file = Variable { file: true, ..variable("FILE", "content\n") };
    peer.try_run(with_job(from_runner("1", run), vec![file.clone()])).await.unwrap();
    let here = std::env::current_dir().unwrap();
    let expected = format!("{}\n{temp_dir}/step-runner-output-1/FILE\ncontent\n", here.display());
    assert_eq!(output(&peer.log("1").await), expected);
    assert!(!temp.path().join("step-runner-output-1").exists());
    // A directory in which other users can make files is no place for secrets.
    let open_to_all = |path: &std::path::Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o1777)).unwrap();
    };
    let trap = temp.path().join("step-runner-output-2");
    std::fs::create_dir(&trap).unwrap();
    open_to_all(temp.path());
    open_to_all(&trap);
    let refused = peer.try_run(with_job(from_runner("2", run), vec![file])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    assert!(refused.message().starts_with("not_writable: "), "{refused}");
}

#[tokio::test]
async fn an_input_that_cannot_be_evaluated_is_told_in_the_words_that_clients_look_for() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let function = daemon.file("func.yml");
    std::fs::write(&function, "spec: {inputs: {a: {type: string}}}\n---\nexec: {command: [echo]}\n").unwrap();
    let inputs = serde_json::json!({"a": "${{ job.NONE }}"});
    let run = serde_json::json!([{"name": "s", "func": daemon.path, "inputs": inputs}]);
    peer.try_run(from_runner("1", &run.to_string())).await.unwrap();
    let (_, _, message) = peer.ended("1").await;
    assert!(message.starts_with("step \"s\": failed to load: "), "{message}");
    assert!(message.contains("expand input \"a\": job.NONE: "), "{message}");
    peer.run("2", "echo ${{ job.NONE }}").await;
    let (_, _, message) = peer.ended("2").await;
    assert!(message.contains("expand input \"script\": job.NONE: "), "{message}");
}

#[tokio::test]
async fn masked_variables_and_tokens_of_the_instance_are_masked_unasked() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let run = serde_json::json!([
        {"name": "s", "script": "echo 'a-${{ vars.SECRET }}-b'; echo glpat-${TAIL}0123456789abcde; exit 3"}
    ]);
    let request = with_job(from_runner("1", &run.to_string()), vec![masked("SECRET", "very$secret")]);
    let env = [("TAIL".to_owned(), "abcdefghij".to_owned())].into();
    peer.try_run(RunRequest { env, ..request }).await.unwrap();
    let log = peer.log("1").await;
    assert_eq!(output(&log), "a-[MASKED]-b\nglpat-[MASKED]\n");
    assert!(!contains(&log, "very$secret"));
    let results = peer.steps("1").await;
    assert!(results.iter().all(|result| !contains(&result.encode_to_vec(), "very$secret")));
}

#[tokio::test]
async fn a_failed_process_is_told_by_the_end_of_the_message() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    for (id, script, end) in [
        ("1", "exit 7", "exit status 7"),
        ("2", "exit 255", "exit status 255"),
        ("3", "kill -9 $$", "signal: killed"),
        ("4", "kill -15 $$", "signal: terminated"),
    ] {
        peer.run(id, script).await;
        let (status, kind, message) = peer.ended(id).await;
        assert_eq!((status, kind), (StepStatus::Failure, Some(ErrorKind::StepFailure)));
        assert!(message.ends_with(end), "{message}");
        assert!(message.matches("exit status").count() <= 1, "{message}");
    }
}

#[tokio::test]
async fn nothing_but_the_end_of_a_message_looks_like_an_exit_code() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let func = daemon.file("exit status 5");
    peer.try_run(from_runner("1", &serde_json::json!([{"name": "s", "func": func}]).to_string()))
        .await
        .unwrap();
    let (status, kind, message) = peer.ended("1").await;
    assert_eq!((status, kind), (StepStatus::Failure, Some(ErrorKind::StepFailure)));
    assert!(!message.is_empty() && !message.contains("exit status"), "{message}");
}

#[tokio::test]
async fn every_state_has_its_word() {
    let daemon = Setup::new().option("max-running", "1").start();
    let peer = Peer::of(&daemon).await;
    peer.run("runs", "trap '' TERM; echo on; while :; do sleep 0.01; done").await;
    daemon.client().await.prints("runs", "on").await;
    peer.run("waits", "true").await;
    let waiting = peer.status("waits").await;
    assert_eq!((waiting.status(), waiting.start_time, waiting.error), (StepStatus::Unspecified, None, None));
    let running = peer.status("runs").await;
    assert_eq!((running.status(), running.end_time, running.error), (StepStatus::Running, None, None));
    peer.try_cancel("runs").await.unwrap();
    assert_eq!(daemon.client().await.status("runs").await.state(), State::Cancelling);
    assert_eq!(peer.status("runs").await.status(), StepStatus::Running);
    peer.try_cancel("waits").await.unwrap();
    let (status, kind, _) = peer.ended("waits").await;
    assert_eq!((status, kind), (StepStatus::Cancelled, Some(ErrorKind::Cancelled)));
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    let (status, kind, message) = peer.ended("runs").await;
    assert_eq!((status, kind), (StepStatus::Failure, Some(ErrorKind::Internal)), "{message}");
}

/// Returns the encoded guessed fields with these times.
fn times(timeout: Duration, grace: Option<Duration>) -> Vec<u8> {
    let time = |time: Duration| time.try_into().unwrap();
    guesses::RunRequest { timeout: Some(time(timeout)), graceful_exit_timeout: grace.map(time) }
        .encode_to_vec()
}

#[tokio::test]
async fn the_time_limit_and_the_grace_of_a_request_are_kept() {
    let daemon = Setup::new().option("cancel-grace", "10min").start();
    let peer = Peer::of(&daemon).await;
    let stubborn = r#"[{"name": "s", "script": "trap '' TERM; while :; do sleep 0.01; done"}]"#;
    let times = times(Duration::from_millis(200), Some(Duration::from_millis(200)));
    peer.run_with(from_runner("1", stubborn), &times).await;
    let (status, kind, _) = peer.ended("1").await;
    assert_eq!((status, kind), (StepStatus::Cancelled, Some(ErrorKind::Timeout)));
}

#[tokio::test]
async fn a_field_that_is_no_such_time_is_left_out_and_told_once() {
    let daemon = Setup::new().option("log-level", "debug").start();
    let peer = Peer::of(&daemon).await;
    let run = r#"[{"name": "s", "script": "echo hello"}]"#;
    let zero = times(Duration::ZERO, Some(Duration::ZERO));
    // A number, a text, an unknown field, and times of zero.
    for (id, other) in
        [("1", &[7 << 3, 9][..]), ("2", b"\x3a\x0310m"), ("3", b"\xfa\x01\x02hi"), ("4", &zero)]
    {
        for _ in 0..2 {
            peer.run_with(from_runner(id, run), other).await;
        }
        assert_eq!(output(&peer.log(id).await), "hello\n", "{id}");
    }
    until("the operator is told", || daemon.said().contains("number=31")).await;
    let told = daemon.said();
    let unknown: Vec<&str> = told.lines().filter(|line| line.contains("number=31")).collect();
    assert_eq!(unknown.len(), 1, "{told}");
    assert!(unknown[0].contains("proto.RunRequest"), "{told}");
}

#[tokio::test]
async fn close_lets_the_grace_pass_unless_the_job_was_cancelled_before() {
    let daemon = Setup::new().option("cancel-grace", "10min").start();
    let (peer, client) = (Peer::of(&daemon).await, daemon.client().await);
    let done = daemon.file("done");
    // This job ends on SIGTERM, after a while.
    peer.run(
        "1",
        &format!(
            "trap 'sleep 0.3; touch {}; exit' TERM; echo on; while :; do sleep 0.01; done",
            done.display()
        ),
    )
    .await;
    client.prints("1", "on").await;
    peer.close("1").await;
    assert!(done.exists());
    // This job would use up the grace of ten minutes.
    peer.run("2", "trap '' TERM; echo on; while :; do sleep 0.01; done").await;
    client.prints("2", "on").await;
    peer.try_cancel("2").await.unwrap();
    peer.try_cancel("2").await.unwrap();
    assert_eq!(client.status("2").await.state(), State::Cancelling);
    peer.close("2").await;
    assert!(daemon.folders().is_empty());
}

#[tokio::test]
async fn a_closed_job_runs_again_when_it_is_asked_for_again() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let count = daemon.file("count");
    for runs in 1..=3 {
        for _ in 0..2 {
            peer.run("1", &format!("echo run >> {}", count.display())).await;
        }
        assert_eq!(peer.ended("1").await.0, StepStatus::Success);
        peer.close("1").await;
        assert_eq!(std::fs::read_to_string(&count).unwrap(), "run\n".repeat(runs));
    }
}

/// Frames about the job before could still be on their way when its id is used again.
#[tokio::test]
async fn an_id_that_is_used_again_at_once_gets_its_own_log() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    for round in 0..150 {
        let count = [20, 1][round % 2];
        peer.run(
            "1",
            &format!("i=0; while [ $i -lt {count} ]; do echo line $i of {round}; i=$((i + 1)); done"),
        )
        .await;
        let log = String::from_utf8(peer.log("1").await).unwrap();
        let own = log.matches(&format!(" of {round}\n")).count();
        assert_eq!((own, log.matches(" of ").count()), (count, count), "{log}");
        peer.close("1").await;
    }
}

#[tokio::test]
async fn a_job_keeps_its_rules_when_the_daemon_is_killed() {
    let mut daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let fifo = daemon.file("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let script = format!("echo on; read x < {}; echo \"${{VALUE-unset}}\"", fifo.display());
    let run = serde_json::json!([
        {"name": "s", "script": script}, {"name": "t", "script": "echo '${{ vars.VALUE }}'"}
    ]);
    peer.try_run(with_job(from_runner("1", &run.to_string()), vec![variable("VALUE", "$HOME")]))
        .await
        .unwrap();
    daemon.client().await.prints("1", "on").await;
    daemon.kill();
    daemon.restart();
    let record = std::fs::read_to_string(daemon.folder("1").join("job.json")).unwrap();
    assert!(record.contains(r#""origin":"proto""#), "{record}");
    std::fs::write(&fifo, "go\n").unwrap();
    let peer = Peer::of(&daemon).await;
    assert_eq!(output(&peer.log("1").await), "on\nunset\n$HOME\n");
    peer.close("1").await;
    assert_eq!(std::fs::metadata(daemon.state_dir()).unwrap().permissions().mode() & 0o77, 0);
}
