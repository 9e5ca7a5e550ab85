//! The parser of the daemon's own lines. It borrows all texts and reads every text that [`DaemonLine`]'s `Display` writes.
//!
//! A name in a line is not quoted. Plain names hold none of the words around them. The name of a member of a matrix can:
//! it ends with its values in brackets (flow.md §6), so a name goes on until its bracket is closed. Only values with such
//! a bracket and the words behind it are ambiguous; then the shortest name is taken.

use std::str::FromStr;

use super::{
    AFTER_LIMIT, AFTER_SECTION, CANCELLED, DEBUG, DaemonLine, FAILED, FETCHED, FetchedVersion, INTERRUPTED,
    LEFT, LIMIT, LINES_LEFT_OUT, NOT_KILLED, REAPER_KILLED, RETRYING, SECTION_END, SECTION_START, SKIPPED,
    STARTED, STREAM, TIMED_OUT, WARNING, Warning,
};
use crate::frame::LogChannel;
use crate::line::{Entry, SourceKey};

impl<'a> DaemonLine<'a> {
    /// Returns the daemon's line that `entry` is. `None` if a step wrote it, or if it is no UTF-8, which the daemon never
    /// writes.
    pub fn of(entry: &Entry<'a>) -> Option<Self> {
        let key = entry.key();
        key.is_daemon().then_some(())?;
        Self::parse(key, std::str::from_utf8(entry.body).ok()?)
    }

    /// Parses the text of a line of the source `key`. `None` if `key` is a source of steps: their lines can have any text.
    ///
    /// The text may have been changed on its way into the log: masked, and cut if it was long. A line that is damaged by
    /// that is [`Other`](Self::Other).
    pub fn parse(key: SourceKey, text: &'a str) -> Option<Self> {
        let channel = key.kind;
        key.is_daemon().then(|| Self::known(channel, text).unwrap_or(Self::Other { channel, text }))
    }

    fn known(channel: LogChannel, text: &'a str) -> Option<Self> {
        let after = |beginning| text.strip_prefix(beginning);
        if let Some(rest) = after(STARTED) {
            return Some(started(rest));
        }
        if let Some(rest) = after(SKIPPED) {
            return split_name(rest, ": ").map(|(name, reason)| Self::Skipped { name, reason });
        }
        if let Some(rest) = after(RETRYING) {
            return retrying(rest);
        }
        if let Some(rest) = after(FETCHED) {
            return fetched(rest);
        }
        if let Some(rest) = after(LEFT) {
            return left_running(rest);
        }
        if let Some(rest) = after(SECTION_START) {
            let (time, rest) = rest.split_once(':')?;
            let (name, heading) = rest.split_once(AFTER_SECTION)?;
            return Some(Self::SectionStart { time: number(time)?, name, heading });
        }
        if let Some(rest) = after(SECTION_END) {
            let (time, name) = rest.strip_suffix(AFTER_SECTION)?.split_once(':')?;
            return Some(Self::SectionEnd { time: number(time)?, name });
        }
        if let Some(rest) = after(LIMIT) {
            return Some(Self::LimitReached { limit: number(rest.strip_suffix(AFTER_LIMIT)?)? });
        }
        if text == REAPER_KILLED {
            return Some(Self::ReaperKilled);
        }
        if let Some(count) = text.strip_suffix(NOT_KILLED).and_then(number) {
            return Some(Self::NotKilled { count });
        }
        if let Some(count) = after("and ").and_then(|rest| rest.strip_suffix(" more processes")) {
            return Some(Self::MoreProcesses { count: number(count)? });
        }
        after(WARNING)
            .map(|text| Self::Warning(Warning::parse(text)))
            .or_else(|| after(DEBUG).map(Self::Debug))
            .or_else(|| after(LINES_LEFT_OUT).map(|cause| Self::LinesLeftOut { channel, cause }))
            .or_else(|| after(FAILED).map(|message| Self::JobFailed { message }))
            .or_else(|| after(CANCELLED).map(|cause| Self::JobCancelled { cause }))
            .or_else(|| after(TIMED_OUT).map(|cause| Self::JobTimedOut { cause }))
            .or_else(|| after(INTERRUPTED).map(|cause| Self::JobInterrupted { cause }))
            .or_else(|| process(text))
    }
}

