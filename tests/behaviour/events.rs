//! Step times, and jobs printed as JSON objects (`--output json`). The jobs are real; they are followed early, late,
//! and while the daemon is killed.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{Daemon, kill, patiently, scripts, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use step_runner::pb::v1::{self, StepResult};

/// A function with two steps, and a function that calls it between two steps of its own.
const INNER: &str =
    "spec: {}\n---\nrun:\n- {name: one, script: echo one}\n- {name: two, script: 'echo two; WAIT'}\n";
const OUTER: &str = "spec: {}\n---\nrun:\n- {name: first, script: echo first}\n- {name: nested, func: ./inner}\n- \
                     {name: last, script: 'echo last; exit CODE'}\n";

fn program(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Writes the two functions to `folder`.
fn functions(folder: &Path, wait: &str, code: i32) {
    std::fs::create_dir_all(folder.join("inner")).unwrap();
    std::fs::write(folder.join("inner/func.yml"), INNER.replace("WAIT", wait)).unwrap();
    std::fs::write(folder.join("func.yml"), OUTER.replace("CODE", &code.to_string())).unwrap();
}

/// Parses the events and checks each against the schema that the program prints.
fn events(printed: &[u8]) -> Vec<Value> {
    let schema = program(&["schema", "events"]).output().unwrap().stdout;
    let schema = jsonschema::draft202012::new(&serde_json::from_slice(&schema).unwrap()).unwrap();
    let printed = String::from_utf8(printed.to_vec()).unwrap();
    let read = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        let wrong: Vec<_> = schema.iter_errors(&event).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{wrong:?}: {line}");
        event
    };
    printed.lines().map(read).collect()
}

/// Shortens each event to kind, step, and text or status.
fn short(events: &[Value]) -> Vec<String> {
    let show = |event: &Value| {
        let what = ["text", "status"].iter().find_map(|name| event[name].as_str()).unwrap_or("");
        let step = event["step"].as_str().unwrap_or("");
        format!("{} {step} {what}", event["event"].as_str().unwrap()).trim_end().to_owned()
    };
    events.iter().map(show).collect()
}

fn run(folder: &Path) -> Output {
    program(&["run", folder.to_str().unwrap(), "--output", "json"]).output().unwrap()
}

#[test]
fn starts_and_ends_of_steps_stand_in_order_with_the_lines_of_each() {
    let folder = tempfile::tempdir().unwrap();
    functions(folder.path(), "true", 0);
    let output = run(folder.path());
    let events = events(&output.stdout);
    let expected = [
        "step_start 0",
        "step_start 1",
        "log 1 Running step name=first",
        "log 1 first",
        "step_end 1 success",
        "step 1",
        "step_start 2",
        "step_start 2.1",
        "log 2.1 Running step name=one",
        "log 2.1 one",
        "step_end 2.1 success",
        "step_start 2.2",
        "log 2.2 Running step name=two",
        "log 2.2 two",
        "step_end 2.2 success",
        "step_end 2 success",
        "step 2",
        "step_start 3",
        "log 3 Running step name=last",
        "log 3 last",
        "step_end 3 success",
        "step 3",
        "step_end 0 success",
        "step 0",
        "end",
    ];
    assert_eq!(short(&events), expected, "{}", String::from_utf8_lossy(&output.stderr));
    let start = events.iter().find(|event| event["step"] == "2.2").unwrap();
    assert_eq!(start["path"], serde_json::json!(["nested", "two"]));
    assert_eq!((&start["number"], &start["total"]), (&2.into(), &2.into()));
    assert!(start["place"].as_str().unwrap().ends_with("inner/func.yml:5"), "{start}");
    assert_eq!(start["end_time"], Value::Null);
}

#[test]
fn a_failure_ends_all_steps_around_it() {
    let folder = tempfile::tempdir().unwrap();
    functions(folder.path(), "exit 7", 0);
    let output = run(folder.path());
    let events = events(&output.stdout);
    let of_end: Vec<_> = short(&events).into_iter().skip_while(|event| event != "log 2.2 two").collect();
    let expected = [
        "log 2.2 two",
        "step_end 2.2 failure",
        "step_end 2 failure",
        "step 2",
        "log 0 job failed: step \"nested\": step \"two\": exec: exit status 7",
        "step_end 0 failure",
        "step 0",
        "end",
    ];
    assert_eq!(of_end, expected);
    let end = events.iter().find(|event| event["event"] == "step_end" && event["step"] == "2.2").unwrap();
    assert_eq!(end["exit_code"], 7);
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_function_of_one_process_is_a_step_itself() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("func.yml"), "spec: {}\n---\nexec: {command: [echo, hi]}\n").unwrap();
    let events = events(&run(folder.path()).stdout);
    let expected =
        ["step_start 0", "log 0 Running step name=root", "log 0 hi", "step_end 0 success", "step 0", "end"];
    assert_eq!(short(&events), expected);
}

