//! Shows a job as bytes or events: `plain`, `raw`, `json`, and `pretty` where no live view is (cli.md, logs.md §8).

use anstyle::AnsiColor;
use chrono::FixedOffset;
use clap::ValueEnum;

use super::events::EventStream;
use super::writer::Writer;
use super::{Verbosity, results, states, terminal};
use crate::error::{Exit, Failure};
use crate::insight::run::{Part, Run};
use crate::insight::tree::{ROOT, StepEnd, StepOutcome, Tree};
use crate::log::line::{Check, Parser};
use crate::log::pretty::{self, Options, Output, Printer};
use crate::pb::v1;

/// Most bytes of the log that wait for events.
const ROOM: usize = 4 << 20;

/// Form in which a job is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// For people: on a terminal the live view; else time and channel before each line, a line per step
    Pretty,
    /// The output of the steps, with the daemon's own lines on stderr; with --quiet the steps' output alone
    Plain,
    /// The bytes of the log
    Raw,
    /// One JSON object per event and line
    Json,
}

/// Output of steps that was printed to the place where stderr goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    None,
    /// Only what the steps wrote to stderr.
    Stderr,
    All,
}

/// Choices of the user about a stream.
pub(super) struct StreamOptions {
    /// Stderr of the steps goes to stdout, too.
    pub(super) merge: bool,
    /// Show also what a progress bar has overwritten.
    pub(super) all: bool,
    /// Zone of the times.
    pub(super) zone: FixedOffset,
}

/// Shows one job as bytes or events.
pub(super) struct Stream {
    format: OutputFormat,
    mode: StreamMode,
    /// True if the steps' stderr goes to our stderr.
    has_own_stderr: bool,
    /// True if the daemon's own lines are shown.
    has_daemon: bool,
    writer: Writer,
}

enum StreamMode {
    Text(Printer),
    Pretty(Box<Pretty>),
    Json(Box<EventStream>),
}

/// Lines for people, with the end of each step of the job's own list behind its output.
struct Pretty {
    printer: Printer,
    run: Run,
    color: bool,
}

impl Stream {
    /// Begins to show a job whose log is followed from byte `offset`.
    pub(super) fn start(
        format: OutputFormat,
        options: &StreamOptions,
        offset: u64,
        verbosity: Verbosity,
    ) -> Result<Self, Failure> {
        let color = terminal::stdout_has_color();
        let mode = match format {
            OutputFormat::Raw => StreamMode::Text(Printer::new(pretty::Format::Raw)),
            OutputFormat::Plain if verbosity.quiet => {
                let merge = options.merge || terminal::outputs_are_one_file();
                StreamMode::Text(Printer::new(pretty::Format::Steps { merge }))
            }
            OutputFormat::Plain if terminal::outputs_are_one_file() => {
                StreamMode::Text(Printer::new(pretty::Format::Together))
            }
            OutputFormat::Plain => {
                StreamMode::Text(Printer::new(pretty::Format::Plain { merge: options.merge }))
            }
            OutputFormat::Pretty => {
                let shown = Options { all: options.all, offset: options.zone, color, names: true };
                let printer = Printer::new(pretty::Format::Pretty(shown));
                StreamMode::Pretty(Box::new(Pretty { printer, run: Run::new(offset), color }))
            }
            OutputFormat::Json => {
                StreamMode::Json(Box::new(EventStream::new(Parser::new(Check::Lenient), offset)))
            }
        };
        let has_own_stderr = format == OutputFormat::Plain && !options.merge;
        let writer = Writer::start().map_err(|error| Failure::new(Exit::Failure, error))?;
        let has_daemon = !(format == OutputFormat::Plain && verbosity.quiet);
        Ok(Self { format, mode, has_own_stderr, has_daemon, writer })
    }

    pub(super) fn log(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let mut output = Output::default();
        match &mut self.mode {
            StreamMode::Text(printer) => printer.push(bytes, &mut output),
            StreamMode::Pretty(pretty) => {
                pretty.run.log(bytes);
                pretty.advance(&mut output);
            }
            StreamMode::Json(events) => {
                let pushed = events.log(bytes, &mut output.stdout);
                pushed.map_err(|error| Failure::new(Exit::Failure, error))?;
            }
        }
        self.write(output)
    }

    /// Takes a message of FollowSteps.
    pub(super) fn message(&mut self, message: &v1::FollowStepsResponse) -> Result<(), Failure> {
        let mut output = Output::default();
        match &mut self.mode {
            StreamMode::Text(_) => {}
            StreamMode::Pretty(pretty) => {
                pretty.run.message(message);
                pretty.advance(&mut output);
            }
            StreamMode::Json(events) => {
                let told = events.message(message, &mut output.stdout);
                told.map_err(|error| Failure::new(Exit::Failure, error))?;
            }
        }
        self.write(output)
    }

    /// Returns the job's steps; `None` for a format that needs no events of them.
    pub(super) const fn steps(&self) -> Option<&Tree> {
        match &self.mode {
            StreamMode::Text(_) => None,
            StreamMode::Pretty(pretty) => Some(pretty.run.tree()),
            StreamMode::Json(events) => Some(events.steps()),
        }
    }

