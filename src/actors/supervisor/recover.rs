//! What happens before the socket opens (service.md §6.4): jobs go on, are served as ended, or end *interrupted*.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, Addr, Context, Handler, Message, ResponseActFuture, WrapFuture};

use super::revive::{Revival, Start, Times, before_start};
use super::{Supervisor, delete_later};
use crate::actors::admission::{Head, read_head};
use crate::actors::deliver;
use crate::actors::host::Host;
use crate::actors::job::{Begin, CancelAsk};
use crate::actors::keeper_port::{Keeper, KeeperPort, KeeperProblem};
use crate::actors::log_sink::LogFeed;
use crate::actors::sync_group::NotSynced;
use crate::actors::trace_sink::TraceFeed;
use crate::actors::view::{JobView, State};
use crate::clock;
use crate::error::Chain;
use crate::journal::event::End;
use crate::keeper::link::LinkError;
use crate::keeper::protocol::{HeldJob, Reply, Request};
use crate::model::{EndClass, JobId, JobKey, JobState, Outcome, StepResult, StepStatus};
use crate::process::remains::Remains;
use crate::store::{Closing, Death, Found, JobFolder, JobRecord, ScannedJob, StoreError};

/// What ended the jobs that nobody holds any more.
const HOST_DIED: &str = "the processes that ran it died, or their host did";

/// Why a daemon cannot take up a state folder.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The folder cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The keeper that lives there is not to be had.
    #[error(transparent)]
    Keeper(#[from] KeeperProblem),
    /// The supervisor died.
    #[error("a defect ended the supervisor")]
    Stopped,
}

/// Take up what the state folder and a living keeper hold.
#[derive(Message)]
#[rtype(result = "Result<(), RecoveryError>")]
pub(super) struct Recover;

type Held = BTreeMap<JobKey, HeldJob>;

impl Handler<Recover> for Supervisor {
    type Result = ResponseActFuture<Self, Result<(), RecoveryError>>;

    fn handle(&mut self, _: Recover, ctx: &mut Context<Self>) -> Self::Result {
        use actix::AsyncContext;
        let me = ctx.address();
        let port = self.port.clone();
        let asked = me.clone();
        let find = async move {
            loop {
                let Some((keeper, holdings)) = port.find(&asked).await? else {
                    return Ok((None, Held::new(), vec![]));
                };
                match resume_all(&port, &keeper, holdings.jobs).await {
                    Ok(held) => return Ok((Some(keeper), held, holdings.remembered)),
                    // It died meanwhile: then it is not found again.
                    Err(LinkError::Gone) => port.try_forget().await?,
                    Err(LinkError::Silent) => port.end_silent().await?,
                    Err(error) => return Err(RecoveryError::from(KeeperProblem::Link(error))),
                }
            }
        };
        Box::pin(find.into_actor(self).map(move |found, supervisor, _| {
            let (keeper, held, remembered) = found?;
            if keeper.is_none() {
                supervisor.port.foresee_groups()?;
            }
            for entry in remembered {
                supervisor.registry.remembered.lock().restore(entry, supervisor.config().remember_finished);
            }
            let taken_up = supervisor.take_up(keeper.as_ref(), held, &me);
            supervisor.warn_of_limits(&supervisor.config());
            supervisor.port.release();
            // All leases of jobs that go on are known now.
            let fetcher = Arc::clone(&supervisor.around.fetcher);
            actix::spawn(async move { fetcher.recovered().await });
            taken_up
        }))
    }
}