#[tokio::test]
async fn a_cancel_ends_the_steps_under_way() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_steps("1", &scripts(&[("a", "echo up; sleep 1000"), ("b", "echo never")])).await;
    client.prints("1", "up").await;
    client.cancel("1").await;
    client.ended("1").await;
    let events = events(&follow(&daemon, &["--output", "json"]).output().unwrap().stdout);
    let expected = [
        "step_start 0",
        "step_start 1",
        "log 1 Running step name=a",
        "log 1 up",
        "step_end 1 cancelled",
        "step 1",
        "log 0 job cancelled: by Cancel",
        "step_end 0 cancelled",
        "step 0",
        "end",
    ];
    let told: Vec<_> = short(&events);
    assert_eq!(told[..6], expected[..6]);
    assert!(told[6].starts_with("log 0 job cancelled: "), "{told:?}");
    assert_eq!(told[7..], expected[7..]);
}

/// Returns a command that follows job 1.
fn follow(daemon: &Daemon, options: &[&str]) -> Command {
    let mut command = program(&["follow", "1"]);
    command.args(options).arg("--address").arg(format!("unix://{}", daemon.socket.display()));
    command
}

/// Starts a job that waits for the file `go` in a nested step.
async fn nested_job(daemon: &Daemon, go: &Path) {
    let folder = daemon.file("functions");
    functions(&folder, &format!("until [ -e {} ]; do sleep 0.01; done; echo went on", go.display()), 3);
    let file = folder.join("func.yml");
    let request = v1::RunRequest {
        id: "1".into(),
        steps: std::fs::read_to_string(&file).unwrap(),
        file: file.to_str().unwrap().into(),
        ..Default::default()
    };
    daemon.client().await.try_run(request).await.unwrap();
}

#[tokio::test]
async fn followers_print_the_same_early_late_and_over_the_death_of_the_daemon() {
    let mut daemon = Daemon::start();
    let go = daemon.file("go");
    nested_job(&daemon, &go).await;
    let early = follow(&daemon, &["--output", "json"]).spawn().unwrap();
    daemon.client().await.prints("1", "two").await;
    let told = starts(&daemon).await;
    daemon.kill();
    daemon.restart();
    assert_eq!(starts(&daemon).await, told, "a start is told otherwise than before");
    daemon.kill();
    // The step ends while no daemon runs.
    std::fs::write(&go, "").unwrap();
    let log = daemon.folder("1").join("log");
    wait_for("the end of the step", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("went on")).then_some(())
    });
    daemon.restart();
    let status = daemon.client().await.ended("1").await;
    let late = follow(&daemon, &["--output", "json"]).output().unwrap();
    daemon.kill();
    daemon.restart();
    let later = follow(&daemon, &["--output", "json"]).output().unwrap();
    let early = early.wait_with_output().unwrap();
    let text = |output: &Output| String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(text(&early), text(&late));
    assert_eq!(text(&later), text(&late));
    assert_eq!((late.status.code(), status.exit_code), (Some(3), 3));
    let events = events(&late.stdout);
    assert_eq!(events.iter().filter(|event| event["event"] == "step_start").count(), 6, "{}", text(&late));
    assert_eq!(events.iter().filter(|event| event["event"] == "step_end").count(), 6, "{}", text(&late));
}

