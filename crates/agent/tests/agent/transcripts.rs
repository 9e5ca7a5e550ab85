//! Decisions about traces and final updates beside those of GitLab Runner 17.9.3 and 12.5.0.
//!
//! Each test goes through all scenarios of a kind and names the ones in which the agent differs on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::double::transcript::{Exchange, Scenario, Transcript, moment};
use step_runner_agent::final_update::{FinalUpdate, How, Next};
use step_runner_agent::outcome::{
    CancelledBy, EnvironmentFailure, FailedStep, JobEnd, Outcome, Refusal, State,
};
use step_runner_agent::time::Jitter;
use step_runner_agent::trace::{Form, Notice, Request, Text, Upload, checksum};

/// How much later than the recording a small machine may be.
const TOLERANCE: Duration = Duration::from_millis(400);

/// Returns the calls of each job of a scenario, with the time at which the job came.
fn jobs(scenario: &Scenario) -> Vec<(u64, Vec<&Exchange>)> {
    let taken = scenario.exchanges.iter().filter_map(|exchange| {
        let answer = exchange.answer.as_ref()?;
        Some((answer.ms, answer.job?))
    });
    let calls = |job| scenario.exchanges.iter().filter(move |found| found.job() == Some(job)).collect();
    taken.map(|(ms, job)| (ms, calls(job))).collect()
}

/// Sends a trace as the Runner did. Returns the notices of the answers.
fn replay(name: &str, taken: u64, calls: &[&Exchange]) -> Vec<Notice> {
    let mut upload = Upload::new(0, moment(taken));
    let mut notices = Vec::new();
    for call in calls {
        if call.state().is_some_and(|state| state != "running") {
            break;
        }
        let (now, answered) = call.times();
        if let Some((_, to)) = call.piece() {
            upload.grown(to);
            if upload.wake().is_none_or(|wake| wake > now + TOLERANCE) {
                // The Runner does not wait for the interval at the end of a job.
                upload.complete(to, now);
            }
        }
        let wake = upload.wake().unwrap_or_else(|| panic!("{name}: nothing to send at {}", call.ms));
        assert!(wake <= now + TOLERANCE, "{name}: {wake:?} is later than {}", call.ms);
        let request = upload.request(wake.max(now)).unwrap();
        match (request, call.piece()) {
            (Request::Append { from, to }, Some(piece)) => {
                assert_eq!((from, to), piece, "{name}: {}", call.ms);
            }
            (Request::SignOfLife, None) => {}
            other => panic!("{name}: {other:?} at {}", call.ms),
        }
        notices.extend(upload.answered(&call.reply(), answered).notice);
    }
    notices
}

#[test]
fn a09_pieces_of_a_trace_are_those_of_the_runner_and_never_later() {
    // 12.5.0 does not know the server's interval and the trace that is sent again after a 412, and it sends smaller pieces.
    // Both versions abort at the first 403; the agent asks again. The last piece then comes later.
    // A Runner with an interval of 60 s is silent for as long; the agent gives a sign of life after 30 s.
    let differs = BTreeSet::from([
        ("12.5.0", "big-interval-60"),
        ("12.5.0", "silent-interval-60"),
        ("12.5.0", "success-short"),
        ("12.5.0", "more-than-a-patch"),
        ("12.5.0", "final-412"),
        ("12.5.0", "trace-403"),
        ("17.9.3", "trace-403"),
        ("17.9.3", "final-412"),
    ]);
    let mut compared = 0;
    for version in ["12.5.0", "17.9.3"] {
        for scenario in &Transcript::read(version, "jobs").scenarios {
            if differs.contains(&(version, scenario.name.as_str())) {
                continue;
            }
            for (taken, calls) in jobs(scenario) {
                replay(&format!("{version} {}", scenario.name), taken, &calls);
                compared += calls.len();
            }
        }
    }
    assert!(compared > 250, "{compared}");
}

#[test]
fn a11_cancel_and_abort_come_from_the_same_answers() {
    for version in ["12.5.0", "17.9.3"] {
        let transcript = Transcript::read(version, "jobs");
        for (name, notices) in [
            ("canceling-in-patch", &[Notice::Cancel][..]),
            ("canceling-in-put", &[Notice::Cancel]),
            ("canceled-in-patch", &[Notice::Abort]),
            ("failed-in-patch", &[Notice::Abort]),
            ("canceled-in-put", &[Notice::Abort]),
            ("trace-404", &[]),
            ("trace-5xx", &[]),
        ] {
            let (taken, calls) = jobs(transcript.scenario(name)).remove(0);
            assert_eq!(replay(name, taken, &calls), notices, "{version} {name}");
        }
    }
}

/// Repeats a final update as the Runner did. Returns how it ended.
fn finish(name: &str, calls: &[&Exchange]) -> Option<How> {
    let finals: Vec<_> =
        calls.iter().filter(|call| call.state().is_some_and(|state| state != "running")).collect();
    let aborted = calls.iter().any(|call| {
        let is_before = call.piece().is_some() || call.state() == Some("running");
        is_before && call.reply().is_ok_and(|answer| answer.is_over())
    });
    let mut update = FinalUpdate::new(finals.first()?.times().0, Duration::ZERO, aborted);
    for (index, call) in finals.iter().enumerate() {
        assert_eq!(call.body, finals[0].body, "{name}: the update is repeated as it was");
        let next = update.answered(&call.reply(), call.times().1, Jitter(0));
        match (next, finals.get(index + 1)) {
            (Next::Done(how), None) => return Some(how),
            (Next::Again(at) | Next::TraceAgain(at), Some(again)) => {
                // 12.5.0 asks every 3 s for ever; the agent waits longer each time.
                let is_late = at > moment(again.ms) + TOLERANCE && !name.starts_with("12.5.0 final-5xx");
                assert!(!is_late, "{name}: {at:?} is later than {}", again.ms);
            }
            (Next::Again(_), None) => return None,
            (next, again) => {
                panic!("{name}: {next:?}, and the Runner goes on at {:?}", again.map(|call| call.ms))
            }
        }
    }
    None
}

