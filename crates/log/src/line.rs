//! Reads a log: splits bytes into entries, and entries back into the output they carry (logs.md §7). Pure: no IO.
//!
//! [`Parser`] finds the entries in a byte stream. [`Joiner`] undoes the formatter's cuts and returns exactly the bytes
//! that each source wrote. [`Live`] does so for a watched stream, without waiting for the next entry.

mod join;
#[cfg(test)]
mod tests;

pub use join::{Joiner, Live};

use memchr::memchr;

use super::frame::{CONTINUES, HEADER_LEN, HOLD_MAX, LogChannel};

/// Offsets of the parts of a header (logs.md §1).
const NUMBER_AT: usize = 28;
const KIND_AT: usize = 30;
const FLAG_AT: usize = 31;

/// Length of the header's prefix that the format check reads: the time and the blank after it (logs.md §7).
const CHECKED_LEN: usize = 28;

/// Identifies a source of a log: stream number and kind (logs.md §7, rule 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceKey {
    /// The two bytes of the stream number as written in the header, `01` for a step.
    pub(crate) number: [u8; 2],
    /// Standard error for `E`, standard output for any other byte.
    pub kind: LogChannel,
}

impl SourceKey {
    /// Makes the key that [`bytes`](Self::bytes) returned.
    pub const fn from_bytes(bytes: [u8; 3]) -> Self {
        let kind = if bytes[2] == b'E' { LogChannel::Err } else { LogChannel::Out };
        Self { number: [bytes[0], bytes[1]], kind }
    }

    /// Returns the key of the daemon's own lines (logs.md §2).
    pub const fn of_daemon(kind: LogChannel) -> Self {
        Self { number: *b"00", kind }
    }

    /// Returns stream number and kind as in a header.
    pub const fn bytes(self) -> [u8; 3] {
        [self.number[0], self.number[1], self.kind.letter()]
    }

    /// Returns the number of its stream; `None` if it is no number.
    pub fn stream(self) -> Option<u32> {
        u32::from_str_radix(std::str::from_utf8(&self.number).ok()?, 16).ok()
    }

    /// True if the daemon itself wrote the entry (logs.md §2).
    pub fn is_daemon(self) -> bool {
        self.number == *b"00"
    }
}

/// One entry of a log (logs.md §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    header: &'a [u8; HEADER_LEN],
    /// Any bytes but a line feed.
    pub body: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Parses a line without its line feed. Returns `None` if it is too short (logs.md §7, rule 1).
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        line.split_first_chunk().map(|(header, body)| Self { header, body })
    }

    /// Returns the same entry with another body.
    pub(crate) const fn with_body(self, body: &'a [u8]) -> Self {
        Self { body, ..self }
    }

    /// Returns the bytes before the body.
    pub const fn header(&self) -> &'a [u8] {
        self.header
    }

    /// Returns the source of the entry.
    pub const fn key(&self) -> SourceKey {
        SourceKey::from_bytes(self.source())
    }

    /// True if the entry continues the previous one of its source. Any flag but `+` counts as a full entry.
    pub const fn continues(&self) -> bool {
        self.header[FLAG_AT] == CONTINUES
    }

    /// True if the source wrote the entry's line feed, or has ended. The formatter ends an entry before its line does
    /// only if the body contains a carriage return or is longer than 8,160 bytes (logs.md §3, rules 2 and 3).
    pub(crate) fn ends_line(&self) -> bool {
        self.key().is_daemon()
            || self.body.len() <= HOLD_MAX - HEADER_LEN && memchr(b'\r', self.body).is_none()
    }

    /// Returns the bytes of the time: `YYYY-MM-DDTHH:MM:SS.uuuuuuZ` if the header [has the format](Self::has_format).
    pub fn time(&self) -> &'a [u8] {
        &self.header[..CHECKED_LEN - 1]
    }

    /// Returns the three bytes of stream number and kind as written in the header.
    pub const fn source(&self) -> [u8; 3] {
        [self.header[NUMBER_AT], self.header[NUMBER_AT + 1], self.header[KIND_AT]]
    }

    /// True if the marks of the format are in their places (logs.md §7, strict reader).
    pub fn has_format(&self) -> bool {
        has_format(self.header)
    }
}

/// One line of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// An entry.
    Entry(Entry<'a>),
    /// A line too short to be an entry, without its line feed (logs.md §7, rule 1).
    Malformed(&'a [u8]),
}

/// Strictness of a parser about the start of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Checks nothing. A log that is read from the middle needs this.
    Lenient,
    /// The first line must begin with a header (logs.md §7, rule 2).
    Strict,
}

/// The input is not a log in this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the first line is no log entry: it does not begin with a time and a blank; read the log as raw bytes"
)]
pub struct NotALog;

/// Splits a byte stream into lines (logs.md §7, rules 1, 2 and 5).
///
/// Holds the bytes of one incomplete line and nothing else.
pub struct Parser {
    partial: Vec<u8>,
    check: Check,
}

impl Parser {
    /// Makes a parser for the start of a log, or, with [`Check::Lenient`], for the start of any line.
    pub const fn new(check: Check) -> Self {
        Self { partial: Vec::new(), check }
    }

    /// Takes the next bytes and passes each line that they complete to `give`.
    ///
    /// A line without a line feed is kept for the next call. If the line feed never comes, the line is never passed on.
    pub fn push(&mut self, mut bytes: &[u8], mut give: impl FnMut(Line<'_>)) -> Result<(), NotALog> {
        if !self.partial.is_empty() {
            let Some(end) = memchr(b'\n', bytes) else {
                self.partial.extend_from_slice(bytes);
                return Ok(());
            };
            self.partial.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            // Taken out for the call, then put back to reuse its capacity.
            let mut line = std::mem::take(&mut self.partial);
            self.give(&line, &mut give)?;
            line.clear();
            self.partial = line;
        }
        while let Some(end) = memchr(b'\n', bytes) {
            self.give(&bytes[..end], &mut give)?;
            bytes = &bytes[end + 1..];
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn give(&mut self, line: &[u8], give: &mut impl FnMut(Line<'_>)) -> Result<(), NotALog> {
        if self.check == Check::Strict {
            if !has_format(line) {
                return Err(NotALog);
            }
            self.check = Check::Lenient;
        }
        give(Entry::parse(line).map_or(Line::Malformed(line), Line::Entry));
        Ok(())
    }
}

/// The strict reader's check of a line's first bytes (logs.md §7).
fn has_format(line: &[u8]) -> bool {
    const MARKS: [(usize, u8); 8] =
        [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'.'), (26, b'Z'), (27, b' ')];
    line.len() >= CHECKED_LEN && MARKS.iter().all(|&(at, mark)| line[at] == mark)
}
