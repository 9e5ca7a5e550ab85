//! Events of a job as JSON objects, one a line (`--output json`): log lines and starts and ends of steps, in the order
//! in which they happened ([`insight::run`](crate::insight::run)). So each follower prints the same, whenever it begins,
//! and over a restart of the daemon, too.

use serde_json::{Value, json};

use super::{results, states};
use crate::insight::run::{Part, Run};
use crate::insight::tree::{Change, ROOT, Tree};
use crate::log::line::{Line, NotALog, Parser};
use crate::pb::v1;

/// Version of the objects, raised when a field goes or changes its meaning. Readers must ignore unknown fields.
const FORMAT: u32 = 1;

/// Merges the log and the step events of a job.
pub(super) struct EventStream {
    parser: Parser,
    run: Run,
}

impl EventStream {
    /// Makes the stream for a job whose log is read from byte `offset` on.
    pub(super) fn new(parser: Parser, offset: u64) -> Self {
        Self { parser, run: Run::new(offset) }
    }

    /// Takes bytes of the log and appends everything that can be printed to `out`.
    pub(super) fn log(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), NotALog> {
        self.run.log(bytes);
        self.advance(out)
    }

    /// Takes a message of FollowSteps.
    pub(super) fn message(
        &mut self,
        message: &v1::FollowStepsResponse,
        out: &mut Vec<u8>,
    ) -> Result<(), NotALog> {
        self.run.message(message);
        self.advance(out)
    }

    /// Takes note that no more messages come.
    pub(super) fn events_end(&mut self, out: &mut Vec<u8>) -> Result<(), NotALog> {
        self.run.events_end();
        self.advance(out)
    }

    /// Prints all that waits, then the job's final status.
    pub(super) fn end(&mut self, status: &v1::Status, out: &mut Vec<u8>) -> Result<(), NotALog> {
        self.run.end();
        self.advance(out)?;
        write(out, json!({"event": "end", "job": states::to_json(status)}));
        Ok(())
    }

    /// Returns the job's steps.
    pub(super) const fn steps(&self) -> &Tree {
        self.run.tree()
    }

    /// True if the log waits for events, and none has come yet.
    pub(super) const fn is_silent(&self) -> bool {
        self.run.is_silent()
    }

    /// Returns the number of bytes of the log that wait.
    pub(super) const fn waiting(&self) -> usize {
        self.run.waiting()
    }

    fn advance(&mut self, out: &mut Vec<u8>) -> Result<(), NotALog> {
        while let Some(part) = self.run.next_part() {
            match part {
                Part::Log(bytes) => self.lines(&bytes, out)?,
                Part::Step { event, change } => self.step(&event, change, out),
                Part::Result(result) => {
                    // A step of the job's own list has its number as its id, and the root 0.
                    let (step, result) = (result.number.to_string(), results::to_json(&result));
                    write(out, json!({"event": "step", "step": step, "result": result}));
                }
            }
        }
        Ok(())
    }

    fn lines(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), NotALog> {
        let tree = self.run.tree();
        self.parser.push(bytes, |line| {
            let step = match &line {
                Line::Entry(entry) if entry.key().is_daemon() => tree.innermost(),
                Line::Entry(entry) => entry.key().stream().map_or(ROOT, |stream| tree.of_stream(stream)),
                Line::Malformed(_) => tree.innermost(),
            };
            let mut event = line_event(line);
            extend(&mut event, json!({"step": tree.id(step)}));
            write(out, event);
        })
    }

    /// Prints an event of a step.
    fn step(&self, event: &v1::StepEvent, change: Change, out: &mut Vec<u8>) {
        let (tree, call) = (self.run.tree(), event.call);
        let result = event.result.clone().unwrap_or_default();
        let kind = if change.is_end() { "step_end" } else { "step_start" };
        let attempt = tree.get(call).map_or(0, |step| step.attempt);
        let (step, path) = (tree.id(call), tree.path(call));
        let mut shown = json!({"event": kind, "step": step, "path": path, "attempt": attempt});
        extend(&mut shown, results::facts(&result));
        if change.is_end() {
            let end = json!({
                "status": result.status().as_str_name(),
                "exit_code": results::exit_code(&result),
                "outcome": results::outcome(result.outcome()),
                "reason": result.reason,
            });
            extend(&mut shown, end);
        }
        write(out, shown);
    }
}

fn extend(event: &mut Value, more: Value) {
    if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
        event.extend(more);
    }
}

fn write(out: &mut Vec<u8>, mut event: Value) {
    extend(&mut event, json!({"format": FORMAT}));
    out.extend_from_slice(event.to_string().as_bytes());
    out.push(b'\n');
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
