//! Steps side by side, retries, limits and cleanup, with real processes (flow.md).

use std::collections::BTreeMap;
use std::time::Instant;

use super::{end, seconds};
use crate::support::{Client, Daemon, SOON, Setup, contains, is_alive, patiently, request, until, wait_for};
use step_runner::pb::v1;
use step_runner::pb::v1::step_result::Outcome;
use step_runner::pb::v1::{RunRequest, State};

/// Ways to hold processes together: in control groups where there are some, and below reapers.
const WAYS: [&str; 2] = ["auto", "off"];

fn daemon(way: &str) -> Daemon {
    Setup::new().option("cgroup", way).start()
}

/// Returns names and outcomes of all steps in the last result, by path.
async fn outcomes(client: &Client, id: &str) -> BTreeMap<String, (Outcome, String)> {
    fn add(result: &v1::StepResult, path: &str, all: &mut BTreeMap<String, (Outcome, String)>) {
        for sub in &result.sub_step_results {
            let name = sub.step.as_ref().map_or("", |step| step.name.as_str());
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            all.insert(path.clone(), (sub.outcome(), sub.reason.clone()));
            add(sub, &path, all);
        }
    }
    let root = client.steps(id).await.pop().unwrap();
    let mut all = BTreeMap::new();
    add(&root, "", &mut all);
    all
}

/// Returns all messages of FollowSteps with events.
async fn messages(client: &Client, id: &str) -> Vec<v1::FollowStepsResponse> {
    let request = v1::FollowStepsRequest { id: id.to_owned(), events: true };
    let mut stream = client.calls.clone().follow_steps(request).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(message) = patiently("a message", stream.message()).await.unwrap() {
        all.push(message);
    }
    all
}

/// The pid that a process has written to a file.
fn pid(file: &std::path::Path) -> i32 {
    wait_for("a pid", || std::fs::read_to_string(file).ok()?.trim().parse().ok())
}

#[tokio::test]
async fn members_run_at_the_same_time_and_each_line_is_whole_in_its_own_stream() {
    for way in WAYS {
        let daemon = daemon(way);
        let client = daemon.client().await;
        let folder = daemon.file("met");
        std::fs::create_dir(&folder).unwrap();
        // Each waits for all others, so they end only if they run side by side.
        let meet = |n: usize| {
            format!(
                "touch {0}/{n}; while test $(ls {0} | wc -l) -lt 14; do sleep 0.01; done; \
                 for line in 1 2 3 4 5 6 7 8 9; do echo member {n} line $line; done",
                folder.display()
            )
        };
        let members: Vec<_> =
            (0..14).map(|n| serde_json::json!({"name": format!("m{n}"), "script": meet(n)})).collect();
        let steps = serde_json::json!([{"name": "all", "parallel": members, "max": 14}]).to_string();
        let status = client.run_to_end("1", &steps).await;
        assert_eq!(end(&status), (State::Success, 0), "{way}: {status:?}");
        let log = String::from_utf8(client.log("1").await).unwrap();
        for n in 0..14 {
            let lines: Vec<(&str, &str)> = log
                .lines()
                .map(stream_and_text)
                .filter(|(_, text)| text.starts_with(&format!("member {n} ")))
                .collect();
            let expected: Vec<String> = (1..10).map(|line| format!("member {n} line {line}")).collect();
            assert_eq!(lines.iter().map(|(_, text)| *text).collect::<Vec<_>>(), expected, "{way}");
            assert!(lines.iter().all(|(stream, _)| *stream == lines[0].0), "{way}: one stream for each");
            let announced = format!("Running step name=m{n} stream={}", lines[0].0.trim_end_matches('O'));
            assert!(log.contains(&announced), "{way}: {announced}");
        }
    }
}