#[tokio::test]
async fn lines_between_steps_are_between_them_also_if_nobody_followed_before_the_daemon_died() {
    for kill in [false, true] {
        let mut daemon = Daemon::start();
        let client = daemon.client().await;
        let go = daemon.file("go");
        let wait = format!("until [ -e {} ]; do sleep 0.01; done; echo", go.display());
        let steps = serde_json::json!([
            {"name": "bad", "script": "echo a; exit 1", "continue_on_error": true},
            {"name": "sk", "if": false, "script": "x"},
            {"name": "group", "parallel": [
                {"name": "m", "script": format!("echo up; {wait} on")},
                {"name": "late", "if": false, "script": "x"},
            ]},
            {"name": "last", "script": "echo last"},
        ]);
        client.run_steps("1", &steps.to_string()).await;
        client.prints("1", "up").await;
        client.prints("1", "Skipped step name=late").await;
        if kill {
            daemon.kill();
            daemon.restart();
        }
        std::fs::write(&go, "").unwrap();
        daemon.client().await.ended("1").await;
        let events = events(&follow(&daemon, &["--output", "json"]).output().unwrap().stdout);
        let mut told = short(&events);
        // The member prints while the daemon tells of the next one.
        let is_beside = |line: &String| line == "log 3.1 up";
        assert!(told[12..16].iter().any(is_beside), "{told:#?}");
        told.retain(|line| !is_beside(line));
        let expected = [
            "step_start 0",
            "step_start 1",
            "log 1 Running step name=bad",
            "log 1 a",
            "step_end 1 failure",
            "step 1",
            "log 0 warning: step \"bad\" has failed, which is allowed: exec: exit-status 1",
            "log 0 Skipped step name=sk: false",
            "step_end 2 unspecified",
            "step 2",
            "step_start 3",
            "step_start 3.1",
            "log 0 Running step name=m stream=01",
            "log 0 Skipped step name=late: false",
            "step_end 3.2 unspecified",
            "log 3.1 on",
            "step_end 3.1 success",
            "step_end 3 success",
            "step 3",
            "step_start 4",
            "log 4 Running step name=last",
            "log 4 last",
            "step_end 4 success",
            "step 4",
            "step_end 0 success",
            "step 0",
            "end",
        ];
        assert_eq!(told, expected, "killed: {kill}");
    }
}

/// Returns the events of a job so far, in the middle of its nested step.
async fn starts(daemon: &Daemon) -> Vec<v1::StepEvent> {
    let request = v1::FollowStepsRequest { id: "1".into(), events: true };
    let mut calls = daemon.client().await.calls;
    let mut stream = patiently("FollowSteps", calls.follow_steps(request)).await.unwrap().into_inner();
    let mut told = Vec::new();
    // The seven events: root, first, its end, nested, one, its end, two.
    while told.len() < 7 {
        told.extend(patiently("an event", stream.message()).await.unwrap().unwrap().event);
    }
    told
}

#[tokio::test]
async fn a_step_ends_when_its_process_does_though_no_daemon_lives() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    let first = format!("echo up; until [ -e {} ]; do sleep 0.01; done; echo over", go.display());
    client.run_steps("1", &scripts(&[("a", &first), ("b", "true")])).await;
    client.prints("1", "up").await;
    daemon.kill();
    std::fs::write(&go, "").unwrap();
    let keeper = daemon.keeper_pid().unwrap();
    let journal = daemon.folder("1").join("journal");
    wait_for("the keeper to note the end of the step", || {
        let ends = |journal: String| journal.matches("step_ended").count() == 1;
        std::fs::read_to_string(&journal).is_ok_and(ends).then_some(())
    });
    crate::support::at_rest(keeper, || ());
    let restarted = step_runner::clock::now_micros();
    daemon.restart();
    let client = daemon.client().await;
    client.ended("1").await;
    let results = client.steps("1").await;
    let micros = |time: &Option<prost_types::Timestamp>| {
        let time = time.as_ref().unwrap();
        time.seconds * 1_000_000 + i64::from(time.nanos) / 1_000
    };
    let [a, b, root] = &results[..] else { panic!("{} results", results.len()) };
    assert!(micros(&a.end_time) <= restarted, "the end of the step is that of its process");
    assert!(micros(&b.start_time) >= restarted, "a further step starts when a daemon is there");
    assert_eq!(root.start_time, client.status("1").await.start_time);
    assert_eq!(root.end_time, b.end_time);
    assert_eq!(root.sub_step_results, [a.clone(), b.clone()]);
}

