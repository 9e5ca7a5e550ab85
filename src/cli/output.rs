//! Showing a job's log and events: `pretty`, `plain`, `raw`, `json` (cli.md, logs.md §8).

use std::collections::VecDeque;
use std::io::{self, IsTerminal};

use anstyle::AnsiColor;
use chrono::{DateTime, FixedOffset, Offset, Utc};
use clap::ValueEnum;
use serde_json::json;

use super::{results, states, terminal};
use crate::error::{Exit, Failure};
use crate::log::line::{Check, Entry, Line, Parser};
use crate::log::pretty::{self, Options, Output, Printer};
use crate::pb::v1;

/// Start of the daemon's line that announces a step (logs.md §2).
pub(super) const STEP_START: &[u8] = b"Running step name=";

/// How a job is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Time and channel before each line; a line per step
    Pretty,
    /// The steps' own output
    Plain,
    /// The bytes of the log
    Raw,
    /// One JSON object per event and line
    Json,
}

/// Options of the output of `run` and `follow`.
#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputOptions {
    /// Default: pretty on a terminal, else plain
    #[arg(long, value_enum, value_name = "FORMAT", env = "STEP_RUNNER_OUTPUT")]
    output: Option<Format>,
    /// plain: stderr of the steps goes to stdout, too
    #[arg(long, env = "STEP_RUNNER_MERGE")]
    merge: bool,
    /// pretty: times in the local time zone
    #[arg(long, env = "STEP_RUNNER_LOCAL")]
    local: bool,
    /// pretty: also what a progress bar has overwritten
    #[arg(long, env = "STEP_RUNNER_ALL")]
    all: bool,
}

impl OutputOptions {
    /// The display for one job.
    pub(super) fn display(&self) -> Display {
        let is_terminal = io::stdout().is_terminal();
        let format = self.output.unwrap_or(if is_terminal { Format::Pretty } else { Format::Plain });
        let color = terminal::stdout_has_color();
        let mode = match format {
            Format::Raw => Mode::Text(Printer::new(pretty::Format::Raw)),
            Format::Plain if terminal::outputs_are_one_file() => {
                Mode::Text(Printer::new(pretty::Format::Together))
            }
            Format::Plain => Mode::Text(Printer::new(pretty::Format::Plain { merge: self.merge })),
            Format::Pretty => {
                let options = Options { all: self.all, offset: self.offset(), color };
                Mode::Text(Printer::new(pretty::Format::Pretty(options)))
            }
            Format::Json => Mode::Json(Parser::new(Check::Lenient)),
        };
        let has_own_stderr = format == Format::Plain && !self.merge;
        let (started, ended) = (None, VecDeque::new());
        Display { format, mode, color, has_own_stderr, at_line_end: true, started, ended }
    }

    fn offset(&self) -> FixedOffset {
        if self.local { *chrono::Local::now().offset() } else { Utc.fix() }
    }
}

/// Shows one job.
pub(super) struct Display {
    format: Format,
    mode: Mode,
    color: bool,
    /// Errors go to stderr.
    has_own_stderr: bool,
    /// The bytes so far end with a line: lines of our own may follow.
    at_line_end: bool,
    /// When the step that runs was started, by the log.
    started: Option<DateTime<Utc>>,
    /// Ends of steps that wait for their place: results overtake the log.
    ended: VecDeque<StepEnd>,
}

enum Mode {
    Text(Printer),
    Json(Parser),
}

/// The end of a step, to be shown under its output.
struct StepEnd {
    name: String,
    status: v1::step_result::Status,
    exit_code: i32,
}

impl Display {
    /// Shows the next bytes of the log.
    pub(super) fn log(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let mut output = Output::default();
        match &mut self.mode {
            Mode::Text(_) if self.format == Format::Pretty => self.pretty(bytes, &mut output),
            Mode::Text(printer) => printer.push(bytes, &mut output),
            Mode::Json(parser) => {
                let pushed = parser.push(bytes, |line| write_json(&mut output.stdout, &log_event(line)));
                pushed.map_err(|error| Failure::new(Exit::Failure, error))?;
            }
        }
        self.at_line_end = bytes.ends_with(b"\n");
        write(&output)
    }

