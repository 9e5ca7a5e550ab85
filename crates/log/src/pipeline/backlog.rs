//! Entries that wait to be written to the log file, and the holes that a full disk leaves (logs.md §4, §6).

use std::time::Duration;

use super::{LogBudget, LogOrigin, output_bytes};
use crate::frame::Stamp;
use crate::words::{DaemonLine, Warning};

/// Interval between attempts to write after a refusal (logs.md §6).
pub const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Output is dropped once the file has accepted no byte for this long (logs.md §6).
pub const GIVE_UP_AFTER: Duration = Duration::from_mins(1);

/// Tells the writer what to do with the pipes (logs.md §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterState {
    /// The file accepts bytes: read the pipes.
    Flowing,
    /// The file refuses bytes: do not read the pipes, and retry every [`RETRY_EVERY`].
    Waiting,
    /// The file has refused bytes for [`GIVE_UP_AFTER`]: read the pipes and try to write each batch once.
    Dropping,
}

/// Entries of one job that are not in its log file yet (logs.md §4, §6).
///
/// The caller appends entries with [`Backlog::append`], writes [`Backlog::pending`] to the file, and reports the result
/// with [`Backlog::accepted`] or [`Backlog::refused`]. The file then has only whole entries, in their order and below
/// the limit, with a mark wherever output was lost.
pub struct Backlog {
    pub(super) budget: LogBudget,
    /// Bytes not yet in the file. If `torn`, they begin inside an entry whose first part the file has accepted.
    pending: Vec<u8>,
    torn: bool,
    state: WriterState,
    /// The monotonic time of the first refusal since a byte was accepted.
    refused_since: Option<Duration>,
    /// Bytes of output lost since the last mark of a hole.
    lost: u64,
    /// The mark of a hole that is still in `pending`.
    mark: Option<Mark>,
}

/// A `bytes of output lost` entry that has not begun to be written.
struct Mark {
    /// Offset in `pending`.
    at: usize,
    /// Length without the header, in bytes.
    bytes: u64,
    /// The lost bytes that it reports.
    lost: u64,
}

impl Backlog {
    /// Makes an empty backlog for a log with this budget.
    pub const fn new(budget: LogBudget) -> Self {
        Self {
            budget,
            pending: Vec::new(),
            torn: false,
            state: WriterState::Flowing,
            refused_since: None,
            lost: 0,
            mark: None,
        }
    }

    /// Appends the whole entries that `fill` writes to the buffer, as far as the limit allows.
    ///
    /// `fill` must only append.
    pub fn append(&mut self, origin: LogOrigin, now: &Stamp, fill: impl FnOnce(&mut Vec<u8>)) {
        self.mark_hole(now);
        let from = self.pending.len();
        fill(&mut self.pending);
        self.budget.admit(origin, &mut self.pending, from, now);
    }

    /// Appends the final lines at the job's end: bytes lost, bytes dropped (logs.md §6).
    pub fn close(&mut self, now: &Stamp) {
        self.mark_hole(now);
        self.budget.close(now, &mut self.pending);
    }

    /// True if the output of steps reaches the file: it takes bytes, and the limit is not reached.
    pub fn takes_output(&self) -> bool {
        self.state == WriterState::Flowing && !self.budget.is_reached()
    }

    /// Returns the bytes to append to the file next.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Reports that the file accepted the first `bytes` of [`Backlog::pending`].
    pub fn accepted(&mut self, bytes: usize) {
        let bytes = bytes.min(self.pending.len());
        let Some(last) = bytes.checked_sub(1) else { return };
        self.torn = self.pending[last] != b'\n';
        match &mut self.mark {
            Some(mark) if bytes > mark.at => self.mark = None,
            Some(mark) => mark.at -= bytes,
            None => {}
        }
        if bytes == self.pending.len() {
            self.pending.clear();
        } else {
            self.pending.drain(..bytes);
        }
        self.refused_since = None;
        self.state = WriterState::Flowing;
    }

    /// Reports that the file accepted nothing at the monotonic time `now`. Returns what to do with the pipes.
    ///
    /// After [`GIVE_UP_AFTER`] all entries except the rest of a torn one are dropped and counted.
    pub fn refused(&mut self, now: Duration) -> WriterState {
        let since = *self.refused_since.get_or_insert(now);
        if now.saturating_sub(since) < GIVE_UP_AFTER {
            self.state = WriterState::Waiting;
        } else {
            self.state = WriterState::Dropping;
            self.drop_pending();
        }
        self.state
    }

    /// Returns what to do with the pipes.
    pub const fn state(&self) -> WriterState {
        self.state
    }

    /// True if output was lost and no mark for it is pending yet.
    pub const fn has_unmarked_hole(&self) -> bool {
        self.lost > 0
    }

    /// Drops entries of which nothing is in the file. The rest of a torn entry stays: the log holds whole entries.
    fn drop_pending(&mut self) {
        let keep = if self.torn {
            memchr::memchr(b'\n', &self.pending).map_or(self.pending.len(), |end| end + 1)
        } else {
            0
        };
        let dropped = &self.pending[keep..];
        self.budget.give_back(dropped.len() as u64);
        self.lost += output_bytes(dropped);
        if let Some(mark) = self.mark.take() {
            // The mark itself is no output. The loss that it reported is unreported again.
            self.lost = self.lost.saturating_sub(mark.bytes) + mark.lost;
        }
        self.pending.truncate(keep);
    }

    /// Appends the mark of a hole to `pending`, before the entries that come next.
    fn mark_hole(&mut self, now: &Stamp) {
        let lost = std::mem::take(&mut self.lost);
        if lost == 0 {
            return;
        }
        let at = self.pending.len();
        DaemonLine::Warning(Warning::OutputLost { bytes: lost }).append_to(now, &mut self.pending);
        let mark = self.pending.get(at..).unwrap_or_default();
        self.budget.charge(mark.len() as u64);
        self.mark = Some(Mark { at, bytes: output_bytes(mark), lost });
    }
}
