//! Takes over the jobs of earlier daemons before the first call is answered (service.md §6.4). Each job goes on, is
//! served as ended, or ends as *interrupted*.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, Handler, Message, ResponseActFuture, WrapFuture};
use tokio::time::timeout;

use super::Supervisor;
use super::loading::{PendingReplay, ResumedJob, START_WAIT, take_all};
use super::times::{Start, Times, before_start};
use crate::actors::deliver;
use crate::actors::host::Host;
use crate::actors::job::JobActor;
use crate::actors::keeper_port::{Keeper, KeeperProblem};
use crate::actors::log_sink::LogFeed;
use crate::actors::messages::Begin;
use crate::actors::spec::Brief;
use crate::actors::stored::{StepEvent, StoredKind};
use crate::actors::sync_group::NotSynced;
use crate::actors::trace_sink::TraceFeed;
use crate::actors::view::{FilesState, JobView, JobViewState};
use crate::clock;
use crate::error::Chain;
use crate::journal::event::End;
use crate::keeper::link::LinkError;
use crate::keeper::protocol::Request;
use crate::log::frame::STEP;
use crate::model::{EndClass, JobId, JobKey, Outcome, StepOutcome, StepResult};
use crate::process::remains::Remains;
use crate::store::{Closing, Death, Found, JobFolder, JobRecord, Removed, ScannedJob, StoreError};

/// Cause in the outcome of jobs that no keeper holds any more.
const HOST_DIED: &str = "the processes that ran it died, or their host did";

/// Reason why a daemon cannot take over a state folder.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The folder cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The keeper of the folder lives but cannot be used.
    #[error(transparent)]
    Keeper(#[from] KeeperProblem),
    /// The supervisor died.
    #[error("a defect ended the supervisor")]
    Stopped,
}

/// Takes over the jobs of the state folder and of a living keeper.
#[derive(Message)]
#[rtype(result = "Result<(), RecoveryError>")]
pub(super) struct Recover;

type ResumedJobs = BTreeMap<JobKey, ResumedJob>;

impl Handler<Recover> for Supervisor {
    type Result = ResponseActFuture<Self, Result<(), RecoveryError>>;

    fn handle(&mut self, _: Recover, ctx: &mut Context<Self>) -> Self::Result {
        let (me, port) = (ctx.address().recipient(), self.port.clone());
        let find = async move {
            loop {
                let Some((keeper, holdings)) = port.find(&me).await? else {
                    return Ok((None, ResumedJobs::new(), vec![]));
                };
                match take_all(&port, &keeper, holdings.jobs).await {
                    Ok(registered) => return Ok((Some(keeper), registered, holdings.remembered)),
                    // The keeper died meanwhile. The next search does not find it.
                    Err(LinkError::Gone) => port.try_forget().await?,
                    Err(LinkError::Silent) => port.end_silent().await?,
                    Err(error) => return Err(RecoveryError::from(KeeperProblem::Link(error))),
                }
            }
        };
        let taken_up =
            find.into_actor(self).map(move |found, supervisor: &mut Self, ctx: &mut Context<Self>| {
                let (keeper, registered, remembered) = found?;
                if keeper.is_none() {
                    supervisor.port.foresee_groups()?;
                }
                for entry in remembered {
                    supervisor
                        .registry
                        .remembered
                        .lock()
                        .restore(entry, supervisor.config().remember_finished);
                }
                supervisor.take_up(keeper.as_ref(), registered)?;
                supervisor.warn_of_limits(&supervisor.config());
                let loaded = supervisor.load_all(ctx);
                supervisor.port.release();
                Ok(loaded)
            });
        Box::pin(taken_up.then(|taken_up: Result<_, RecoveryError>, supervisor, _| {
            // A large record is replayed while the daemon already serves.
            let loaded = async move {
                drop(timeout(START_WAIT, taken_up?).await);
                Ok(())
            };
            loaded.into_actor(supervisor)
        }))
    }
}

