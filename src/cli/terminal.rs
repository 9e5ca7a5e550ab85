//! Colours, and writing to stdout and stderr.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use anstream::AutoStream;
use clap::ValueEnum;

use super::secrets;
use crate::error::{Exit, Failure};
use crate::logging;

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    Auto,
    Always,
    Never,
}

impl Color {
    /// Sets the choice for everything that is written from now on.
    pub(super) fn apply(self) {
        let choice = match self {
            // The libraries know NO_COLOR and CLICOLOR_FORCE.
            Self::Auto if is_forced() => anstream::ColorChoice::Always,
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// True if the variable `FORCE_COLOR` asks for colours, and `NO_COLOR` does not refuse them.
fn is_forced() -> bool {
    is_set("FORCE_COLOR") && !is_set("NO_COLOR")
}

/// True if a variable is there and not empty.
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// True if the variable `CI` says that a CI runner reads the output.
pub(super) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| matches!(&*value, "1" | "true" | "True" | "TRUE"))
}

/// True if the terminal on stdout can move its cursor.
pub(super) fn moves_cursor() -> bool {
    std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb")
}

/// True unless the terminal, or the locale in force, lacks the symbols of the live view.
pub(super) fn shows_unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find(|name| is_set(name));
    let locale = locale.and_then(|name| std::env::var(name).ok()).map(|locale| locale.to_ascii_lowercase());
    let is_utf8 = locale.is_none_or(|locale| locale.contains("utf-8") || locale.contains("utf8"));
    is_utf8 && std::env::var_os("TERM").is_none_or(|name| name != "linux")
}

/// Returns the colours of help and usage errors, which are printed before the arguments are parsed.
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
        _ if is_forced() => clap::ColorChoice::Always,
        _ => clap::ColorChoice::Auto,
    }
}

/// True if output on stdout may be coloured.
pub(super) fn stdout_has_color() -> bool {
    AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}

/// Returns the columns of the terminal on stdout, if it is one.
pub(super) fn width() -> Option<usize> {
    let columns = rustix::termios::tcgetwinsize(io::stdout()).ok()?.ws_col;
    (columns > 0).then_some(columns.into())
}

/// True if stdout and stderr are the same file, such as after `2>&1`. Then the order of writes to both matters.
pub(super) fn outputs_are_one_file() -> bool {
    match (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())) {
        (Ok(out), Ok(err)) => (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino),
        _ => false,
    }
}

/// Writes bytes to stdout as they are. If the reader has seen enough, such as `head`, the command ends quietly. A job
/// that ends with its command ends, too.
pub(super) fn print(bytes: &[u8]) -> Result<(), Failure> {
    write(bytes).map_err(|error| unwritten(&error))
}

/// Returns the failure of a command that cannot write to stdout.
pub(super) fn unwritten(error: &io::Error) -> Failure {
    let failure = Failure::new(Exit::Failure, format!("write stdout: {error}"));
    if is_unread(error) { failure.quietly() } else { failure }
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
    // In a daemon no thread may wait for a reader, nor write between two lines of its log.
    if !logging::take_for_stderr(bytes) {
        drop(io::stderr().lock().write_all(bytes));
    }
}

/// Writes a line to stderr, with colours only if wanted.
pub(super) fn say(line: &str) {
    write_stderr(&line_for_stderr(line));
}

/// Returns a line with its end, without secrets of the submitted job, and with colours only if stderr shows them.
pub(super) fn line_for_stderr(line: &str) -> Vec<u8> {
    let line = secrets::hide(line);
    let mut text = AutoStream::new(Vec::new(), AutoStream::choice(&io::stderr()));
    // Writing to memory does not fail.
    text.write_all(format!("{line}\n").as_bytes()).ok();
    text.into_inner()
}

/// Like [`say`], but a line that is too long for the terminal is wrapped between words, under the text behind its
/// label.
pub(super) fn say_wrapped(line: &str) {
    let line = &*secrets::hide(line);
    let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 {
        return say(line);
    }
    let hang = hanging(line).min(columns / 2);
    let (label, text) = line.split_at_checked(hang).unwrap_or(("", line));
    let mut label = label.to_owned();
    super::text::wrap(text, columns - label.len(), "", |part| {
        say(&format!("{label}{part}"));
        label = " ".repeat(label.len());
    });
}

/// Returns the column of the text behind the indentation and the label of a line.
fn hanging(line: &str) -> usize {
    /// Column of the texts of a summary.
    const TEXT: usize = 13;
    let indent = line.len() - line.trim_start_matches(' ').len();
    let label = line.get(indent..TEXT).unwrap_or_default();
    match line.get(indent..).and_then(|line| line.split_once(": ")) {
        Some(("try", _)) => indent + "try: ".len(),
        _ if indent == 2 && label.ends_with(' ') => TEXT,
        _ => indent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_hang_behind_their_labels() {
        for (line, at) in [
            ("job 42 failed: why: really", 0),
            ("  step       build", 13),
            ("  exit code  3", 13),
            ("  try: this", 7),
            ("    12:00:00.000 out  x", 4),
        ] {
            assert_eq!(hanging(line), at, "{line}");
        }
    }
}
