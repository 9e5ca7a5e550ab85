//! The log limit (logs.md §6).

use super::output_bytes;
use crate::frame::Stamp;
use crate::words::{DaemonLine, Warning};

/// Bytes at the end of the limit that are reserved for the daemon's own lines (logs.md §6).
pub(crate) const OWN_RESERVE: u64 = 4096;

/// Bytes of [`OWN_RESERVE`] that are reserved for the two lines about the limit itself.
const NOTICE_RESERVE: u64 = 256;

/// Source of a batch of entries. It decides how close to the limit they may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOrigin {
    /// A process of a step.
    Step,
    /// The daemon itself.
    Daemon,
}

/// Decides which entries fit below the log limit, and counts the output of the others (logs.md §6).
#[derive(Debug)]
pub struct LogBudget {
    limit: u64,
    pub(super) written: u64,
    pub(super) dropped: u64,
    reached: bool,
}

impl LogBudget {
    /// Makes a budget of `limit` bytes for a log that already holds `written` bytes.
    pub const fn new(limit: u64, written: u64) -> Self {
        Self { limit, written, dropped: 0, reached: false }
    }

    /// True once output of a step was cut off: no more is admitted.
    pub(crate) const fn is_reached(&self) -> bool {
        self.reached
    }

    /// Admits the whole entries in `out[from..]` that fit, and cuts the others off the end of `out`.
    ///
    /// The first entry of a step that does not fit is replaced by a `log limit reached` entry with the time `now`.
    /// After it no entry of a step is admitted, however short.
    pub(crate) fn admit(&mut self, origin: LogOrigin, out: &mut Vec<u8>, from: usize, now: &Stamp) {
        let entries = out.get(from..).unwrap_or_default();
        let room = match origin {
            LogOrigin::Step if self.reached => 0,
            LogOrigin::Step => self.room(OWN_RESERVE),
            LogOrigin::Daemon => self.room(NOTICE_RESERVE),
        };
        let fits = whole_entries(entries, room);
        let cut = entries.len() > fits;
        self.dropped += output_bytes(&entries[fits..]);
        self.written += fits as u64;
        if cut {
            out.truncate(from + fits);
            if origin == LogOrigin::Step && !self.reached {
                self.reached = true;
                self.add_notice(&DaemonLine::LimitReached { limit: self.limit }, now, out);
            }
        }
    }

    /// Appends the final line about the limit to `out`, once, at the job's end: `warning: N bytes of output dropped`.
    ///
    /// N counts the bodies with their line feeds. Nothing is appended if nothing was dropped.
    pub(crate) fn close(&mut self, now: &Stamp, out: &mut Vec<u8>) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            let warning = Warning::OutputDropped { bytes: dropped };
            self.add_notice(&DaemonLine::Warning(warning), now, out);
        }
    }

    /// Frees the room of `bytes` that were admitted but never written to the file.
    pub(crate) const fn give_back(&mut self, bytes: u64) {
        self.written = self.written.saturating_sub(bytes);
    }

    /// Counts `bytes` that are written without [`LogBudget::admit`]: the daemon's notices.
    pub(super) const fn charge(&mut self, bytes: u64) {
        self.written += bytes;
    }

    fn room(&self, reserve: u64) -> u64 {
        self.limit.saturating_sub(reserve).saturating_sub(self.written)
    }

    fn add_notice(&mut self, line: &DaemonLine<'_>, now: &Stamp, out: &mut Vec<u8>) {
        let before = out.len();
        line.append_to(now, out);
        self.charge((out.len() - before) as u64);
    }
}

/// Returns the length of the longest run of whole entries at the start of `entries` that fits into `room` bytes.
fn whole_entries(entries: &[u8], room: u64) -> usize {
    match usize::try_from(room).ok().and_then(|room| entries.get(..room)) {
        Some(fitting) => memchr::memrchr(b'\n', fitting).map_or(0, |last| last + 1),
        None => entries.len(),
    }
}
