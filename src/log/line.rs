//! Reading a log: bytes in any pieces to entries, entries to the output they stand for (logs.md §7).
//!
//! [`Parser`] finds the entries. [`Joiner`] undoes the cuts: it gives back the bytes each source wrote. [`Live`] does
//! the same without waiting for the next entry, for a stream that somebody is watching. No IO.

mod join;
#[cfg(test)]
mod tests;

pub use join::{Joiner, Live};

use memchr::memchr;

use super::frame::{CONTINUES, HEADER_LEN, HOLD_MAX, Kind};

/// Where the parts of a header begin (logs.md §1).
const NUMBER_AT: usize = 28;
const KIND_AT: usize = 30;
const FLAG_AT: usize = 31;

/// Bytes of the header that the format check looks at: the time and the blank after it (logs.md §7).
const CHECKED_LEN: usize = 28;

/// Tells the sources of a log apart: stream number and kind (logs.md §7, rule 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The two bytes of the stream number as they stand in the header, `01` for a step.
    pub number: [u8; 2],
    /// Standard output, also for a kind that is none; or standard error.
    pub kind: Kind,
}

impl Key {
    /// Whether the daemon itself wrote the entry (logs.md §2).
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
    /// Reads a line, given without its line feed; `None` if it is too short (logs.md §7, rule 1).
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        line.split_first_chunk().map(|(header, body)| Self { header, body })
    }

    /// The bytes in front of the body.
    pub const fn header(&self) -> &'a [u8] {
        self.header
    }

    /// The source.
    pub const fn key(&self) -> Key {
        let kind = if self.header[KIND_AT] == b'E' { Kind::Err } else { Kind::Out };
        Key { number: [self.header[NUMBER_AT], self.header[NUMBER_AT + 1]], kind }
    }

    /// Whether the entry continues the one before it of the same source; any other flag counts as a full entry.
    pub const fn continues(&self) -> bool {
        self.header[FLAG_AT] == CONTINUES
    }

    /// Whether the source wrote the entry's line feed, or has ended: only a body with a carriage return in it, or of more
    /// than 8,160 bytes, may have been put out before its line's end (logs.md §3, rules 2 and 3).
    pub fn ends_line(&self) -> bool {
        self.key().is_daemon()
            || self.body.len() <= HOLD_MAX - HEADER_LEN && memchr(b'\r', self.body).is_none()
    }

    /// The bytes of the time: `YYYY-MM-DDTHH:MM:SS.uuuuuuZ` if the header [is one](Self::has_format).
    pub fn time(&self) -> &'a [u8] {
        &self.header[..CHECKED_LEN - 1]
    }

    /// The three bytes of stream number and kind as they stand in the header.
    pub const fn source(&self) -> [u8; 3] {
        [self.header[NUMBER_AT], self.header[NUMBER_AT + 1], self.header[KIND_AT]]
    }

    /// Whether the marks of the format are where they belong (logs.md §7, strict reader).
    pub fn has_format(&self) -> bool {
        has_format(self.header)
    }
}

/// One line of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// An entry.
    Entry(Entry<'a>),
    /// A line too short to be one, without its line feed (logs.md §7, rule 1).
    Malformed(&'a [u8]),
}

/// Whether the start of the input is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// No check; the only choice for a log that is read from the middle.
    Lenient,
    /// The first line must begin with a header (logs.md §7, rule 2).
    Strict,
}

/// The input is no log in this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the first line is no log entry: it does not begin with a time and a blank; read the log as raw bytes"
)]
pub struct NotALog;

/// Finds the lines in bytes that arrive in any pieces (logs.md §7, rules 1, 2 and 5).
///
/// Holds the bytes of one incomplete line and nothing else.
pub struct Parser {
    partial: Vec<u8>,
    check: Check,
}

impl Parser {
    /// A parser at the start of a log, or, if [`Check::Lenient`], at the start of any line.
    pub const fn new(check: Check) -> Self {
        Self { partial: Vec::new(), check }
    }

    /// Takes the next bytes and gives each line complete by them to `give`.
    ///
    /// A line without its line feed is kept for the next call; one that never gets it is never given out.
    pub fn push(&mut self, mut bytes: &[u8], mut give: impl FnMut(Line<'_>)) -> Result<(), NotALog> {
        if !self.partial.is_empty() {
            let Some(end) = memchr(b'\n', bytes) else {
                self.partial.extend_from_slice(bytes);
                return Ok(());
            };
            self.partial.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            // Taken out for the call and put back for its capacity.
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

    /// The bytes of the last line, as long as its line feed is missing.
    pub fn incomplete(&self) -> &[u8] {
        &self.partial
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

/// The check of a strict reader on the first bytes of a line (logs.md §7).
fn has_format(line: &[u8]) -> bool {
    const MARKS: [(usize, u8); 8] =
        [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'.'), (26, b'Z'), (27, b' ')];
    line.len() >= CHECKED_LEN && MARKS.iter().all(|&(at, mark)| line[at] == mark)
}