#[tokio::test]
async fn a_stop_of_one_member_leaves_its_siblings_and_what_earlier_steps_left() {
    for way in WAYS {
        let daemon = daemon(way);
        let client = daemon.client().await;
        let [service, go, stopped] = ["service", "go", "stopped"].map(|name| daemon.file(name));
        let steps = serde_json::json!([
            {"name": "service", "script": format!("sleep 600 >/dev/null 2>&1 & echo $! > {}", service.display())},
            {"name": "both", "fail_fast": false, "parallel": [
                {"name": "slow", "timeout": "300ms",
                 "script": format!("sleep 600 & echo $! > {}; wait", stopped.display())},
                {"name": "good", "script": format!("while ! test -e {}; do sleep 0.01; done; echo well", go.display())},
            ]},
            {"name": "after", "when": "always", "script": format!("kill -0 $(cat {})", service.display())},
        ]);
        client.run_steps("1", &steps.to_string()).await;
        client.prints("1", "Running step name=good").await;
        let (service, stopped) = (pid(&service), pid(&stopped));
        until("the step has ended", || !is_alive(stopped)).await;
        assert!(is_alive(service), "{way}: it is none of the step's");
        std::fs::write(&go, "").unwrap();
        let status = client.ended("1").await;
        assert_eq!(end(&status), (State::Failure, 124), "{way}: {status:?}");
        assert!(!is_alive(service), "{way}: nothing outlives the job");
        let all = outcomes(&client, "1").await;
        assert_eq!(all["both/slow"].0, Outcome::Failure, "{way}");
        assert_eq!(all["both/good"].0, Outcome::Success, "{way}");
        assert_eq!(all["after"].0, Outcome::Success, "{way}: the service lives while the job does");
        let log = client.log("1").await;
        assert!(status.message.ends_with(": timed out after 300ms: exit status 124"), "{way}: {status:?}");
        assert!(contains(&log, &format!("job failed: {}", status.message)), "{way}");
        assert!(contains(&log, "sleep 600"), "{way}: the processes are shown");
        assert!(contains(&log, " 01E ") || !contains(&log, "01E"), "{way}");
    }
}

#[tokio::test]
async fn the_log_shows_all_processes_of_a_step_whose_limit_has_passed_as_they_ran() {
    for way in WAYS {
        let daemon = daemon(way);
        let client = daemon.client().await;
        let again = serde_json::json!({"max": 9, "delay": "0s"});
        let steps = serde_json::json!([
            {"name": "tree", "timeout": "300ms", "continue_on_error": true, "script": "sleep 601 & sleep 602 & wait"},
            {"name": "group", "timeout": "500ms", "parallel": [
                {"name": "a", "timeout": "300ms", "retry": again, "script": "sleep 603"},
                {"name": "b", "script": "sleep 604"},
            ]},
        ]);
        client.run_to_end("1", &steps.to_string()).await;
        let log = String::from_utf8(client.log("1").await).unwrap();
        let shown = |part: &str| log.lines().filter(|line| line.contains(part)).count();
        // Member a is shown at its own limit and at that of the group.
        let counts = ["state S) sleep 601", "state S) sleep 602", "state S) sleep 603", "state S) sleep 604"]
            .map(shown);
        assert_eq!(counts, [1, 1, 2, 1], "{way}: {log}");
        assert_eq!(shown("state Z"), 0, "{way}: {log}");
    }
}

#[tokio::test]
async fn what_a_stopped_step_leaves_behind_its_own_process_is_killed_after_its_grace() {
    for way in WAYS {
        let daemon = daemon(way);
        let client = daemon.client().await;
        let [deaf, go] = ["deaf", "go"].map(|name| daemon.file(name));
        let script = format!(
            "(trap '' TERM; sleep 600; sleep 600) >/dev/null 2>&1 & echo $! > {}; trap 'exit 0' TERM; sleep 600 & wait",
            deaf.display()
        );
        let steps = serde_json::json!([
            {"name": "stopped", "timeout": "300ms", "continue_on_error": true, "script": script},
            {"name": "next", "script": format!("while ! test -e {}; do sleep 0.01; done; echo on", go.display())},
        ]);
        let steps = steps.to_string();
        client
            .try_run(RunRequest { cancel_grace: Some(seconds(2.0)), ..request("1", &steps) })
            .await
            .unwrap();
        client.prints("1", "Running step name=next").await;
        let deaf = pid(&deaf);
        assert!(is_alive(deaf), "{way}: its grace is not over");
        until("the process is killed", || !is_alive(deaf)).await;
        std::fs::write(&go, "").unwrap();
        let status = client.ended("1").await;
        assert_eq!(end(&status), (State::Success, 0), "{way}: {status:?}");
        assert!(contains(&client.log("1").await, " on\n"), "{way}: the next step is not touched");
    }
}

