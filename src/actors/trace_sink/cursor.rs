//! Positions of followers in the stored results and events.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{TraceFeed, lost};
use crate::actors::followers::Follower;
use crate::actors::log_sink::LogFeed;
use crate::actors::watched::Seen;
use crate::error::Chain;
use crate::model::Refusal;
use crate::store::StepsFile;

/// Shortest time between two marks alone: a reader does not notice it, and short messages cost as much as long ones.
const MARK_EVERY: Duration = Duration::from_millis(20);

/// What a follower can read.
enum Ready {
    Stored(Vec<u8>),
    Nothing,
    Ended,
}

/// Position of one follower in the results.
pub struct TraceCursor {
    pub(super) feed: Arc<TraceFeed>,
    /// The progress of `feed` that this cursor has seen last.
    pub(super) seen: Seen,
    /// `None` if the job has ended without any result.
    pub(super) follower: Option<Follower<StepsFile>>,
    pub(super) offset: u64,
}

impl TraceCursor {
    /// Returns the next result as stored, or `None` after the last one of an ended job.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Refusal> {
        loop {
            match self.ready()? {
                Ready::Stored(bytes) => return Ok(Some(bytes)),
                Ready::Ended => return Ok(None),
                Ready::Nothing => self.feed.progress.newer(self.seen).await,
            }
        }
    }

    /// Returns what can be read now.
    fn ready(&mut self) -> Result<Ready, Refusal> {
        let now = self.feed.progress.see(&mut self.seen);
        if self.offset < now.len {
            return self.read(now.len).map(Ready::Stored);
        }
        if now.lost {
            return Err(lost(
                "storage error: the remaining results are missing or may be damaged; see the daemon's own log",
            ));
        }
        if now.ended && now.len == 0 {
            // Every ended job has at least the root's result.
            return Err(lost("there are none"));
        }
        Ok(if now.ended { Ready::Ended } else { Ready::Nothing })
    }

    fn read(&mut self, len: u64) -> Result<Vec<u8>, Refusal> {
        let file = self.follower.as_ref().ok_or_else(|| lost("there are none"))?.file()?;
        let (record, end) = file.record_at(self.offset, len).map_err(|e| lost(&Chain(&e).to_string()))?;
        self.offset = end;
        Ok(record)
    }
}

/// A part of the stream with events.
#[derive(Debug, PartialEq, Eq)]
pub enum TracePart {
    /// A message as stored.
    Stored(Vec<u8>),
    /// Every event up to this length of the log was returned.
    Mark(u64),
}

/// Position of one follower in results and events.
pub struct EventCursor {
    trace: TraceCursor,
    log: Arc<LogFeed>,
    /// The state of `log` that this cursor has seen last.
    seen: Seen,
    told: u64,
    told_at: Option<Instant>,
}

impl EventCursor {
    pub(crate) fn new(trace: TraceCursor, log: Arc<LogFeed>) -> Self {
        Self { trace, log, seen: Seen::default(), told: 0, told_at: None }
    }

    /// Returns the next part, or `None` after the last one of an ended job.
    pub async fn next(&mut self) -> Result<Option<TracePart>, Refusal> {
        loop {
            self.log.see(&mut self.seen);
            // Taken before the events are read: so all of them up to there are read first.
            let mark = self.trace.feed.mark(&self.log);
            match self.trace.ready()? {
                Ready::Stored(bytes) => return Ok(Some(TracePart::Stored(bytes))),
                Ready::Ended => return Ok(None),
                Ready::Nothing => {}
            }
            let due = self.told_at.map_or_else(Instant::now, |at| at + MARK_EVERY);
            if mark > self.told {
                if due <= Instant::now() {
                    (self.told, self.told_at) = (mark, Some(Instant::now()));
                    return Ok(Some(TracePart::Mark(mark)));
                }
                tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.trace.feed.progress.newer(self.trace.seen) => {}
                }
                continue;
            }
            tokio::select! {
                () = self.trace.feed.progress.newer(self.trace.seen) => {}
                () = self.log.newer(self.seen) => {}
            }
        }
    }
}
