use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Backlog, GIVE_UP_AFTER, LogBudget, LogOrigin, OWN_RESERVE, Pipeline, WriterState};
use crate::frame::{LogChannel, STEP, Stamp, daemon_lines};
use crate::mask::{MaskConfig, Masker, PhraseSet};

const HEADER: &str = "1970-01-01T00:00:00.000000Z";

fn now() -> Stamp {
    Stamp::from_unix_micros(0)
}

fn entry(source: &str, body: &str) -> String {
    format!("{HEADER} {source} {body}\n")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn masker(phrases: &[&str]) -> Arc<Masker> {
    let none: [&str; 0] = [];
    Masker::compile(&PhraseSet::prepare(phrases, none, &MaskConfig::default()).unwrap().0)
}

/// Entries that one call of a pipeline appends.
fn appended(call: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>)) -> String {
    let (mut masked, mut out) = (b"of another source".to_vec(), Vec::new());
    call(&mut masked, &mut out);
    text(&out)
}

#[test]
fn bytes_held_by_the_masker_come_out_when_they_are_decided() {
    let mut pipeline = Pipeline::new(STEP, LogChannel::Out, masker(&["a\nsecret"]));
    let mut write = |bytes: &[u8]| appended(|masked, out| pipeline.write(bytes, &now(), masked, out));
    assert_eq!(write(b"a\n"), "", "the line feed is held, and so is the line");
    assert_eq!(write(b"b\na\nsec"), entry("01O", "a") + &entry("01O", "b"));
    assert_eq!(write(b"ret\n"), entry("01O", "[MASKED]"));
    assert_eq!(write(b"a\nsec"), "");
    let rest = appended(|masked, out| pipeline.finish(&now(), masked, out));
    assert_eq!(rest, entry("01O", "a") + &entry("01O", "sec"));
}

#[test]
fn bytes_held_when_phrases_are_added_are_searched_for_them() {
    let mut pipeline = Pipeline::new(STEP, LogChannel::Out, masker(&["secret one"]));
    let written = appended(|masked, out| pipeline.write(b"secret", &now(), masked, out));
    let more = masker(&["secret one", "secret two"]);
    let replaced = appended(|masked, out| pipeline.replace_masker(more, &now(), masked, out));
    let rest = appended(|masked, out| pipeline.write(b" two\n", &now(), masked, out));
    assert_eq!([written, replaced, rest].concat(), entry("01O", "[MASKED]"));
}

#[test]
fn fault_23_the_entry_that_crosses_the_limit_is_replaced_by_a_notice() {
    let line = entry("01O", "0123456");
    let limit = OWN_RESERVE + 2 * line.len() as u64;
    let mut budget = LogBudget::new(limit, 0);

    let mut out = line.repeat(2).into_bytes();
    budget.admit(LogOrigin::Step, &mut out, 0, &now());
    assert_eq!(text(&out), line.repeat(2), "exactly the limit fits");
    assert!(!budget.is_reached());

    let mut out = b"kept".to_vec();
    out.extend_from_slice(line.repeat(3).as_bytes());
    budget.admit(LogOrigin::Step, &mut out, 4, &now());
    let notice = entry("00E", &format!("log limit reached: {limit} bytes; later output is dropped"));
    assert_eq!(text(&out), format!("kept{notice}"));

    let mut out = entry("01E", "").into_bytes();
    budget.admit(LogOrigin::Step, &mut out, 0, &now());
    assert_eq!(text(&out), "", "the notice comes once");

    let mut out = entry("00O", "own").into_bytes();
    budget.admit(LogOrigin::Daemon, &mut out, 0, &now());
    assert_eq!(text(&out), entry("00O", "own"), "own lines still fit");

    let mut out = Vec::new();
    budget.close(&now(), &mut out);
    assert_eq!(
        text(&out),
        entry("00E", "warning: 25 bytes of output dropped"),
        "three bodies of 8 and one of 1"
    );
    budget.close(&now(), &mut out);
    assert_eq!(text(&out).lines().count(), 1, "told once");
}

#[test]
fn fault_23_once_the_limit_is_reached_no_entry_follows_however_short() {
    let mut budget = LogBudget::new(OWN_RESERVE + 1_000, 0);
    let mut out = entry("01O", &"x".repeat(1_000)).into_bytes();
    budget.admit(LogOrigin::Step, &mut out, 0, &now());
    assert!(budget.is_reached() && out.len() < 200, "the notice leaves room");
    let mut out = entry("01O", "short").into_bytes();
    budget.admit(LogOrigin::Step, &mut out, 0, &now());
    assert_eq!(text(&out), "");
}

