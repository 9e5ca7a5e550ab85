//! Printing a log for people: `raw`, `plain` and `pretty` (logs.md §8).
//!
//! Takes the bytes of a log in any pieces and gives what belongs on standard output and on standard error. Nothing
//! is written here, and neither the terminal nor the time zone is looked up: both are options.

mod lines;
#[cfg(test)]
mod tests;
mod text;

pub use lines::Options;

use super::frame::Kind;
use super::line::{Check, Entry, Line, Live, Parser};
use lines::Lines;

/// How a log is printed (logs.md §8).
#[derive(Clone, Copy, Debug)]
pub enum Format {
    /// The bytes as they came.
    Raw,
    /// Bodies only, joined. The daemon's own lines go to standard error.
    Plain {
        /// Both channels of the steps to standard output.
        merge: bool,
    },
    /// As `Plain` where standard output and standard error are one file: everything to standard output, in the order
    /// of the log, no line within another.
    Together,
    /// A line with time and tag for each line of output, all to standard output.
    Pretty(Options),
}

/// What a [`Printer`] gives out; the caller writes and clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Bytes for standard output.
    pub stdout: Vec<u8>,
    /// Bytes for standard error.
    pub stderr: Vec<u8>,
}

/// Prints one log, while it grows or afterwards (logs.md §8).
pub struct Printer {
    parser: Parser,
    mode: Mode,
}

enum Mode {
    Raw,
    Plain(Plain),
    Pretty(Lines),
}

impl Printer {
    /// A printer at the start of a log, or of one of its lines.
    pub const fn new(format: Format) -> Self {
        let mode = match format {
            Format::Raw => Mode::Raw,
            Format::Plain { merge: false } => Mode::Plain(Plain::new(Route::Apart)),
            Format::Plain { merge: true } => Mode::Plain(Plain::new(Route::Merged)),
            Format::Together => Mode::Plain(Plain::new(Route::Together)),
            Format::Pretty(options) => Mode::Pretty(Lines::new(options)),
        };
        Self { parser: Parser::new(Check::Lenient), mode }
    }

    /// Takes the next bytes of the log and appends what they show to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut Output) {
        let parsed = match &mut self.mode {
            Mode::Raw => {
                out.stdout.extend_from_slice(bytes);
                Ok(())
            }
            Mode::Plain(plain) => self.parser.push(bytes, |line| match line {
                Line::Entry(entry) => plain.entry(&entry, out),
                Line::Malformed(_) => {}
            }),
            Mode::Pretty(lines) => self.parser.push(bytes, |line| match line {
                Line::Entry(entry) => lines.entry(&entry, &mut out.stdout),
                Line::Malformed(line) => lines.malformed(line, &mut out.stdout),
            }),
        };
        debug_assert!(parsed.is_ok(), "a lenient parser refuses nothing");
    }

    /// Something else is about to be printed on standard error: ends the line shown last if it stands there, or may.
    /// What continues it stands on a line of its own.
    pub fn interrupt(&mut self, out: &mut Output) {
        match &mut self.mode {
            Mode::Raw => {}
            Mode::Plain(Plain { route: Route::Together, stdout, .. }) => stdout.finish(&mut out.stdout),
            Mode::Plain(plain) => plain.stderr.finish(&mut out.stderr),
            Mode::Pretty(lines) => lines.interrupt(&mut out.stdout),
        }
    }

    /// The log has ended: appends the ends of the lines shown and what was held back. An entry without its line
    /// feed is incomplete and not shown (logs.md §7, rule 5).
    pub fn finish(&mut self, out: &mut Output) {
        match &mut self.mode {
            Mode::Raw => {}
            Mode::Plain(plain) => {
                plain.stdout.finish(&mut out.stdout);
                plain.stderr.finish(&mut out.stderr);
            }
            Mode::Pretty(lines) => lines.finish(&mut out.stdout),
        }
    }
}

/// What of a log goes to standard output.
#[derive(Clone, Copy)]
enum Route {
    /// Standard output of the steps.
    Apart,
    /// Both channels of the steps.
    Merged,
    /// The daemon's own lines as well.
    Together,
}

/// The state of `plain`.
struct Plain {
    route: Route,
    stdout: Live,
    stderr: Live,
}

impl Plain {
    const fn new(route: Route) -> Self {
        Self { route, stdout: Live::new(), stderr: Live::new() }
    }

    fn entry(&mut self, entry: &Entry<'_>, out: &mut Output) {
        let key = entry.key();
        let to_stdout = match self.route {
            Route::Apart => !key.is_daemon() && key.kind != Kind::Err,
            Route::Merged => !key.is_daemon(),
            Route::Together => true,
        };
        if to_stdout {
            self.stdout.push(entry, &mut out.stdout);
        } else {
            self.stderr.push(entry, &mut out.stderr);
        }
    }
}
