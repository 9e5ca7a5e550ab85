//! Finish and the reaper: they remove jobs and remember the ids.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::Context;
use sha2::{Digest, Sha256};

use super::Supervisor;
use super::refusals::RETRY;
use crate::actors::context::DaemonContext;
use crate::actors::deliver;
use crate::actors::keeper_port::KeeperPort;
use crate::actors::left_over::LeftOvers;
use crate::actors::messages::CancelAsk;
use crate::actors::registry::{Removal, Remove};
use crate::actors::view::{FilesState, JobView};
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::job::reaper::{self, Action, Moment, Rules};
use crate::keeper::protocol::{Remembered as Entry, Request};
use crate::model::{CancelCause, JobId, Reason, Refusal};
use crate::process;
use crate::store::{JobFolder, Removed, StateDir};
use crate::threads::{self, Work};

/// Folders without a readable record are removed after this time without a change (service.md §6.3).
const ORPHAN_AFTER: Duration = Duration::from_hours(24);

/// Digest of a request under the keeper's key. Without the key it reveals nothing about a secret in the request.
pub(super) fn request_digest(key: &[u8; 16], request: &[u8; 32]) -> [u8; 16] {
    let keyed = Sha256::new().chain_update(key).chain_update(request).finalize();
    let mut digest = [0; 16];
    digest.copy_from_slice(&keyed[..16]);
    digest
}

