//! The log limit (logs.md §6).

use super::output_bytes;
use crate::log::frame::{Kind, Stamp, daemon_lines};

/// The last bytes below the limit are for the daemon's own lines (logs.md §6).
pub const OWN_RESERVE: u64 = 4096;

/// The last bytes of [`OWN_RESERVE`] are for the two lines about the limit itself, which must not miss.
const NOTICE_RESERVE: u64 = 256;

/// Whose entries a batch holds; the two have different room below the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process of a step, or a service.
    Step,
    /// The daemon itself.
    Daemon,
}

/// Decides which entries still fit below the log limit, and counts the others (logs.md §6).
#[derive(Debug)]
pub struct LogBudget {
    limit: u64,
    written: u64,
    dropped: u64,
    reached: bool,
}

impl LogBudget {
    /// A budget of `limit` bytes for a log that holds `written` bytes already.
    pub const fn new(limit: u64, written: u64) -> Self {
        Self { limit, written, dropped: 0, reached: false }
    }

    /// Admits the whole entries in `out[from..]`: those that do not fit are cut off the end of `out`.
    ///
    /// The first entry of a step that does not fit is replaced by one `log limit reached` entry with the time `now`;
    /// from then on no entry of a step is admitted, however short.
    pub fn admit(&mut self, origin: Origin, out: &mut Vec<u8>, from: usize, now: &Stamp) {
        let entries = out.get(from..).unwrap_or_default();
        let room = match origin {
            Origin::Step if self.reached => 0,
            Origin::Step => self.room(OWN_RESERVE),
            Origin::Daemon => self.room(NOTICE_RESERVE),
        };
        let fits = whole_entries(entries, room);
        let cut = entries.len() > fits;
        self.dropped += output_bytes(&entries[fits..]);
        self.written += fits as u64;
        if cut {
            out.truncate(from + fits);
            if origin == Origin::Step && !self.reached {
                self.reached = true;
                let text = format!("log limit reached: {} bytes; later output is dropped", self.limit);
                self.add_notice(&text, now, out);
            }
        }
    }

    /// Appends the last word about the limit to `out`, once, at the job's end: `warning: N bytes of output dropped`.
    ///
    /// N counts the bodies with their line feeds. Nothing is appended if nothing was dropped.
    pub fn close(&mut self, now: &Stamp, out: &mut Vec<u8>) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.add_notice(&format!("warning: {dropped} bytes of output dropped"), now, out);
        }
    }

    /// Gives back the room of `bytes` that were admitted but never came into the file.
    pub const fn give_back(&mut self, bytes: u64) {
        self.written = self.written.saturating_sub(bytes);
    }

    /// Counts `bytes` that go into the file without being asked for: a notice.
    pub(super) const fn charge(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// Whether the limit was reached, so that output of steps need not be formatted any more.
    pub const fn reached(&self) -> bool {
        self.reached
    }

    /// Bytes of output dropped so far and not yet told by [`LogBudget::close`].
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes that are in the file, or admitted to it.
    pub const fn written(&self) -> u64 {
        self.written
    }

    fn room(&self, reserve: u64) -> u64 {
        self.limit.saturating_sub(reserve).saturating_sub(self.written)
    }

    fn add_notice(&mut self, text: &str, now: &Stamp, out: &mut Vec<u8>) {
        let before = out.len();
        daemon_lines(Kind::Err, text.as_bytes(), now, out);
        self.charge((out.len() - before) as u64);
    }
}

/// The length of the longest run of whole entries at the start of `entries` that fits into `room` bytes.
fn whole_entries(entries: &[u8], room: u64) -> usize {
    match usize::try_from(room).ok().and_then(|room| entries.get(..room)) {
        Some(fitting) => memchr::memrchr(b'\n', fitting).map_or(0, |last| last + 1),
        None => entries.len(),
    }
}
