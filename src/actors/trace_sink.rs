//! Delivery of the step results: [`TraceSink`] stores them, [`TraceFeed`] wakes followers, a [`TraceCursor`] reads.
//!
//! The order is fixed: results are appended to the job's `steps` file, and every follower reads it from the start
//! (service.md §3.3).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use actix::{Actor, AsyncContext, Context, Handler, Message, WeakAddr};
use parking_lot::Mutex;

use super::followers::{Follower, Followers, OpenFileGuard, out_of_descriptors};
use super::redact::MaskedResult;
use super::sync_group::{Growing, SyncGroup};
use super::watched::{Seen, Watched};
use crate::error::Chain;
use crate::failpoint;
use crate::model::{Reason, Refusal, StepResult};
use crate::store::{JobFolder, StepsFile, StoreError};

/// Encodes a masked result to the bytes that are stored and sent.
pub(crate) type EncodeResult = fn(&StepResult) -> Vec<u8>;

/// Kind of a stored message of FollowSteps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredKind {
    /// A step has started, or a nested one has ended.
    News,
    /// Result of a step of the job's own list.
    Step,
    /// The job's own result.
    Root,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    len: u64,
    ended: bool,
    /// See [`TraceFeed::lose`].
    lost: bool,
}

/// State shared by all followers of one job's results.
pub(crate) struct TraceFeed {
    progress: Watched<Progress>,
    /// Length of the file. Followers may see less, while the rest is not on the disk.
    written: AtomicU64,
    group: Option<Arc<SyncGroup>>,
    followers: Arc<Followers<StepsFile>>,
    /// True once a client has asked for news of steps: from then on news are written at once.
    is_watched: AtomicBool,
    /// The actor, which may hold news that are not written yet.
    sink: Mutex<Option<WeakAddr<TraceSink>>>,
}

impl TraceFeed {
    /// Creates a feed of a file that is `len` bytes long.
    pub(crate) fn new(len: u64, ended: bool) -> Arc<Self> {
        Self::with(len, ended, None)
    }

    /// Creates a feed of a growing file. Followers can read the first `len` bytes at once. With a `group`, they can
    /// read further bytes only after it has synced them.
    pub(super) fn growing(len: u64, group: Option<Arc<SyncGroup>>) -> Arc<Self> {
        Self::with(len, false, group)
    }

    fn with(len: u64, ended: bool, group: Option<Arc<SyncGroup>>) -> Arc<Self> {
        let progress = Watched::new(Progress { len, lost: false, ended });
        let followers = Followers::new("these step results");
        let (is_watched, sink) = (AtomicBool::new(false), Mutex::new(None));
        Arc::new(Self { progress, written: AtomicU64::new(len), group, followers, is_watched, sink })
    }

    /// Notes that the file grew by this number of bytes.
    pub(super) fn grow(self: &Arc<Self>, by: u64) {
        let len = self.written.fetch_add(by, Ordering::AcqRel) + by;
        match &self.group {
            Some(group) => group.grew(Arc::clone(self) as Arc<dyn Growing>),
            None => self.synced(len),
        }
    }

    /// Notes that a client wants news of steps at once.
    pub(crate) fn watch(&self) {
        self.is_watched.store(true, Ordering::Release);
        let sink = self.sink.lock().as_ref().and_then(WeakAddr::upgrade);
        if let Some(sink) = sink {
            // If the mailbox is full, a result or news is about to be written, and waiting news go with it.
            drop(sink.try_send(Flush { last: false }));
        }
    }

    /// Notes that another writer has extended the file to `len` bytes. Followers see it with the next growth or the
    /// end.
    pub(super) fn reach(&self, len: u64) {
        self.written.fetch_max(len, Ordering::AcqRel);
    }

    /// Notes that results are lost: a sync failed or the disk refused them to the end. Followers hear of it after the
    /// results that exist.
    pub(crate) fn lose(&self) {
        self.progress.change(|p| p.lost = true);
    }

    /// Notes that the file is complete, and synced if it has to be.
    pub(crate) fn end(&self) {
        let len = self.written.load(Ordering::Acquire);
        self.progress.change(|p| {
            p.ended = true;
            if !p.lost {
                p.len = len;
            }
        });
    }

    /// Sets followers a deadline, because the job is being removed ([`Followers::expire`]).
    pub(super) fn expire(&self) {
        self.followers.expire();
    }

    /// Keeps the results in `folder` open: while the return value lives, new followers can read them despite a removal.
    pub(super) fn hold(&self, folder: &JobFolder) -> Option<OpenFileGuard<StepsFile>> {
        // `None` if no descriptor is left or there are no results.
        folder.open_steps().ok().map(|file| self.followers.hold(file))
    }

