//! The log's way out: [`LogSink`] learns how long the log is, [`LogFeed`] wakes followers, a [`LogCursor`] reads.
//!
//! A sink is a file plus a wake-up, never a queue per follower: each follower owns its offset and reads the file itself,
//! so a slow one costs a cursor and nothing else (service.md §3.2). The bytes were written by the keeper. With
//! `durability = power` followers see them when they are on the disk.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::prelude::SendError;
use actix::{Actor, Addr, Context, Handler, Message};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::followers::{Follower, Followers};
use super::sync_group::{Growing, SyncGroup};
use crate::clock;
use crate::failpoint;
use crate::model::{Reason, Refusal};
use crate::store::{JobFolder, LogFile, StoreError};

/// Largest piece of log in one message (service.md §3.2).
pub const MAX_MESSAGE: usize = 64 << 10;

/// The first message of a stream; each one may be twice as long as the one before it. A message counts for a client only
/// when it is complete: on a line that never carries the largest one, small ones still bring it on (connectors.md §6).
const FIRST_MESSAGE: usize = 4 << 10;

/// Messages below this many bytes are joined: thousands of small frames that a reader leaves unread make HTTP/2
/// implementations close the connection (faults.md, fact 1).
const SMALL_MESSAGE: u64 = 256;

/// How long a small message waits for more after the one before it (service.md §3.2).
const JOIN_TIME: Duration = Duration::from_millis(20);

/// What is known of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogProgress {
    /// Bytes written; with `durability = power` those on the disk.
    pub len: u64,
    /// The storage failed: what comes after them may not be what was written (faults.md row 27).
    pub lost: bool,
    /// The job has ended: nothing will be added, and Status says so.
    pub ended: bool,
}

/// What followers of one log share.
pub struct LogFeed {
    progress: watch::Sender<LogProgress>,
    followers: Arc<Followers<LogFile>>,
    /// Largest length announced; the sink may not have got to it yet.
    announced: AtomicU64,
    /// When it grew last: milliseconds of [`clock::uptime`].
    grown_at: AtomicU64,
    /// The actor, as long as the log grows.
    sink: Mutex<Option<Addr<LogSink>>>,
    disk: Option<Disk>,
}

/// What brings a log to the disk before it is shown.
struct Disk {
    group: Arc<SyncGroup>,
    folder: JobFolder,
}

impl LogFeed {
    /// A feed of a log that is `len` bytes long.
    pub fn new(len: u64, ended: bool) -> Arc<Self> {
        Self::with(len, ended, None)
    }

    /// A feed of a growing log of which `len` bytes may be seen; with a group, of the rest what it has synced.
    pub(super) fn growing(len: u64, group: Option<Arc<SyncGroup>>, folder: &JobFolder) -> Arc<Self> {
        let disk = group.map(|group| Disk { group, folder: folder.clone() });
        Self::with(len, false, disk)
    }

    fn with(len: u64, ended: bool, disk: Option<Disk>) -> Arc<Self> {
        let (progress, _) = watch::channel(LogProgress { len, lost: false, ended });
        Arc::new(Self {
            progress,
            followers: Followers::new("this log"),
            announced: AtomicU64::new(len),
            grown_at: AtomicU64::new(clock::uptime().as_millis() as u64),
            sink: Mutex::new(None),
            disk,
        })
    }

