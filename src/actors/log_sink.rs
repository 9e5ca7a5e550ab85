//! Delivery of the log: [`LogSink`] learns the log's length, [`LogFeed`] wakes followers, a [`LogCursor`] reads.
//!
//! A sink is a file plus a wake-up, never a queue per follower. Each follower owns its offset and reads the file
//! itself, so a slow follower costs only a cursor (service.md §3.2). The keeper writes the bytes. Under `durability =
//! power` followers see them only once they are on the disk.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::prelude::SendError;
use actix::{Actor, Addr, Context, Handler, Message};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::followers::{Follower, Followers};
use super::sync_group::{Growing, SyncGroup};
use super::watched::{Seen, Watched};
use crate::clock;
use crate::failpoint;
use crate::model::{LogChannel, Reason, Refusal};
use crate::store::{JobFolder, LogFile, StoreError};

/// Largest piece of log in one message (service.md §3.2).
pub const MAX_MESSAGE: usize = 64 << 10;

/// Largest first message of a stream; the limit doubles with each message. A client can use only complete messages: on
/// a line too slow for the largest ones, small ones still make progress (connectors.md §3).
const FIRST_MESSAGE: usize = 4 << 10;

/// Messages below this many bytes are joined: thousands of small frames that a reader leaves unread make HTTP/2
/// implementations close the connection (faults.md §3, fact 1).
const SMALL_MESSAGE: u64 = 256;

/// Until this long after the last message, a small message waits for more bytes (service.md §3.2).
const JOIN_TIME: Duration = Duration::from_millis(20);

/// Length and state of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogProgress {
    /// Number of bytes written; with `durability = power`, of those on the disk.
    pub(crate) len: u64,
    /// True if the storage failed: data after `len` may differ from what was written (faults.md row 27).
    pub(crate) lost: bool,
    /// True if the job has ended, as Status shows: the log is complete.
    pub(crate) ended: bool,
    /// Number of reports of unfinished lines so far.
    unfinished: u64,
}

/// Next part of a log for a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogPart {
    /// The next bytes.
    Bytes(Bytes),
    /// The entry of a line that has no end yet, so far and without a line feed. It is no part of the log, and void
    /// once an entry of its source follows.
    Unfinished(Bytes),
}

/// An unfinished line of a channel, as the keeper reported it last.
#[derive(Clone, Default)]
struct UnfinishedLine {
    /// Number of the report.
    report: u64,
    /// Length of the log before the line.
    log_len: u64,
    entry: Bytes,
}

/// The unfinished lines of a log.
#[derive(Default)]
struct UnfinishedLines {
    /// True once a follower has asked for them.
    are_watched: bool,
    stdout: UnfinishedLine,
    stderr: UnfinishedLine,
}

/// State shared by all followers of one log.
pub(crate) struct LogFeed {
    progress: Watched<LogProgress>,
    followers: Arc<Followers<LogFile>>,
    /// Largest announced length; the sink may not have handled it yet.
    announced: AtomicU64,
    /// Time of the last growth, in milliseconds of [`clock::uptime`].
    grown_at: AtomicU64,
    unfinished: Mutex<UnfinishedLines>,
    /// The actor, while the log grows.
    sink: Mutex<Option<Addr<LogSink>>>,
    disk: Option<Disk>,
}

/// Brings a log to the disk before followers see it.
struct Disk {
    group: Arc<SyncGroup>,
    folder: JobFolder,
}

impl LogFeed {
    /// Creates a feed of a log that is `len` bytes long.
    pub(crate) fn new(len: u64, ended: bool) -> Arc<Self> {
        Self::with(len, ended, None)
    }

    /// Creates a feed of a growing log. Followers can read the first `len` bytes at once. With a `group`, they can read
    /// further bytes only after it has synced them.
    pub(super) fn growing(len: u64, group: Option<Arc<SyncGroup>>, folder: &JobFolder) -> Arc<Self> {
        let disk = group.map(|group| Disk { group, folder: folder.clone() });
        Self::with(len, false, disk)
    }

    fn with(len: u64, ended: bool, disk: Option<Disk>) -> Arc<Self> {
        Arc::new(Self {
            progress: Watched::new(LogProgress { len, ended, ..LogProgress::default() }),
            followers: Followers::new("this log"),
            announced: AtomicU64::new(len),
            grown_at: AtomicU64::new(clock::uptime().as_millis() as u64),
            unfinished: Mutex::default(),
            sink: Mutex::new(None),
            disk,
        })
    }