#[tokio::test]
async fn what_an_attempt_has_left_is_ended_before_the_next_one() {
    for way in WAYS {
        let daemon = daemon(way);
        let client = daemon.client().await;
        let pids = daemon.file("pids");
        let script = format!(
            "test -e {0} && case $(cut -d' ' -f3 /proc/$(tail -n 1 {0})/stat 2>/dev/null) in ''|Z|X) echo gone;; esac; \
             setsid sleep 600 >/dev/null 2>&1 & echo $! >> {0}; test $(wc -l < {0}) = 3",
            pids.display()
        );
        let steps = serde_json::json!([
            {"name": "flaky", "script": script, "retry": {"max": 4, "delay": "10ms"}},
            {"name": "last", "if": "${{ steps.flaky.attempts == 3 }}", "script": "echo three"},
        ]);
        let status = client.run_to_end("1", &steps.to_string()).await;
        assert_eq!(end(&status), (State::Success, 0), "{way}: {status:?}");
        assert_eq!(client.output("1").await, "gone\ngone\nthree\n", "{way}");
        let log = client.log("1").await;
        assert!(contains(&log, "Retrying step name=flaky (attempt 2 of 5)"), "{way}");
    }
}

#[tokio::test]
async fn a_cancel_runs_the_cleanup_and_a_cancel_by_force_does_not() {
    for (force, expected) in [(false, "on\ncleaned\n"), (true, "on\n")] {
        let daemon = Daemon::start();
        let client = daemon.client().await;
        let steps = r#"[{"name": "work", "script": "echo on; exec sleep 600"},
            {"name": "more", "script": "echo never"},
            {"name": "clean", "when": "always", "script": "echo cleaned"}]"#;
        client.run_steps("1", steps).await;
        client.prints("1", "on").await;
        let cancel = v1::CancelRequest { id: "1".into(), force };
        client.calls.clone().cancel(cancel).await.unwrap();
        let status = client.ended("1").await;
        assert_eq!(end(&status), (State::Cancelled, -2), "{status:?}");
        assert_eq!(client.output("1").await, expected);
        let all = outcomes(&client, "1").await;
        assert_eq!(all["more"], (Outcome::Skipped, "when: on_success".into()));
        let clean = if force { (Outcome::Skipped, "cancelled") } else { (Outcome::Success, "") };
        assert_eq!(all["clean"], (clean.0, clean.1.into()));
    }
}

#[tokio::test]
async fn a_cleanup_that_takes_too_long_is_ended() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let steps = r#"[{"name": "work", "script": "echo on; exec sleep 600"},
        {"name": "clean", "when": "always", "script": "echo cleaning; exec sleep 600"},
        {"name": "last", "when": "always", "script": "echo never"}]"#;
    let run = RunRequest { cleanup_timeout: Some(seconds(0.3)), ..request("1", steps) };
    client.try_run(run).await.unwrap();
    client.prints("1", "on").await;
    let begun = Instant::now();
    client.cancel("1").await;
    let status = client.ended("1").await;
    assert!(begun.elapsed() < SOON);
    assert_eq!(end(&status), (State::Cancelled, -2), "{status:?}");
    assert_eq!(client.output("1").await, "on\ncleaning\n");
    assert_eq!(outcomes(&client, "1").await["last"].1, "cleanup_timeout");
}

#[tokio::test]
async fn an_allowed_failure_is_counted_and_a_failure_decides() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let steps = r#"[{"name": "may", "script": "exit 7", "continue_on_error": {"exit_codes": 7}},
        {"name": "seen", "script": "echo ${{ steps.may.status }} ${{ steps.may.exit_code }}"},
        {"name": "no", "if": "${{ steps.may.status == \"success\" }}", "script": "echo never"}]"#;
    let status = client.run_to_end("1", steps).await;
    assert_eq!((end(&status), status.allowed_failures), ((State::Success, 0), 1), "{status:?}");
    assert_eq!(client.output("1").await, "allowed_failure 7\n");
    let results = client.steps("1").await;
    assert_eq!(results.len(), 4, "a skipped step has a message");
    let all = outcomes(&client, "1").await;
    assert_eq!(all["no"], (Outcome::Skipped, "steps.may.status == \"success\"".into()));
}

/// Returns stream and kind of a line of a log, such as `01O`, and its text.
fn stream_and_text(line: &str) -> (&str, &str) {
    let (head, text) = line.split_at(32);
    (head.get(28..31).unwrap(), text)
}

/// Puts the events of a job into its log, as a reader does.
fn in_order(log: &[u8], messages: &[v1::FollowStepsResponse]) -> Vec<String> {
    let mut run = step_runner::insight::run::Run::new(0);
    run.log(log);
    for message in messages {
        run.message(message);
    }
    run.end();
    std::iter::from_fn(|| run.next_part())
        .map(|part| match part {
            step_runner::insight::run::Part::Log(bytes) => String::from_utf8(bytes).unwrap(),
            step_runner::insight::run::Part::Step { event, .. } => {
                let result = event.result.unwrap();
                format!("<{} {}>\n", event.call, result.outcome().as_str_name())
            }
            step_runner::insight::run::Part::Result(_) => String::new(),
        })
        .collect()
}