impl Supervisor {
    fn take_up(&mut self, keeper: Option<&Keeper>, mut registered: ResumedJobs) -> Result<(), RecoveryError> {
        // A dead keeper holds no job. If it dies after this check, the jobs are registered and learn of it.
        let keeper = keeper.filter(|keeper| !keeper.link.is_over());
        if keeper.is_none() {
            registered.clear();
        }
        self.pause_queue();
        self.state.set_aside_keys()?.into_iter().for_each(|key| self.registry.set_broken(key));
        let (mut orphaned, mut gone) = (Vec::new(), Vec::new());
        for found in self.state.scan()? {
            match found {
                Found::Job(job) => {
                    let holding = registered.remove(&job.folder.key());
                    match (&job.journal.end, keeper, holding) {
                        (Some(end), keeper, holding) => {
                            gone.extend(step_files(&job.folder));
                            let end = self.complete(&job.folder, end.clone());
                            self.serve_ended(&job, end);
                            if let (Some(keeper), Some(_)) = (keeper, holding) {
                                keeper.link.tell_short(Request::Drop { key: job.folder.key() });
                            }
                        }
                        (None, Some(keeper), Some(holding)) => self.go_on(keeper, *job, holding),
                        // Its Run was not answered: the daemon answers only after the keeper has.
                        (None, ..) if !job.was_registered() => gone.extend(job.discard()),
                        (None, ..) => orphaned.push(job),
                    }
                }
                Found::Unreadable { folder, reason } => match (keeper, registered.remove(&folder.key())) {
                    (Some(keeper), Some(holding)) => self.write_anew(keeper, &folder, holding),
                    _ if folder.drop_unanswered() => {}
                    _ => self.set_aside(&folder, &reason),
                },
                Found::Gone(removed) => gone.push(removed),
                // The reaper removes it once it is old enough.
                Found::Orphan { name, changed } => {
                    let age = clock::now().duration_since(changed).unwrap_or_default();
                    self.orphans.insert(name, (changed, before_start(age)));
                }
            }
        }
        // The keeper holds them, and they have no record: their Runs were never answered (service.md §6.4 item 3).
        for (key, _) in registered {
            if let Some(keeper) = keeper {
                keeper.link.tell_short(Request::Drop { key });
            }
            match self.state.folder(key).begin_removal() {
                Ok(removed) => gone.extend(removed),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "a job that was never answered was not removed");
                }
            }
        }
        self.interrupt_all(&orphaned);
        gone.extend(orphaned.iter().filter_map(|job| step_files(&job.folder)));
        if keeper.is_none() {
            self.host.remove_groups(&self.host.groups(&self.state));
        }
        self.settle_on_disk();
        self.context.left_over.delete_later(gone);
        self.resume_queue();
        Ok(())
    }

    /// Interrupts unended jobs that no keeper holds: kills their processes, closes their logs, writes their ends.
    fn interrupt_all(&self, jobs: &[Box<ScannedJob>]) {
        let left =
            kill_remains(&*self.host, jobs.iter().map(Box::as_ref), &self.boot_id, self.config().kill_wait);
        if !left.is_empty() {
            tracing::warn!(pids = ?left, "processes of interrupted jobs could not be killed");
        }
        let (now, boot) = (clock::now_micros(), clock::boot_micros());
        let begin = |job: &ScannedJob| {
            let outcome = match job.journal.cancel.filter(|_| job.journal.started.is_none()) {
                // No step of it ran, so the job ends the way its canceller asked for.
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
                    let end = closing.end();
                    let (id, class, cause) = (&job.record.id, end.outcome.class, &end.outcome.message);
                    tracing::warn!(job = %id, ?class, cause, "job ended with the processes that ran it");
                    if let Err(error) = closing.record() {
                        // The disk is full, for example. Serve the job with the data that exists.
                        let job = &job.record.id;
                        tracing::error!(error = %Chain(&error), job, "the end was not written; the next start does it");
                    }
                    self.serve_ended(job, self.complete(&job.folder, end));
                }
                Err(error) => self.set_aside(&job.folder, &Chain(&error).to_string()),
            }
        }
    }

    /// Prepares the files for the setting `durability`, before the first call is answered. With `power`, syncs
    /// everything that will be served and notes the synced length of each growing log. Without it, deletes the notes of
    /// earlier daemons, because clients then see data before it is synced.
    fn settle_on_disk(&self) {
        let is_synced = self.context.sync_group.is_some() && self.sync_now();
        for (view, _) in self.registry.all() {
            if view.is_ended() {
                continue;
            }
            let folder = self.state.folder(view.key);
            let noted = if is_synced { folder.note_synced(view.log.len()) } else { folder.forget_synced() };
            if let Err(error) = noted {
                tracing::warn!(error = %Chain(&error), job = %view.id, "what is on the disk of a log was not noted");
            }
        }
        if is_synced {
            self.sync_now();
        }
    }

    /// With `durability = power`, syncs the state folder's file system. Returns false if no sync was needed or if it
    /// failed.
    pub(super) fn sync_now(&self) -> bool {
        if self.context.sync_group.is_none() {
            return false;
        }
        let synced = self.state.sync_all();
        if let Err(error) = &synced {
            self.lose_storage(&NotSynced::new(error));
        }
        synced.is_ok()
    }

    /// Completes the end of an interrupted or cancelled job: sets the number of stored steps, and stores a root result
    /// if there is none, because FollowSteps must end with one (service.md §3.3). Returns any other end unchanged.
    pub(super) fn complete(&self, folder: &JobFolder, end: End) -> End {
        let stored = folder.read_steps_of(|stored| (self.kind)(stored) == StoredKind::Step);
        let stored = stored.ok().filter(|stored| stored.damage.is_none());
        let outcome = match end.outcome.class {
            EndClass::Interrupted => StepOutcome::Failure,
            // The root may be missing too if the job was cancelled before it began.
            EndClass::Cancelled => StepOutcome::Cancelled,
            EndClass::Success | EndClass::Failure | EndClass::Timeout => return end,
        };
        let Some(stored) = stored else { return end };
        let has_root = stored.last.is_some_and(|last| (self.kind)(&last) == StoredKind::Root);
        if !has_root {
            let root = StepResult { status: outcome.status(), outcome, ..StepResult::default() };
            let event = StepEvent {
                call: 0,
                parent: 0,
                is_member: false,
                slot: STEP,
                log_bytes: end.log_len,
                result: root.clone(),
            };
            let stored = [(self.encode.event)(&event), (self.encode.result)(&root)];
            let stored = stored.iter().try_for_each(|stored| folder.append_step(stored).map(drop));
            if let Err(error) = stored {
                tracing::warn!(error = %Chain(&error), "the result of an interrupted job was not stored");
            }
        }
        End { steps_done: stored.marked, ..end }
    }

    fn set_aside(&self, folder: &JobFolder, reason: &str) {
        tracing::error!(job = %folder.key(), reason, "a job's record cannot be read; it is set aside in broken/");
        if let Err(error) = folder.set_aside() {
            tracing::error!(error = %Chain(&error), job = %folder.key(), "the unreadable record could not be moved to broken/");
        }
        self.registry.set_broken(folder.key());
    }

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
        let mut state = JobViewState {
            start_time: job.journal.started,
            // It is not recorded whether an earlier daemon removed them.
            files_left: FilesState::unless(job.record.files.is_empty()),
            ..JobViewState::default()
        };
        state.end(end, since);
        let view = JobView::new(id, job.record.registered, log_inode, log, trace, state);
        self.registry
            .insert(Arc::new(view.of_record(digest.map(u128::to_be_bytes), job.record.origin)), None);
    }

    /// Registers a job that the keeper kept running. [`Supervisor::load_all`] replays its machine.
    fn go_on(&mut self, keeper: &Keeper, job: ScannedJob, resumed: ResumedJob) {
        let key = job.folder.key();
        // The last daemon may have died while it wrote a line. Cut the torn line off before anything is appended.
        if job.journal.torn.is_some()
            && let Err(error) = job.folder.mend_journal()
        {
            tracing::warn!(error = %Chain(&error), job = job.record.id, "the torn end of a journal was not cut");
        }
        if let Err(reason) = self.register_resumed(keeper, &job, resumed) {
            keeper.link.tell_short(Request::Drop { key });
            tracing::error!(job = job.record.id, reason, "a running job cannot be taken up");
            self.interrupt_all(&[Box::new(job)]);
        }
    }

    fn register_resumed(
        &mut self,
        keeper: &Keeper,
        job: &ScannedJob,
        resumed: ResumedJob,
    ) -> Result<(), String> {
        let at_keeper = &resumed.registered;
        let started = job
            .journal
            .started
            .map(|at| Start { at, since: before_start(self.age(&job.record, at, job.journal.started_boot)) });
        let JobRecord { registered, registered_boot, .. } = job.record;
        let waits = before_start(self.age(&job.record, registered, registered_boot));
        // The record holds only the request: the job waits or was about to begin.
        let is_new = at_keeper.events == 1;
        let brief = Brief::decode(&at_keeper.brief.0).ok_or("what the keeper says of it cannot be read")?;
        let id = JobId::parse(&job.record.id).map_err(|e| e.to_string())?;
        let (view, stored) =
            self.view_of(id, &job.record, brief.digest, Times { started, waits }, at_keeper)?;
        tracing::info!(job = %view.id, "job goes on");
        let place = brief.place.as_ref().filter(|_| is_new && started.is_none());
        self.restore_queue(&view.id, &brief.share, place);
        let mailbox = JobActor::mailbox();
        let actor = mailbox.address();
        self.registry.insert(Arc::clone(&view), Some(actor.clone()));
        let cancel = job.journal.cancel;
        if cancel.is_some() {
            // Clients must not see it as running again.
            view.update(JobViewState::cancel);
        } else if is_new && place.is_none() {
            deliver(&actor, Begin { has_waited: false });
        }
        self.pending_replays.add(PendingReplay {
            view,
            keeper: keeper.clone(),
            resumed,
            cancel,
            stored,
            ctx: mailbox,
        });
        Ok(())
    }

    /// Rewrites a damaged record on disk from the keeper's copy.
    fn write_anew(&mut self, keeper: &Keeper, folder: &JobFolder, resumed: ResumedJob) {
        let written = Brief::decode(&resumed.registered.brief.0)
            .and_then(|brief| brief.record())
            .ok_or_else(|| "what the keeper says of it cannot be read".to_owned())
            .and_then(|record| {
                let recorded = JobRecord { registered_boot: None, ..record };
                folder.renew(&recorded).map_err(|e| Chain(&e).to_string())?;
                folder.read_job()
            });
        match written {
            Ok(job) => self.go_on(keeper, job, resumed),
            Err(reason) => {
                keeper.link.tell_short(Request::Drop { key: folder.key() });
                self.set_aside(folder, &reason);
            }
        }
    }
}

/// Moves the files of the steps of a job that has ended out of the way. The result must be deleted.
fn step_files(folder: &JobFolder) -> Option<Removed> {
    folder.set_dir_gone(c"tmp").unwrap_or_else(|error| {
        tracing::warn!(error = %Chain(&error), job = %folder.key(), "files of steps were not removed");
        None
    })
}

/// Kills processes left by `jobs`, which no keeper holds. Returns the pids that survive `limit`. Blocks. Skips jobs of
/// an earlier boot, because a reboot leaves no process.
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
