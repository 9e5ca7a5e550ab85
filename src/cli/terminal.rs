//! Colours, and writing to stdout and stderr.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use anstream::AutoStream;
use clap::ValueEnum;

use crate::error::{Exit, Failure};

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    Auto,
    Always,
    Never,
}

impl Color {
    /// Sets it for everything that is written from now on.
    pub(super) fn apply(self) {
        let choice = match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// The colours of help and usage errors, which are printed before the arguments are parsed.
pub(super) fn early_choice(words: &[OsString]) -> clap::ColorChoice {
    let mut arguments = words.iter().skip(1);
    let mut choice = std::env::var_os("STEP_RUNNER_COLOR");
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            break;
        }
        if argument == "--color" {
            choice = arguments.next().cloned();
        } else if let Some(value) = argument.to_str().and_then(|text| text.strip_prefix("--color=")) {
            choice = Some(value.into());
        }
    }
    match choice.as_deref().and_then(OsStr::to_str) {
        Some("always") => clap::ColorChoice::Always,
        Some("never") => clap::ColorChoice::Never,
        _ => clap::ColorChoice::Auto,
    }
}

/// True if what goes to stdout may be coloured.
pub(super) fn stdout_has_color() -> bool {
    AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}

/// Columns of the terminal that stdout is, if it is one.
pub(super) fn width() -> Option<usize> {
    let columns = rustix::termios::tcgetwinsize(io::stdout()).ok()?.ws_col;
    (columns > 0).then_some(columns.into())
}

/// Whether stdout and stderr are the same file, such as after `2>&1`: then the order of what is written to both counts.
pub(super) fn outputs_are_one_file() -> bool {
    match (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())) {
        (Ok(out), Ok(err)) => (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino),
        _ => false,
    }
}

/// Writes bytes to stdout as they are. A reader that went away ends the command, which says so: a job may end with it.
pub(super) fn write_stdout(bytes: &[u8]) -> Result<(), Failure> {
    write(bytes).map_err(|error| {
        let what = if is_unread(&error) { "nobody reads stdout" } else { "write stdout" };
        Failure::new(Exit::Failure, format!("{what}: {error}"))
    })
}

/// The same for what can be asked for again: a reader that has seen enough, such as `head`, ends the command quietly.
pub(super) fn print(bytes: &[u8]) -> Result<(), Failure> {
    write(bytes).map_err(|error| {
        let failure = Failure::new(Exit::Failure, format!("write stdout: {error}"));
        if is_unread(&error) { failure.quietly() } else { failure }
    })
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())
}

fn is_unread(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Writes bytes to stderr as they are. There is nowhere to report a failure to.
pub(super) fn write_stderr(bytes: &[u8]) {
    drop(io::stderr().lock().write_all(bytes));
}

/// Writes a line to stderr, colours only if wanted.
pub(super) fn say(line: &str) {
    let mut stderr = AutoStream::auto(io::stderr().lock());
    drop(stderr.write_all(format!("{line}\n").as_bytes()));
}
