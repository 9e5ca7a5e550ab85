//! Entries on their way to the file, and the hole that a full disk leaves (logs.md §4, §6).

use std::time::Duration;

use super::{LogBudget, Origin, output_bytes};
use crate::log::frame::{Kind, Stamp, daemon_lines};

/// How long a refused write waits for the next attempt (logs.md §6).
pub const RETRY_EVERY: Duration = Duration::from_secs(1);

/// After this time without a byte accepted, output is dropped (logs.md §6).
pub const GIVE_UP_AFTER: Duration = Duration::from_mins(1);

/// What the writer does with the pipes (logs.md §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The file takes what it is given: read the pipes.
    Flowing,
    /// The file refuses: leave the pipes alone and try again every [`RETRY_EVERY`].
    Waiting,
    /// The file has refused for [`GIVE_UP_AFTER`]: read the pipes, try each batch once.
    Dropping,
}

/// The entries of one job that are not in its log file yet (logs.md §4, §6).
///
/// The caller appends entries with [`Backlog::append`], writes [`Backlog::pending`] to the file, and tells what came
/// of it with [`Backlog::accepted`] or [`Backlog::refused`]. In the file there are then whole entries only, in the
/// order they came, below the limit, and lost output is marked at the place where it is missing.
pub struct Backlog {
    budget: LogBudget,
    /// Bytes not yet in the file. They begin inside an entry when the file took a part of it (`torn`).
    pending: Vec<u8>,
    torn: bool,
    state: State,
    /// The monotonic time of the first refusal since a byte was accepted.
    refused_since: Option<Duration>,
    /// Bytes of output lost since the last hole was marked.
    lost: u64,
    /// The mark of a hole that waits in `pending`.
    mark: Option<Mark>,
}

/// A `bytes of output lost` entry that has not begun to be written.
struct Mark {
    /// Where in `pending` it begins.
    at: usize,
    /// Its bytes without the header.
    bytes: u64,
    /// The loss it tells of.
    lost: u64,
}

impl Backlog {
    /// An empty backlog for a log with this budget.
    pub const fn new(budget: LogBudget) -> Self {
        Self {
            budget,
            pending: Vec::new(),
            torn: false,
            state: State::Flowing,
            refused_since: None,
            lost: 0,
            mark: None,
        }
    }

    /// Appends the whole entries that `fill` puts into the buffer it is given, as far as the limit allows.
    ///
    /// `fill` may only append.
    pub fn append(&mut self, origin: Origin, now: &Stamp, fill: impl FnOnce(&mut Vec<u8>)) {
        self.mark_hole(now);
        let from = self.pending.len();
        fill(&mut self.pending);
        self.budget.admit(origin, &mut self.pending, from, now);
    }

    /// Appends what is left to say at the job's end: bytes lost, bytes dropped (logs.md §6).
    pub fn close(&mut self, now: &Stamp) {
        self.mark_hole(now);
        self.budget.close(now, &mut self.pending);
    }

    /// The bytes to write to the end of the file next.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// The file took the first `bytes` of [`Backlog::pending`].
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
        self.state = State::Flowing;
    }

    /// The file refused to take anything at the monotonic time `now`. Returns what to do with the pipes.
    ///
    /// Once the wait is over, all entries but the rest of a torn one are dropped and counted.
    pub fn refused(&mut self, now: Duration) -> State {
        let since = *self.refused_since.get_or_insert(now);
        if now.saturating_sub(since) < GIVE_UP_AFTER {
            self.state = State::Waiting;
        } else {
            self.state = State::Dropping;
            self.drop_pending();
        }
        self.state
    }

    /// What to do with the pipes.
    pub const fn state(&self) -> State {
        self.state
    }

    /// The budget, to ask how much was written and dropped.
    pub const fn budget(&self) -> &LogBudget {
        &self.budget
    }

    /// Whether a hole is yet to be marked in the file, though no entry is pending for it.
    pub const fn has_unmarked_hole(&self) -> bool {
        self.lost > 0
    }

    /// Drops what has not begun to be written. The rest of a torn entry stays: the log holds whole entries.
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
            // The mark is no output; the loss it told of is untold again.
            self.lost = self.lost.saturating_sub(mark.bytes) + mark.lost;
        }
        self.pending.truncate(keep);
    }

    /// Puts the mark of a hole behind what is pending, in front of what comes next.
    fn mark_hole(&mut self, now: &Stamp) {
        let lost = std::mem::take(&mut self.lost);
        if lost == 0 {
            return;
        }
        let at = self.pending.len();
        let text = format!("warning: {lost} bytes of output lost");
        daemon_lines(Kind::Err, text.as_bytes(), now, &mut self.pending);
        let mark = self.pending.get(at..).unwrap_or_default();
        self.budget.charge(mark.len() as u64);
        self.mark = Some(Mark { at, bytes: output_bytes(mark), lost });
    }
}
