//! Finish and the reaper: they remove jobs and remember the ids.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::Context;
use sha2::{Digest, Sha256};

use super::{Supervisor, delete, delete_later};
use crate::actors::deliver;
use crate::actors::job::CancelAsk;
use crate::actors::keeper_port::KeeperPort;
use crate::actors::registry::{Removal, Remove};
use crate::actors::sync_group::SyncGroup;
use crate::actors::view::JobView;
use crate::clock;
use crate::error::Chain;
use crate::failpoint;
use crate::job::reaper::{self, Action, Moment, Rules};
use crate::keeper::protocol::{Remembered as Entry, Request};
use crate::model::{CancelCause, JobId, Refusal};
use crate::process;
use crate::store::StateDir;
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
    /// Cancels and removes a job. Resolves when nothing of it is left. Repeated and concurrent calls join.
    pub(super) fn remove(&mut self, id: &JobId) -> impl Future<Output = Result<(), Refusal>> + 'static {
        let begun = match self.registry.remove(id) {
            Remove::Unknown => {
                self.remove_broken(id);
                None
            }
            Remove::Joined(change) => Some(change),
            Remove::Begun(removal, change) => {
                self.begin_removal(removal);
                Some(change)
            }
        };
        async move {
            if let Some(change) = begun {
                change.wait().await;
            }
            Ok(())
        }
    }

    /// Starts a removal that continues even if the call that asked for it is dropped.
    fn begin_removal(&mut self, removal: Removal) {
        let (port, state) = (self.port.clone(), self.state.clone());
        let view = removal.view.clone();
        self.pending_replays.prefer(&view.id);
        if let Some(job) = &removal.job {
            deliver(job, CancelAsk { cause: CancelCause::Finish, grace_limit: None });
        }
        let entry = self.remember(&view);
        actix::spawn(remove_ended(removal, entry, port, state, self.context.sync_group.clone()));
    }

    fn remember(&mut self, view: &JobView) -> Entry {
        let keyed = || Some(request_digest(&self.port.digest_key(), &view.digest?));
        let digest = view.keyed_digest.or_else(keyed).unwrap_or_default();
        let entry = Entry { key: view.key, digest, at: clock::now_micros() };
        self.registry.remembered.lock().add(entry);
        entry
    }

    fn remove_broken(&self, id: &JobId) {
        let key = id.key();
        if !self.registry.is_broken(key) {
            return;
        }
        match self.state.folder(key).remove_set_aside() {
            Ok(removed) => {
                self.registry.mend(key);
                delete_later(removed);
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), job = %id, "what was set aside was not removed");
            }
        }
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
        self.state.replenish_reserve();
        if jobs.len() != self.jobs_at_last_tick {
            self.jobs_at_last_tick = jobs.len();
            process::give_back_memory();
        }
    }

    /// Tries again to remove the file variables of ended jobs: they may hold secrets.
    fn remove_files_left<'a>(&self, jobs: impl Iterator<Item = &'a Arc<JobView>>) {
        let left: Vec<_> = jobs.filter(|view| view.is_ended() && view.has_files_left()).cloned().collect();
        if left.is_empty() {
            return;
        }
        let state = self.state.clone();
        drop(threads::run(Work::Ends, move || {
            for view in &left {
                remove_file_variables(view, &state);
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
                }
            }
        }
        self.orphans = seen;
        delete_later(gone);
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

/// Attempts of a Finish to remove file variables. After it the daemon does not know of them any more.
const FILE_TRIES: u32 = 5;

const FILE_PAUSE: Duration = Duration::from_millis(50);

fn remove_file_variables(view: &JobView, state: &StateDir) {
    match state.folder(view.key).remove_file_variables() {
        Ok(()) => view.update(|state| state.files_left = false),
        Err(error) => tracing::warn!(error, job = %view.id, "file variables are not removed yet"),
    }
}

async fn remove_ended(
    removal: Removal,
    entry: Entry,
    port: KeeperPort,
    state: StateDir,
    sync_group: Option<Arc<SyncGroup>>,
) {
    removal.view.log.ended().await;
    if let Some(keeper) = port.living().await {
        let key = removal.view.key;
        // Later daemons learn the id from the keeper, so it must be on its way to it before the Finish is answered; a
        // dying keeper need not know it.
        keeper.link.hand_over([Request::Drop { key }, Request::Remember(entry)]).await.ok();
    }
    removal.view.log.expire();
    removal.view.trace.expire();
    let folder = state.folder(removal.view.key);
    for attempt in 0..FILE_TRIES {
        if !removal.view.has_files_left() {
            break;
        }
        if attempt > 0 {
            tokio::time::sleep(FILE_PAUSE).await;
        }
        let (view, state) = (Arc::clone(&removal.view), state.clone());
        threads::run(Work::Ends, move || remove_file_variables(&view, &state)).await.ok();
    }
    // Files of its steps may still be deleted.
    drop(removal.view.leftovers.lock().await);
    // While the id is registered, new followers can read to the end.
    let _held = (removal.view.log.hold(&folder, removal.view.log_inode()), removal.view.trace.hold(&folder));
    let begun = folder.begin_removal();
    if let Some(group) = sync_group
        && let Err(error) = group.synced().await
    {
        tracing::warn!(error = %Chain(&error), job = %removal.view.id, "the removal may come undone with a power cut");
    }
    let removed = match begun {
        Ok(Some(removed)) if removed.delete_if_small() => Ok(()),
        Ok(Some(removed)) => delete(removed).await,
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        tracing::warn!(error = %Chain(&error), job = %removal.view.id, "not everything of the job was removed");
    }
    drop(removal);
}
