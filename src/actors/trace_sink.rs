//! The step results' way out: [`TraceSink`] stores them, [`TraceFeed`] wakes followers, a [`TraceCursor`] reads.
//!
//! The sequence is fixed: results are appended to the job's `steps` file in order, every follower replays it from the
//! start (service.md §3.3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::{Actor, Context, Handler, Message};
use tokio::sync::watch;

use super::followers::{Follower, Followers};
use super::log_sink::out_of_descriptors;
use super::sync_group::{Growing, SyncGroup};
use crate::failpoint;
use crate::model::{Reason, Refusal, StepResult};
use crate::store::{JobFolder, StepsFile, StoreError};

/// Turns a masked result into the bytes that are stored and sent.
pub type EncodeResult = fn(&StepResult) -> Vec<u8>;

#[derive(Clone, Copy, Default)]
struct Progress {
    len: u64,
    ended: bool,
    /// See [`TraceFeed::lose`].
    lost: bool,
}

/// What followers of one job's results share.
pub struct TraceFeed {
    progress: watch::Sender<Progress>,
    /// Length of the file; followers see less while the rest is not on the disk.
    written: AtomicU64,
    group: Option<Arc<SyncGroup>>,
    followers: Arc<Followers<StepsFile>>,
}

impl TraceFeed {
    /// A feed of a file that is `len` bytes long.
    pub fn new(len: u64, ended: bool) -> Arc<Self> {
        Self::with(len, ended, None)
    }

    /// A feed of a growing file of which `len` bytes may be seen; with a group, of the rest what it has synced.
    pub(super) fn growing(len: u64, group: Option<Arc<SyncGroup>>) -> Arc<Self> {
        Self::with(len, false, group)
    }

    fn with(len: u64, ended: bool, group: Option<Arc<SyncGroup>>) -> Arc<Self> {
        let progress = watch::channel(Progress { len, lost: false, ended }).0;
        let followers = Followers::new("these step results");
        Arc::new(Self { progress, written: AtomicU64::new(len), group, followers })
    }

    /// Length of the file so far.
    pub fn len(&self) -> u64 {
        self.progress.borrow().len
    }

    /// No result yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file grew by so many bytes.
    pub(super) fn grow(self: &Arc<Self>, by: u64) {
        let len = self.written.fetch_add(by, Ordering::AcqRel) + by;
        match &self.group {
            Some(group) => group.grew(Arc::clone(self) as Arc<dyn Growing>),
            None => self.synced(len),
        }
    }

    /// The file is `len` bytes long: somebody else has added to it. They are shown with the next growth or the end.
    pub(super) fn reach(&self, len: u64) {
        self.written.fetch_max(len, Ordering::AcqRel);
    }

    /// The storage failed, or the disk refused results to the end: followers hear of it behind those that are there.
    pub fn lose(&self) {
        self.progress.send_modify(|p| p.lost = true);
    }

    /// Nothing will be added. What was, is on the disk if it has to be.
    pub fn end(&self) {
        let len = self.written.load(Ordering::Acquire);
        self.progress.send_modify(|p| {
            p.ended = true;
            if !p.lost {
                p.len = len;
            }
        });
    }

    /// The job is removed: followers must come to their end ([`Followers::expire`]).
    pub(super) fn expire(&self) {
        self.followers.expire();
    }

    /// A follower of the results in `folder`, if there are less than `max`. What it has begun to follow it reads to the end,
    /// though the folder be removed meanwhile, unless it takes too long over it.
    pub fn follow(self: &Arc<Self>, folder: &JobFolder, max: usize) -> Result<TraceCursor, Refusal> {
        let progress = self.progress.subscribe();
        let Progress { len, ended, .. } = *progress.borrow();
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
        Ok(TraceCursor { progress, feed: Arc::clone(self), follower, offset: 0 })
    }
}

