//! Group sync: with `durability = power` all jobs' data is brought to the disk in common rounds, and shown only
//! afterwards (service.md §6.6).
//!
//! A round consists of two syncs. The first covers everything written before the round: logs, results, records. Then
//! the statements about that data are written (the synced length of a log, the end of a job), and the second sync
//! covers them. So after a power cut no statement claims more than is on the disk. Only then do followers see the
//! growth, and calls that promise something get their answers.
//!
//! A failed sync is not retried: the kernel has dropped the data that it could not write (faults.md row 27). Every
//! waiter of the round and every living job fails.

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::error::Chain;
use crate::store::{StateDir, StoreError};
use crate::threads::{self, Work};

/// Minimum time between the starts of two rounds (service.md §6.6); after a quiet time a round starts at once. A power
/// cut loses this time plus the duration of the syncs: with this value less than a second of a log.
const INTERVAL: Duration = Duration::from_millis(500);

/// Time that a round waits for more participants: concurrent calls are answered together.
const GATHER: Duration = Duration::from_millis(20);

/// Error: data is not known to be on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("storage error: {0}")]
pub(super) struct NotSynced(Arc<str>);

impl NotSynced {
    pub(super) fn new(error: &(dyn std::error::Error + 'static)) -> Self {
        Self(Chain(error).to_string().into())
    }
}

/// A file that followers may read only as far as it is on the disk.
pub(super) trait Growing: Send + Sync {
    /// Current length. Growth announced after this call belongs to the next round.
    fn written(&self) -> u64;
    /// Records durably that the first `len` bytes are on the disk.
    fn note(&self, len: u64) -> Result<(), StoreError>;
    /// Shows the first `len` bytes to followers.
    fn synced(&self, len: u64);
}

/// A write between the two syncs of a round.
pub(super) type Commit = Box<dyn FnOnce() -> Result<(), StoreError> + Send>;

struct Waiter {
    /// Run between the two syncs.
    commit: Option<Commit>,
    answer: oneshot::Sender<Result<(), NotSynced>>,
}

#[derive(Default)]
struct Pending {
    /// Each file once, keyed by its address, in order of arrival.
    grown: IndexMap<usize, Arc<dyn Growing>>,
    waiters: Vec<Waiter>,
}

/// The group sync of one state folder; see the module.
pub(super) struct SyncGroup {
    state: StateDir,
    pending: Mutex<Pending>,
    wake: Notify,
}

impl SyncGroup {
    pub(super) fn new(state: StateDir) -> Arc<Self> {
        Arc::new(Self { state, pending: Mutex::default(), wake: Notify::new() })
    }

    /// Adds a file that has grown to the next round. Repeated calls count once.
    pub(super) fn grew(&self, file: Arc<dyn Growing>) {
        let address = Arc::as_ptr(&file).cast::<()>().addr();
        self.pending.lock().grown.insert(address, file);
        self.wake.notify_one();
    }

    /// Resolves when everything written before this call is on the disk.
    pub(super) fn synced(&self) -> impl Future<Output = Result<(), NotSynced>> + use<> {
        self.wait(None)
    }

    /// Syncs everything written before this call, then runs `commit`, then syncs its writes. Resolves after that.
    pub(super) fn commit(&self, commit: Commit) -> impl Future<Output = Result<(), NotSynced>> + use<> {
        self.wait(Some(commit))
    }

    fn wait(&self, commit: Option<Commit>) -> impl Future<Output = Result<(), NotSynced>> + use<> {
        let (answer, answered) = oneshot::channel();
        self.pending.lock().waiters.push(Waiter { commit, answer });
        self.wake.notify_one();
        async move { answered.await.unwrap_or_else(|_| Err(NotSynced("a defect ended the group sync".into()))) }
    }

    /// Runs round after round. Calls `lost` for a failed sync, before the waiters get their answers.
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
        let synced = threads::run(Work::Syncs, move || {
            sync_round(&state, &grown, commits).map(|(noted, results)| (grown, noted, results))
        });
        let synced = synced.await.map_err(|panic| NotSynced::new(&panic));
        match synced.and_then(|synced| synced.map_err(|error| NotSynced::new(&error))) {
            Ok((grown, noted, results)) => {
                for ((len, file), noted) in grown.into_iter().zip(noted) {
                    match noted {
                        Ok(()) => file.synced(len),
                        // The disk is full, for example: the growth is shown once it can be noted.
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

/// Results of the notes and of the commits.
type Results = (Vec<Result<(), StoreError>>, Vec<Result<(), NotSynced>>);

/// Performs one round; blocks.
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
