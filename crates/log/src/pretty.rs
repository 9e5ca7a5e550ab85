//! Prints a log for people: `raw`, `plain` and `pretty` (logs.md §8).
//!
//! Takes the bytes of a log in pieces of any size and returns the bytes for standard output and standard error. This
//! module writes nothing and looks up neither the terminal nor the time zone: both are options.

mod lines;
mod names;
#[cfg(test)]
mod tests;
mod text;

pub use lines::Options;

use super::frame::LogChannel;
use super::line::{Check, Entry, Line, Live, Parser};
use lines::Lines;
use names::Names;

/// Output format of a log (logs.md §8).
#[derive(Clone, Copy, Debug)]
pub enum Format {
    /// The bytes of the log, unchanged.
    Raw,
    /// Bodies only, joined. The daemon's own lines go to standard error.
    Plain {
        /// Send both channels of the steps to standard output.
        merge: bool,
    },
    /// `Plain` without the daemon's own lines.
    Steps {
        /// Send both channels of the steps to standard output.
        merge: bool,
    },
    /// `Plain` for a standard output and standard error that are one file: everything goes to standard output, in the
    /// order of the log, and no line interrupts another.
    Together,
    /// A line with time and tag for each line of output, all on standard output.
    Pretty(Options),
}

/// Output of a [`Printer`]. The caller writes and clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Bytes for standard output.
    pub stdout: Vec<u8>,
    /// Bytes for standard error.
    pub stderr: Vec<u8>,
}

/// Prints one log, while it grows or after its end (logs.md §8).
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
    /// Makes a printer for the start of a log or of one of its lines.
    pub const fn new(format: Format) -> Self {
        let mode = match format {
            Format::Raw => Mode::Raw,
            Format::Plain { merge: false } => Mode::Plain(Plain::new(Route::Apart, true)),
            Format::Plain { merge: true } => Mode::Plain(Plain::new(Route::Merged, true)),
            Format::Steps { merge: false } => Mode::Plain(Plain::new(Route::Apart, false)),
            Format::Steps { merge: true } => Mode::Plain(Plain::new(Route::Merged, false)),
            Format::Together => Mode::Plain(Plain::new(Route::Together, true)),
            Format::Pretty(options) => Mode::Pretty(Lines::new(options)),
        };
        Self { parser: Parser::new(Check::Lenient), mode }
    }

    /// Takes the next bytes of the log and appends their output to `out`.
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

    /// Prepares for a message of the caller on standard error: ends the last line shown, if it is there or on a file
    /// shared with it. A continuation of that line then starts a new one.
    pub fn interrupt(&mut self, out: &mut Output) {
        match &mut self.mode {
            Mode::Raw => {}
            Mode::Plain(Plain { route: Route::Together, stdout, .. }) => stdout.finish(&mut out.stdout),
            Mode::Plain(plain) => plain.stderr.finish(&mut out.stderr),
            Mode::Pretty(lines) => lines.interrupt(&mut out.stdout),
        }
    }

    /// Appends the last line as it is so far, without a line feed. `growing` is the entry that its source has not ended
    /// yet, if one is known; else it is the last line held back. Only `pretty` does this.
    pub fn unfinished(&self, growing: Option<Entry<'_>>, out: &mut Output) {
        if let Mode::Pretty(lines) = &self.mode {
            lines.unfinished(growing, &mut out.stdout);
        }
    }

    /// Ends the log: appends the ends of the lines shown and the lines held back. An entry without its line feed is
    /// incomplete and not shown (logs.md §7, rule 5).
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

/// The entries that go to standard output. All others go to standard error.
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
    /// True if the daemon's own lines are shown.
    has_daemon: bool,
    stdout: Live,
    stderr: Live,
    names: Names,
}

impl Plain {
    const fn new(route: Route, has_daemon: bool) -> Self {
        Self { route, has_daemon, stdout: Live::new(), stderr: Live::new(), names: Names::new() }
    }

    fn entry(&mut self, entry: &Entry<'_>, out: &mut Output) {
        self.names.take(entry);
        let key = entry.key();
        if key.is_daemon() && !self.has_daemon {
            return;
        }
        let named = self.names.of(key).filter(|_| !entry.continues());
        let named = named.map(|name| [name, b" | ", entry.body].concat());
        let entry = &named.as_ref().map_or(*entry, |body| entry.with_body(body));
        let to_stdout = match self.route {
            Route::Apart => !key.is_daemon() && key.kind != LogChannel::Err,
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
