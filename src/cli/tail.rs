//! The end of a job's log, and the last output of a step in it, for a summary.

use std::ops::Range;

use crate::insight::tree::Tree;
use crate::log::line::Entry;
use crate::log::pretty::{Format, Options, Output, Printer};
use crate::log::words::DaemonLine;
use crate::model::LogChannel;
use crate::pb::v1;

/// Longest line shown, in characters.
pub(super) const LINE_LENGTH: usize = 500;

/// Lines of output shown.
const LINES: usize = 20;

/// Bytes at the end of the log that are kept for them.
const KEPT: usize = 64 * 1024;

/// Width of the time before each line.
const TIME: usize = 13;

/// Mark of a line on stderr, behind its time.
const ERROR: &str = "err  ";

/// Place of a stream's number in a line: behind the time and a blank.
const STREAM_AT: usize = "2026-11-20T10:00:00.123456Z ".len();

/// The last bytes of a log, and the steps of its job.
#[derive(Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    /// Place of the first of them in the log.
    offset: u64,
    /// True if they begin within a line.
    is_cut: bool,
    steps: Tree,
}

impl Tail {
    /// Begins at byte `offset` of a log.
    pub(super) fn from(offset: u64) -> Self {
        Self { offset, is_cut: offset > 0, ..Self::default() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > 2 * KEPT {
            let gone = self.bytes.len() - KEPT;
            self.bytes.drain(..gone);
            self.offset += gone as u64;
            self.is_cut = true;
        }
    }

    /// Takes the steps of the job, which tell where in the log each has written.
    pub(super) fn set_steps(&mut self, steps: Tree) {
        self.steps = steps;
    }

    /// Returns what the last of `results` has written, to which the others lead from the job's own list on; without any, what
    /// the job has written since its last step began. If no event told of the step, that is all that was written while it ran.
    pub(super) fn of_step(&self, results: &[&v1::StepResult]) -> StepOutput {
        let call = self.steps.find(results);
        let Some((call, output)) = call.and_then(|call| Some((call, self.steps.last_output(call)?))) else {
            let place = |place: Option<i64>| place.and_then(|place| u64::try_from(place).ok());
            let result = results.last();
            let from = result.and_then(|result| place(result.log_start)).unwrap_or(0);
            let to = result.and_then(|result| place(result.log_end)).unwrap_or(u64::MAX);
            let is_own = |line: &[u8]| Entry::parse(line).is_none_or(|entry| !entry.key().is_daemon());
            let lines = self.lines_in(from..to).map(|(_, line)| line).filter(|line| is_own(line));
            return StepOutput(lines.collect::<Vec<_>>().concat());
        };
        let mut bytes = Vec::new();
        for (place, line) in self.lines_in(output.range()) {
            let entry = Entry::parse(line);
            if entry.is_some_and(|entry| entry.key().is_daemon()) {
                continue;
            }
            let writer = entry.map(|entry| output.writer(place, entry.key().stream()?));
            // A line that is no entry belongs to whatever is around it.
            if writer == Some(None) {
                continue;
            }
            let from = bytes.len();
            bytes.extend_from_slice(line);
            // Readers of a single stream find it under its usual number.
            if let Some(number) = bytes.get_mut(from + STREAM_AT..from + STREAM_AT + 2)
                && writer == Some(Some(call))
            {
                number.copy_from_slice(b"01");
            }
        }
        StepOutput(bytes)
    }

    /// Returns the whole lines that begin in `range`, as far as they are kept, each with its place.
    fn lines_in(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        // After a cut the first line lacks its header, or part of it.
        let is_cut = self.is_cut && range.start < self.offset;
        let mut next = self.offset;
        let lines = self.bytes.split_inclusive(|byte| *byte == b'\n').map(move |line| {
            let place = next;
            next += line.len() as u64;
            (place, line)
        });
        lines.skip(usize::from(is_cut)).filter(move |(place, _)| range.contains(place))
    }

    /// True if the daemon has written to the log why the job did not succeed (logs.md §2).
    pub(super) fn tells_why(&self) -> bool {
        let lines = self.bytes.split_inclusive(|byte| *byte == b'\n').rev();
        let mut entries = lines.take(LINES).filter_map(Entry::parse);
        entries.any(|entry| DaemonLine::of(&entry).is_some_and(|line| line.job_end().is_some()))
    }
}

/// The output of a step: whole entries of a log.
#[derive(Default)]
pub(super) struct StepOutput(Vec<u8>);

impl StepOutput {
    /// Returns the texts of the lines on stdout.
    pub(super) fn stdout(&self) -> Vec<String> {
        let entries = self.0.split(|byte| *byte == b'\n').filter_map(Entry::parse);
        let stdout = entries.filter(|entry| entry.key().kind == LogChannel::Out);
        stdout.map(|entry| String::from_utf8_lossy(entry.body).into_owned()).collect()
    }