impl Growing for TraceFeed {
    fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Each result has its check sum: nothing has to be noted.
    fn note(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn synced(&self, len: u64) {
        self.progress.send_modify(|p| {
            if !p.lost {
                p.len = p.len.max(len);
            }
        });
    }
}

/// One follower's place in the results.
pub struct TraceCursor {
    progress: watch::Receiver<Progress>,
    /// Keeps the sender of `progress` alive.
    feed: Arc<TraceFeed>,
    /// `None`: the job has ended and there is no result.
    follower: Option<Follower<StepsFile>>,
    offset: u64,
}

impl TraceCursor {
    /// The next result as stored; `None` at the end of those of an ended job.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Refusal> {
        loop {
            let now = *self.progress.borrow_and_update();
            if self.offset < now.len {
                return self.read(now.len).map(Some);
            }
            if now.lost {
                return Err(lost("storage error: the rest of them was not written, or may not be what was"));
            }
            if now.ended && now.len == 0 {
                // Every ended job has at least its root's.
                return Err(lost("there are none"));
            }
            if now.ended {
                return Ok(None);
            }
            debug_assert!(Arc::strong_count(&self.feed) > 0, "`changed` cannot fail");
            drop(self.progress.changed().await);
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
pub struct TraceSink {
    feed: Arc<TraceFeed>,
    folder: JobFolder,
    encode: EncodeResult,
    /// What the disk refused so far, framed: it goes before the next result, so that none is missing in the middle. At
    /// most what the steps of one job return.
    refused: Vec<u8>,
}

impl TraceSink {
    /// The sink of `feed`.
    pub const fn new(feed: Arc<TraceFeed>, folder: JobFolder, encode: EncodeResult) -> Self {
        Self { feed, folder, encode, refused: Vec::new() }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        if !self.refused.is_empty() {
            self.folder.append_steps(&self.refused)?;
            self.feed.grow(self.refused.len() as u64);
            self.refused = Vec::new();
        }
        Ok(())
    }
}

impl Actor for TraceSink {
    type Context = Context<Self>;
}

/// A masked result to store. Answered when followers may see it; an error: not yet, it is tried again with the next one
/// and by [`Flush`].
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct Append(pub Box<StepResult>);

impl Handler<Append> for TraceSink {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, Append(result): Append, _: &mut Self::Context) -> Self::Result {
        failpoint::hit("actors::trace_sink::append");
        self.folder.frame_step(&(self.encode)(&result), &mut self.refused)?;
        self.write()
    }
}

/// Try again to store what the disk refused. `last`: nobody will try again, what is not stored is lost.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct Flush {
    /// See above.
    pub last: bool,
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

    #[test]
    fn what_the_disk_refused_goes_before_the_next_result() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        // A directory in its place cannot be appended to.
        folder.make_dir("steps").unwrap();
        let feed = TraceFeed::new(0, false);
        let mut sink = TraceSink::new(Arc::clone(&feed), folder.clone(), |result| vec![result.status as u8]);
        let result = |status| Append(Box::new(StepResult { status, ..StepResult::default() }));
        let mut ctx = Context::new();
        sink.handle(result(StepStatus::Success), &mut ctx).unwrap_err();
        assert!(feed.is_empty());
        std::fs::remove_dir(folder.path("steps")).unwrap();
        sink.handle(result(StepStatus::Failure), &mut ctx).unwrap();
        assert_eq!(folder.step_records(), [[StepStatus::Success as u8], [StepStatus::Failure as u8]]);
        assert_eq!(feed.len(), folder.steps_len());
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
        assert_eq!(feed.follow(&folder, 9).err().map(|refusal| refusal.reason), Some(Reason::DataLoss));
    }

    #[cfg(feature = "failpoints")] // which brings virtual time
    #[tokio::test(start_paused = true)]
    async fn a_follower_that_rests_after_finish_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        let feed = TraceFeed::new(0, false);
        for result in ["first", "root"] {
            feed.grow(folder.append_step(result.as_bytes()).unwrap());
        }
        feed.end();
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
