//! Shows a job's log and events as `pretty`, `plain`, `raw` or `json` (cli.md, logs.md §8).

use std::collections::VecDeque;
use std::io::{self, IsTerminal};

use anstyle::AnsiColor;
use chrono::{DateTime, FixedOffset, Offset, Utc};
use clap::ValueEnum;

use super::display::Display;
use super::events::EventStream;
use super::view::{Times, View, ViewOptions};
use super::writer::Writer;
use super::{Verbosity, results, states, terminal};
use crate::error::{Exit, Failure};
use crate::log::line::{Check, Entry, Parser};
use crate::log::pretty::{self, Options, Output, Printer};
use crate::pb::v1;

/// Start of the daemon's line that announces a step (logs.md §2).
pub(super) const STEP_START: &[u8] = b"Running step name=";

/// Form in which a job is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// For people: on a terminal the live view; else time and channel before each line, a line per step
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
    output: Option<OutputFormat>,
    /// plain: stderr of the steps goes to stdout, too
    #[arg(long, env = "STEP_RUNNER_MERGE")]
    merge: bool,
    /// Live view: time in front of each line
    #[arg(long, value_enum, value_name = "WHAT", default_value = "clock", env = "STEP_RUNNER_TIMES")]
    times: Times,
    /// pretty: times in the local time zone; those of the live view always are
    #[arg(long, env = "STEP_RUNNER_LOCAL")]
    local: bool,
    /// pretty: also what a progress bar has overwritten
    #[arg(long, env = "STEP_RUNNER_ALL")]
    all: bool,
}

impl OutputOptions {
    /// Returns the display for a job whose log is followed from `offset`.
    pub(super) fn display(&self, offset: u64, verbosity: Verbosity) -> Result<Display, Failure> {
        let is_terminal = io::stdout().is_terminal();
        let format =
            self.output.unwrap_or(if is_terminal { OutputFormat::Pretty } else { OutputFormat::Plain });
        if format != OutputFormat::Pretty || !is_terminal && !terminal::is_ci() {
            return Ok(Display::Stream(Box::new(self.stream(format, offset)?)));
        }
        let options = ViewOptions {
            times: self.times,
            offset: *chrono::Local::now().offset(),
            color: terminal::stdout_has_color(),
            all: self.all,
            quiet: verbosity.quiet,
        };
        Ok(Display::View(Box::new(View::start(&options, offset)?)))
    }

    fn stream(&self, format: OutputFormat, offset: u64) -> Result<Stream, Failure> {
        let color = terminal::stdout_has_color();
        let mode = match format {
            OutputFormat::Raw => StreamMode::Text(Printer::new(pretty::Format::Raw)),
            OutputFormat::Plain if terminal::outputs_are_one_file() => {
                StreamMode::Text(Printer::new(pretty::Format::Together))
            }
            OutputFormat::Plain => {
                StreamMode::Text(Printer::new(pretty::Format::Plain { merge: self.merge }))
            }
            OutputFormat::Pretty => {
                let options = Options { all: self.all, offset: self.offset(), color };
                StreamMode::Text(Printer::new(pretty::Format::Pretty(options)))
            }
            OutputFormat::Json => {
                StreamMode::Json(Box::new(EventStream::new(Parser::new(Check::Lenient), offset)))
            }
        };
        let has_own_stderr = format == OutputFormat::Plain && !self.merge;
        let (started, ended) = (None, VecDeque::new());
        let writer = Writer::start().map_err(|error| Failure::new(Exit::Failure, error))?;
        Ok(Stream { format, mode, color, has_own_stderr, at_line_end: true, started, ended, writer })
    }

    fn offset(&self) -> FixedOffset {
        if self.local { *chrono::Local::now().offset() } else { Utc.fix() }
    }
}

/// Shows one job as bytes or events.
pub(super) struct Stream {
    format: OutputFormat,
    mode: StreamMode,
    color: bool,
    /// True if the steps' stderr goes to our stderr.
    has_own_stderr: bool,
    /// True if the bytes so far end with a line, so that lines of our own may follow.
    at_line_end: bool,
    /// Start time of the running step, by the log.
    started: Option<DateTime<Utc>>,
    /// Step ends not shown yet. A result comes before the log that it belongs under.
    ended: VecDeque<StepEnd>,
    writer: Writer,
}

enum StreamMode {
    Text(Printer),
    Json(Box<EventStream>),
}

/// End of a step, shown under the step's output.
struct StepEnd {
    name: String,
    status: v1::step_result::Status,
    exit_code: i32,
    /// Duration as the daemon measured it.
    took: Option<std::time::Duration>,
    /// End time as the daemon measured it.
    at: Option<DateTime<Utc>>,
}

impl Stream {
    pub(super) fn log(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let mut output = Output::default();
        match &mut self.mode {
            StreamMode::Text(_) if self.format == OutputFormat::Pretty => self.pretty(bytes, &mut output),
            StreamMode::Text(printer) => printer.push(bytes, &mut output),
            StreamMode::Json(events) => {
                let pushed = events.log(bytes, &mut output.stdout);
                pushed.map_err(|error| Failure::new(Exit::Failure, error))?;
            }
        }
        self.at_line_end = bytes.ends_with(b"\n");
        self.write(output)
    }