impl Supervisor {
    fn take_up(
        &mut self,
        keeper: Option<&Keeper>,
        mut held: Held,
        me: &Addr<Self>,
    ) -> Result<(), RecoveryError> {
        // One that has died holds nothing. If it dies after this, the jobs are there to hear of it.
        let keeper = keeper.filter(|keeper| !keeper.link.is_over());
        if keeper.is_none() {
            held.clear();
        }
        self.pause_queue();
        self.state.set_aside_keys()?.into_iter().for_each(|key| self.registry.set_broken(key));
        let (mut orphaned, mut gone) = (Vec::new(), Vec::new());
        for found in self.state.scan()? {
            match found {
                Found::Job(job) => {
                    let holding = held.remove(&job.folder.key());
                    match (&job.journal.end, keeper, holding) {
                        (Some(end), keeper, holding) => {
                            let end = self.complete(&job.folder, end.clone());
                            self.serve_ended(&job, end);
                            if let (Some(keeper), Some(_)) = (keeper, holding) {
                                keeper.link.tell_short(Request::Drop { key: job.folder.key() });
                            }
                        }
                        (None, Some(keeper), Some(holding)) => self.go_on(keeper, *job, holding, me),
                        (None, ..) => orphaned.push(job),
                    }
                }
                Found::Unreadable { folder, reason } => match (keeper, held.remove(&folder.key())) {
                    (Some(keeper), Some(holding)) => self.write_anew(keeper, &folder, holding, me),
                    _ if folder.drop_unanswered() => {}
                    _ => self.set_aside(&folder, &reason),
                },
                Found::Gone(removed) => gone.push(removed),
                // The reaper removes it when it is old enough.
                Found::Orphan { name, changed } => {
                    let age = clock::now().duration_since(changed).unwrap_or_default();
                    self.orphans.insert(name, (changed, before_start(age)));
                }
            }
        }
        // What was never answered to its client is dropped (service.md §6.4 item 3).
        for (key, _) in held {
            if let Some(keeper) = keeper {
                keeper.link.tell_short(Request::Drop { key });
            }
            match self.state.folder(key).begin_removal() {
                Ok(removed) => gone.extend(removed),
                Err(error) => tracing::warn!(%error, "a job that was never answered was not removed"),
            }
        }
        self.interrupt_all(&orphaned);
        if keeper.is_none() {
            self.host.remove_groups(&self.host.groups(&self.state));
        }
        self.settle_on_disk();
        delete_later(gone);
        self.resume_queue();
        Ok(())
    }

    /// Jobs without an end that nobody holds: their processes are ended, their logs closed, their ends written.
    fn interrupt_all(&self, jobs: &[Box<ScannedJob>]) {
        let left =
            kill_remains(&*self.host, jobs.iter().map(Box::as_ref), &self.boot_id, self.config().kill_wait);
        if !left.is_empty() {
            tracing::warn!(pids = ?left, "processes of interrupted jobs could not be killed");
        }
        let (now, boot) = (clock::now_micros(), clock::boot_micros());
        let begin = |job: &ScannedJob| {
            let outcome = match job.journal.cancel.filter(|_| job.journal.started.is_none()) {
                // Nothing of it ran: whoever cancelled it is told what he asked for.
                Some(cause) => Outcome::stopped(cause),
                None => Outcome::interrupted(HOST_DIED),
            };
            Closing::begin(job, outcome, Death::Host, now, boot)
        };
        let begun: Vec<_> = jobs.iter().map(|job| (job, begin(job))).collect();
        if !begun.is_empty() {
            self.sync_now();
        }
        for (job, begun) in begun {
            match begun {
                Ok(closing) => {
                    if let Err(error) = closing.record() {
                        // A full disk: what is there of the job is served all the same.
                        let (error, job) = (Chain(&error), &job.record.id);
                        tracing::error!(%error, job, "the end was not written; the next start does it");
                    }
                    self.serve_ended(job, self.complete(&job.folder, closing.end()));
                }
                Err(error) => self.set_aside(&job.folder, &Chain(&error).to_string()),
            }
        }
    }

