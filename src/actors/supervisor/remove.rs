//! Finish and the reaper: taking jobs out, and remembering that they were there.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use sha2::{Digest, Sha256};

use super::{Supervisor, delete_later};
use crate::actors::job::CancelAsk;
use crate::actors::keeper_port::KeeperPort;
use crate::actors::registry::{Removal, Remove};
use crate::actors::sync_group::SyncGroup;
use crate::actors::view::JobView;
use crate::actors::{blocking, deliver};
use crate::clock;
use crate::failpoint;
use crate::job::reaper::{self, Action, Moment, Rules};
use crate::keeper::protocol::{Remembered as Entry, Request};
use crate::model::{CancelCause, JobId, JobKey, Refusal};
use crate::process;
use crate::store::StateDir;

/// Folders without a readable record are removed after this time without a change (service.md §6.3).
const ORPHAN_AFTER: Duration = Duration::from_hours(24);

/// Digest of a request with the keeper's key: without the key it says nothing about a secret in the request.
pub(super) fn request_digest(key: &[u8; 16], request: &[u8; 32]) -> [u8; 16] {
    let keyed = Sha256::new().chain_update(key).chain_update(request).finalize();
    let mut digest = [0; 16];
    digest.copy_from_slice(&keyed[..16]);
    digest
}

impl Supervisor {
    /// Cancels and removes a job; ends when nothing of it is left. Repeated and racing calls join.
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

    /// Starts a removal that goes on whatever becomes of the call that asked for it.
    fn begin_removal(&mut self, removal: Removal) {
        let (port, state) = (self.port.clone(), self.state.clone());
        let view = removal.view.clone();
        if let Some(job) = &removal.job {
            deliver(job, CancelAsk { cause: CancelCause::Finish, grace_limit: None });
        }
        let entry = self.remember(&view);
        actix::spawn(remove_ended(removal, entry, port, state, self.around.sync_group.clone()));
    }

    /// Remembers a finished id.
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
            Err(error) => tracing::warn!(%error, job = %id, "what was set aside was not removed"),
        }
    }

    /// One pass of the reaper (service.md §6.3).
    pub(super) fn reap(&mut self, ctx: &mut Context<Self>) {
        failpoint::hit("actors::supervisor::reap");
        let jobs = self.registry.all();
        let facts: Vec<_> = jobs.iter().map(|(view, _)| view.reaper_facts()).collect();
        for action in reaper::decide(&Rules::of(&self.config()), clock::uptime(), &facts) {
            match action {
                Action::Remove(id) => {
                    tracing::info!(job = %id, "nobody finished this job; it is removed");
                    let removed = self.remove(&id);
                    ctx.spawn(removed.into_actor(self).map(|_, _, _| ()));
                }
                Action::Cancel(id, cause) => self.cancel(&id, cause, None),
            }
        }
        let unkilled: Vec<_> =
            jobs.iter().filter(|(view, _)| view.is_unkilled()).map(|(view, _)| view.key).collect();
        if !unkilled.is_empty() {
            ctx.spawn(self.kill_remains(unkilled).into_actor(self));
        }
        self.remove_files_left(jobs.iter().map(|(view, _)| view));
        self.remove_orphans();
        self.state.replenish_reserve();
        if jobs.len() != self.jobs_at_last_tick {
            self.jobs_at_last_tick = jobs.len();
            process::give_back_memory();
        }
    }

    /// Tries again to remove file variables of jobs that have ended: they may be secrets.
    fn remove_files_left<'a>(&self, jobs: impl Iterator<Item = &'a Arc<JobView>>) {
        let left: Vec<_> = jobs.filter(|view| view.is_ended() && view.has_files_left()).cloned().collect();
        if left.is_empty() {
            return;
        }
        let state = self.state.clone();
        drop(blocking(move || left.iter().for_each(|view| remove_file_variables(view, &state))));
    }

    /// Folders without a record that nobody has touched for a day. Counted from when they were first seen, and only before
    /// this daemon's start by the wall clock, which may jump (faults.md row 63).
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
                Err(error) => tracing::warn!(%error, "a folder without a record was not removed"),
            }
        }
        self.orphans = seen;
        delete_later(gone);
    }

    /// Kills what is left of these jobs, on a thread that may block.
    pub(super) fn kill_remains(&self, keys: Vec<JobKey>) -> impl Future<Output = ()> + use<> {
        let (state, boot_id) = (self.state.clone(), Arc::clone(&self.boot_id));
        let kill_wait = self.config().kill_wait;
        let host = Arc::clone(&self.host);
        let killed = blocking(move || {
            let jobs = keys.into_iter().filter_map(|key| state.folder(key).read_job().ok());
            super::recover::kill_remains(&*host, jobs, &boot_id, kill_wait)
        });
        async move {
            match killed.await {
                Ok(left) if left.is_empty() => {}
                Ok(left) => tracing::warn!(pids = ?left, "processes could not be killed"),
                Err(error) => tracing::error!(%error, "the search for left-over processes broke off"),
            }
        }
    }
}

/// So often a Finish tries to remove file variables: behind it nothing knows of them any more.
const FILE_TRIES: u32 = 5;

/// Between two tries.
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
        keeper.link.tell_short(Request::Drop { key: removal.view.key });
        // It tells later daemons, so whoever is told of the Finish may rely on its knowing; a dying one need not.
        keeper.link.ask(Request::Remember(entry)).await.ok();
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
        blocking(move || remove_file_variables(&view, &state)).await.ok();
    }
    let begun = folder.begin_removal();
    if let Some(group) = sync_group
        && let Err(error) = group.synced().await
    {
        tracing::warn!(%error, job = %removal.view.id, "the removal may come undone with a power cut");
    }
    let delete = || begun?.map_or(Ok(()), |removed| removed.delete());
    let removed = blocking(delete).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(%error, job = %removal.view.id, "not everything of the job was removed");
    }
    drop(removal);
}
