//! Delivery of the log: [`LogSink`] learns the log's length, [`LogFeed`] wakes followers, a [`LogCursor`] reads.
//!
//! A sink is a file plus a wake-up, never a queue per follower. Each follower owns its offset and reads the file
//! itself, so a slow follower costs only a cursor (service.md §3.2). The keeper writes the bytes. Under `durability =
//! power` followers see them only once they are on the disk.

mod cursor;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::prelude::SendError;
use actix::{Actor, Addr, Context, Handler, Message};
use bytes::Bytes;
use parking_lot::Mutex;

pub(crate) use self::cursor::LogPart;
pub use self::cursor::{LogCursor, MAX_MESSAGE};
use super::followers::{Followers, OpenFileGuard};
use super::sync_group::{Growing, SyncGroup};
use super::watched::{Seen, Watched};
use crate::clock;
use crate::failpoint;
use crate::model::{LogChannel, Reason, Refusal};
use crate::store::{JobFolder, LogFile, StoreError};

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

/// Source of output: number of the stream, and channel.
type SourceKey = (u8, LogChannel);

/// An unfinished line of a source, as the keeper reported it last.
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
    /// At most one of each source: a job has 14 streams.
    lines: Vec<(SourceKey, UnfinishedLine)>,
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
    pub(super) fn report_unfinished(&self, source: SourceKey, log_len: u64, entry: Vec<u8>) {
        let mut lines = self.unfinished.lock();
        if !lines.are_watched {
            return;
        }
        let report = self.progress.get().unfinished + 1;
        let line = UnfinishedLine { report, log_len, entry: Bytes::from(entry) };
        lines.lines.retain(|(other, _)| *other != source);
        lines.lines.push((source, line));
        drop(lines);
        self.progress.change(|p| p.unfinished = report);
    }

    /// Returns the first unfinished line with a report after `seen` for a follower that has `offset` bytes.
    fn unfinished_after(&self, seen: u64, offset: u64) -> Option<UnfinishedLine> {
        let lines = self.unfinished.lock();
        let is_due =
            |line: &&UnfinishedLine| line.report > seen && line.log_len <= offset && !line.entry.is_empty();
        lines.lines.iter().map(|(_, line)| line).filter(is_due).min_by_key(|line| line.report).cloned()
    }

    /// Notes that this state of the log was seen.
    pub(super) fn see(&self, seen: &mut Seen) {
        self.progress.see(seen);
    }

    /// Waits until there is a state that was not seen.
    pub(super) async fn newer(&self, seen: Seen) {
        self.progress.newer(seen).await;
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

    /// Keeps the log in `folder` open, if it has the recorded `inode`: while the return value lives, new followers can read it
    /// despite a removal.
    pub(super) fn hold(&self, folder: &JobFolder, inode: u64) -> Option<OpenFileGuard<LogFile>> {
        // `None` if no descriptor is left or the log is lost.
        folder.open_log(Some(inode)).ok().map(|file| self.followers.hold(file))
    }

    /// Adds a follower at `offset` of the open log `file`, if there are fewer than `max`.
    pub(crate) fn follow(
        self: &Arc<Self>,
        file: LogFile,
        offset: u64,
        max: usize,
    ) -> Result<LogCursor, Refusal> {
        self.check_offset(offset)?;
        Ok(LogCursor::new(self, self.followers.join(file, max)?, offset))
    }

    /// Adds a follower of a log whose name is gone. `None` if nobody has it open.
    pub(super) fn follow_held(
        self: &Arc<Self>,
        offset: u64,
        max: usize,
    ) -> Option<Result<LogCursor, Refusal>> {
        if let Err(refusal) = self.check_offset(offset) {
            return Some(Err(refusal));
        }
        Some(self.followers.join_open(max)?.map(|follower| LogCursor::new(self, follower, offset)))
    }

    fn check_offset(&self, offset: u64) -> Result<(), Refusal> {
        let LogProgress { len, lost, .. } = self.progress.get();
        match offset > len {
            true if lost => Err(storage_failed(len)),
            true => Err(past_end(offset, len)),
            false => Ok(()),
        }
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
            "storage error: the log may be missing or damaged after byte {len}; see the daemon's own log"
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    #[cfg(feature = "failpoints")]
    use std::time::Duration;

    #[cfg(feature = "failpoints")]
    use super::cursor::FIRST_MESSAGE;
    use super::*;
    use crate::model::JobId;
    use crate::process::host::this_process;
    use crate::store::StateDir;

    /// Makes a job's folder with this log.
    fn ended(log: &str) -> (tempfile::TempDir, JobFolder, Arc<LogFeed>) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        std::fs::write(folder.path("log"), log).unwrap();
        (dir, folder, LogFeed::new(log.len() as u64, true))
    }

    #[tokio::test]
    async fn fault_83_a_follower_that_comes_while_a_log_is_removed_reads_to_the_end() {
        let (_dir, folder, feed) = ended("first\nlast\n");
        let inode = std::fs::metadata(folder.path("log")).unwrap().ino();
        assert!(feed.hold(&folder, inode + 1).is_none(), "another file");
        let held = feed.hold(&folder, inode).unwrap();
        feed.expire();
        folder.begin_removal().unwrap().unwrap().delete().unwrap();
        let past_end = feed.follow_held(12, 1).unwrap().err();
        assert_eq!(past_end.map(|refusal| refusal.reason), Some(Reason::OffsetPastEnd));
        let mut late = feed.follow_held(6, 1).unwrap().unwrap();
        drop(held);
        assert_eq!(late.next(|| MAX_MESSAGE).await.unwrap().unwrap(), "last\n");
        assert_eq!(late.next(|| MAX_MESSAGE).await.unwrap(), None);
        drop(late);
        assert!(feed.follow_held(0, 1).is_none());
    }

    #[cfg(feature = "failpoints")] // which brings virtual time
    #[tokio::test(start_paused = true)]
    async fn a_follower_that_rests_after_finish_gives_the_log_back_and_is_dropped() {
        let log = "x".repeat(FIRST_MESSAGE) + "y\n";
        let (dir, folder, feed) = ended(&log);
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