    /// Prints bytes of the log, with the end of each step before the start of the next one.
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
        if let StreamMode::Text(printer) = &mut self.mode {
            printer.push(bytes, output);
        }
    }

    /// Takes the result of a step. In text formats the root's is left to the end of the job.
    pub(super) fn step(&mut self, result: &v1::StepResult) -> Result<(), Failure> {
        let name = result.step.as_ref().map_or("", |step| step.name.as_str());
        if let StreamMode::Json(events) = &mut self.mode {
            let mut output = Output::default();
            events.step(result, &mut output.stdout);
            return self.write(output);
        }
        match self.format {
            OutputFormat::Pretty if !name.is_empty() => {
                let exit_code = result.exec_result.as_ref().map_or(0, |process| process.exit_code);
                let (name, status, took) = (name.to_owned(), result.status(), results::took(result));
                let at = result.end_time.as_ref().and_then(states::time);
                self.ended.push_back(StepEnd { name, status, exit_code, took, at });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// True if it also shows step starts and the ends of nested steps.
    pub(super) const fn wants_starts(&self) -> bool {
        matches!(self.mode, StreamMode::Json(_))
    }

    /// True if it can take more of the log: lines that wait for step events use memory.
    pub(super) fn has_room(&self) -> bool {
        match &self.mode {
            StreamMode::Text(_) => self.writer.has_room(),
            StreamMode::Json(events) => events.has_room() && self.writer.has_room(),
        }
    }

    /// Waits until the reader has taken something. Fails if it takes no more. Cancel-safe.
    pub(super) async fn progress(&self) -> Result<(), Failure> {
        self.writer.progress().await;
        self.check()
    }

    /// Waits until the reader has taken everything. Cancel-safe.
    pub(super) async fn drained(&self) -> Result<(), Failure> {
        self.writer.drained().await;
        self.check()
    }

    /// Hands output to the thread that writes. Reports that an earlier write failed.
    fn write(&self, output: Output) -> Result<(), Failure> {
        self.writer.stderr(output.stderr);
        self.writer.stdout(output.stdout);
        self.check()
    }

    fn check(&self) -> Result<(), Failure> {
        self.writer.take_error().map_or(Ok(()), |error| Err(terminal::unwritten(&error)))
    }

    /// Takes note that no more results come, because the job has ended or they are lost.
    pub(super) fn steps_end(&mut self) -> Result<(), Failure> {
        let mut output = Output::default();
        if let StreamMode::Json(events) = &mut self.mode {
            events.steps_end(&mut output.stdout);
        }
        self.write(output)
    }

    /// True if step ends wait and the log is at the end of a line.
    pub(super) fn has_ended_steps(&self) -> bool {
        !self.ended.is_empty() && self.at_line_end
    }

    /// Shows the step ends that still wait, because the log is idle.
    pub(super) fn show_ended_steps(&mut self) -> Result<(), Failure> {
        self.show_ends(Utc::now())
    }

    fn show_ends(&mut self, time: DateTime<Utc>) -> Result<(), Failure> {
        let mut output = Output::default();
        while !self.ended.is_empty() {
            self.show_end(time, &mut output);
        }
        self.write(output)
    }

    /// Shows the next step end as one of the daemon's own lines.
    fn show_end(&mut self, time: DateTime<Utc>, output: &mut Output) {
        let Some(step) = self.ended.pop_front() else { return };
        let (verb, color) = match step.status {
            v1::step_result::Status::Success => ("succeeded", AnsiColor::Green),
            v1::step_result::Status::Cancelled => ("was cancelled", AnsiColor::Yellow),
            _ => ("failed", AnsiColor::Red),
        };
        self.started = None;
        let time = step.at.unwrap_or(time);
        let took = step.took;
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

    /// Prints `message` on stderr, on a line of its own.
    pub(super) fn say(&mut self, message: &str) -> Result<(), Failure> {
        if let StreamMode::Text(printer) = &mut self.mode {
            let mut output = Output::default();
            printer.interrupt(&mut output);
            self.write(output)?;
        }
        self.writer.stderr(terminal::line_for_stderr(message));
        Ok(())
    }

    /// True if the daemon's last lines were printed to the same place as stderr.
    pub(super) fn is_above_stderr(&self) -> bool {
        match &self.mode {
            StreamMode::Text(_) => self.has_own_stderr || terminal::outputs_are_one_file(),
            StreamMode::Json(_) => false,
        }
    }

    /// True for formats that people read and that do not show the outputs of the function.
    pub(super) fn leaves_outputs_out(&self) -> bool {
        matches!(self.format, OutputFormat::Pretty | OutputFormat::Plain)
    }

    /// Shows the end of the job, after the end of the log. Returns before the reader has taken it.
    pub(super) fn end(&mut self, status: &v1::Status) -> Result<(), Failure> {
        if self.at_line_end {
            let end = status.end_time.as_ref().and_then(states::time);
            self.show_ends(end.unwrap_or_else(Utc::now))?;
        }
        match &mut self.mode {
            StreamMode::Text(printer) => {
                let mut output = Output::default();
                printer.finish(&mut output);
                self.write(output)
            }
            StreamMode::Json(events) => {
                let mut output = Output::default();
                events.end(status, &mut output.stdout);
                self.write(output)
            }
        }
    }
}

/// Returns the start time of the step that this line announces, if any (logs.md §2).
fn step_start(line: &[u8]) -> Option<DateTime<Utc>> {
    let entry = Entry::parse(line)?;
    let announces = entry.key().is_daemon() && entry.body.starts_with(STEP_START);
    announces.then(|| std::str::from_utf8(entry.time()).ok()?.parse().ok())?
}