impl Supervisor {
    /// Cancels and removes a job. Resolves when it is gone, or registered as before. Repeated and concurrent calls join.
    pub(super) fn remove(&mut self, id: &JobId) -> impl Future<Output = Result<(), Refusal>> + 'static {
        let started = match self.registry.remove(id) {
            Remove::Unknown => Err(self.remove_broken(id)),
            Remove::Joined(ongoing) => Ok(ongoing),
            Remove::Started(removal, ongoing) => {
                self.begin_removal(removal);
                Ok(ongoing)
            }
        };
        async move {
            match started {
                Ok(ongoing) => ongoing.done().await,
                Err(result) => result,
            }
        }
    }

    /// Starts a removal that continues even if the call that asked for it is dropped.
    fn begin_removal(&mut self, removal: Removal) {
        let (port, state) = (self.port.clone(), self.state.clone());
        let view = removal.view.clone();
        self.pending_replays.prefer(&view.id);
        if let Some(job) = &removal.job {
            deliver(job, CancelAsk { cause: CancelCause::Finish, grace_limit: None, force: false });
        }
        let entry = self.remember(&view);
        actix::spawn(remove_ended(removal, entry, port, state, Arc::clone(&self.context)));
    }

    fn remember(&mut self, view: &JobView) -> Entry {
        let keyed = || Some(request_digest(&self.port.digest_key(), &view.digest?));
        let digest = view.keyed_digest.or_else(keyed).unwrap_or_default();
        let entry = Entry { key: view.key, digest, at: clock::now_micros() };
        self.registry.remembered.lock().add(entry);
        entry
    }

    fn remove_broken(&self, id: &JobId) -> Result<(), Refusal> {
        let key = id.key();
        if !self.registry.is_broken(key) {
            return Ok(());
        }
        let removed = self.state.folder(key).remove_set_aside().map_err(|error| not_removed(id, &error))?;
        self.registry.mend(key);
        self.context.left_over.delete_later(removed);
        Ok(())
    }

    /// One pass of the reaper (service.md §6.3).
    pub(super) fn reap(&mut self, _: &mut Context<Self>) {
        failpoint::hit("actors::supervisor::reap");
        let jobs = self.registry.all();
        let facts: Vec<_> = jobs.iter().map(|(view, _)| view.reaper_facts()).collect();
        for action in reaper::decide(&Rules::of(&self.config()), clock::uptime(), &facts) {
            match action {
                Action::Remove(id) => {
                    tracing::info!(job = %id, "nobody finished this job; it is removed");
                    let removed = self.remove(&id);
                    actix::spawn(removed);
                }
                Action::Cancel(id, cause) => self.cancel(&id, cause, None),
            }
        }
        let unkilled: Vec<_> =
            jobs.iter().filter(|(view, _)| view.is_unkilled()).map(|(view, _)| Arc::clone(view)).collect();
        if !unkilled.is_empty() {
            actix::spawn(self.kill_remains(unkilled));
        }
        self.remove_files_left(jobs.iter().map(|(view, _)| view));
        self.remove_orphans();
        self.context.left_over.try_again();
        self.state.replenish_reserve();
        if jobs.len() != self.jobs_at_last_tick {
            self.jobs_at_last_tick = jobs.len();
            process::give_back_memory();
        }
    }

    /// Tries again to remove the file variables of ended jobs: they may hold secrets.
    fn remove_files_left<'a>(&self, jobs: impl Iterator<Item = &'a Arc<JobView>>) {
        let left: Vec<_> = jobs
            .filter(|view| view.is_ended() && view.files_left() != FilesState::Removed)
            .cloned()
            .collect();
        if left.is_empty() {
            return;
        }
        let (state, list) = (self.state.clone(), self.context.left_over.clone());
        drop(threads::run(Work::Ends, move || {
            for view in &left {
                remove_file_variables(view, &state, &list);
            }
        }));
    }

    /// Removes folders without a record that have not changed for [`ORPHAN_AFTER`] since first seen. Only time before
    /// this daemon's start counts by the wall clock, which may jump (faults.md row 63).
    fn remove_orphans(&mut self) {
        let known = |key| self.registry.by_key(key).is_some() || self.registry.is_reserved(key);
        let orphans = self.state.orphans(known).unwrap_or_default();
        let now = clock::uptime();
        let (mut seen, mut gone) = (BTreeMap::new(), Vec::new());
        for (name, changed) in orphans {
            let since = match self.orphans.remove(&name) {
                Some((same, since)) if same == changed => since,
                _ => Moment::AfterStart(now),
            };
            if since.age(now) < ORPHAN_AFTER {
                seen.insert(name, (changed, since));
                continue;
            }
            match self.state.remove_orphan(&name) {
                Ok(removed) => gone.extend(removed),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "a folder without a record was not removed");
                    seen.insert(name, (changed, since));
                }
            }
        }
        self.orphans = seen;
        self.context.left_over.delete_later(gone);
    }

    /// Kills processes left by these jobs, on a thread that may block. A new job can have the id of one by then; its
    /// processes are not killed.
    pub(super) fn kill_remains(&self, jobs: Vec<Arc<JobView>>) -> impl Future<Output = ()> + use<> {
        let (state, boot_id) = (self.state.clone(), Arc::clone(&self.boot_id));
        let kill_wait = self.config().kill_wait;
        let host = Arc::clone(&self.host);
        let killed = threads::run(Work::Remains, move || {
            let jobs = jobs.iter().filter_map(|view| {
                let job = state.folder(view.key).read_job().ok()?;
                (job.record.registered == view.registered).then_some(job)
            });
            super::recover::kill_remains(&*host, jobs, &boot_id, kill_wait)
        });
        async move {
            match killed.await {
                Ok(left) if left.is_empty() => {}
                Ok(left) => tracing::warn!(pids = ?left, "processes could not be killed"),
                Err(error) => {
                    tracing::error!(error = %Chain(&error), "the search for left-over processes broke off");
                }
            }
        }
    }
}

/// Attempts of a Finish to remove file variables.
const FILE_TRIES: u32 = 5;

const FILE_PAUSE: Duration = Duration::from_millis(50);

fn remove_file_variables(view: &JobView, state: &StateDir, list: &LeftOvers) {
    let removed = state.folder(view.key).remove_file_variables();
    match &removed {
        Ok(()) => list.forget_files(view.key),
        Err(left) => {
            tracing::warn!(error = %Chain(left), job = %view.id, "file variables are not removed yet");
            list.note_files(&view.id, left);
        }
    }
    view.update(|state| state.files_left = FilesState::after(&removed));
}