#[test]
fn a_batch_is_cut_between_entries() {
    let line = entry("01O", "0123456");
    let mut budget = LogBudget::new(OWN_RESERVE + 2 * line.len() as u64 + 39, 0);
    let mut out = line.repeat(4).into_bytes();
    budget.admit(LogOrigin::Step, &mut out, 0, &now());
    assert!(text(&out).starts_with(&(line.repeat(2) + &format!("{HEADER} 00E log limit reached: "))));
    assert_eq!(budget.dropped, 16);
}

#[test]
fn fault_23_the_log_never_exceeds_the_limit() {
    let limit = OWN_RESERVE + 1_000;
    let mut backlog = Backlog::new(LogBudget::new(limit, 0));
    let mut file = Vec::new();
    for round in 0..2_000_usize {
        let origin = if round % 3 == 0 { LogOrigin::Daemon } else { LogOrigin::Step };
        backlog.append(origin, &now(), |out| {
            out.extend_from_slice(entry("01O", &"x".repeat(round % 50)).as_bytes());
        });
        file.extend_from_slice(backlog.pending());
        backlog.accepted(backlog.pending().len());
    }
    backlog.close(&now());
    file.extend_from_slice(backlog.pending());
    assert!(file.len() as u64 <= limit, "{} bytes", file.len());
    assert_eq!(file.len() as u64, backlog.budget.written);
    assert!(text(&file).contains("log limit reached"));
    assert!(text(&file).trim_end().ends_with("bytes of output dropped"));
}

fn put(backlog: &mut Backlog, body: &str) {
    backlog.append(LogOrigin::Step, &now(), |out| out.extend_from_slice(entry("01O", body).as_bytes()));
}

fn budget() -> LogBudget {
    LogBudget::new(1 << 30, 0)
}

#[test]
fn fault_25_a_short_refusal_loses_nothing() {
    let mut backlog = Backlog::new(budget());
    put(&mut backlog, "a");
    assert_eq!(backlog.refused(Duration::from_secs(100)), WriterState::Waiting);
    put(&mut backlog, "b");
    assert_eq!(backlog.refused(Duration::from_millis(159_999)), WriterState::Waiting);
    assert_eq!(text(backlog.pending()), entry("01O", "a") + &entry("01O", "b"));
    backlog.accepted(1);
    assert_eq!(backlog.state(), WriterState::Flowing);
    assert_eq!(backlog.refused(Duration::from_secs(160)), WriterState::Waiting, "progress begins a new wait");
}

#[test]
fn fault_25_a_hole_is_marked_where_output_is_missing() {
    let mut backlog = Backlog::new(budget());
    let mut file = Vec::new();
    put(&mut backlog, "torn");
    put(&mut backlog, "lost");
    file.extend_from_slice(&backlog.pending()[..10]);
    backlog.accepted(10);

    assert_eq!(backlog.refused(Duration::ZERO), WriterState::Waiting);
    assert_eq!(backlog.refused(GIVE_UP_AFTER), WriterState::Dropping);
    assert_eq!(
        backlog.pending(),
        &entry("01O", "torn").as_bytes()[10..],
        "the torn entry is still completed"
    );
    assert!(backlog.has_unmarked_hole());

    put(&mut backlog, "lost too");
    assert_eq!(backlog.refused(GIVE_UP_AFTER * 2), WriterState::Dropping);

    put(&mut backlog, "kept");
    file.extend_from_slice(backlog.pending());
    backlog.accepted(backlog.pending().len());
    assert_eq!(backlog.state(), WriterState::Flowing);
    let mark = entry("00E", "warning: 14 bytes of output lost");
    assert_eq!(text(&file), entry("01O", "torn") + &mark + &entry("01O", "kept"));
    assert_eq!(backlog.budget.written, file.len() as u64, "the budget counts what is in the file");
}

#[test]
fn fault_25_a_mark_that_has_begun_is_completed_and_a_new_hole_gets_its_own() {
    let mut backlog = Backlog::new(budget());
    put(&mut backlog, "one");
    backlog.refused(Duration::ZERO);
    backlog.refused(GIVE_UP_AFTER);

    let mut file = Vec::new();
    put(&mut backlog, "seven..");
    file.extend_from_slice(&backlog.pending()[..5]);
    backlog.accepted(5);
    backlog.refused(GIVE_UP_AFTER);
    backlog.refused(GIVE_UP_AFTER * 2);
    backlog.close(&now());
    file.extend_from_slice(backlog.pending());
    let expected =
        entry("00E", "warning: 4 bytes of output lost") + &entry("00E", "warning: 8 bytes of output lost");
    assert_eq!(text(&file), expected);
}

