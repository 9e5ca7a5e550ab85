//! The formatter of one source: turns its masked writes into whole log entries (logs.md §1–§3).
//!
//! Owns only the bytes held back between two writes and the continuation flag. The caller passes the time and the
//! output buffer in. No clock, no IO, and no allocation per line.

mod stamp;
#[cfg(test)]
mod tests;

pub use stamp::{Stamp, Stamper};

use memchr::{memchr, memchr_iter, memrchr};

/// Length of an entry's header in bytes: time, blank, stream number, kind, flag (logs.md §1).
pub const HEADER_LEN: usize = 32;

/// A write is added to a held entry only if the entry, header included, stays within this many bytes (logs.md §3).
pub(crate) const HOLD_MAX: usize = 8192;

/// The stream number of the daemon's own lines (logs.md §2).
pub(crate) const DAEMON: u8 = 0;

/// The stream number of a step's output (logs.md §2).
pub const STEP: u8 = 1;

/// The flag of an entry that begins a line (logs.md §1).
pub(crate) const FULL: u8 = b' ';

/// The flag of an entry that continues the one before it of the same source (logs.md §1).
pub(crate) const CONTINUES: u8 = b'+';

pub use step_runner_model::LogChannel;

/// The formatter of one source (logs.md §3).
///
/// Every call appends whole entries to `out`. An incomplete entry is held, with at most [`HOLD_MAX`] bytes of body.
pub struct Framer {
    number: u8,
    kind: LogChannel,
    /// Flag of the next header.
    flag: u8,
    /// Either empty, or a header and the body bytes that wait for the end of their line.
    held: Vec<u8>,
}

impl Framer {
    /// Makes a formatter for the stream `number` (see [`DAEMON`] and [`STEP`]) and `kind`.
    pub const fn new(number: u8, kind: LogChannel) -> Self {
        Self { number, kind, flag: FULL, held: Vec::new() }
    }

    /// Takes one write of the source, made at `now`, and appends the entries that it completes to `out` (logs.md §3,
    /// rules 1 to 4).
    ///
    /// The result depends on how the bytes were cut into writes. A write without a line feed is never split, so it can
    /// become an entry of any length.
    pub fn push(&mut self, write: &[u8], now: &Stamp, out: &mut Vec<u8>) {
        let rest = match memrchr(b'\n', write) {
            None => write,
            Some(last) => {
                let (lines, rest) = write.split_at(last + 1);
                self.push_lines(lines, now, out);
                rest
            }
        };
        if rest.is_empty() {
            return;
        }
        if memchr(b'\r', rest).is_some() || self.held.len() + rest.len() > HOLD_MAX {
            out.reserve(self.held.len() + HEADER_LEN + rest.len() + 1);
            self.begin_entry(now, out);
            out.extend_from_slice(rest);
            out.push(b'\n');
            self.flag = CONTINUES;
        } else {
            if self.held.is_empty() {
                let header = self.take_header(now);
                self.held.extend_from_slice(&header);
            }
            self.held.extend_from_slice(rest);
        }
    }

    /// Returns the entry that waits for the end of its line, so far and without a line feed; empty if there is none.
    pub(crate) fn unfinished(&self) -> &[u8] {
        &self.held
    }

    /// Closes the source: appends the held bytes to `out` as an entry (logs.md §3, Close).
    ///
    /// The formatter can be used again. A pending continuation flag survives.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.held.is_empty() {
            out.reserve(self.held.len() + 1);
            out.append(&mut self.held);
            out.push(b'\n');
        }
    }

    /// Appends an entry for each of `lines`, which must end in a line feed.
    fn push_lines(&mut self, lines: &[u8], now: &Stamp, out: &mut Vec<u8>) {
        let entries = memchr_iter(b'\n', lines).count();
        out.reserve(self.held.len() + lines.len() + entries * HEADER_LEN);

        let mut ends = memchr_iter(b'\n', lines);
        let Some(first) = ends.next() else { return };
        self.begin_entry(now, out);
        out.extend_from_slice(&lines[..=first]);

        // Only the first entry can continue an earlier one, so the others share one header.
        let header = self.header(now);
        let mut start = first + 1;
        for end in ends {
            out.extend_from_slice(&header);
            out.extend_from_slice(&lines[start..=end]);
            start = end + 1;
        }
    }

    /// Appends the held entry, or a new header if nothing is held.
    fn begin_entry(&mut self, now: &Stamp, out: &mut Vec<u8>) {
        if self.held.is_empty() {
            let header = self.take_header(now);
            out.extend_from_slice(&header);
        } else {
            out.append(&mut self.held);
        }
    }

    /// Makes a header and resets the pending flag.
    fn take_header(&mut self, now: &Stamp) -> [u8; HEADER_LEN] {
        let header = self.header(now);
        self.flag = FULL;
        header
    }

    fn header(&self, now: &Stamp) -> [u8; HEADER_LEN] {
        header(now, self.number, self.kind, self.flag)
    }
}

/// Appends the daemon's own `text` to `out`, one entry for each line: `00O` or `00E` by `kind` (logs.md §2).
///
/// A line feed at the very end adds no empty entry. The caller must have masked the text.
pub fn daemon_lines(kind: LogChannel, text: &[u8], now: &Stamp, out: &mut Vec<u8>) {
    let header = header(now, DAEMON, kind, FULL);
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    for line in text.split(|&byte| byte == b'\n') {
        out.reserve(HEADER_LEN + line.len() + 1);
        out.extend_from_slice(&header);
        out.extend_from_slice(line);
        out.push(b'\n');
    }
}

/// Makes the 32 bytes before a body (logs.md §1).
fn header(now: &Stamp, number: u8, kind: LogChannel, flag: u8) -> [u8; HEADER_LEN] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut header = [b' '; HEADER_LEN];
    let (time, source) = header.split_at_mut(Stamp::LEN);
    time.copy_from_slice(now.as_bytes());
    source[1] = HEX[usize::from(number >> 4)];
    source[2] = HEX[usize::from(number & 15)];
    source[3] = kind.letter();
    source[4] = flag;
    header
}