/// Removes a job once it has ended. If that does not last, the job stays registered, and Finish is refused.
async fn remove_ended(
    removal: Removal,
    entry: Entry,
    port: KeeperPort,
    state: StateDir,
    context: Arc<DaemonContext>,
) {
    removal.view.log.ended().await;
    let (view, folder) = (Arc::clone(&removal.view), state.folder(removal.view.key));
    let keeper = port.living().await;
    if let Some(keeper) = &keeper {
        // Later daemons learn the id from the keeper, so it must be on its way to it before the Finish is answered; a
        // dying keeper need not know it.
        keeper.link.hand_over([Request::Remember(entry)]).await.ok();
    }
    // While the id is registered, new followers can read to the end.
    let _held = (view.log.hold(&folder, view.log_inode()), view.trace.hold(&folder));
    let removed = match set_gone(&view, &state, &folder, &context).await {
        Ok(removed) => removed,
        Err(refusal) => {
            tracing::warn!(reason = refusal.text, job = %view.id, "a job that is finished could not be removed");
            return removal.refuse(refusal);
        }
    };
    if let Some(keeper) = keeper {
        // Only now: the keeper may hold an end that could not be written.
        keeper.link.tell_later(Request::Drop { key: view.key });
    }
    view.log.expire();
    view.trace.expire();
    if let Some(removed) = removed.filter(|removed| !removed.delete_if_small()) {
        context.left_over.delete(Some(view.id.clone()), removed).await;
    }
    removal.complete();
}

/// Gives the folder of an ended job a name that belongs to no job, for good. Before that no secret may be left in its file
/// variables. `None` if there is no folder.
async fn set_gone(
    view: &Arc<JobView>,
    state: &StateDir,
    folder: &JobFolder,
    context: &DaemonContext,
) -> Result<Option<Removed>, Refusal> {
    remove_all_file_variables(view, state, &context.left_over).await?;
    // Files of its steps may still be deleted.
    drop(view.leftovers.lock().await);
    let removed = match (folder.begin_removal(), &context.sync_group) {
        // That it is not there does not prove that it is not on the disk: an earlier removal may have lost its sync.
        (Ok(None), Some(_)) => folder.make().and_then(|()| folder.begin_removal()),
        (removed, _) => removed,
    };
    let removed = removed.map_err(|error| not_removed(&view.id, &error))?;
    if let Some(group) = &context.sync_group
        && let Err(error) = group.synced().await
    {
        // Clients see the job until its removal is on the disk.
        if let Some(Err(error)) = removed.map(|removed| removed.undo(folder)) {
            tracing::warn!(error = %Chain(&error), job = %view.id, "a removal could not be undone");
        }
        return Err(not_removed(&view.id, &error));
    }
    context.left_over.forget_files(view.key);
    Ok(removed.map(|removed| match view.files_left() {
        FilesState::Removed => removed.without_files(),
        FilesState::Emptied | FilesState::Kept => removed,
    }))
}

/// Removes the file variables of an ended job, or empties them. Refused if a secret may be left.
async fn remove_all_file_variables(
    view: &Arc<JobView>,
    state: &StateDir,
    list: &LeftOvers,
) -> Result<(), Refusal> {
    for attempt in 0..FILE_TRIES {
        if view.files_left() == FilesState::Removed {
            return Ok(());
        }
        if attempt > 0 {
            tokio::time::sleep(FILE_PAUSE).await;
        }
        let (view, state, list) = (Arc::clone(view), state.clone(), list.clone());
        threads::run(Work::Ends, move || remove_file_variables(&view, &state, &list)).await.ok();
    }
    if view.files_left() != FilesState::Kept {
        return Ok(());
    }
    let reason = list.reason_of_files(view.key);
    Err(refusal(&view.id, &format!("a file variable may still hold a secret: {reason}")))
}

/// Refusal of a Finish whose job could not be removed.
fn not_removed(id: &JobId, error: &(dyn std::error::Error + 'static)) -> Refusal {
    refusal(id, &Chain(error).to_string())
}

fn refusal(id: &JobId, reason: &str) -> Refusal {
    let text = format!(
        "job {id} is not removed and still registered: {reason}; remove the cause, then finish it again"
    );
    Refusal::for_now(Reason::NotRemoved, text, RETRY)
}