#[test]
fn fault_25_a_mark_counts_as_told_once_the_file_has_its_first_byte() {
    for (taken_of_mark, marks) in [(0, &[10][..]), (1, &[5, 5]), (5, &[5, 5])] {
        let mut backlog = Backlog::new(budget());
        let mut file = Vec::new();
        let mut take = |backlog: &mut Backlog, bytes: usize| {
            file.extend_from_slice(&backlog.pending()[..bytes]);
            backlog.accepted(bytes);
        };
        put(&mut backlog, "torn");
        put(&mut backlog, "lost");
        take(&mut backlog, 10);
        backlog.refused(Duration::ZERO);
        backlog.refused(GIVE_UP_AFTER);
        let rest = backlog.pending().len();
        put(&mut backlog, "next");
        assert!(!backlog.has_unmarked_hole());
        take(&mut backlog, 3);
        take(&mut backlog, rest - 3 + taken_of_mark);
        backlog.refused(Duration::ZERO);
        backlog.refused(GIVE_UP_AFTER);
        put(&mut backlog, "last");
        let pending = backlog.pending().len();
        take(&mut backlog, pending);
        let marks = marks.iter().map(|lost| entry("00E", &format!("warning: {lost} bytes of output lost")));
        let expected = [entry("01O", "torn"), marks.collect(), entry("01O", "last")].concat();
        assert_eq!(text(&file), expected, "{taken_of_mark} bytes of the mark");
    }
}

#[test]
fn a_pipeline_fills_the_backlog_in_place() {
    let (mut pipeline, mut masked) = (Pipeline::new(STEP, LogChannel::Err, masker(&[])), Vec::new());
    let mut backlog = Backlog::new(budget());
    backlog.append(LogOrigin::Daemon, &now(), |out| {
        daemon_lines(LogChannel::Out, b"Running step name=a", &now(), out);
    });
    backlog.append(LogOrigin::Step, &now(), |out| pipeline.write(b"x", &now(), &mut masked, out));
    backlog.append(LogOrigin::Step, &now(), |out| pipeline.finish(&now(), &mut masked, out));
    assert_eq!(text(backlog.pending()), entry("00O", "Running step name=a") + &entry("01E", "x"));
}

/// An event in the life of a backlog.
#[derive(Clone, Debug)]
enum Op {
    /// Entries with bodies of these lengths are appended.
    Append(Vec<usize>),
    /// The file takes this many of the bytes pending.
    Accept(usize),
    /// The file refuses, this many seconds later.
    Refuse(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => vec(0..40_usize, 0..4).prop_map(Op::Append),
        2 => (0..200_usize).prop_map(Op::Accept),
        2 => (0..50_u64).prop_map(Op::Refuse),
    ];
    vec(op, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the disk does, the file holds whole entries in their order, and each hole is marked in its place with
    /// its exact size.
    #[test]
    fn fault_25_a_file_tells_exactly_what_it_lacks(ops in ops()) {
        let mut backlog = Backlog::new(budget());
        let (mut file, mut sizes, mut clock) = (Vec::new(), Vec::new(), Duration::ZERO);
        for op in ops {
            match op {
                Op::Append(lengths) => backlog.append(LogOrigin::Step, &now(), |out| {
                    for length in lengths {
                        let body = format!("{}:{}", sizes.len(), "x".repeat(length));
                        sizes.push(body.len() as u64 + 1);
                        out.extend_from_slice(entry("01O", &body).as_bytes());
                    }
                }),
                Op::Accept(bytes) => {
                    let bytes = bytes.min(backlog.pending().len());
                    file.extend_from_slice(&backlog.pending()[..bytes]);
                    backlog.accepted(bytes);
                }
                Op::Refuse(seconds) => {
                    clock += Duration::from_secs(seconds);
                    backlog.refused(clock);
                }
            }
        }
        backlog.close(&now());
        file.extend_from_slice(backlog.pending());
        prop_assert_eq!(backlog.budget.written, file.len() as u64);

        let (mut next, mut marked) = (0, 0);
        for line in text(&file).lines() {
            let body = line.split_at(32).1;
            if let Some(mark) = body.strip_prefix("warning: ") {
                marked += mark.strip_suffix(" bytes of output lost").unwrap().parse::<u64>().unwrap();
                continue;
            }
            let number: usize = body.split(':').next().unwrap().parse().unwrap();
            prop_assert!(number >= next, "in order");
            prop_assert_eq!(body.len() as u64 + 1, sizes[number], "whole");
            prop_assert_eq!(std::mem::take(&mut marked), sizes[next..number].iter().sum::<u64>(), "marked");
            next = number + 1;
        }
        prop_assert_eq!(marked, sizes[next..].iter().sum::<u64>(), "marked at the end");
    }
}
