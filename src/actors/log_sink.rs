//! The log's way out: [`LogSink`] learns how long the log is, [`LogFeed`] wakes followers, a [`LogCursor`] reads.
//!
//! A sink is a file plus a wake-up, never a queue per follower: each follower owns its offset and reads the file itself,
//! so a slow one costs a cursor and nothing else (service.md §3.2). The bytes were written by the keeper.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use actix::{Actor, Addr, Context, Handler, Message};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::clock;
use crate::model::{Reason, Refusal};
use crate::store::LogFile;

/// Largest piece of log in one message (service.md §3.2).
pub const MAX_MESSAGE: usize = 64 << 10;

/// Messages below this many bytes are joined: thousands of small frames that a reader leaves unread make HTTP/2
/// implementations close the connection (faults.md, fact 1).
const SMALL_MESSAGE: u64 = 256;

/// How long a small message waits for more after the one before it (service.md §3.2).
const JOIN_TIME: Duration = Duration::from_millis(20);

/// How long a follower may still drain after Finish (service.md §3.2).
const DRAIN_TIME: Duration = Duration::from_mins(1);

/// What is known of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogProgress {
    /// Bytes written.
    pub len: u64,
    /// The job has ended: nothing will be added, and Status says so.
    pub ended: bool,
    /// The job was removed: followers must be done by then.
    pub expires: Option<Instant>,
}

/// What followers of one log share.
pub struct LogFeed {
    progress: watch::Sender<LogProgress>,
    followers: AtomicUsize,
    /// Largest length announced; the sink may not have got to it yet.
    announced: AtomicU64,
    /// When it grew last: milliseconds of [`clock::uptime`].
    grown_at: AtomicU64,
    /// The actor, as long as the log grows.
    sink: Mutex<Option<Addr<LogSink>>>,
}

impl LogFeed {
    /// A feed of a log that is `len` bytes long.
    pub fn new(len: u64, ended: bool) -> Arc<Self> {
        let (progress, _) = watch::channel(LogProgress { len, ended, expires: None });
        Arc::new(Self {
            progress,
            followers: AtomicUsize::new(0),
            announced: AtomicU64::new(len),
            grown_at: AtomicU64::new(clock::uptime().as_millis() as u64),
            sink: Mutex::new(None),
        })
    }

    /// The log is `len` bytes long, says the keeper. Wakes the sink; a full mailbox means that a wake-up is already on
    /// its way, and it will find this length.
    pub fn announce(&self, len: u64) {
        self.announced.fetch_max(len, Ordering::Relaxed);
        self.grown_at.store(clock::uptime().as_millis() as u64, Ordering::Relaxed);
        if let Some(sink) = &*self.sink.lock() {
            sink.try_send(Grew).ok();
        }
    }

    /// Length so far.
    pub fn len(&self) -> u64 {
        self.progress.borrow().len
    }

    /// The log is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The log is `len` bytes long now. Lengths only grow.
    fn grow(&self, len: u64) {
        self.progress.send_if_modified(|p| {
            let grows = len > p.len;
            p.len = p.len.max(len);
            grows
        });
    }

    /// Nothing will be added.
    pub fn end(&self, len: u64) {
        *self.sink.lock() = None;
        self.progress.send_modify(|p| (p.len, p.ended) = (len, true));
    }

    /// Returns when the job has ended.
    pub async fn ended(&self) {
        self.progress.subscribe().wait_for(|p| p.ended).await.ok();
    }

    /// When the log grew last, as [`clock::uptime`].
    pub fn grown_at(&self) -> Duration {
        Duration::from_millis(self.grown_at.load(Ordering::Relaxed))
    }

    /// The job is removed: followers have [`DRAIN_TIME`] left.
    pub fn expire(&self) {
        self.progress.send_modify(|p| (p.ended, p.expires) = (true, Some(Instant::now() + DRAIN_TIME)));
    }

    /// A follower at `offset` of the open log `file`.
    pub fn follow(self: &Arc<Self>, file: LogFile, offset: u64, max: usize) -> Result<LogCursor, Refusal> {
        let len = self.len();
        if offset > len {
            return Err(Refusal::new(
                Reason::OffsetPastEnd,
                format!(
                    "offset {offset} is past the log's end at {len}: this client follows another log than it thinks"
                ),
            ));
        }
        if self.followers.fetch_add(1, Ordering::Relaxed) >= max {
            self.followers.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::for_now(
                Reason::TooManyFollowers,
                format!("{max} followers read this log already"),
                Duration::from_secs(1),
            ));
        }
        let progress = self.progress.subscribe();
        Ok(LogCursor { feed: Arc::clone(self), file, progress, offset, last: None })
    }
}

/// One follower's place in a log. Dropping it is leaving.
pub struct LogCursor {
    feed: Arc<LogFeed>,
    file: LogFile,
    progress: watch::Receiver<LogProgress>,
    offset: u64,
    last: Option<Instant>,
}

impl Drop for LogCursor {
    fn drop(&mut self) {
        self.feed.followers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LogCursor {
    /// The next bytes, at most [`MAX_MESSAGE`], ending at a line's end unless the line is longer; `None` at the end of
    /// the log of an ended job.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let now = *self.progress.borrow_and_update();
            if now.expires.is_some_and(|at| at <= Instant::now()) && self.offset < now.len {
                return Err(Refusal::new(
                    Reason::FollowersDropped,
                    format!("the job was finished and this follower did not read on for {DRAIN_TIME:?}"),
                ));
            }
            let ready = now.len.saturating_sub(self.offset);
            if ready == 0 {
                if now.ended {
                    return Ok(None);
                }
            } else if now.ended || ready >= SMALL_MESSAGE || self.joined() {
                return self.read(now.len).map(Some);
            }
            self.wait(ready > 0).await;
        }
    }

    /// A small message may go: the one before it is long enough ago.
    fn joined(&self) -> bool {
        self.last.is_none_or(|at| at.elapsed() >= JOIN_TIME)
    }

    async fn wait(&mut self, holding: bool) {
        let deadline = self.last.filter(|_| holding).map(|at| at + JOIN_TIME);
        let changed = self.progress.changed();
        // The sender lives in `feed`, which this cursor holds, so `changed` cannot fail.
        match deadline {
            Some(at) => tokio::select! {
                _ = changed => {}
                () = sleep_until(at) => {}
            },
            None => drop(changed.await),
        }
    }

    fn read(&mut self, len: u64) -> Result<Bytes, Refusal> {
        let mut piece = self
            .file
            .read_piece(self.offset, len, MAX_MESSAGE)
            .map_err(|lost| Refusal::new(Reason::DataLoss, lost.to_string()))?;
        if let Some(end) = memchr::memrchr(b'\n', &piece) {
            piece.truncate(end + 1);
        }
        self.offset += piece.len() as u64;
        self.last = Some(Instant::now());
        Ok(Bytes::from(piece))
    }
}

/// The actor that moves a [`LogFeed`] forward while its job runs.
pub struct LogSink {
    feed: Arc<LogFeed>,
}

impl LogSink {
    /// Starts the sink of `feed`.
    pub fn begin(feed: &Arc<LogFeed>) {
        *feed.sink.lock() = Some(Self { feed: Arc::clone(feed) }.start());
    }
}

impl Actor for LogSink {
    type Context = Context<Self>;
}

/// The log has grown.
#[derive(Message)]
#[rtype(result = "()")]
struct Grew;

impl Handler<Grew> for LogSink {
    type Result = ();

    fn handle(&mut self, _: Grew, _: &mut Self::Context) {
        self.feed.grow(self.feed.announced.load(Ordering::Relaxed));
    }
}
