//! Reads a log for one follower: from its own offset, in messages of a size that suits it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::{LogFeed, LogProgress, storage_failed};
use crate::actors::followers::Follower;
use crate::actors::watched::Seen;
use crate::model::{Reason, Refusal};
use crate::store::LogFile;

/// Largest piece of log in one message (service.md §3.2).
pub const MAX_MESSAGE: usize = 64 << 10;

/// Largest first message of a stream; the limit doubles with each message. A client can use only complete messages: on
/// a line too slow for the largest ones, small ones still make progress (connectors.md §3).
pub(super) const FIRST_MESSAGE: usize = 4 << 10;

/// Messages below this many bytes are joined: thousands of small frames that a reader leaves unread make HTTP/2
/// implementations close the connection (faults.md §3, fact 1).
const SMALL_MESSAGE: u64 = 256;

/// Until this long after the last message, a small message waits for more bytes (service.md §3.2).
const JOIN_TIME: Duration = Duration::from_millis(20);

/// Next part of a log for a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogPart {
    /// The next bytes.
    Bytes(Bytes),
    /// The entry of an unfinished line, as far as it is known and without a line feed. It is not part of the log, and
    /// it becomes void once an entry of the same source follows.
    Unfinished(Bytes),
}

/// Position of one follower in a log. Dropping it ends the following.
pub struct LogCursor {
    feed: Arc<LogFeed>,
    /// The progress of `feed` that this cursor has seen last.
    seen: Seen,
    follower: Follower<LogFile>,
    offset: u64,
    last: Option<Instant>,
    /// Size limit of the next message.
    largest: usize,
    /// Number of the last report of an unfinished line that was returned; `None` if the follower wants none.
    unfinished_seen: Option<u64>,
}

impl LogCursor {
    pub(super) fn new(feed: &Arc<LogFeed>, follower: Follower<LogFile>, offset: u64) -> Self {
        Self {
            feed: Arc::clone(feed),
            seen: Seen::default(),
            follower,
            offset,
            last: None,
            largest: FIRST_MESSAGE,
            unfinished_seen: None,
        }
    }

    /// Offset of the next byte.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Current length and state of the log.
    pub(crate) fn progress(&self) -> LogProgress {
        self.feed.progress.get()
    }

    /// Makes [`Self::next_part`] return unfinished lines too.
    #[must_use]
    pub(crate) fn with_unfinished(self) -> Self {
        Self { unfinished_seen: Some(0), ..self }
    }

    /// Waits for the next bytes and returns them; `None` at the end of the log of an ended job. Returns at most
    /// `most()` bytes, and fewer at the start of a stream (`FIRST_MESSAGE`). Stops after the last line end among them,
    /// if there is one.
    pub async fn next(&mut self, most: impl Fn() -> usize) -> Result<Option<Bytes>, Refusal> {
        loop {
            match self.next_part(&most).await? {
                Some(LogPart::Bytes(bytes)) => return Ok(Some(bytes)),
                Some(LogPart::Unfinished(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// Waits for the next bytes like [`Self::next`], or for an unfinished line after the bytes returned so far.
    pub(crate) async fn next_part(&mut self, most: impl Fn() -> usize) -> Result<Option<LogPart>, Refusal> {
        loop {
            let now = self.feed.progress.see(&mut self.seen);
            let ready = now.len.saturating_sub(self.offset);
            if ready == 0 {
                if now.lost {
                    return Err(storage_failed(now.len));
                }
                if now.ended {
                    return Ok(None);
                }
                if let Some(line) = self.unfinished() {
                    return Ok(Some(LogPart::Unfinished(line)));
                }
            } else if now.ended || ready >= SMALL_MESSAGE || self.joined() {
                return self.read(now.len, most()).map(|bytes| Some(LogPart::Bytes(bytes)));
            }
            self.wait(ready > 0).await;
        }
    }

    /// Returns the next unfinished line, if there is one and the follower wants it.
    fn unfinished(&mut self) -> Option<Bytes> {
        let line = self.feed.unfinished_after(self.unfinished_seen?, self.offset)?;
        self.unfinished_seen = Some(line.report);
        Some(line.entry)
    }

    /// True if enough time has passed since the last message to send a small one.
    fn joined(&self) -> bool {
        self.last.is_none_or(|at| at.elapsed() >= JOIN_TIME)
    }

    async fn wait(&mut self, holding: bool) {
        let deadline = self.last.filter(|_| holding).map(|at| at + JOIN_TIME);
        let changed = self.feed.progress.newer(self.seen);
        match deadline {
            Some(at) => tokio::select! {
                () = changed => {}
                () = sleep_until(at) => {}
            },
            None => changed.await,
        }
    }

    fn read(&mut self, len: u64, most: usize) -> Result<Bytes, Refusal> {
        let file = self.follower.file()?;
        let mut piece = file
            .read_piece(self.offset, len, self.largest.min(most))
            .map_err(|lost| Refusal::caused(Reason::DataLoss, &lost))?;
        if let Some(end) = memchr::memrchr(b'\n', &piece) {
            piece.truncate(end + 1);
        }
        self.largest = (2 * self.largest).min(MAX_MESSAGE);
        self.offset += piece.len() as u64;
        self.last = Some(Instant::now());
        Ok(Bytes::from(piece))
    }
}