    /// True if the log waits for events, and none has come yet.
    pub(super) const fn is_silent(&self) -> bool {
        match &self.mode {
            StreamMode::Text(_) => false,
            StreamMode::Pretty(pretty) => pretty.run.is_silent(),
            StreamMode::Json(events) => events.is_silent(),
        }
    }

    /// True if it can take more of the log: lines that wait for events use memory.
    pub(super) fn has_room(&self) -> bool {
        let waiting = match &self.mode {
            StreamMode::Text(_) => 0,
            StreamMode::Pretty(pretty) => pretty.run.waiting(),
            StreamMode::Json(events) => events.waiting(),
        };
        waiting < ROOM && self.writer.has_room()
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

    /// Takes note that no more events come, because the job has ended or they are lost.
    pub(super) fn events_end(&mut self) -> Result<(), Failure> {
        let mut output = Output::default();
        match &mut self.mode {
            StreamMode::Text(_) => {}
            StreamMode::Pretty(pretty) => {
                pretty.run.events_end();
                pretty.advance(&mut output);
            }
            StreamMode::Json(events) => {
                let told = events.events_end(&mut output.stdout);
                told.map_err(|error| Failure::new(Exit::Failure, error))?;
            }
        }
        self.write(output)
    }

    /// Prints `message` on stderr, on a line of its own.
    pub(super) fn say(&mut self, message: &str) -> Result<(), Failure> {
        let printer = match &mut self.mode {
            StreamMode::Text(printer) => Some(printer),
            StreamMode::Pretty(pretty) => Some(&mut pretty.printer),
            StreamMode::Json(_) => None,
        };
        if let Some(printer) = printer {
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
            StreamMode::Text(_) | StreamMode::Pretty(_) => {
                self.has_daemon && (self.has_own_stderr || terminal::outputs_are_one_file())
            }
            StreamMode::Json(_) => false,
        }
    }

    /// Returns how much of the steps' output was printed to the place where stderr goes.
    pub(super) fn seen_output(&self) -> Seen {
        match &self.mode {
            StreamMode::Json(_) => Seen::None,
            _ if terminal::outputs_are_one_file() => Seen::All,
            _ if self.has_own_stderr => Seen::Stderr,
            _ => Seen::None,
        }
    }

    /// True for formats that people read and that do not show the outputs of the function.
    pub(super) fn leaves_outputs_out(&self) -> bool {
        matches!(self.format, OutputFormat::Pretty | OutputFormat::Plain)
    }

    /// Shows the end of the job, after the end of the log. Returns before the reader has taken it.
    pub(super) fn end(&mut self, status: &v1::Status) -> Result<(), Failure> {
        let mut output = Output::default();
        match &mut self.mode {
            StreamMode::Text(printer) => printer.finish(&mut output),
            StreamMode::Pretty(pretty) => {
                pretty.run.end();
                pretty.advance(&mut output);
                pretty.printer.finish(&mut output);
            }
            StreamMode::Json(events) => {
                let told = events.end(status, &mut output.stdout);
                told.map_err(|error| Failure::new(Exit::Failure, error))?;
            }
        }
        self.write(output)
    }
}

impl Pretty {
    /// Prints all that is certain.
    fn advance(&mut self, output: &mut Output) {
        while let Some(part) = self.run.next_part() {
            match part {
                Part::Log(bytes) => self.printer.push(&bytes, output),
                Part::Step { event, .. } if event.parent == ROOT && event.call != ROOT => {
                    let line = event.result.and_then(|result| self.end_of(event.call, &result));
                    self.printer.push(line.unwrap_or_default().as_bytes(), output);
                }
                Part::Step { .. } | Part::Result(_) => {}
            }
        }
    }

    /// Returns the end of a step as one of the daemon's own lines. Skipped steps have one in the log.
    fn end_of(&self, call: u32, result: &v1::StepResult) -> Option<String> {
        let step = self.run.tree().get(call)?;
        let StepEnd { time, outcome, .. } = step.end.as_ref()?;
        let (verb, color) = match outcome {
            StepOutcome::Skipped => return None,
            StepOutcome::Allowed => ("failed, which is allowed", AnsiColor::Yellow),
            StepOutcome::Succeeded => ("succeeded", AnsiColor::Green),
            StepOutcome::Cancelled => ("was cancelled", AnsiColor::Yellow),
            StepOutcome::Failed => ("failed", AnsiColor::Red),
        };
        let time = time.as_ref().and_then(states::time)?;
        let took = results::took(result);
        let took = took.map(|took| format!(" in {:.1} s", took.as_secs_f64())).unwrap_or_default();
        let code = match results::exit_code(result).unwrap_or(0) {
            0 => String::new(),
            code => format!(", exit code {code}"),
        };
        let mut text = format!("step {} {verb}{took}{code}", step.name);
        if self.color {
            let style = color.on_default();
            text = format!("{style}{text}{style:#}");
        }
        let stamp = time.format("%Y-%m-%dT%H:%M:%S%.6fZ");
        Some(format!("{stamp} 00O {text}\n"))
    }
}