#[tokio::test]
async fn a_step_whose_keeper_died_has_an_end_and_never_the_result_of_the_job() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_steps("1", &scripts(&[("a", "echo fine"), ("b", "echo up; exec sleep 600")])).await;
    client.prints("1", "up").await;
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    client.ended("1").await;
    let output = follow(&daemon, &["--output", "json"]).output().unwrap();
    let told = short(&events(&output.stdout));
    let with_result: Vec<_> = told.iter().filter(|event| event.starts_with("step ")).collect();
    assert_eq!(with_result, ["step 1", "step 0"], "{told:?}");
    let place = |event: &str| told.iter().position(|told| told == event).unwrap();
    assert!(place("log 2 up") < place("step_end 2 failure"), "{told:?}");
    let end = told.iter().position(|event| event == "step_end 0 failure").unwrap();
    assert_eq!(told[end + 1], "step 0", "{told:?}");
}

#[tokio::test]
async fn a_busy_step_whose_keeper_died_has_its_end_behind_its_last_line() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let busy = "i=0; while :; do i=$((i+1)); echo $i; done";
    client.run_steps("1", &scripts(&[("a", "true"), ("b", busy)])).await;
    client.prints("1", "1000").await;
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    client.ended("1").await;
    let output = follow(&daemon, &["--output", "json"]).output().unwrap();
    let events = events(&output.stdout);
    let end = events.iter().position(|event| event["event"] == "step_end" && event["step"] == "2").unwrap();
    let is_number = |event: &&Value| event["text"].as_str().is_some_and(|text| text.parse::<u32>().is_ok());
    assert_eq!(events[end..].iter().find(is_number), None);
    assert!(events[..end].iter().filter(is_number).all(|event| event["step"] == "2"));
    let results = client.steps("1").await;
    let root = results.last().unwrap();
    let last_line = client.log("1").await.len() as i64;
    // Behind it comes the daemon's line about the end.
    assert!(last_line - root.log_end.unwrap() < 200, "{last_line} {:?}", root.log_end);
}

#[tokio::test]
async fn results_tell_what_steps_used_and_a_function_the_sum() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let busy =
        "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; head -c 50000000 /dev/zero | tail -c 1 >/dev/null";
    client.run_to_end("1", &scripts(&[("a", busy), ("b", busy)])).await;
    let results = client.steps("1").await;
    let used = |result: &StepResult| {
        let usage = result.usage.unwrap();
        let micros = |time: Option<prost_types::Duration>| {
            let time = time.unwrap();
            time.seconds * 1_000_000 + i64::from(time.nanos) / 1_000
        };
        (micros(usage.user_time) + micros(usage.system_time), usage.peak_memory_bytes)
    };
    let [a, b, root] = &results[..] else { panic!("{} results", results.len()) };
    assert!(used(a).0 > 0 && used(b).0 > 0);
    assert_eq!(used(root).0, used(a).0 + used(b).0);
    assert_eq!(used(root).1, used(a).1.max(used(b).1));
    assert!(used(a).1 != Some(0), "nothing stands in for what the kernel does not tell");
    let status = client.status("1").await;
    assert_eq!(status.usage, root.usage);
}

#[tokio::test]
async fn status_tells_the_step_that_runs() {
    let mut daemon = Daemon::start();
    let go = daemon.file("go");
    nested_job(&daemon, &go).await;
    let client = daemon.client().await;
    client.prints("1", "two").await;
    let of = |status: &v1::Status| (status.current_step.clone(), status.step_number, status.steps_total);
    let expected = (vec!["nested".to_owned(), "two".to_owned()], 2, 3);
    assert_eq!(of(&client.status("1").await), expected);
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    let status = client.reaches("1", "its record is replayed", |status| status.steps_total > 0).await;
    assert_eq!(of(&status), expected);
    std::fs::write(&go, "").unwrap();
    assert_eq!(of(&client.ended("1").await), (vec![], 0, 0));
}

#[tokio::test]
async fn compatible_services_send_no_fields_of_ours() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("1", &scripts(&[("a", "true")])).await;
    let mut calls = step_runner::pb::v0::step_runner_client::StepRunnerClient::new(client.channel.clone());
    let request = step_runner::pb::v0::FollowRequest { id: "1".into() };
    let mut stream = calls.follow(request).await.unwrap().into_inner();
    while let Some(message) = stream.message().await.unwrap() {
        let result = message.result.unwrap();
        for result in std::iter::once(&result).chain(&result.sub_step_results) {
            assert!(result.start_time.is_none() && result.end_time.is_none() && result.usage.is_none());
            assert!(result.place.is_empty() && result.log_start.is_none() && result.log_end.is_none());
            assert_eq!((result.number, result.total, result.steps), (0, 0, None));
        }
    }
}
