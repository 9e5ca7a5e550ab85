use proptest::prelude::*;

use super::*;
use crate::log::line::{Check, Entry};
use crate::pb::v1::step_result::{Outcome, Status};

#[test]
fn entries_become_events_with_text_or_base64() {
    let entry = |body: &[u8]| {
        let line = [b"2026-11-20T10:00:00.123456Z 01O ".as_slice(), body].concat();
        line_event(Line::Entry(Entry::parse(&line).unwrap()))
    };
    let text = entry(b"hello");
    assert_eq!(text["text"], "hello");
    assert_eq!(text["source"], "01O");
    assert_eq!(text["time"], "2026-11-20T10:00:00.123456Z");
    assert_eq!(entry(b"\xff")["base64"], "/w==");
}

/// Returns the event of a step and, if it has ended, its result.
fn told(name: &str, number: i32, status: Status, log_bytes: i64) -> Vec<v1::FollowStepsResponse> {
    let step = (!name.is_empty()).then(|| v1::Step { name: name.into(), ..Default::default() });
    let outcome = match status {
        Status::Running => Outcome::Unspecified,
        Status::Success => Outcome::Success,
        _ => Outcome::Failure,
    };
    let (status, outcome) = (status.into(), outcome.into());
    let result = v1::StepResult { step, number, status, outcome, ..Default::default() };
    let call = number.unsigned_abs();
    let event =
        v1::StepEvent { call, parent: 0, result: Some(result.clone()), log_bytes, stream: 1, member: false };
    let event = v1::FollowStepsResponse { event: Some(event), log_bytes, result: None };
    let is_over = result.outcome() != Outcome::Unspecified;
    let result = v1::FollowStepsResponse { result: Some(result), ..Default::default() };
    [event].into_iter().chain(is_over.then_some(result)).collect()
}

fn line(source: &str, text: &str) -> String {
    format!("2026-11-20T10:00:00.123456Z {source} {text}\n")
}

/// Log and step events of a job of two steps. The daemon prints a line of its own during the first step, between the
/// two, and after the second.
fn job() -> (String, Vec<v1::FollowStepsResponse>) {
    let first = [line("00O", "Running step name=a"), line("01O", "A"), line("00E", "warning: a")].concat();
    let between = line("00O", "Fetched step name=b");
    let second = [line("00O", "Running step name=b"), line("01O", "B")].concat();
    let log = [first.clone(), between, second, line("00E", "job failed: b")].concat();
    let last = line("00E", "job failed: b").len();
    let [end_of_a, end_of_b, end] = [first.len(), log.len() - last, log.len()].map(|len| len as i64);
    let start_of_b = log.find("2026-11-20T10:00:00.123456Z 00O Running step name=b").unwrap() as i64;
    let messages = [
        told("", 0, Status::Running, 0),
        told("a", 1, Status::Running, 0),
        told("a", 1, Status::Success, end_of_a),
        told("b", 2, Status::Running, start_of_b),
        told("b", 2, Status::Failure, end_of_b),
        told("", 0, Status::Failure, end),
    ];
    (log, messages.concat())
}

fn stream(offset: u64) -> EventStream {
    EventStream::new(Parser::new(Check::Lenient), offset)
}

/// Returns kind, step and text of each printed event.
fn shown(printed: &[u8]) -> Vec<String> {
    let events = printed.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let show = |line: &[u8]| {
        let event: Value = serde_json::from_slice(line).unwrap();
        let field = |name: &str| event[name].as_str().unwrap_or("").to_owned();
        format!("{} {} {}", field("event"), field("step"), field("text")).trim_end().to_owned()
    };
    events.map(show).collect()
}

const EXPECTED: [&str; 16] = [
    "step_start 0",
    "step_start 1",
    "log 1 Running step name=a",
    "log 1 A",
    "log 1 warning: a",
    "step_end 1",
    "step 1",
    "log 0 Fetched step name=b",
    "step_start 2",
    "log 2 Running step name=b",
    "log 2 B",
    "step_end 2",
    "step 2",
    "log 0 job failed: b",
    "step_end 0",
    "step 0",
];