    /// Adds a follower of the results in `folder`, if there are fewer than `max`. It can read to the end even if the
    /// folder is removed meanwhile, unless it takes too long.
    pub(crate) fn follow(self: &Arc<Self>, folder: &JobFolder, max: usize) -> Result<TraceCursor, Refusal> {
        let Progress { len, ended, .. } = self.progress.get();
        let cursor =
            |follower| TraceCursor { feed: Arc::clone(self), seen: Seen::default(), follower, offset: 0 };
        if let Some(joined) = self.followers.join_open(max) {
            return Ok(cursor(Some(joined?)));
        }
        let file = if ended && len == 0 {
            None
        } else if ended {
            Some(folder.open_steps())
        } else {
            Some(folder.open_growing_steps())
        };
        let file =
            file.transpose().map_err(|e| out_of_descriptors(&e).unwrap_or_else(|| lost(&e.to_string())))?;
        let follower = file.map(|file| self.followers.join(file, max)).transpose()?;
        Ok(cursor(follower))
    }
}

impl Growing for TraceFeed {
    fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Each result has its own check sum, so no length is noted.
    fn note(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn synced(&self, len: u64) {
        self.progress.change(|p| {
            if !p.lost {
                p.len = p.len.max(len);
            }
        });
    }
}

/// Position of one follower in the results.
pub struct TraceCursor {
    feed: Arc<TraceFeed>,
    /// The progress of `feed` that this cursor has seen last.
    seen: Seen,
    /// `None` if the job has ended without any result.
    follower: Option<Follower<StepsFile>>,
    offset: u64,
}

impl TraceCursor {
    /// Returns the next result as stored, or `None` after the last one of an ended job.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Refusal> {
        loop {
            let now = self.feed.progress.see(&mut self.seen);
            if self.offset < now.len {
                return self.read(now.len).map(Some);
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
            if now.ended {
                return Ok(None);
            }
            self.feed.progress.newer(self.seen).await;
        }
    }

    fn read(&mut self, len: u64) -> Result<Vec<u8>, Refusal> {
        let file = self.follower.as_ref().ok_or_else(|| lost("there are none"))?.file()?;
        let (record, end) = file.record_at(self.offset, len).map_err(|e| lost(&e.to_string()))?;
        self.offset = end;
        Ok(record)
    }
}

fn lost(what: &str) -> Refusal {
    Refusal::new(Reason::DataLoss, format!("the step results cannot be read: {what}"))
}

/// The actor that appends results to the `steps` file.
pub(crate) struct TraceSink {
    feed: Arc<TraceFeed>,
    folder: JobFolder,
    /// Framed results that the disk refused and news that nobody has asked for. They are written before the next
    /// result, so that the order has no gap. Bounded by what the steps of one job return.
    waiting: Vec<u8>,
}

impl TraceSink {
    /// Creates the sink of `feed`.
    pub(crate) const fn new(feed: Arc<TraceFeed>, folder: JobFolder) -> Self {
        Self { feed, folder, waiting: Vec::new() }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        if !self.waiting.is_empty() {
            let foreign = self.folder.cut_steps_behind(self.feed.written())?;
            if foreign > 0 {
                let key = self.folder.key();
                tracing::warn!(%key, "{foreign} bytes that another process wrote to a job's step results were removed");
            }
            self.folder.append_steps(&self.waiting)?;
            self.feed.grow(self.waiting.len() as u64);
            self.waiting = Vec::new();
        }
        Ok(())
    }
}

impl Actor for TraceSink {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        *self.feed.sink.lock() = Some(ctx.address().downgrade());
    }
}

/// Stores a masked and encoded result. The answer comes when the result is written and handed to the feed. On an error
/// the result waits; the next result or [`Flush`] tries again.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub(crate) struct Append(pub(super) MaskedResult);

impl Handler<Append> for TraceSink {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, Append(result): Append, _: &mut Self::Context) -> Self::Result {
        failpoint::hit("actors::trace_sink::append");
        self.folder.frame_step(result.bytes(), &mut self.waiting)?;
        self.write()
    }
}

/// Stores masked and encoded news: at once if a client follows them, else with the next result, to save a write.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AppendNews(pub(super) MaskedResult);

impl Handler<AppendNews> for TraceSink {
    type Result = ();

    fn handle(&mut self, AppendNews(news): AppendNews, _: &mut Self::Context) {
        let framed = self.folder.frame_step(news.bytes(), &mut self.waiting);
        let is_watched = self.feed.is_watched.load(Ordering::Acquire);
        let stored = framed.and_then(|()| if is_watched { self.write() } else { Ok(()) });
        if let Err(error) = stored {
            let key = self.folder.key();
            tracing::warn!(error = %Chain(&error), %key, "news of a step are not stored yet");
        }
    }
}

/// Tries again to store waiting results.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub(crate) struct Flush {
    /// The last attempt: results that cannot be stored now are lost.
    pub(crate) last: bool,
}

