//! Events of a job as JSON objects, one a line (`--output json`): log lines and starts and ends of steps, in the order
//! in which they happened.
//!
//! Log and step events come in two streams, and either may be ahead. Two rules give the same order in all cases:
//!
//! - The daemon announces each process of a step in the log. Right before that line go the starts of the functions
//!   around the step and of the step itself. They are stored before the announcement, so they are sure to come.
//! - An end carries the length of the log at that moment, and goes behind that many bytes.
//!
//! So each follower prints the same, whenever it begins, and over a restart of the daemon, too.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::output::STEP_START;
use super::{results, states};
use crate::log::line::{Entry, Line, NotALog, Parser};
use crate::pb::v1;

/// Version of the objects, raised when a field goes or changes its meaning. Readers must ignore unknown fields.
const FORMAT: u32 = 1;

/// Id of the root in `step`. Other steps are numbered by their places: `2.1` is the first step of the second one.
const ROOT: &str = "0";

/// Merges the log and the step events of a job.
pub(super) struct EventStream {
    parser: Parser,
    /// Log offset behind the last line.
    offset: u64,
    /// Lines that wait for step events.
    lines: VecDeque<LogLine>,
    /// Number of announcements in `lines`.
    announced: usize,
    /// Step events that wait for lines.
    boundaries: VecDeque<StepBoundary>,
    /// Running steps, the root first.
    open: Vec<Open>,
    /// Log offset where reading began.
    first: u64,
    /// Name of the process step that started before `first`. Its announcement may still come.
    ran_at_first: Option<String>,
    /// True until the first step event comes.
    is_first: bool,
    /// True once no more step events come.
    is_every_boundary_told: bool,
}

/// A running step.
struct Open {
    id: String,
    /// True if it has no steps of its own.
    is_process: bool,
}

struct LogLine {
    /// Log offset where it begins.
    at: u64,
    kind: LineKind,
    event: Value,
}

#[derive(Clone, PartialEq, Eq)]
enum LineKind {
    /// The daemon announces the process of the step of this name.
    Announcement(String),
    /// Another line of the daemon.
    Daemon,
    /// Output of a step.
    Output,
}

/// The start or end of a step.
struct StepBoundary {
    id: String,
    name: String,
    is_root: bool,
    is_process: bool,
    /// Length of the log at its start.
    start: u64,
    /// Length of the log at its end; `None` for a start.
    end: Option<u64>,
    /// Objects to print.
    events: Vec<Value>,
}

impl EventStream {
    /// Makes the stream for a job whose log is read from byte `offset` on.
    pub(super) const fn new(parser: Parser, offset: u64) -> Self {
        Self {
            parser,
            offset,
            lines: VecDeque::new(),
            announced: 0,
            boundaries: VecDeque::new(),
            open: Vec::new(),
            first: offset,
            ran_at_first: None,
            is_first: true,
            is_every_boundary_told: false,
        }
    }

    /// Takes bytes of the log and appends everything that can be printed to `out`.
    pub(super) fn log(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), NotALog> {
        let (offset, lines, announced) = (&mut self.offset, &mut self.lines, &mut self.announced);
        self.parser.push(bytes, |line| {
            let (length, kind) = match line {
                Line::Entry(entry) => (entry.header().len() + entry.body.len(), kind_of(&entry)),
                Line::Malformed(bytes) => (bytes.len(), LineKind::Output),
            };
            *announced += usize::from(matches!(kind, LineKind::Announcement(_)));
            lines.push_back(LogLine { at: *offset, kind, event: line_event(line) });
            *offset += length as u64 + 1;
        })?;
        self.advance(out);
        Ok(())
    }

    /// Takes a message of FollowSteps.
    pub(super) fn step(&mut self, result: &v1::StepResult, out: &mut Vec<u8>) {
        let is_running = result.status() == v1::step_result::Status::Running;
        // A daemon that sends no starts begins with a result. Then no line waits: nothing tells which step it belongs
        // to.
        self.is_every_boundary_told |= self.is_first && !is_running;
        self.is_first = false;
        let boundary = StepBoundary::of(result);
        self.boundaries.push_back(boundary);
        self.advance(out);
    }

    /// Takes note that no more results come.
    pub(super) fn steps_end(&mut self, out: &mut Vec<u8>) {
        self.is_every_boundary_told = true;
        self.advance(out);
    }

    /// Prints all that waits, then the job's final status.
    pub(super) fn end(&mut self, status: &v1::Status, out: &mut Vec<u8>) {
        self.steps_end(out);
        while let Some(boundary) = self.boundaries.pop_front() {
            self.tell(boundary, out);
        }
        write(out, json!({"event": "end", "job": states::to_json(status)}));
    }

    /// True if the waiting lines are below their bound.
    pub(super) fn has_room(&self) -> bool {
        /// Bound of the waiting lines: more than come before the step event that they wait for.
        const MOST: usize = 10_000;
        self.lines.len() < MOST
    }

    fn advance(&mut self, out: &mut Vec<u8>) {
        loop {
            if self.next_news_is_due() {
                let Some(boundary) = self.boundaries.pop_front() else { return };
                if boundary.is_process && boundary.end.is_none() {
                    self.ran_at_first = Some(boundary.name.clone());
                }
                self.tell(boundary, out);
                continue;
            }
            let Some(line) = self.lines.front() else { return };
            let is_certain = match &line.kind {
                LineKind::Announcement(name) => {
                    let is_known = self.ran_at_first.take().is_some_and(|ran| ran == *name);
                    is_known || self.start_process(out) || self.is_every_boundary_told
                }
                LineKind::Daemon | LineKind::Output => self.is_certain(),
            };
            if !is_certain {
                return;
            }
            let Some(mut line) = self.lines.pop_front() else { return };
            self.announced -= usize::from(matches!(line.kind, LineKind::Announcement(_)));
            if let Some(fields) = line.event.as_object_mut() {
                fields.insert("step".into(), self.open.last().map_or(ROOT, |step| &step.id).into());
            }
            write(out, line.event);
        }
    }