    /// Notes the length that the keeper reports and wakes the sink. If the mailbox is full, a wake-up is already under
    /// way and will find this length.
    pub(crate) fn announce(self: &Arc<Self>, len: u64) {
        self.announced.fetch_max(len, Ordering::AcqRel);
        self.grown_at.store(clock::uptime().as_millis() as u64, Ordering::Relaxed);
        if let Some(disk) = &self.disk {
            if len > self.len() {
                disk.group.grew(Arc::clone(self) as Arc<dyn Growing>);
            }
        } else if let Some(Err(SendError::Closed(_))) =
            self.sink.lock().as_ref().map(|sink| sink.try_send(Grew))
        {
            // A defect ended the sink: wake the followers here.
            self.grow(len);
        }
    }

    /// Notes that a follower wants to see unfinished lines. True if it is the first one: the keeper must be asked.
    pub(super) fn watch_unfinished(&self) -> bool {
        !self.progress.get().ended && !std::mem::replace(&mut self.unfinished.lock().are_watched, true)
    }

    /// True if a follower wants to see unfinished lines.
    pub(super) fn is_unfinished_watched(&self) -> bool {
        self.unfinished.lock().are_watched
    }

    /// Notes an unfinished line that the keeper reports, or its end: then `entry` is empty.
    pub(super) fn report_unfinished(&self, channel: LogChannel, log_len: u64, entry: Vec<u8>) {
        let mut lines = self.unfinished.lock();
        if !lines.are_watched {
            return;
        }
        let report = self.progress.get().unfinished + 1;
        let line = match channel {
            LogChannel::Out => &mut lines.stdout,
            LogChannel::Err => &mut lines.stderr,
        };
        *line = UnfinishedLine { report, log_len, entry: Bytes::from(entry) };
        drop(lines);
        self.progress.change(|p| p.unfinished = report);
    }

    /// Returns the first unfinished line with a report after `seen` for a follower that has `offset` bytes.
    fn unfinished_after(&self, seen: u64, offset: u64) -> Option<UnfinishedLine> {
        let lines = self.unfinished.lock();
        let is_due =
            |line: &&UnfinishedLine| line.report > seen && line.log_len <= offset && !line.entry.is_empty();
        [&lines.stdout, &lines.stderr].into_iter().filter(is_due).min_by_key(|line| line.report).cloned()
    }

    /// Length that followers may read.
    pub(crate) fn len(&self) -> u64 {
        self.progress.get().len
    }

    /// Largest length that the keeper reported.
    pub(crate) fn reported_len(&self) -> u64 {
        self.announced.load(Ordering::Acquire)
    }

    /// Raises the readable length to `len`. It never shrinks.
    fn grow(&self, len: u64) {
        self.progress.change_if(|p| {
            let grows = len > p.len && !p.lost;
            if grows {
                p.len = len;
            }
            grows
        });
    }

    /// Notes that the storage failed: the readable length is final, and reading on is an error.
    pub(crate) fn lose(&self) {
        self.progress.change(|p| p.lost = true);
    }

    /// Notes that the log is complete with `len` bytes.
    pub(crate) fn end(&self, len: u64) {
        *self.sink.lock() = None;
        self.progress.change(|p| {
            p.ended = true;
            if !p.lost {
                p.len = len;
            }
        });
    }

    /// Notes that the log has ended, but its data from `len` on is lost: reading on is an error.
    pub(crate) fn end_early(&self, len: u64) {
        self.grow(len);
        *self.sink.lock() = None;
        self.progress.change(|p| (p.lost, p.ended) = (true, true));
    }

    /// Resolves when the job has ended.
    pub(crate) async fn ended(&self) {
        self.progress.until(|p| p.ended).await;
    }

    /// Time of the last growth, as [`clock::uptime`].
    pub(crate) fn grown_at(&self) -> Duration {
        Duration::from_millis(self.grown_at.load(Ordering::Relaxed))
    }

    /// Sets followers a deadline, because the job is being removed ([`Followers::expire`]).
    pub(crate) fn expire(&self) {
        self.progress.change(|p| p.ended = true);
        self.followers.expire();
    }

    /// Adds a follower at `offset` of the open log `file`.
    pub(crate) fn follow(
        self: &Arc<Self>,
        file: LogFile,
        offset: u64,
        max: usize,
    ) -> Result<LogCursor, Refusal> {
        let LogProgress { len, lost, .. } = self.progress.get();
        if offset > len && lost {
            return Err(storage_failed(len));
        }
        if offset > len {
            return Err(past_end(offset, len));
        }
        let follower = self.followers.join(file, max)?;
        Ok(LogCursor {
            feed: Arc::clone(self),
            seen: Seen::default(),
            follower,
            offset,
            last: None,
            largest: FIRST_MESSAGE,
            unfinished_seen: None,
        })
    }
}