/// Parses `NAME` or `NAME stream=NN`. No name ends like that: a plain one has no blank, others end with their bracket.
fn started(text: &str) -> DaemonLine<'_> {
    let announced = text.rsplit_once(STREAM).and_then(|(name, digits)| {
        let is_number =
            digits.len() == 2 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        is_number.then(|| u8::from_str_radix(digits, 16).ok()).flatten().map(|stream| (name, stream))
    });
    match announced {
        Some((name, stream)) => DaemonLine::Started { name, stream: Some(stream) },
        None => DaemonLine::Started { name: text, stream: None },
    }
}

/// Parses `NAME (attempt N of M) in TIME: ERROR`.
fn retrying(text: &str) -> Option<DaemonLine<'_>> {
    let (name, rest) = split_name(text, " (attempt ")?;
    let (attempt, rest) = rest.split_once(" of ")?;
    let (of, rest) = rest.split_once(") in ")?;
    let (delay, error) = rest.split_once(": ")?;
    Some(DaemonLine::Retrying { name, attempt: number(attempt)?, of: number(of)?, delay, error })
}

/// Parses `NAME from ORIGIN: commit HASH` and `NAME from ORIGIN: digest DIGEST`.
fn fetched(text: &str) -> Option<DaemonLine<'_>> {
    let (rest, version) = text.rsplit_once(": ")?;
    let version = match version.split_once(' ')? {
        ("commit", hash) => FetchedVersion::Commit(hash),
        ("digest", digest) => FetchedVersion::Digest(digest),
        _ => return None,
    };
    let (name, origin) = split_name(rest, " from ")?;
    Some(DaemonLine::Fetched { name, origin, version })
}

/// Parses `NAME left N processes running: PROCESSES` and `NAME left 1 process running: PROCESSES`.
fn left_running(text: &str) -> Option<DaemonLine<'_>> {
    let (name, rest) = split_name(text, " left ")?;
    let (count, rest) = rest.split_once(' ')?;
    let count = number(count)?;
    let noun = if count == 1 { "process running: " } else { "processes running: " };
    Some(DaemonLine::LeftRunning { name, count, processes: rest.strip_prefix(noun)? })
}

/// Parses `PID (parent PID, state S) COMMAND`, indented by two blanks for each ancestor.
fn process(text: &str) -> Option<DaemonLine<'_>> {
    let line = text.trim_start_matches(' ');
    let indent = text.len() - line.len();
    let (pid, rest) = line.split_once(" (parent ")?;
    let (parent, rest) = rest.split_once(", state ")?;
    let mut rest = rest.chars();
    let state = rest.next()?;
    let command = rest.as_str().strip_prefix(") ")?;
    let (pid, parent) = (number(pid)?, number(parent)?);
    indent.is_multiple_of(2).then_some(DaemonLine::Process { depth: indent / 2, pid, parent, state, command })
}

/// Splits `text` at the first `separator` behind a whole name: one without brackets, or with its bracket closed, such as
/// `t[a,b]` and `t[a,b]#2`. Masking can hide the end of a name: then the first `separator` counts.
pub(super) fn split_name<'a>(text: &'a str, separator: &str) -> Option<(&'a str, &'a str)> {
    let bracket = text.find('[').unwrap_or(text.len());
    let is_whole = |at: &usize| {
        let name = text.get(..*at).unwrap_or_default();
        let without_number = name.trim_end_matches(|last: char| last.is_ascii_digit());
        *at <= bracket || name.ends_with(']') || without_number.ends_with("]#")
    };
    let places = || text.match_indices(separator).map(|(at, _)| at);
    let at = places().find(is_whole).or_else(|| places().next())?;
    Some((text.get(..at)?, text.get(at + separator.len()..)?))
}

/// Parses a number that is not below zero, as `Display` writes it.
pub(super) fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_shortest = text == "0" || !text.starts_with('0');
    (is_shortest && text.bytes().all(|digit| digit.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}
