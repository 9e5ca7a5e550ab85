//! The step results' way out: [`TraceSink`] stores them, [`TraceFeed`] wakes followers, a [`TraceCursor`] reads.
//!
//! The sequence is fixed: results are appended to the job's `steps` file in order, every follower replays it from the
//! start (service.md §3.3).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use actix::{Actor, Context, Handler, Message};
use tokio::sync::watch;

use crate::journal;
use crate::model::{Reason, Refusal, StepResult};
use crate::store::{JobFolder, StoreError};

/// Turns a masked result into the bytes that are stored and sent.
pub type EncodeResult = fn(&StepResult) -> Vec<u8>;

/// Bytes read for one record at first: most results are small.
const READ_AHEAD: usize = 16 << 10;

#[derive(Clone, Copy, Default)]
struct Progress {
    len: u64,
    ended: bool,
}

/// What followers of one job's results share.
pub struct TraceFeed {
    progress: watch::Sender<Progress>,
}

impl TraceFeed {
    /// A feed of a file that is `len` bytes long.
    pub fn new(len: u64, ended: bool) -> Arc<Self> {
        Arc::new(Self { progress: watch::channel(Progress { len, ended }).0 })
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
    pub(super) fn grow(&self, by: u64) {
        self.progress.send_modify(|p| p.len += by);
    }

    /// Nothing will be added.
    pub fn end(&self) {
        self.progress.send_modify(|p| p.ended = true);
    }

    /// A follower of the results in `folder`. What it has begun to follow it reads to the end, though the folder be removed
    /// meanwhile.
    pub fn follow(self: &Arc<Self>, folder: &JobFolder) -> Result<TraceCursor, Refusal> {
        let progress = self.progress.subscribe();
        let Progress { len, ended } = *progress.borrow();
        let file = if ended && len == 0 {
            None
        } else if ended {
            Some(folder.open_steps())
        } else {
            Some(folder.open_growing_steps())
        };
        let file = file.transpose().map_err(|e| lost(&e.to_string()))?;
        Ok(TraceCursor { progress, feed: Arc::clone(self), file, offset: 0 })
    }
}

/// One follower's place in the results.
pub struct TraceCursor {
    progress: watch::Receiver<Progress>,
    /// Keeps the sender of `progress` alive.
    feed: Arc<TraceFeed>,
    /// `None`: the job has ended and there is no result.
    file: Option<File>,
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
        let file = self.file.as_ref().ok_or_else(|| lost("there are none"))?;
        let left = (len - self.offset) as usize;
        let mut want = left.min(READ_AHEAD);
        loop {
            let mut bytes = vec![0; want];
            file.read_exact_at(&mut bytes, self.offset).map_err(|e| lost(&e.to_string()))?;
            let mut records = journal::Records::new(&bytes);
            match records.next() {
                Some(Ok(record)) => {
                    let payload = record.to_vec();
                    self.offset += records.position();
                    return Ok(payload);
                }
                _ if want < left => want = left.min(want * 8),
                _ => return Err(lost("a record is damaged")),
            }
        }
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
}

impl TraceSink {
    /// The sink of `feed`.
    pub const fn new(feed: Arc<TraceFeed>, folder: JobFolder, encode: EncodeResult) -> Self {
        Self { feed, folder, encode }
    }
}

impl Actor for TraceSink {
    type Context = Context<Self>;
}

/// A masked result to store. Answered when followers may see it.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct Append(pub Box<StepResult>);

impl Handler<Append> for TraceSink {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, Append(result): Append, _: &mut Self::Context) -> Self::Result {
        let appended = self.folder.append_step(&(self.encode)(&result))?;
        self.feed.grow(appended);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobId;
    use crate::process::host::this_process;
    use crate::store::StateDir;

    #[tokio::test]
    async fn a_follower_reads_to_the_end_though_the_job_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        let feed = TraceFeed::new(0, false);
        let mut early = feed.follow(&folder).unwrap();
        for result in ["first", "root"] {
            feed.grow(folder.append_step(result.as_bytes()).unwrap());
        }
        feed.end();
        let mut late = feed.follow(&folder).unwrap();
        folder.remove().unwrap();
        for cursor in [&mut early, &mut late] {
            assert_eq!(cursor.next().await.unwrap().unwrap(), b"first");
            assert_eq!(cursor.next().await.unwrap().unwrap(), b"root");
            assert_eq!(cursor.next().await.unwrap(), None);
        }
        assert_eq!(feed.follow(&folder).err().map(|refusal| refusal.reason), Some(Reason::DataLoss));
    }
}