/// Returns a refusal if `error` says that no file descriptor is left. Nothing is lost then, and the follower can try
/// again.
pub(super) fn out_of_descriptors(error: &(dyn Error + 'static)) -> Option<Refusal> {
    let mut chain = std::iter::successors(Some(error), |&error| error.source());
    let out = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    chain.any(|error| error.downcast_ref().is_some_and(out)).then(|| {
        let text = "the daemon has no descriptor left to read for one more";
        Refusal::for_now(Reason::TooManyFollowers, text, Duration::from_secs(1))
    })
}

/// Position of one follower in a log. Dropping it ends the following.
pub struct LogCursor {
    feed: Arc<LogFeed>,
    /// The progress of `feed` that was looked at last.
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

    /// True if the last message is long enough ago to send a small one.
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
            .map_err(|lost| Refusal::new(Reason::DataLoss, lost.to_string()))?;
        if let Some(end) = memchr::memrchr(b'\n', &piece) {
            piece.truncate(end + 1);
        }
        self.largest = (2 * self.largest).min(MAX_MESSAGE);
        self.offset += piece.len() as u64;
        self.last = Some(Instant::now());
        Ok(Bytes::from(piece))
    }
}

/// Builds the refusal of an `offset` past the end of a log of `len` bytes.
pub(crate) fn past_end(offset: u64, len: u64) -> Refusal {
    Refusal::new(
        Reason::OffsetPastEnd,
        format!(
            "offset {offset} is past the log's end at {len}: this client follows another log than it thinks"
        ),
    )
    .about("offset")
    .with_fact("offset", offset.to_string())
    .with_fact("log_bytes", len.to_string())
}

fn storage_failed(len: u64) -> Refusal {
    Refusal::new(
        Reason::DataLoss,
        format!(
            "storage error: after byte {len} the log may not be what was written; the daemon's own log says more"
        ),
    )
}

impl Growing for LogFeed {
    fn written(&self) -> u64 {
        self.reported_len()
    }

    fn note(&self, len: u64) -> Result<(), StoreError> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.folder.note_synced(len))
    }

    fn synced(&self, len: u64) {
        self.grow(len);
    }
}

/// The actor that advances a [`LogFeed`] while its job runs.
pub(crate) struct LogSink {
    feed: Arc<LogFeed>,
}

impl LogSink {
    /// Starts the sink of `feed`, unless a group advances it.
    pub(crate) fn begin(feed: &Arc<LogFeed>) {
        if feed.disk.is_some() {
            return; // the group does
        }
        *feed.sink.lock() = Some(Self { feed: Arc::clone(feed) }.start());
    }
}

impl Actor for LogSink {
    type Context = Context<Self>;
}

/// Reports that the log has grown.
#[derive(Message)]
#[rtype(result = "()")]
struct Grew;

impl Handler<Grew> for LogSink {
    type Result = ();

    fn handle(&mut self, _: Grew, _: &mut Self::Context) {
        failpoint::hit("actors::log_sink::grew");
        self.feed.grow(self.feed.announced.load(Ordering::Relaxed));
    }
}

#[cfg(all(test, feature = "failpoints"))] // which brings virtual time
mod tests {
    use super::*;
    use crate::model::JobId;
    use crate::process::host::this_process;
    use crate::store::StateDir;

    #[tokio::test(start_paused = true)]
    async fn a_follower_that_rests_after_finish_gives_the_log_back_and_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        let log = "x".repeat(FIRST_MESSAGE) + "y\n";
        std::fs::write(folder.path("log"), &log).unwrap();
        let feed = LogFeed::new(log.len() as u64, true);
        let mut resting = feed.follow(folder.open_log(None).unwrap(), 0, 9).unwrap();
        let mut reading = feed.follow(folder.open_log(None).unwrap(), 0, 9).unwrap();
        for cursor in [&mut resting, &mut reading] {
            assert_eq!(cursor.next(|| MAX_MESSAGE).await.unwrap().unwrap().len(), FIRST_MESSAGE);
        }
        feed.expire();
        folder.begin_removal().unwrap().unwrap().delete().unwrap();
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert_eq!(reading.next(|| MAX_MESSAGE).await.unwrap().unwrap(), "y\n");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(reading.next(|| MAX_MESSAGE).await.unwrap(), None, "it had come to the end");
        let removed = |fd: std::fs::DirEntry| {
            std::fs::read_link(fd.path()).is_ok_and(|path| {
                path.starts_with(dir.path()) && path.to_string_lossy().ends_with("log (deleted)")
            })
        };
        assert!(!std::fs::read_dir("/proc/self/fd").unwrap().flatten().any(removed), "it is still open");
        assert_eq!(
            resting.next(|| MAX_MESSAGE).await.err().map(|refusal| refusal.reason),
            Some(Reason::FollowersDropped)
        );
    }
}