    /// The log is `len` bytes long, says the keeper. Wakes the sink; a full mailbox means that a wake-up is already on
    /// its way, and it will find this length.
    pub fn announce(self: &Arc<Self>, len: u64) {
        self.announced.fetch_max(len, Ordering::AcqRel);
        self.grown_at.store(clock::uptime().as_millis() as u64, Ordering::Relaxed);
        if let Some(disk) = &self.disk {
            if len > self.len() {
                disk.group.grew(Arc::clone(self) as Arc<dyn Growing>);
            }
        } else if let Some(Err(SendError::Closed(_))) =
            self.sink.lock().as_ref().map(|sink| sink.try_send(Grew))
        {
            // A defect ended it: followers are woken from here.
            self.grow(len);
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
            let grows = len > p.len && !p.lost;
            if grows {
                p.len = len;
            }
            grows
        });
    }

    /// The storage failed: nothing more of the log is shown, and who wants more hears why.
    pub fn lose(&self) {
        self.progress.send_modify(|p| p.lost = true);
    }

    /// Nothing will be added.
    pub fn end(&self, len: u64) {
        *self.sink.lock() = None;
        self.progress.send_modify(|p| {
            p.ended = true;
            if !p.lost {
                p.len = len;
            }
        });
    }

    /// Nothing will be added, and what was written from `len` on is not there: who wants more hears so.
    pub fn end_early(&self, len: u64) {
        self.grow(len);
        *self.sink.lock() = None;
        self.progress.send_modify(|p| (p.lost, p.ended) = (true, true));
    }

    /// Returns when the job has ended.
    pub async fn ended(&self) {
        self.progress.subscribe().wait_for(|p| p.ended).await.ok();
    }

    /// When the log grew last, as [`clock::uptime`].
    pub fn grown_at(&self) -> Duration {
        Duration::from_millis(self.grown_at.load(Ordering::Relaxed))
    }

    /// The job is removed: followers must come to their end ([`Followers::expire`]).
    pub fn expire(&self) {
        self.progress.send_modify(|p| p.ended = true);
        self.followers.expire();
    }

    /// A follower at `offset` of the open log `file`.
    pub fn follow(self: &Arc<Self>, file: LogFile, offset: u64, max: usize) -> Result<LogCursor, Refusal> {
        let LogProgress { len, lost, .. } = *self.progress.borrow();
        if offset > len && lost {
            return Err(storage_failed(len));
        }
        if offset > len {
            return Err(Refusal::new(
                Reason::OffsetPastEnd,
                format!(
                    "offset {offset} is past the log's end at {len}: this client follows another log than it thinks"
                ),
            ));
        }
        let follower = self.followers.join(file, max)?;
        Ok(LogCursor {
            progress: self.progress.subscribe(),
            feed: Arc::clone(self),
            follower,
            offset,
            last: None,
            largest: FIRST_MESSAGE,
        })
    }
}

/// The refusal if `error` says that no descriptor is left: the follower may come back, nothing is lost.
pub(super) fn out_of_descriptors(error: &(dyn Error + 'static)) -> Option<Refusal> {
    let mut chain = std::iter::successors(Some(error), |&error| error.source());
    let out = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    chain.any(|error| error.downcast_ref().is_some_and(out)).then(|| {
        let text = "the daemon has no descriptor left to read for one more";
        Refusal::for_now(Reason::TooManyFollowers, text, Duration::from_secs(1))
    })
}

/// One follower's place in a log. Dropping it is leaving.
pub struct LogCursor {
    progress: watch::Receiver<LogProgress>,
    /// Keeps the sender of `progress` alive.
    feed: Arc<LogFeed>,
    follower: Follower<LogFile>,
    offset: u64,
    last: Option<Instant>,
    /// Largest next message.
    largest: usize,
}

impl LogCursor {
    /// The next bytes, at most [`MAX_MESSAGE`] and less at first, ending at a line's end unless the line is longer; `None` at
    /// the end of the log of an ended job.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let now = *self.progress.borrow_and_update();
            let ready = now.len.saturating_sub(self.offset);
            if ready == 0 {
                if now.lost {
                    return Err(storage_failed(now.len));
                }
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
        debug_assert!(Arc::strong_count(&self.feed) > 0, "`changed` cannot fail");
        match deadline {
            Some(at) => tokio::select! {
                _ = changed => {}
                () = sleep_until(at) => {}
            },
            None => drop(changed.await),
        }
    }

    fn read(&mut self, len: u64) -> Result<Bytes, Refusal> {
        let file = self.follower.file()?;
        let mut piece = file
            .read_piece(self.offset, len, self.largest)
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
        self.announced.load(Ordering::Acquire)
    }

    fn note(&self, len: u64) -> Result<(), StoreError> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.folder.note_synced(len))
    }

    fn synced(&self, len: u64) {
        self.grow(len);
    }
}

/// The actor that moves a [`LogFeed`] forward while its job runs.
pub struct LogSink {
    feed: Arc<LogFeed>,
}

impl LogSink {
    /// Starts the sink of `feed`.
    pub fn begin(feed: &Arc<LogFeed>) {
        if feed.disk.is_some() {
            return; // the group does
        }
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
            assert_eq!(cursor.next().await.unwrap().unwrap().len(), FIRST_MESSAGE);
        }
        feed.expire();
        folder.begin_removal().unwrap().unwrap().delete().unwrap();
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert_eq!(reading.next().await.unwrap().unwrap(), "y\n");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(reading.next().await.unwrap(), None, "it had come to the end");
        let removed = |fd: std::fs::DirEntry| {
            std::fs::read_link(fd.path()).is_ok_and(|path| {
                path.starts_with(dir.path()) && path.to_string_lossy().ends_with("log (deleted)")
            })
        };
        assert!(!std::fs::read_dir("/proc/self/fd").unwrap().flatten().any(removed), "it is still open");
        assert_eq!(resting.next().await.err().map(|refusal| refusal.reason), Some(Reason::FollowersDropped));
    }
}
