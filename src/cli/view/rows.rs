//! Rows of the screen: lines of output, starts and ends of steps, each wrapped to the width.

use std::fmt::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style as Color};
use chrono::{DateTime, FixedOffset};

use crate::cli::text::{clean, cut, width, wrap};
use crate::insight::tree::StepOutcome;
use crate::log::line::SourceKey;
use crate::log::words::DaemonLine;
use crate::model::LogChannel;

/// Terminals narrower than this show no times.
const NARROW: usize = 40;

/// Terminals narrower than this show no signs and no indentation.
const NARROWEST: usize = 8;

/// Time in front of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Times {
    /// Local time of day
    Clock,
    /// Time since the job's start
    Elapsed,
    /// No time
    None,
}

/// Way in which a job is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewMode {
    /// A live region under the lines.
    Live,
    /// Lines only, for terminals that cannot move their cursor.
    Lines,
    /// Lines between the section markers of a CI runner's log viewer.
    Sections,
}

/// Choices for the screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) mode: ViewMode,
    pub(super) times: Times,
    pub(super) color: bool,
    /// True for Unicode symbols, false for ASCII.
    pub(super) unicode: bool,
    /// Time zone of the times of day.
    pub(super) offset: FixedOffset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOrigin {
    Stdout,
    Stderr,
    /// The daemon.
    Daemon,
    /// This command.
    Own,
}

#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Microseconds since the epoch; `None` for a piece that continues a line.
    pub(super) at: Option<i64>,
    pub(super) origin: RowOrigin,
    /// Number of its stream.
    pub(super) stream: u32,
    /// Depth of its step.
    pub(super) depth: usize,
    /// Printable text, perhaps with colour sequences.
    pub(super) text: String,
}

impl Line {
    /// Returns the daemon's line that this is. `None` for a line of a step, whatever its text.
    pub(super) fn of_daemon(&self) -> Option<DaemonLine<'_>> {
        // One tag stands for both channels of the daemon.
        let key = (self.origin == RowOrigin::Daemon).then_some(SourceKey::of_daemon(LogChannel::Out))?;
        DaemonLine::parse(key, &self.text)
    }
}

/// Draws rows for one size of the screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) style: Style,
    pub(super) size: Size,
    /// Start of the job in microseconds since the epoch.
    pub(super) job_start: Option<i64>,
}

impl Rows {
    /// Passes the rows of an output line of a step at `depth` to `row`. `folded` lines are dimmed.
    pub(super) fn line(&self, line: &Line, depth: usize, folded: bool, row: impl FnMut(&str)) {
        let base = match line.origin {
            _ if !self.style.color => "",
            RowOrigin::Daemon if matches!(line.of_daemon(), Some(DaemonLine::Warning(_))) => "\x1b[33m",
            RowOrigin::Own if line.text.starts_with("warning") => "\x1b[33m",
            RowOrigin::Stdout | RowOrigin::Stderr if folded => "\x1b[2m",
            _ => "",
        };
        let gutter = match (line.origin, self.style.unicode) {
            (RowOrigin::Stdout, true) => self.paint("│", DIM),
            (RowOrigin::Stdout, false) => self.paint("|", DIM),
            (RowOrigin::Stderr, _) => self.paint("!", AnsiColor::Red.on_default()),
            (RowOrigin::Daemon | RowOrigin::Own, true) => self.paint("·", AnsiColor::Cyan.on_default()),
            (RowOrigin::Daemon | RowOrigin::Own, false) => self.paint("*", AnsiColor::Cyan.on_default()),
        };
        let prefix = Prefix { at: line.at, depth, sign: &gutter, repeats: true };
        self.hanging(&prefix, &line.text, base, row);
    }

    pub(super) fn start(&self, name: &str, at: Option<i64>, depth: usize, row: impl FnMut(&str)) {
        let mark = if self.style.unicode { "▸" } else { ">" };
        let text = self.paint(&clean(name), BOLD);
        let mark = self.paint(mark, AnsiColor::Cyan.on_default());
        let prefix = Prefix { at, depth, sign: &mark, repeats: false };
        self.hanging(&prefix, &text, "", row);
    }

    pub(super) fn end(&self, end: &End<'_>, at: Option<i64>, depth: usize, row: impl FnMut(&str)) {
        let mark = self.mark(end.outcome);
        let mut text = match end.outcome {
            StepOutcome::Failed => self.paint(&clean(end.name), AnsiColor::Red.on_default().bold()),
            StepOutcome::Succeeded | StepOutcome::Allowed | StepOutcome::Cancelled | StepOutcome::Skipped => {
                clean(end.name)
            }
        };
        let (how, before_time) = match end.outcome {
            StepOutcome::Succeeded => ("", " "),
            StepOutcome::Failed => (" failed", " in "),
            StepOutcome::Allowed => (" failed (allowed)", " in "),
            StepOutcome::Skipped => (" skipped", " "),
            StepOutcome::Cancelled => (" cancelled", " after "),
        };
        text.push_str(how);
        if let Some(took) = end.took {
            text.push_str(&self.paint(&format!("{before_time}{}", duration(took)), DIM));
        }
        if end.exit_code > 0 {
            // Writing to memory does not fail.
            write!(text, ", exit code {}", end.exit_code).ok();
        }
        if end.attempts > 1 {
            write!(text, ", attempt {}", end.attempts).ok();
        }
        if end.outcome == StepOutcome::Skipped && !end.reason.is_empty() {
            write!(text, ": {}", clean(end.reason)).ok();
        }
        let prefix = Prefix { at, depth, sign: &mark, repeats: false };
        self.hanging(&prefix, &text, "", row);
    }