    /// Before the socket opens: with `durability = power` everything that is going to be served is on the disk, and how
    /// much of the logs that grow. Without it clients see all there is.
    fn settle_on_disk(&self) {
        let is_synced = self.around.sync_group.is_some() && self.sync_now();
        for (view, _) in self.registry.all() {
            if view.is_ended() {
                continue;
            }
            let folder = self.state.folder(view.key);
            let noted = if is_synced { folder.note_synced(view.log.len()) } else { folder.forget_synced() };
            if let Err(error) = noted {
                tracing::warn!(%error, job = %view.id, "what is on the disk of a log was not noted");
            }
        }
        if is_synced {
            self.sync_now();
        }
    }

    /// One sync with `durability = power`; `false` if there was none, or it failed.
    pub(super) fn sync_now(&self) -> bool {
        if self.around.sync_group.is_none() {
            return false;
        }
        let synced = self.state.sync_all();
        if let Err(error) = &synced {
            self.lose_storage(&NotSynced::new(error));
        }
        synced.is_ok()
    }

    /// FollowSteps of an interrupted job ends with a root of status failure (service.md §3.3): adds it if whoever
    /// wrote the end did not, and counts the steps before it.
    pub(super) fn complete(&self, folder: &JobFolder, end: End) -> End {
        let stored = folder.read_steps().ok().filter(|stored| stored.damage.is_none());
        let status = match end.outcome.class {
            EndClass::Interrupted => StepStatus::Failure,
            // Of one that was cancelled before it began the root may be missing too.
            EndClass::Cancelled => StepStatus::Cancelled,
            EndClass::Success | EndClass::Failure | EndClass::Timeout => return end,
        };
        let Some(stored) = stored else { return end };
        let has_root = stored.last.is_some_and(|last| (self.is_root)(&last));
        if !has_root {
            let root = StepResult { status, ..StepResult::default() };
            if let Err(error) = folder.append_step(&(self.encode)(&root)) {
                tracing::warn!(%error, "the result of an interrupted job was not stored");
            }
        }
        End { steps_done: stored.count - u32::from(has_root), ..end }
    }

    fn set_aside(&self, folder: &JobFolder, reason: &str) {
        tracing::error!(job = %folder.key(), reason, "a job's record cannot be read; it is set aside in broken/");
        if let Err(error) = folder.set_aside() {
            tracing::error!(%error, "it could not be set aside");
        }
        self.registry.set_broken(folder.key());
    }

    /// Registers an ended job.
    fn serve_ended(&self, job: &ScannedJob, end: End) {
        let Ok(id) = JobId::parse(&job.record.id) else {
            return self.set_aside(&job.folder, "the id in job.json is none");
        };
        let trace = TraceFeed::new(job.folder.steps_len(), true);
        let log = LogFeed::new(end.lost_from.unwrap_or(end.log_len), true);
        if end.lost_from.is_some() {
            log.lose();
        }
        let digest = job.record.digest.as_deref().and_then(|hex| u128::from_str_radix(hex, 16).ok());
        let (log_inode, since) =
            (end.log_inode, before_start(self.age(&job.record, end.end_time, end.end_boot)));
        let mut state = State {
            start_time: job.journal.started,
            // An earlier daemon may have died before it was told of a failure.
            files_left: !job.record.files.is_empty(),
            ..State::default()
        };
        state.end(end, since);
        let view = JobView::new(id, job.record.registered, log_inode, log, trace, state);
        self.registry.insert(Arc::new(view.of_keyed(digest.map(u128::to_be_bytes))), None);
    }

