//! What could not be removed of jobs. It is tried again at each pass of the reaper and told to operators (service.md §6.3).
//!
//! Folders of removed jobs have names of their own on the disk, so the next start finds them. The list only says why they are
//! still there, and since when.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::clock;
use crate::error::Chain;
use crate::model::{JobId, JobKey};
use crate::store::{FilesLeft, Removed, StoreError};
use crate::threads::{self, Work};

/// Maximum number of folders that a pass of the reaper tries: one that holds millions of files takes long each time.
const TRIES: usize = 64;

/// Maximum number of left-overs in an answer. The answer says how many there are.
pub(crate) const TOLD: usize = 64;

/// Longest reason in an answer, in bytes.
const REASON: usize = 512;

/// Something that is left of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOver {
    /// Id of the job, if it is known.
    pub(crate) id: Option<JobId>,
    /// The folder, or the folder of the file variables.
    pub(crate) path: PathBuf,
    /// Why it could not be removed, the last time.
    pub(crate) reason: String,
    /// When this was first seen.
    pub(crate) since: SystemTime,
}

impl LeftOver {
    fn new(id: Option<JobId>, path: PathBuf, error: &(dyn std::error::Error + 'static)) -> Self {
        Self { id, path, reason: reason(error), since: clock::now() }
    }
}

fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut reason = Chain(error).to_string();
    reason.truncate(reason.floor_char_boundary(REASON));
    reason
}

#[derive(Default)]
struct Lists {
    /// Folders of removed jobs; the one that was tried last is at the end.
    folders: VecDeque<(Removed, LeftOver)>,
    /// Folders that are being tried.
    tried: Vec<LeftOver>,
    /// File variables of jobs that have ended and are registered.
    files: BTreeMap<JobKey, LeftOver>,
}

/// The list; see the module. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct LeftOvers(Arc<Mutex<Lists>>);

impl LeftOvers {
    /// Deletes a folder that is already out of the way, a slice at a time. What cannot be deleted is added to the list.
    pub(super) async fn delete(&self, id: Option<JobId>, removed: Removed) {
        if let (removed, Err(error)) = delete(removed).await {
            let left = LeftOver::new(id, removed.path(), &error);
            tracing::warn!(
                error = %Chain(&error),
                job = left.id.as_ref().map(tracing::field::display),
                "not everything of a removed job was deleted; each pass of the reaper tries again"
            );
            self.0.lock().folders.push_back((removed, left));
        }
    }

    /// Deletes folders in the background: there may be many files.
    pub(super) fn delete_later(&self, removed: impl IntoIterator<Item = Removed>) {
        let removed: Vec<_> = removed.into_iter().collect();
        if removed.is_empty() {
            return;
        }
        let list = self.clone();
        actix::spawn(async move {
            for removed in removed {
                list.delete(None, removed).await;
            }
        });
    }

    /// Tries again to delete what is on the list, those first that were tried longest ago. Does nothing while an earlier
    /// pass is at work.
    pub(super) fn try_again(&self) {
        let mut lists = self.0.lock();
        if !lists.tried.is_empty() {
            return;
        }
        let count = lists.folders.len().min(TRIES);
        let again: Vec<_> = lists.folders.drain(..count).collect();
        lists.tried = again.iter().map(|(_, left)| left.clone()).collect();
        drop(lists);
        if again.is_empty() {
            return;
        }
        let list = self.clone();
        actix::spawn(async move {
            let mut still = Vec::new();
            for (removed, left) in again {
                match delete(removed).await {
                    (_, Ok(())) => {
                        tracing::info!(path = %left.path.display(), "the rest of a removed job was deleted");
                    }
                    (removed, Err(error)) => {
                        still.push((removed, LeftOver { reason: reason(&error), ..left }));
                    }
                }
            }
            let mut lists = list.0.lock();
            lists.tried.clear();
            lists.folders.extend(still);
        });
    }

    /// Notes that file variables of an ended job are left.
    pub(super) fn note_files(&self, id: &JobId, left: &FilesLeft) {
        let new = LeftOver::new(Some(id.clone()), left.path().to_owned(), left);
        let files = &mut self.0.lock().files;
        let since = files.get(&id.key()).map_or(new.since, |known| known.since);
        files.insert(id.key(), LeftOver { since, ..new });
    }

    /// Forgets the file variables of a job: they are removed, or from now on its folder is on the list.
    pub(super) fn forget_files(&self, key: JobKey) {
        self.0.lock().files.remove(&key);
    }

    /// Returns why file variables of a job are left.
    pub(super) fn reason_of_files(&self, key: JobKey) -> String {
        self.0.lock().files.get(&key).map(|left| left.reason.clone()).unwrap_or_default()
    }

    /// Returns what to tell, the oldest first, and the number of all left-overs.
    pub(crate) fn told(&self) -> (Vec<LeftOver>, usize) {
        let lists = self.0.lock();
        let folders = lists.folders.iter().map(|(_, left)| left).chain(&lists.tried);
        let mut all: Vec<_> = lists.files.values().chain(folders).cloned().collect();
        let count = all.len();
        all.sort_by(|a, b| (a.since, &a.path).cmp(&(b.since, &b.path)));
        all.truncate(TOLD);
        (all, count)
    }
}

async fn delete(removed: Removed) -> (Removed, Result<(), StoreError>) {
    let mut removed = Some(removed);
    threads::in_slices(Work::Removals, move |goes_on| {
        let result = removed.as_ref()?.delete_while(goes_on).transpose()?;
        removed.take().map(|removed| (removed, result))
    })
    .await
}