    /// As [`Self::log`], with the end of each step in front of the start of the next one.
    fn pretty(&mut self, bytes: &[u8], output: &mut Output) {
        let mut rest = bytes;
        let mut at = 0;
        let mut at_line_start = self.at_line_end;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if at_line_start && let Some(time) = step_start(line) {
                if self.started.is_some() && !self.ended.is_empty() {
                    let (before, after) = rest.split_at(at - (bytes.len() - rest.len()));
                    self.push(before, output);
                    rest = after;
                    self.show_end(time, output);
                }
                self.started.get_or_insert(time);
            }
            at += line.len();
            at_line_start = true;
        }
        self.push(rest, output);
    }

    fn push(&mut self, bytes: &[u8], output: &mut Output) {
        if let Mode::Text(printer) = &mut self.mode {
            printer.push(bytes, output);
        }
    }

    /// Takes the result of a step. The root is shown as the end of the job.
    pub(super) fn step(&mut self, result: &v1::StepResult) -> Result<(), Failure> {
        let name = result.step.as_ref().map_or("", |step| step.name.as_str());
        match self.format {
            Format::Json => write_event(&json!({"event": "step", "result": results::to_json(result)})),
            Format::Pretty if !name.is_empty() => {
                let exit_code = result.exec_result.as_ref().map_or(0, |process| process.exit_code);
                self.ended.push_back(StepEnd { name: name.to_owned(), status: result.status(), exit_code });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether ends of steps wait for their place.
    pub(super) fn has_ended_steps(&self) -> bool {
        !self.ended.is_empty() && self.at_line_end
    }

    /// Shows the ends of steps that still wait, because the log rests.
    pub(super) fn show_ended_steps(&mut self) -> Result<(), Failure> {
        self.show_ends(Utc::now())
    }

    fn show_ends(&mut self, time: DateTime<Utc>) -> Result<(), Failure> {
        let mut output = Output::default();
        while !self.ended.is_empty() {
            self.show_end(time, &mut output);
        }
        write(&output)
    }

    /// Shows the next end of a step as one of the daemon's own lines.
    fn show_end(&mut self, time: DateTime<Utc>, output: &mut Output) {
        let Some(step) = self.ended.pop_front() else { return };
        let (verb, color) = match step.status {
            v1::step_result::Status::Success => ("succeeded", AnsiColor::Green),
            v1::step_result::Status::Cancelled => ("was cancelled", AnsiColor::Yellow),
            _ => ("failed", AnsiColor::Red),
        };
        let took = self.started.take().and_then(|start| (time - start).to_std().ok());
        let took = took.map(|took| format!(" in {:.1} s", took.as_secs_f64())).unwrap_or_default();
        let code = match step.exit_code {
            0 => String::new(),
            code => format!(", exit code {code}"),
        };
        let mut text = format!("step {} {verb}{took}{code}", step.name);
        if self.color {
            let style = color.on_default();
            text = format!("{style}{text}{style:#}");
        }
        let stamp = time.format("%Y-%m-%dT%H:%M:%S%.6fZ");
        self.push(format!("{stamp} 00O {text}\n").as_bytes(), output);
    }

    /// Says `message` on stderr, on a line of its own.
    pub(super) fn say(&mut self, message: &str) -> Result<(), Failure> {
        if let Mode::Text(printer) = &mut self.mode {
            let mut output = Output::default();
            printer.interrupt(&mut output);
            write(&output)?;
        }
        terminal::say(message);
        Ok(())
    }

    /// Whether the daemon's own last lines stand where stderr goes, in front of what is said there.
    pub(super) fn is_above_stderr(&self) -> bool {
        match &self.mode {
            Mode::Text(_) => self.has_own_stderr || terminal::outputs_are_one_file(),
            Mode::Json(_) => false,
        }
    }

    /// Whether people read it, and what the function returned is in none of its lines.
    pub(super) fn leaves_outputs_out(&self) -> bool {
        matches!(self.format, Format::Pretty | Format::Plain)
    }

    /// The log has ended; `status` is the job's end.
    pub(super) fn end(&mut self, status: &v1::Status) -> Result<(), Failure> {
        if self.at_line_end {
            let end = status.end_time.as_ref().and_then(states::time);
            self.show_ends(end.unwrap_or_else(Utc::now))?;
        }
        match &mut self.mode {
            Mode::Text(printer) => {
                let mut output = Output::default();
                printer.finish(&mut output);
                write(&output)
            }
            Mode::Json(_) => write_event(&json!({"event": "end", "job": states::to_json(status)})),
        }
    }
}

fn write_event(event: &serde_json::Value) -> Result<(), Failure> {
    let mut line = Vec::new();
    write_json(&mut line, event);
    terminal::write_stdout(&line)
}

/// When the step started that this line announces (logs.md §2).
fn step_start(line: &[u8]) -> Option<DateTime<Utc>> {
    let entry = Entry::parse(line)?;
    let announces = entry.key().is_daemon() && entry.body.starts_with(STEP_START);
    announces.then(|| std::str::from_utf8(entry.time()).ok()?.parse().ok())?
}

fn write(output: &Output) -> Result<(), Failure> {
    if !output.stderr.is_empty() {
        terminal::write_stderr(&output.stderr);
    }
    if output.stdout.is_empty() { Ok(()) } else { terminal::write_stdout(&output.stdout) }
}

fn write_json(lines: &mut Vec<u8>, event: &serde_json::Value) {
    lines.extend_from_slice(event.to_string().as_bytes());
    lines.push(b'\n');
}

/// One entry. `continues` tells that it goes on with the entry before it of the same source.
fn log_event(line: Line<'_>) -> serde_json::Value {
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

/// `text`, or `base64` if it is not UTF-8.
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
mod tests {
    use super::*;

    #[test]
    fn entries_become_events_with_text_or_base64() {
        let entry = |body: &[u8]| {
            let line = [b"2026-11-20T10:00:00.123456Z 01O ".as_slice(), body].concat();
            log_event(Line::Entry(Entry::parse(&line).unwrap()))
        };
        let text = entry(b"hello");
        assert_eq!(text["text"], "hello");
        assert_eq!(text["source"], "01O");
        assert_eq!(text["time"], "2026-11-20T10:00:00.123456Z");
        assert_eq!(entry(b"\xff")["base64"], "/w==");
    }
}