    /// Returns the last lines, printable.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut printer = Printer::new(Format::Pretty(Options::plain_utc()));
        let mut output = Output::default();
        printer.push(&self.0, &mut output);
        printer.finish(&mut output);
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<_> = text.lines().collect();
        let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
        last.iter().map(|line| line.chars().take(LINE_LENGTH).collect()).collect()
    }

    /// Returns the texts of the stderr lines among `lines`.
    pub(super) fn errors(lines: &[String]) -> impl DoubleEndedIterator<Item = &str> {
        lines.iter().filter_map(|line| line.get(TIME..)?.strip_prefix(ERROR))
    }

    /// Returns the lines that are not of stderr.
    pub(super) fn without_errors(lines: Vec<String>) -> Vec<String> {
        let is_error = |line: &String| line.get(TIME..).is_some_and(|line| line.starts_with(ERROR));
        lines.into_iter().filter(|line| !is_error(line)).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use v1::step_result::{Outcome, Status};

    pub(in crate::cli) fn entry(source: &str, body: &str) -> String {
        format!("2026-11-20T10:00:00.123456Z {source} {body}\n")
    }

    /// Returns the event of a step that begins or ends behind so many bytes of the log. `attempts` have been before.
    pub(in crate::cli) fn told(
        (call, parent): (u32, u32),
        name: &str,
        stream: u32,
        log_bytes: usize,
        (is_end, attempts): (bool, usize),
    ) -> v1::StepEvent {
        let step = (call > 0).then(|| v1::Step { name: name.into(), ..v1::Step::default() });
        let status = if is_end { Status::Failure } else { Status::Running };
        let outcome = if is_end { Outcome::Failure } else { Outcome::Unspecified };
        let attempts = vec![v1::StepResult::default(); attempts];
        let (status, outcome) = (status.into(), outcome.into());
        let result = Some(v1::StepResult { step, status, outcome, attempts, ..v1::StepResult::default() });
        v1::StepEvent { call, parent, result, log_bytes: log_bytes as i64, stream, member: false }
    }

    fn result(name: &str) -> v1::StepResult {
        let step = Some(v1::Step { name: name.into(), ..v1::Step::default() });
        v1::StepResult { step, ..v1::StepResult::default() }
    }

    const BEGIN: (bool, usize) = (false, 0);
    const END: (bool, usize) = (true, 0);

    /// Returns the printed texts of a step's output.
    fn texts(tail: &Tail, results: &[&v1::StepResult]) -> Vec<String> {
        let lines = tail.of_step(results).lines();
        lines.iter().map(|line| line.get(TIME..).unwrap().to_owned()).collect()
    }

    #[test]
    fn twenty_last_lines_of_a_long_log_are_shown() {
        let mut long = Tail::default();
        for number in 0..10_000 {
            long.push(entry("01O", &format!("line {number}")).as_bytes());
        }
        let lines = long.of_step(&[]).lines();
        assert_eq!(lines.len(), LINES);
        assert!(lines[LINES - 1].ends_with("line 9999"), "{lines:?}");
    }

    #[test]
    fn a_step_has_its_own_lines_whatever_runs_beside_and_after_it() {
        let parts = [
            entry("00O", "Running step name=before"),
            entry("01O", "of before"),
            entry("00O", "Running step name=unit stream=02"),
            entry("00O", "Running step name=lint"),
            entry("02O", "of unit"),
            entry("01O", "of lint"),
            entry("02E", "unit's error"),
            entry("00O", "Running step name=cleanup"),
            entry("01O", "of cleanup"),
        ];
        let place = |count: usize| parts[..count].concat().len();
        let mut steps = Tree::default();
        for event in [
            told((0, 0), "", 1, 0, BEGIN),
            told((1, 0), "before", 1, 0, BEGIN),
            told((1, 0), "before", 1, place(2), END),
            told((2, 0), "both", 1, place(2), BEGIN),
            told((3, 2), "unit", 2, place(2), BEGIN),
            told((4, 2), "lint", 1, place(3), BEGIN),
            told((3, 2), "unit", 2, place(7), END),
            told((4, 2), "lint", 1, place(7), END),
            told((2, 0), "both", 1, place(7), END),
            told((5, 0), "cleanup", 1, place(7), BEGIN),
            told((5, 0), "cleanup", 1, place(9), END),
        ] {
            steps.take(&event);
        }
        let (both, unit, lint) = (result("both"), result("unit"), result("lint"));
        for from in [0, 60, 90] {
            let mut tail = Tail::from(from as u64);
            tail.push(&parts.concat().as_bytes()[from..]);
            tail.set_steps(steps.clone());
            assert_eq!(texts(&tail, &[&both, &unit]), ["out  of unit", "err  unit's error"]);
            assert_eq!(texts(&tail, &[&both, &lint]), ["out  of lint"]);
            assert_eq!(texts(&tail, &[]), ["out  of cleanup"]);
        }
        let mut late = Tail::from(place(7) as u64);
        late.push(parts[7..].concat().as_bytes());
        late.set_steps(steps);
        assert!(texts(&late, &[&both, &unit]).is_empty());
    }

    #[test]
    fn of_a_step_that_was_tried_again_the_last_attempt_counts() {
        let log = [entry("01O", "first"), entry("01O", "second"), entry("01O", "behind")];
        let mut tail = Tail::default();
        tail.push(log.concat().as_bytes());
        let place = |count: usize| log[..count].concat().len();
        let mut steps = Tree::default();
        for (at, change) in [(0, BEGIN), (1, (false, 1)), (2, (true, 1))] {
            steps.take(&told((1, 0), "flaky", 1, place(at), change));
        }
        tail.set_steps(steps);
        assert_eq!(texts(&tail, &[&result("flaky")]), ["out  second"]);
        assert_eq!(tail.of_step(&[&result("flaky")]).stdout(), ["second"]);
    }

    #[test]
    fn a_step_that_prints_what_the_daemon_prints_keeps_all_its_lines() {
        let forged =
            ["Running step name=a", "Running step name=b stream=02", "job failed: x", "00E job failed: x"];
        let mut tail = Tail::default();
        tail.push(entry("00O", "Running step name=a").as_bytes());
        for text in forged {
            tail.push(entry("01O", text).as_bytes());
        }
        let length = tail.bytes.len();
        tail.push(entry("01O", "of another step").as_bytes());
        let mut steps = Tree::default();
        steps.take(&told((1, 0), "a", 1, 0, BEGIN));
        steps.take(&told((1, 0), "a", 1, length, END));
        tail.set_steps(steps);
        assert_eq!(tail.of_step(&[&result("a")]).stdout(), forged);
        assert!(!tail.tells_why());
    }

    #[test]
    fn without_events_the_bytes_that_the_result_names_count() {
        let log = [
            entry("01O", "before"),
            entry("00O", "Running step name=a"),
            entry("01O", "of a"),
            entry("01O", "after"),
        ];
        let mut tail = Tail::default();
        tail.push(log.concat().as_bytes());
        let place = |count: usize| Some(log[..count].concat().len() as i64);
        let a = v1::StepResult { log_start: place(1), log_end: place(3), ..result("a") };
        assert_eq!(texts(&tail, &[&a]), ["out  of a"]);
        assert_eq!(texts(&tail, &[&result("a")]).len(), 3);
    }

    #[test]
    fn lines_of_stderr_can_be_left_out() {
        let lines = ["12:00:00.000 out  a", "12:00:00.000 err  b"].map(str::to_owned).to_vec();
        assert_eq!(StepOutput::without_errors(lines), ["12:00:00.000 out  a"]);
    }
}