    pub(super) fn running(&self, step: &RunningStep<'_>, now: i64) -> String {
        if self.width() < NARROWEST {
            return cut(&clean(step.name), self.width());
        }
        let spinner = self.paint(self.spinner(now), AnsiColor::Cyan.on_default());
        let mut behind = step.elapsed.map(|elapsed| format!(" {}", duration(elapsed))).unwrap_or_default();
        if step.attempt > 1 {
            write!(behind, "  attempt {}", step.attempt).ok();
        }
        if step.total > 1 {
            write!(behind, "  {}/{}", step.number, step.total).ok();
        }
        let indent = self.indent(step.depth);
        let blank = " ".repeat(self.time_width() + indent);
        let free = self.width().saturating_sub(blank.len() + 2);
        let behind = if width(&behind) + 4 > free { String::new() } else { behind };
        let name = cut(&clean(step.name), free.saturating_sub(width(&behind)));
        format!("{blank}{spinner} {}{}", self.paint(&name, BOLD), self.paint(&behind, DIM))
    }

    /// Returns the columns that rows may take. The last one of the screen stays empty: a cursor behind it wraps.
    pub(super) fn width(&self) -> usize {
        self.size.columns.saturating_sub(1).max(1)
    }

    /// Returns the sign of an outcome.
    pub(super) fn mark(&self, outcome: StepOutcome) -> String {
        let (mark, ascii, color) = match outcome {
            StepOutcome::Succeeded => ("✓", "+", AnsiColor::Green.on_default()),
            StepOutcome::Failed => ("✗", "x", AnsiColor::Red.on_default().bold()),
            StepOutcome::Allowed => ("✗", "x", AnsiColor::Yellow.on_default()),
            StepOutcome::Cancelled => ("■", "-", AnsiColor::Yellow.on_default()),
            StepOutcome::Skipped => ("○", "o", DIM),
        };
        self.paint(if self.style.unicode { mark } else { ascii }, color)
    }

    /// Returns `text` with a colour, if there are colours.
    pub(super) fn paint(&self, text: &str, color: Color) -> String {
        if self.style.color && !text.is_empty() {
            format!("{}{text}\x1b[0m", color.render())
        } else {
            text.to_owned()
        }
    }

    const fn spinner(&self, now: i64) -> &'static str {
        const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
        const ASCII: [&str; 4] = ["|", "/", "-", "\\"];
        let frame = (now / 100_000) as usize;
        if self.style.unicode { FRAMES[frame % FRAMES.len()] } else { ASCII[frame % ASCII.len()] }
    }

    /// Passes `text` to `row` in rows that hang behind its prefix.
    fn hanging(&self, prefix: &Prefix<'_>, text: &str, base: &str, mut row: impl FnMut(&str)) {
        let Prefix { at, depth, sign, repeats } = *prefix;
        let time_width = self.time_width();
        let indent = self.indent(depth);
        let limit = self.width();
        // A screen too narrow for signs shows the text alone.
        if limit < NARROWEST {
            return wrap(text, limit, base, row);
        }
        let mut first = at.is_some();
        wrap(text, limit - time_width - indent - 2, base, |part| {
            let time = if first { self.time(at) } else { String::new() };
            let pad = time_width - width(&time) + indent;
            let shown = if first || repeats || at.is_none() { sign } else { " " };
            let time = self.paint(&time, DIM);
            if part.is_empty() {
                row(&format!("{time}{:pad$}{shown}", ""));
            } else {
                row(&format!("{time}{:pad$}{shown} {part}", ""));
            }
            first = false;
        });
    }

    fn indent(&self, depth: usize) -> usize {
        (2 * depth).min(self.width() / 4)
    }

    fn time_width(&self) -> usize {
        match self.style.times {
            _ if self.size.columns < NARROW => 0,
            Times::Clock | Times::Elapsed => 9,
            Times::None => 0,
        }
    }

    fn time(&self, at: Option<i64>) -> String {
        let Some(at) = at.filter(|_| self.time_width() > 0) else { return String::new() };
        match self.style.times {
            Times::Clock => DateTime::from_timestamp_micros(at)
                .map(|at| at.with_timezone(&self.style.offset).format("%H:%M:%S").to_string())
                .unwrap_or_default(),
            Times::Elapsed => {
                let since = at - self.job_start.unwrap_or(at);
                let text = duration(Duration::from_micros(u64::try_from(since).unwrap_or(0)));
                format!("{text:>8}")
            }
            Times::None => String::new(),
        }
    }
}

const DIM: Color = Color::new().dimmed();
const BOLD: Color = Color::new().bold();

/// Time, indentation and sign before a text.
struct Prefix<'a> {
    at: Option<i64>,
    depth: usize,
    /// Sign of one column.
    sign: &'a str,
    /// True if the sign stands in every row.
    repeats: bool,
}

pub(super) struct End<'a> {
    pub(super) name: &'a str,
    pub(super) outcome: StepOutcome,
    pub(super) exit_code: i32,
    pub(super) took: Option<Duration>,
    /// Number of attempts.
    pub(super) attempts: usize,
    /// Why it did not run.
    pub(super) reason: &'a str,
}

pub(super) struct RunningStep<'a> {
    pub(super) name: &'a str,
    pub(super) depth: usize,
    pub(super) number: u32,
    pub(super) total: u32,
    /// Number of the attempt, from 1.
    pub(super) attempt: usize,
    pub(super) elapsed: Option<Duration>,
}

/// Returns a duration for people: `0.3s`, `2m 05s`, `1h 02m`.
pub(super) fn duration(duration: Duration) -> String {
    let tenths = duration.as_millis() / 100;
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{}.{}s", tenths / 10, tenths % 10),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
    }
}