impl Handler<Flush> for TraceSink {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, Flush { last }: Flush, _: &mut Self::Context) -> Self::Result {
        self.write().inspect_err(|_| {
            if last {
                self.feed.lose();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{JobId, StepStatus};
    use crate::process::host::this_process;
    use crate::store::StateDir;

    /// The results `first` and `root` of a job that has ended.
    fn ended() -> (tempfile::TempDir, JobFolder, Arc<TraceFeed>) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        let feed = TraceFeed::new(0, false);
        for result in ["first", "root"] {
            feed.grow(folder.append_step(result.as_bytes()).unwrap());
        }
        feed.end();
        (dir, folder, feed)
    }

    #[test]
    fn what_the_disk_refused_goes_before_the_next_result() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        // A directory cannot be appended to.
        folder.make_dir("steps").unwrap();
        let feed = TraceFeed::new(0, false);
        let mut sink = TraceSink::new(Arc::clone(&feed), folder.clone());
        let result = |status| Append(MaskedResult::of(vec![status as u8]));
        let mut ctx = Context::new();
        sink.handle(result(StepStatus::Success), &mut ctx).unwrap_err();
        assert_eq!(feed.progress.get().len, 0);
        std::fs::remove_dir(folder.path("steps")).unwrap();
        sink.handle(result(StepStatus::Failure), &mut ctx).unwrap();
        assert_eq!(folder.step_records(), [[StepStatus::Success as u8], [StepStatus::Failure as u8]]);
        assert_eq!(feed.progress.get().len, folder.steps_len());
    }

    #[test]
    fn news_wait_for_a_result_unless_somebody_follows_them() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        let feed = TraceFeed::new(0, false);
        let mut sink = TraceSink::new(Arc::clone(&feed), folder.clone());
        let mut ctx = Context::new();
        let news = |what: u8| AppendNews(MaskedResult::of(vec![what]));
        sink.handle(news(1), &mut ctx);
        assert_eq!(feed.progress.get().len, 0);
        sink.handle(Append(MaskedResult::of(vec![2])), &mut ctx).unwrap();
        sink.handle(news(3), &mut ctx);
        assert_eq!(folder.step_records(), [[1], [2]]);
        feed.watch();
        sink.handle(Flush { last: false }, &mut ctx).unwrap();
        assert_eq!(folder.step_records(), [[1], [2], [3]]);
        sink.handle(news(4), &mut ctx);
        assert_eq!(folder.step_records(), [[1], [2], [3], [4]]);
        assert_eq!(feed.progress.get().len, folder.steps_len());
    }

    #[tokio::test]
    async fn results_that_are_never_stored_are_named_as_lost() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        let feed = TraceFeed::new(0, false);
        let mut cursor = feed.follow(&folder, 9).unwrap();
        feed.grow(folder.append_step(b"first").unwrap());
        feed.lose();
        feed.end();
        assert_eq!(cursor.next().await.unwrap().unwrap(), b"first");
        assert_eq!(cursor.next().await.err().map(|refusal| refusal.reason), Some(Reason::DataLoss));
    }

    #[tokio::test]
    async fn a_follower_reads_to_the_end_though_the_job_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        let feed = TraceFeed::new(0, false);
        let mut early = feed.follow(&folder, 9).unwrap();
        for result in ["first", "root"] {
            feed.grow(folder.append_step(result.as_bytes()).unwrap());
        }
        feed.end();
        let mut late = feed.follow(&folder, 9).unwrap();
        folder.begin_removal().unwrap().unwrap().delete().unwrap();
        for cursor in [&mut early, &mut late] {
            assert_eq!(cursor.next().await.unwrap().unwrap(), b"first");
            assert_eq!(cursor.next().await.unwrap().unwrap(), b"root");
            assert_eq!(cursor.next().await.unwrap(), None);
        }
        drop((early, late));
        assert_eq!(feed.follow(&folder, 9).err().map(|refusal| refusal.reason), Some(Reason::DataLoss));
    }

    #[tokio::test]
    async fn fault_83_a_follower_that_comes_while_a_job_is_removed_reads_to_the_end() {
        let (_dir, folder, feed) = ended();
        let held = feed.hold(&folder).unwrap();
        feed.expire();
        folder.begin_removal().unwrap().unwrap().delete().unwrap();
        let mut late = feed.follow(&folder, 1).unwrap();
        drop(held);
        assert_eq!(late.next().await.unwrap().unwrap(), b"first");
        assert_eq!(late.next().await.unwrap().unwrap(), b"root");
        assert_eq!(late.next().await.unwrap(), None);
        drop(late);
        assert_eq!(feed.follow(&folder, 1).err().map(|refusal| refusal.reason), Some(Reason::DataLoss));
    }

    #[cfg(feature = "failpoints")] // which brings virtual time
    #[tokio::test(start_paused = true)]
    async fn a_follower_that_rests_after_finish_is_dropped() {
        let (_dir, folder, feed) = ended();
        let mut resting = feed.follow(&folder, 1).unwrap();
        assert_eq!(
            feed.follow(&folder, 1).err().map(|refusal| refusal.reason),
            Some(Reason::TooManyFollowers)
        );
        assert_eq!(resting.next().await.unwrap().unwrap(), b"first");
        feed.expire();
        tokio::time::sleep(std::time::Duration::from_mins(2)).await;
        assert_eq!(resting.next().await.err().map(|refusal| refusal.reason), Some(Reason::FollowersDropped));
    }
}
