//! Jobs that run to their end: states, exit codes, outputs, variables, directories.

use std::collections::BTreeMap;

use super::end;
use crate::support::{Daemon, exec, logs, refused, request, script, scripts};
use futures_util::future::join_all;
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{self, RunRequest, State};
use tonic::Code;

#[tokio::test]
async fn a_job_runs_to_success_and_its_states_are_told() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo hello; read x < fifo; echo bye").await;
    // There is no fifo, so `read` fails at once and the shell goes on.
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
    assert!(status.message.contains("an argument of a process can have 131071"), "{}", status.message);
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
    // Without a work directory the job gets a private one, which is removed with the job.
    client.run("2", "pwd").await;
    client.ended("2").await;
    let own = client.output("2").await;
    assert!(own.starts_with(daemon.folder("2").to_str().unwrap()), "{own}");
    client.finish("2").await;
    assert!(!daemon.folder("2").exists());
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
            // `ended` asserts that Status is finished and reports the number of bytes received.
            client.ended(&id).await;
            assert_eq!(client.output(&id).await, "x\n");
        }
    });
    join_all(jobs).await;
}
