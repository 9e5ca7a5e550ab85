use proptest::prelude::*;

use super::*;
use crate::log::line::Check;
use crate::pb::v1::step_result::Status;

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

fn result(name: &str, number: i32, status: Status, [start, end]: [i64; 2]) -> v1::StepResult {
    let step = (!name.is_empty()).then(|| v1::Step { name: name.into(), ..Default::default() });
    let is_over = status != Status::Running;
    v1::StepResult {
        step,
        number,
        status: status as i32,
        log_start: Some(start),
        log_end: is_over.then_some(end),
        steps: name.is_empty().then_some(2),
        ..Default::default()
    }
}

fn line(source: &str, text: &str) -> String {
    format!("2026-11-20T10:00:00.123456Z {source} {text}\n")
}

/// Log and step events of a job of two steps. The daemon prints a line of its own during the first step, between the
/// two, and after the second.
fn job() -> (String, Vec<v1::StepResult>) {
    let first = [line("00O", "Running step name=a"), line("01O", "A"), line("00E", "warning: a")].concat();
    let between = line("00O", "Fetched step name=b");
    let second = [line("00O", "Running step name=b"), line("01O", "B")].concat();
    let log = [first.clone(), between, second, line("00E", "job failed: b")].concat();
    let last = line("00E", "job failed: b").len();
    let [end_of_a, end_of_b, end] = [first.len(), log.len() - last, log.len()].map(|len| len as i64);
    let news = vec![
        result("", 0, Status::Running, [0, 0]),
        result("a", 1, Status::Running, [0, 0]),
        result("a", 1, Status::Success, [0, end_of_a]),
        result("b", 2, Status::Running, [end_of_a, 0]),
        result("b", 2, Status::Failure, [end_of_a, end_of_b]),
        result("", 0, Status::Failure, [0, end]),
    ];
    (log, news)
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
                events.step(&news, &mut out);
            }
        }
        for news in news {
            events.step(&news, &mut out);
        }
        events.log(log, &mut out).unwrap();
        events.end(&v1::Status::default(), &mut out);
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
            events.step(news, &mut out);
        }
        events.end(&v1::Status::default(), &mut out);
        let is_before =
            |event: &&str| event.starts_with("log") && !shown(&out).contains(&(*event).to_owned());
        let expected: Vec<_> = EXPECTED.iter().filter(|event| !is_before(event)).collect();
        assert_eq!(shown(&out).iter().take(expected.len()).collect::<Vec<_>>(), expected, "from {from}");
    }
}

#[test]
fn results_of_a_daemon_without_starts_hold_no_line_back() {
    let (log, news) = job();
    let (mut events, mut out) = (stream(0), Vec::new());
    let results = news.into_iter().filter(|news| news.status() != Status::Running);
    for result in results {
        let bare = v1::StepResult { log_start: None, log_end: None, number: 0, steps: None, ..result };
        events.step(&bare, &mut out);
    }
    events.log(log.as_bytes(), &mut out).unwrap();
    let lines = |shown: Vec<String>| shown.into_iter().filter(|event| event.starts_with("log 0")).count();
    assert_eq!(lines(shown(&out)), 7);
}

#[test]
fn lines_that_wait_are_bounded() {
    let mut events = stream(0);
    let mut out = Vec::new();
    while events.has_room() {
        events.log(line("01O", "x").as_bytes(), &mut out).unwrap();
    }
    assert!(out.is_empty());
    events.steps_end(&mut out);
    assert!(events.has_room() && !out.is_empty());
}