    /// True if the next step event belongs before the next line, or behind the last one that has come.
    fn next_news_is_due(&self) -> bool {
        let Some(boundary) = self.boundaries.front() else { return false };
        let at = self.lines.front().map_or(self.offset, |line| line.at);
        match boundary.end {
            // [`Self::end`] prints the root's end last.
            Some(end) => !boundary.is_root && end <= at,
            // The root starts before its log begins. Other starts wait for the announcement of a process, unless it
            // lies before the part of the log that is read.
            None => boundary.start < self.first || boundary.is_root && !boundary.is_process,
        }
    }

    /// Prints the step events up to the next start of a process. Returns false if that has not come yet.
    fn start_process(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(start) =
            self.boundaries.iter().position(|boundary| boundary.is_process && boundary.end.is_none())
        else {
            return false;
        };
        for boundary in self.boundaries.drain(..=start).collect::<Vec<_>>() {
            self.tell(boundary, out);
        }
        true
    }

    /// True if the step of the next line is known. The line announces no step.
    fn is_certain(&self) -> bool {
        if self.is_every_boundary_told || !self.boundaries.is_empty() {
            return true;
        }
        // Before an announcement comes the end of the running step, and it may belong before this line.
        let is_running = self.announced == 0 && self.open.last().is_some_and(|step| step.is_process);
        // The daemon's last line may stand behind the end of the step, which comes soon then.
        let is_last = self.lines.len() == 1;
        is_running && !(is_last && self.lines.front().is_some_and(|line| line.kind == LineKind::Daemon))
    }

    fn tell(&mut self, boundary: StepBoundary, out: &mut Vec<u8>) {
        match boundary.end {
            None => self.open.push(Open { id: boundary.id, is_process: boundary.is_process }),
            Some(_) => {
                if let Some(at) = self.open.iter().rposition(|step| step.id == boundary.id) {
                    self.open.truncate(at);
                }
            }
        }
        for event in boundary.events {
            write(out, event);
        }
    }
}

impl StepBoundary {
    fn of(result: &v1::StepResult) -> Self {
        let (mut inner, mut names, mut id) = (result, Vec::new(), String::new());
        loop {
            if let Some(step) = &inner.step {
                names.push(step.name.as_str());
                if !id.is_empty() {
                    id.push('.');
                }
                id.push_str(&inner.number.to_string());
            }
            match inner.sub_step_results.first() {
                Some(below) if is_running(inner) => inner = below,
                _ => break,
            }
        }
        let is_root = names.is_empty();
        if is_root {
            ROOT.clone_into(&mut id);
        }
        let kind = if is_running(inner) { "step_start" } else { "step_end" };
        let mut event = json!({"event": kind, "step": id, "path": names});
        extend(&mut event, results::facts(inner));
        let mut events = Vec::new();
        let end = if is_running(inner) {
            events.push(event);
            None
        } else {
            let exit_code = inner.exec_result.as_ref().map(|process| process.exit_code);
            extend(&mut event, json!({"status": inner.status().as_str_name(), "exit_code": exit_code}));
            events.push(event);
            if !is_running(result) {
                events.push(json!({"event": "step", "step": id, "result": results::to_json(result)}));
            }
            Some(length(inner.log_end))
        };
        let (name, start) = (names.last().copied().unwrap_or_default().to_owned(), length(inner.log_start));
        Self { id, name, is_root, is_process: inner.steps.is_none(), start, end, events }
    }
}

fn is_running(result: &v1::StepResult) -> bool {
    result.status() == v1::step_result::Status::Running
}

fn extend(event: &mut Value, more: Value) {
    if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
        event.extend(more);
    }
}

fn length(of_log: Option<i64>) -> u64 {
    of_log.and_then(|length| u64::try_from(length).ok()).unwrap_or_default()
}

fn write(out: &mut Vec<u8>, mut event: Value) {
    extend(&mut event, json!({"format": FORMAT}));
    out.extend_from_slice(event.to_string().as_bytes());
    out.push(b'\n');
}

fn kind_of(entry: &Entry<'_>) -> LineKind {
    match entry.body.strip_prefix(STEP_START) {
        _ if !entry.key().is_daemon() => LineKind::Output,
        Some(name) => LineKind::Announcement(String::from_utf8_lossy(name).into_owned()),
        None => LineKind::Daemon,
    }
}

/// Makes the event of a line. `continues` is true if it continues the last entry of the same source.
fn line_event(line: Line<'_>) -> serde_json::Value {
    match line {
        Line::Entry(entry) => {
            let mut event = json!({
                "event": "log",
                "time": String::from_utf8_lossy(entry.time()),
                "source": String::from_utf8_lossy(&entry.source()),
                "continues": entry.continues(),
            });
            body_field(&mut event, entry.body);
            event
        }
        Line::Malformed(bytes) => {
            let mut event = json!({"event": "malformed"});
            body_field(&mut event, bytes);
            event
        }
    }
}

/// Adds the body as `text`, or as `base64` if it is not UTF-8.
fn body_field(event: &mut serde_json::Value, body: &[u8]) {
    use base64::Engine as _;
    let (name, value) = match std::str::from_utf8(body) {
        Ok(text) => ("text", text.to_owned()),
        Err(_) => ("base64", base64::engine::general_purpose::STANDARD.encode(body)),
    };
    if let Some(fields) = event.as_object_mut() {
        fields.insert(name.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests;
