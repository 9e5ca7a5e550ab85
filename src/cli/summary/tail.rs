//! The end of a job's log, as far as a summary needs it.

use super::LINE_LENGTH;
use crate::log::line::Entry;
use crate::log::pretty::{Format, Options, Output, Printer};
use crate::log::words::{ENDS, STEP_START};
use crate::model::LogChannel;
use crate::pb::v1;

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

/// Key of the announcement of a step that has a stream of its own.
const STREAM: &str = " stream=";

/// Stream of a step whose announcement names none.
const FIRST_STREAM: u32 = 1;

/// The last bytes of a log.
#[derive(Clone, Default)]
pub(in crate::cli) struct Tail {
    bytes: Vec<u8>,
    /// Place of the first of them in the log.
    offset: u64,
    /// True if they begin within a line.
    is_cut: bool,
}

impl Tail {
    /// Begins at byte `offset` of a log.
    pub(in crate::cli) const fn from(offset: u64) -> Self {
        Self { bytes: Vec::new(), offset, is_cut: offset > 0 }
    }

    pub(in crate::cli) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > 2 * KEPT {
            let gone = self.bytes.len() - KEPT;
            self.bytes.drain(..gone);
            self.offset += gone as u64;
            self.is_cut = true;
        }
    }

    /// Returns what `step` has printed, with its announcement. Without its place in the log, all that is kept.
    pub(super) fn of_step(&self, step: &v1::StepResult) -> Self {
        let (Some(start), Some(end)) = (step.log_start, step.log_end) else { return self.clone() };
        let [start, end] = [start, end].map(|place| u64::try_from(place).unwrap_or_default());
        let index = |place: u64| {
            usize::try_from(place.saturating_sub(self.offset)).unwrap_or(usize::MAX).min(self.bytes.len())
        };
        let own = self.bytes.get(index(start)..index(end)).unwrap_or_default();
        let name = step.step.as_ref().map_or("", |step| step.name.as_str());
        let announced = own.split(|byte| *byte == b'\n').find_map(|line| announced_stream(line, name));
        let mut bytes = Vec::with_capacity(own.len());
        for line in own.split_inclusive(|byte| *byte == b'\n') {
            let is_own = match (Entry::parse(line), announced) {
                (Some(entry), Some(_)) if entry.key().is_daemon() => announced_stream(line, name).is_some(),
                (Some(entry), Some(stream)) => entry.key().stream() == Some(stream),
                _ => true,
            };
            if is_own {
                let from = bytes.len();
                bytes.extend_from_slice(line);
                // Readers of a single stream find it under its usual number.
                if let (Some(_), Some(number)) =
                    (announced, bytes.get_mut(from + STREAM_AT..from + STREAM_AT + 2))
                    && *number != *b"00"
                {
                    number.copy_from_slice(b"01");
                }
            }
        }
        Self { bytes, offset: start.max(self.offset), is_cut: self.is_cut && start < self.offset }
    }

    /// True if the daemon has written to the log why the job did not succeed (logs.md §2).
    pub(in crate::cli) fn tells_why(&self) -> bool {
        let lines = self.bytes.split_inclusive(|byte| *byte == b'\n').rev();
        lines.take(LINES).filter_map(Entry::parse).any(|entry| {
            entry.key().is_daemon() && ENDS.iter().any(|beginning| entry.body.starts_with(beginning))
        })
    }

    /// Returns the texts of the last step's lines on stdout, as far as they are kept.
    pub(in crate::cli) fn bodies_of_last_step(&self) -> Vec<String> {
        let mut bodies = Vec::new();
        for line in self.bytes.split(|byte| *byte == b'\n') {
            let Some(entry) = Entry::parse(line) else { continue };
            if entry.key().is_daemon() {
                if entry.body.starts_with(STEP_START) {
                    bodies.clear();
                }
            } else if entry.key().kind == LogChannel::Out {
                bodies.push(String::from_utf8_lossy(entry.body).into_owned());
            }
        }
        bodies
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

    /// Returns the last output lines of the step that ran last, printable and without the daemon's own lines.
    pub(super) fn lines(&self) -> Vec<String> {
        // After a cut the first line lacks its header, or part of it.
        let start =
            if self.is_cut { self.bytes.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1) } else { 0 };
        let mut printer = Printer::new(Format::Pretty(Options::plain_utc()));
        let mut output = Output::default();
        for line in self.bytes.get(start..).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
            match Entry::parse(line) {
                Some(entry) if entry.key().is_daemon() => {
                    if entry.body.starts_with(STEP_START) {
                        printer = Printer::new(Format::Pretty(Options::plain_utc()));
                        output = Output::default();
                    }
                }
                _ => printer.push(line, &mut output),
            }
        }
        printer.finish(&mut output);
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<_> = text.lines().collect();
        let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
        last.iter().map(|line| line.chars().take(LINE_LENGTH).collect()).collect()
    }
}

/// Returns the stream of the step `name` if `line` announces it.
fn announced_stream(line: &[u8], name: &str) -> Option<u32> {
    let entry = Entry::parse(line).filter(|entry| entry.key().is_daemon())?;
    let text = std::str::from_utf8(entry.body.strip_prefix(STEP_START)?).ok()?.trim_end();
    match text.strip_prefix(name)? {
        "" => Some(FIRST_STREAM),
        rest => u32::from_str_radix(rest.strip_prefix(STREAM)?, 16).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(source: &str, body: &str) -> String {
        format!("2026-11-20T10:00:00.123456Z {source} {body}\n")
    }

    #[test]
    fn twenty_last_lines_of_a_long_log_are_shown() {
        let mut long = Tail::default();
        for number in 0..10_000 {
            long.push(entry("01O", &format!("line {number}")).as_bytes());
        }
        let lines = long.lines();
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
        let place = |parts: &[String]| Some(parts.concat().len() as i64);
        let step = |name: &str, start: usize, end: usize| v1::StepResult {
            step: Some(v1::Step { name: name.into(), ..v1::Step::default() }),
            log_start: place(&parts[..start]),
            log_end: place(&parts[..end]),
            ..v1::StepResult::default()
        };
        for from in [0, 60, 90] {
            let mut tail = Tail::from(from as u64);
            tail.push(&parts.concat().as_bytes()[from..]);
            let texts = |step: &v1::StepResult| {
                let lines = tail.of_step(step).lines();
                lines.iter().map(|line| line.get(TIME..).unwrap().to_owned()).collect::<Vec<_>>()
            };
            assert_eq!(texts(&step("unit", 2, 7)), ["out  of unit", "err  unit's error"]);
            assert_eq!(texts(&step("lint", 2, 7)), ["out  of lint"]);
            assert_eq!(texts(&v1::StepResult { log_end: None, ..step("unit", 2, 7) }), ["out  of cleanup"]);
        }
        let mut late = Tail::from(parts[..7].concat().len() as u64);
        late.push(parts[7..].concat().as_bytes());
        assert!(late.of_step(&step("unit", 2, 7)).lines().is_empty());
    }

    #[test]
    fn lines_of_stderr_can_be_left_out() {
        let lines = ["12:00:00.000 out  a", "12:00:00.000 err  b"].map(str::to_owned).to_vec();
        assert_eq!(Tail::without_errors(lines), ["12:00:00.000 out  a"]);
    }
}