    /// Registers a job that the keeper kept going, and replays its machine.
    fn go_on(&mut self, keeper: &Keeper, job: ScannedJob, held: HeldJob, me: &Addr<Self>) {
        let started = job
            .journal
            .started
            .map(|at| Start { at, since: before_start(self.age(&job.record, at, job.journal.started_boot)) });
        let JobRecord { registered, registered_boot, .. } = job.record;
        let waits = before_start(self.age(&job.record, registered, registered_boot));
        let times = Times { started, waits };
        let key = job.folder.key();
        // The dead daemon was cut off in an event: what is appended next must not follow half a line.
        if job.journal.torn.is_some()
            && let Err(error) = job.folder.mend_journal()
        {
            tracing::warn!(%error, job = job.record.id, "the torn end of a journal was not cut");
        }
        // The request alone: nothing of the job was recorded, it waits or was just about to begin.
        let is_new = held.record.0.len() == 1;
        let head = held.record.0.first().and_then(|head| read_head(head));
        let cancel = job.journal.cancel;
        match self.try_revive(Revival { keeper, held, times, me, known: None }) {
            Ok((view, actor)) => {
                tracing::info!(job = %view.id, "job goes on");
                let place = head.as_ref().filter(|_| is_new && started.is_none()).map(|head| &head.place);
                if let Some(head) = &head {
                    self.restore_queue(&view.id, &head.shell, place);
                }
                self.registry.insert(Arc::clone(&view), Some(actor.clone()));
                // The replay has asked for what the keeper's record holds; a Finish asked again would leave no grace.
                let is_known = view.state().state == JobState::Cancelling;
                if let Some(cause) = cancel.filter(|_| !is_known) {
                    // Nobody sees it run again.
                    view.update(State::cancel);
                    deliver(&actor, CancelAsk { cause, grace_limit: None });
                } else if is_new && place.is_none() {
                    deliver(&actor, Begin);
                }
            }
            Err(reason) => {
                keeper.link.tell_short(Request::Drop { key });
                tracing::error!(job = job.record.id, reason, "a running job cannot be taken up");
                self.interrupt_all(&[Box::new(job)]);
            }
        }
    }

    /// The record on disk is damaged, but the keeper knows all that was in it.
    fn write_anew(&mut self, keeper: &Keeper, folder: &JobFolder, held: HeldJob, me: &Addr<Self>) {
        let written = read_head(held.record.0.first().map_or(&[], Vec::as_slice))
            .ok_or_else(|| "the keeper's record is damaged too".to_owned())
            .and_then(|Head { shell, .. }| {
                let recorded = JobRecord { registered_boot: None, ..self.recorded(&shell, held.tag) };
                folder.renew(&recorded).map_err(|e| Chain(&e).to_string())?;
                folder.read_job()
            });
        match written {
            Ok(job) => self.go_on(keeper, job, held, me),
            Err(reason) => {
                keeper.link.tell_short(Request::Drop { key: folder.key() });
                self.set_aside(folder, &reason);
            }
        }
    }
}

/// Takes over all jobs of a keeper.
async fn resume_all(port: &KeeperPort, keeper: &Keeper, keys: Vec<JobKey>) -> Result<Held, LinkError> {
    let mut held = Held::new();
    for key in keys {
        match port.ask_living(&keeper.link, Request::Resume { key }).await {
            Ok(Reply::Resumed(job)) => drop(held.insert(key, *job)),
            // Dropped meanwhile: the others are not to suffer for it.
            Ok(_) | Err(LinkError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}
/// Kills what is left of jobs that nobody holds; the pids that outlive `limit`. Blocks. After a change of boot nothing
/// can be left.
pub(super) fn kill_remains<J: Borrow<ScannedJob>>(
    host: &dyn Host,
    jobs: impl IntoIterator<Item = J>,
    boot_id: &str,
    limit: Duration,
) -> Vec<u32> {
    let mut remains = Remains::default();
    let mut any = false;
    for job in jobs {
        let job = job.borrow();
        if job.record.boot_id != boot_id {
            continue;
        }
        let Ok(tag) = u128::from_str_radix(&job.record.tag, 16) else { continue };
        any = true;
        remains.add_job(tag);
        for leader in job.leftovers(boot_id) {
            remains.add_group(tag, leader.pgid, leader.start_time);
        }
    }
    if any { host.kill(&remains, limit) } else { Vec::new() }
}