#[tokio::test]
async fn log_and_events_have_one_order_for_whoever_reads_live_or_late_over_a_death_of_the_daemon() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    let wait = format!("while ! test -e {}; do sleep 0.01; done", go.display());
    let steps = serde_json::json!([
        {"name": "a", "script": "echo a"},
        {"name": "both", "parallel": [
            {"name": "x", "script": format!("echo x1; {wait}; echo x2")},
            {"name": "y", "script": format!("echo y1; {wait}; echo y2"), "retry": 1},
        ]},
        {"name": "never", "when": "on_failure", "script": "echo never"},
    ]);
    client.run_steps("1", &steps.to_string()).await;
    let live = {
        let client = daemon.client().await;
        tokio::spawn(async move { messages(&client, "1").await })
    };
    client.prints("1", "y1").await;
    std::fs::write(&go, "").unwrap();
    assert_eq!(end(&client.ended("1").await), (State::Success, 0));
    let live = live.await.unwrap();
    let log = client.log("1").await;
    let mut mark = 0;
    for message in &live {
        let place = message.event.as_ref().map(|event| event.log_bytes);
        assert!(place.is_none_or(|place| place >= mark), "an event before a mark: {message:?}");
        if place.is_none() && message.result.is_none() {
            mark = message.log_bytes;
        }
    }
    let late = messages(&client, "1").await;
    let without_marks = |messages: &[v1::FollowStepsResponse]| {
        let is_told =
            |message: &&v1::FollowStepsResponse| message.event.is_some() || message.result.is_some();
        messages.iter().filter(is_told).cloned().collect::<Vec<_>>()
    };
    assert_eq!(without_marks(&live), without_marks(&late));
    assert_eq!(in_order(&log, &live), in_order(&log, &late));
    daemon.kill();
    daemon.restart();
    let again = messages(&daemon.client().await, "1").await;
    assert_eq!(without_marks(&again), without_marks(&late));
    let steps: Vec<String> = in_order(&log, &late)
        .concat()
        .lines()
        .map(|line| line.get(32..).unwrap_or(line).to_owned())
        .collect();
    assert_eq!(steps.first().map(String::as_str), Some("<0 outcome_unspecified>"), "{steps:#?}");
    assert_eq!(steps.last().map(String::as_str), Some("<0 outcome_success>"), "{steps:#?}");
}

#[tokio::test]
async fn a_job_with_members_and_retries_goes_on_when_its_daemon_is_killed() {
    for way in WAYS {
        let mut daemon = daemon(way);
        let client = daemon.client().await;
        let (folder, go) = (daemon.file("met"), daemon.file("go"));
        std::fs::create_dir(&folder).unwrap();
        let member = |n: usize| {
            serde_json::json!({
                "name": format!("m{n}"),
                "script": format!(
                    "echo begin {n}; touch {}/{n}; while ! test -e {}; do sleep 0.01; done; echo end {n}",
                    folder.display(),
                    go.display()
                ),
            })
        };
        let members: Vec<_> = (0..14).map(member).collect();
        let steps = serde_json::json!([
            {"name": "all", "parallel": members, "max": 14},
            {"name": "flaky", "script": "echo try; exit 3", "retry": {"max": 1, "delay": "300ms"}, "continue_on_error": true},
            {"name": "last", "when": "always", "script": "echo last"},
        ]);
        client.run_steps("1", &steps.to_string()).await;
        until("all run", || std::fs::read_dir(&folder).unwrap().count() == 14).await;
        daemon.kill();
        std::fs::write(&go, "").unwrap();
        daemon.restart();
        let client = daemon.client().await;
        client.prints("1", "try").await;
        daemon.kill();
        daemon.restart();
        let client = daemon.client().await;
        let status = client.ended("1").await;
        assert_eq!((end(&status), status.allowed_failures), ((State::Success, 0), 1), "{way}: {status:?}");
        let log = String::from_utf8(client.log("1").await).unwrap();
        let printed = log.lines().map(stream_and_text).filter(|(stream, _)| !stream.starts_with("00"));
        let mut lines: Vec<&str> = printed.map(|(_, text)| text).collect();
        assert_eq!(lines.split_off(28), ["try", "try", "last"], "{way}");
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 28, "{way}: each line once");
    }
}