proptest! {
    #[test]
    fn order_and_steps_are_the_same_whichever_stream_is_ahead(
        pieces in prop::collection::vec((1usize..60, any::<bool>()), 0..40),
    ) {
        let (log, news) = job();
        let (mut log, mut news) = (log.as_bytes(), news.into_iter());
        let (mut events, mut out) = (stream(0), Vec::new());
        for (length, is_log) in pieces {
            if is_log {
                let (piece, rest) = log.split_at(length.min(log.len()));
                events.log(piece, &mut out).unwrap();
                log = rest;
            } else if let Some(news) = news.next() {
                events.message(&news, &mut out).unwrap();
            }
        }
        for news in news {
            events.message(&news, &mut out).unwrap();
        }
        events.log(log, &mut out).unwrap();
        events.end(&v1::Status::default(), &mut out).unwrap();
        let shown = shown(&out);
        prop_assert_eq!(&shown[..EXPECTED.len()], &EXPECTED[..]);
        prop_assert_eq!(shown.len(), EXPECTED.len() + 1);
    }
}

#[test]
fn a_log_read_from_the_middle_begins_with_the_steps_before_it() {
    let (log, news) = job();
    for from in [
        line("00O", "Running step name=a").len(),
        log.find("2026-11-20T10:00:00.123456Z 00O Fetched").unwrap(),
    ] {
        let (mut events, mut out) = (stream(from as u64), Vec::new());
        events.log(&log.as_bytes()[from..], &mut out).unwrap();
        for news in &news {
            events.message(news, &mut out).unwrap();
        }
        events.end(&v1::Status::default(), &mut out).unwrap();
        let is_before =
            |event: &&str| event.starts_with("log") && !shown(&out).contains(&(*event).to_owned());
        let expected: Vec<_> = EXPECTED.iter().filter(|event| !is_before(event)).collect();
        assert_eq!(shown(&out).iter().take(expected.len()).collect::<Vec<_>>(), expected, "from {from}");
    }
}

#[test]
fn results_of_a_daemon_without_events_hold_no_line_back() {
    let (log, messages) = job();
    let (mut events, mut out) = (stream(0), Vec::new());
    for message in messages.into_iter().filter(|message| message.result.is_some()) {
        events.message(&message, &mut out).unwrap();
    }
    events.log(log.as_bytes(), &mut out).unwrap();
    let lines = shown(&out).into_iter().filter(|event| event.starts_with("log 0")).count();
    assert_eq!(lines, 7);
}

#[test]
fn lines_that_wait_are_told_and_come_when_no_more_is_told() {
    let (mut events, mut out) = (stream(0), Vec::new());
    events.log(line("01O", "x").as_bytes(), &mut out).unwrap();
    assert!(out.is_empty() && events.waiting() > 0 && events.is_silent());
    events.events_end(&mut out).unwrap();
    assert!(!out.is_empty() && events.waiting() == 0);
}

/// Its keeper died: the step under way has an end, but no result.
#[test]
fn the_result_of_an_interrupted_job_is_never_that_of_a_step() {
    let (mut events, mut out) = (stream(0), Vec::new());
    let log = [line("01O", "x"), line("00E", "job interrupted: y")].concat();
    let end = log.len() as i64;
    let mut messages = [told("", 0, Status::Running, 0), told("a", 1, Status::Running, 0)].concat();
    messages.extend(told("a", 1, Status::Failure, end).into_iter().next());
    messages.extend(told("", 0, Status::Failure, end));
    events.log(log.as_bytes(), &mut out).unwrap();
    for message in &messages {
        events.message(message, &mut out).unwrap();
    }
    events.end(&v1::Status::default(), &mut out).unwrap();
    assert_eq!(shown(&out)[4..], ["step_end 1", "step_end 0", "step 0", "end"]);
}

/// What a step prints is never taken for a line of the daemon.
#[test]
fn a_step_that_prints_the_daemons_words_confuses_nobody() {
    let lines =
        ["Running step name=x", "Skipped step name=x: no", "job failed: x", "Running step name=x stream=02"];
    let log: String = lines.iter().map(|text| line("01O", text)).collect();
    let (mut events, mut out) = (stream(0), Vec::new());
    for message in [told("", 0, Status::Running, 0), told("a", 1, Status::Running, 0)].concat() {
        events.message(&message, &mut out).unwrap();
    }
    events.log(log.as_bytes(), &mut out).unwrap();
    for message in told("a", 1, Status::Success, log.len() as i64) {
        events.message(&message, &mut out).unwrap();
    }
    let expected: Vec<_> = lines.iter().map(|text| format!("log 1 {text}")).collect();
    assert_eq!(shown(&out)[2..6], expected[..]);
    assert_eq!(shown(&out)[6..], ["step_end 1", "step 1"]);
}
