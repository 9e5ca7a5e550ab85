//! Group sync: with `durability = power` everything is brought to the disk in rounds, for all jobs together, and only then
//! it is shown (service.md §6.6).
//!
//! A round is two syncs. The first one covers what was written before the round: logs, results, records. What says so
//! (the length a log is good to, the end of a job) is written between the two and brought to the disk by the second one:
//! what is found after a power cut never claims more than is there. Then followers see what grew, and calls that promise
//! something are answered.
//!
//! A sync that fails is not repeated as if nothing had happened: the kernel has dropped what it could not write (faults.md
//! row 27). Everything in the round, and every job that lives, has lost its claim.

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::error::Chain;
use crate::store::{StateDir, StoreError};

/// Rounds begin at most so often; the first one after a quiet time begins at once. With one round a second (service.md
/// §6.6) a power cut would take a second of a log and what the syncs take: this keeps it below a second.
const INTERVAL: Duration = Duration::from_millis(500);

/// A round waits so long for more to take part: calls that come together are answered together.
const GATHER: Duration = Duration::from_millis(20);

/// What was written is not known to be on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("storage error: {0}")]
pub(super) struct NotSynced(Arc<str>);

impl NotSynced {
    pub(super) fn new(error: &(dyn std::error::Error + 'static)) -> Self {
        Self(Chain(error).to_string().into())
    }
}

/// A file that followers read as far as it is on the disk.
pub(super) trait Growing: Send + Sync {
    /// Its length now. What is announced after this call belongs to the next round.
    fn written(&self) -> u64;
    /// Notes on the disk that so much of it is there.
    fn note(&self, len: u64) -> Result<(), StoreError>;
    /// Shows it.
    fn synced(&self, len: u64);
}

/// What is to be written between the two syncs of a round.
pub(super) type Commit = Box<dyn FnOnce() -> Result<(), StoreError> + Send>;

/// Somebody who waits for a round.
struct Waiter {
    /// To be written between the two syncs.
    commit: Option<Commit>,
    answer: oneshot::Sender<Result<(), NotSynced>>,
}

#[derive(Default)]
struct Pending {
    /// Each file once, by its address, in the order in which they came.
    grown: IndexMap<usize, Arc<dyn Growing>>,
    waiters: Vec<Waiter>,
}

/// See the module's text.
pub(super) struct SyncGroup {
    state: StateDir,
    pending: Mutex<Pending>,
    wake: Notify,
}

impl SyncGroup {
    /// A group for all jobs of `state`.
    pub(super) fn new(state: StateDir) -> Arc<Self> {
        Arc::new(Self { state, pending: Mutex::default(), wake: Notify::new() })
    }

    /// `file` has grown: it takes part in the next round, however often it is said.
    pub(super) fn grew(&self, file: Arc<dyn Growing>) {
        let address = Arc::as_ptr(&file).cast::<()>().addr();
        self.pending.lock().grown.insert(address, file);
        self.wake.notify_one();
    }

    /// Returns when everything that was written before this call is on the disk.
    pub(super) fn synced(&self) -> impl Future<Output = Result<(), NotSynced>> + use<> {
        self.wait(None)
    }

    /// Returns when what was written before this call is on the disk, then `commit` was run, and what it wrote is there too.
    pub(super) fn commit(&self, commit: Commit) -> impl Future<Output = Result<(), NotSynced>> + use<> {
        self.wait(Some(commit))
    }

    fn wait(&self, commit: Option<Commit>) -> impl Future<Output = Result<(), NotSynced>> + use<> {
        let (answer, answered) = oneshot::channel();
        self.pending.lock().waiters.push(Waiter { commit, answer });
        self.wake.notify_one();
        async move { answered.await.unwrap_or_else(|_| Err(NotSynced("a defect ended the group sync".into()))) }
    }

    /// Makes one round after another. `lost` hears of syncs that failed, before those who wait do.
    pub(super) async fn run(self: Arc<Self>, lost: impl Fn(NotSynced)) {
        loop {
            self.wake.notified().await;
            sleep(GATHER).await;
            let pending = std::mem::take(&mut *self.pending.lock());
            if pending.grown.is_empty() && pending.waiters.is_empty() {
                continue;
            }
            let next = Instant::now() + INTERVAL;
            self.round(pending, &lost).await;
            sleep_until(next).await;
        }
    }

    async fn round(&self, Pending { grown, waiters }: Pending, lost: &impl Fn(NotSynced)) {
        let state = self.state.clone();
        let grown: Vec<_> = grown.into_values().map(|file| (file.written(), file)).collect();
        let (commits, answers): (Vec<_>, Vec<_>) =
            waiters.into_iter().map(|waiter| (waiter.commit, waiter.answer)).unzip();
        let synced = super::blocking(move || {
            sync_round(&state, &grown, commits).map(|(noted, results)| (grown, noted, results))
        });
        let synced = synced.await.map_err(|panic| NotSynced::new(&panic));
        match synced.and_then(|synced| synced.map_err(|error| NotSynced::new(&error))) {
            Ok((grown, noted, results)) => {
                for ((len, file), noted) in grown.into_iter().zip(noted) {
                    match noted {
                        Ok(()) => file.synced(len),
                        // A full disk: what is there is shown when that can be noted.
                        Err(error) => {
                            tracing::warn!(error = %Chain(&error), "the length of a log could not be noted");
                            self.grew(file);
                        }
                    }
                }
                for (answer, result) in answers.into_iter().zip(results) {
                    answer.send(result).ok();
                }
            }
            Err(error) => {
                lost(error.clone());
                for answer in answers {
                    answer.send(Err(error.clone())).ok();
                }
            }
        }
    }
}

/// What came of each note, and of each commit.
type Results = (Vec<Result<(), StoreError>>, Vec<Result<(), NotSynced>>);

/// The round itself.
fn sync_round(
    state: &StateDir,
    grown: &[(u64, Arc<dyn Growing>)],
    commits: Vec<Option<Commit>>,
) -> Result<Results, StoreError> {
    state.sync_all()?;
    let writes = !grown.is_empty() || commits.iter().any(Option::is_some);
    let noted = grown.iter().map(|(len, file)| file.note(*len)).collect();
    let run = |commit: Option<Commit>| match commit.map(|commit| commit()) {
        Some(Err(error)) => Err(NotSynced::new(&error)),
        _ => Ok(()),
    };
    let results = commits.into_iter().map(run).collect();
    if writes {
        state.sync_all()?;
    }
    Ok((noted, results))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::log_sink::LogFeed;
    use crate::model::JobId;
    use crate::process::host::this_process;

    #[tokio::test]
    async fn a_log_that_grows_while_its_length_cannot_be_noted_takes_part_once_in_each_round() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state"), &this_process()).unwrap();
        let folder = state.folder(JobId::parse("1").unwrap().key());
        folder.make().unwrap();
        let in_the_way = folder.make_dir("synced").unwrap();
        let group = SyncGroup::new(state);
        let feed = LogFeed::growing(0, Some(Arc::clone(&group)), &folder);
        let round = async || {
            let pending = std::mem::take(&mut *group.pending.lock());
            assert_eq!(pending.grown.len(), 1);
            group.round(pending, &|error| panic!("{error}")).await;
        };
        for len in 1..=3 {
            feed.announce(len);
            round().await;
            assert_eq!(feed.len(), 0);
        }
        std::fs::remove_dir(in_the_way).unwrap();
        round().await;
        assert_eq!(feed.len(), 3);
        assert!(group.pending.lock().grown.is_empty());
    }
}