#[test]
fn a10_final_updates_are_repeated_as_by_the_runner_and_never_later() {
    for version in ["12.5.0", "17.9.3"] {
        for scenario in &Transcript::read(version, "jobs").scenarios {
            let name = format!("{version} {}", scenario.name);
            for (_, calls) in jobs(scenario) {
                let how = finish(&name, &calls);
                match scenario.name.as_str() {
                    // The Runner gives up, the agent does not.
                    "final-5xx-gives-up" => assert_eq!(how, None, "{name}"),
                    "final-404" | "final-403" | "canceled-in-patch" | "failed-in-patch"
                    | "canceled-in-put" => {
                        assert_eq!(how, Some(How::NotWanted), "{name}");
                    }
                    _ => assert_eq!(how, Some(How::Taken), "{name}"),
                }
            }
        }
    }
}

/// Returns how each job of a scenario ends in a daemon.
fn ends(scenario: &str) -> Vec<JobEnd> {
    let ended = |code, name: &str, class: Option<&str>| JobEnd::Ended {
        code,
        failed: Some(FailedStep::new(name.to_owned(), class.unwrap_or_default())),
    };
    let script = |code| ended(code, "step_script", None);
    let success = || JobEnd::Ended { code: 0, failed: None };
    match scenario {
        "failure-exit-code" => vec![script(7), script(1), script(137)],
        "allow-failure-exit-codes" => vec![script(137), script(255), script(1), script(1)],
        "timeout-job" => vec![ended(-3, "step_script", None)],
        "failure-reasons-list" => vec![ended(-3, "step_script", None); 2],
        "timeout-script" => {
            vec![ended(143, "step_script", Some("timeout")), success(), ended(3, "after_script", None)]
        }
        "system-failure-builds-dir" => vec![ended(-1, "prepare", None)],
        "system-failure-shell" => vec![JobEnd::Environment(EnvironmentFailure::System)],
        "unsupported-options" => {
            vec![JobEnd::PayloadRefused, JobEnd::RunRefused(Refusal::Content), JobEnd::PayloadRefused]
        }
        "canceling-in-patch" | "canceling-in-put" | "canceled-in-patch" | "failed-in-patch"
        | "canceled-in-put" | "trace-403" => vec![JobEnd::Cancelled(CancelledBy::Server)],
        "steps-several" => vec![success(), script(1)],
        _ => Vec::new(),
    }
}

#[test]
fn a08_reasons_and_codes_are_those_of_the_runner() {
    let known = [
        "unknown_failure",
        "script_failure",
        "runner_system_failure",
        "job_execution_timeout",
        "image_pull_failure",
    ];
    let known: BTreeSet<String> = known.map(str::to_owned).into_iter().collect();
    let mut differences = BTreeMap::new();
    let mut compared = 0;
    for scenario in &Transcript::read("17.9.3", "jobs").scenarios {
        for ((_, calls), end) in jobs(scenario).iter().zip(ends(&scenario.name)) {
            let last = calls.iter().rev().find(|call| call.state().is_some()).unwrap();
            let ours = Outcome::of(&end, &known);
            let state = if ours.state == State::Success { "success" } else { "failed" };
            let reason = last.body.get("failure_reason").and_then(|reason| reason.as_str());
            let code = last.body.get("exit_code").and_then(serde_json::Value::as_i64).map(|code| code as i32);
            compared += 1;
            if (Some(state), ours.reason.as_deref(), ours.exit_code) != (last.state(), reason, code) {
                let shown = format!(
                    "{:?} {code:?}, ours {:?} {:?}",
                    reason.unwrap_or(""),
                    ours.reason,
                    ours.exit_code
                );
                differences.insert(format!("{} {}", scenario.name, last.job().unwrap()), shown);
            }
        }
    }
    assert!(compared > 20, "{compared}");
    let wanted = [
        // A shell that was killed has the code of its signal; the Runner sends -1.
        ("failure-exit-code 1003", "\"script_failure\" Some(-1), ours Some(\"script_failure\") Some(137)"),
        // A builds directory that cannot be made is not the job's fault.
        (
            "system-failure-builds-dir 1001",
            "\"script_failure\" Some(1), ours Some(\"runner_system_failure\") None",
        ),
    ];
    let wanted: BTreeMap<_, _> = wanted.map(|(job, shown)| (job.to_owned(), shown.to_owned())).into();
    assert_eq!(differences, wanted);
}

#[test]
fn a09_checksums_are_those_that_the_runner_sent() {
    let mut compared = 0;
    for scenario in &Transcript::read("17.9.3", "jobs").scenarios {
        for (job, text) in &scenario.traces {
            let mut trace = Text::new(Form::Lines, 1 << 20);
            trace.tail(text, &mut Vec::new());
            let last = scenario
                .exchanges
                .iter()
                .rev()
                .find(|call| call.job().is_some_and(|id| id.to_string() == *job));
            let body = &last.unwrap().body;
            assert_eq!(body["checksum"], checksum(trace.crc()));
            assert_eq!(body["output"]["bytesize"], trace.len());
            compared += 1;
        }
    }
    assert_eq!(compared, 2);
}
