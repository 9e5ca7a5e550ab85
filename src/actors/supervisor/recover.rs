//! What happens before the socket opens (service.md §6.4): jobs go on, are served as ended, or end *interrupted*.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::ffi::CString;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFuture, ActorFutureExt, Addr, Context, Handler, Message, ResponseActFuture, WrapFuture};

use super::Supervisor;
use crate::actors::admission::{Head, ShellSpec, read_head};
use crate::actors::deliver;
use crate::actors::job::{Begin, CancelAsk, Defect, JobActor, JobParts, Replay};
use crate::actors::keeper_port::{Keeper, KeeperProblem};
use crate::actors::log_sink::LogFeed;
use crate::actors::redact::{Redactor, mask_config};
use crate::actors::trace_sink::TraceFeed;
use crate::actors::view::{JobView, State};
use crate::clock;
use crate::error::Chain;
use crate::job::event::Event;
use crate::job::machine::Machine;
use crate::job::reaper::Moment;
use crate::job::record;
use crate::journal::event::End;
use crate::keeper::link::LinkError;
use crate::keeper::protocol::{HeldJob, Reply, Request};
use crate::log::mask::PhraseSet;
use crate::model::{EndClass, JobId, JobKey, JobState, Outcome, StepResult, StepStatus};
use crate::process::remains::Remains;
use crate::store::{Found, JobFolder, ScannedJob, StoreError, close_interrupted};

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

type Held = HashMap<JobKey, HeldJob>;

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
                match resume_all(&keeper, holdings.jobs).await {
                    Ok(held) => return Ok((Some(keeper), held, holdings.remembered)),
                    // It died meanwhile: then it is not found again.
                    Err(LinkError::Gone) => port.forget().await,
                    Err(error) => return Err(RecoveryError::from(KeeperProblem::Link(error))),
                }
            }
        };
        Box::pin(find.into_actor(self).map(move |found, supervisor, _| {
            let (keeper, held, remembered) = found?;
            for entry in remembered {
                supervisor.registry.remembered.lock().add(entry);
            }
            let taken_up = supervisor.take_up(keeper.as_ref(), held, &me);
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
                                keeper.link.tell(Request::Drop { key: job.folder.key() });
                            }
                        }
                        (None, Some(keeper), Some(holding)) => self.go_on(keeper, *job, holding, me),
                        (None, ..) => orphaned.push(job),
                    }
                }
                Found::Unreadable { folder, reason } => match (keeper, held.remove(&folder.key())) {
                    (Some(keeper), Some(holding)) => self.write_anew(keeper, &folder, holding, me),
                    _ => self.set_aside(&folder, &reason),
                },
                Found::Gone { name } => gone.push(name),
                Found::Orphan { .. } => {} // the reaper removes it when it is old enough
            }
        }
        // What was never answered to its client is dropped (service.md §6.4 item 3).
        for (key, _) in held {
            if let Some(keeper) = keeper {
                keeper.link.tell(Request::Drop { key });
            }
            if let Err(error) = self.state.folder(key).remove() {
                tracing::warn!(%error, "not everything of a job that was never answered was removed");
            }
        }
        self.interrupt_all(&orphaned);
        self.delete_gone(gone);
        self.resume_queue();
        Ok(())
    }

    /// Completes removals that an earlier daemon began. There may be much to delete: nobody waits for it.
    fn delete_gone(&self, names: Vec<CString>) {
        let state = self.state.clone();
        tokio::task::spawn_blocking(move || {
            for name in names {
                if let Err(error) = state.remove_orphan(&name) {
                    tracing::warn!(%error, "not everything of a removed job was deleted");
                }
            }
        });
    }

    /// Jobs without an end that nobody holds: their processes are ended, their logs closed, their ends written.
    fn interrupt_all(&self, jobs: &[Box<ScannedJob>]) {
        let left = kill_remains(jobs.iter().map(Box::as_ref), &self.boot_id, self.config().kill_wait);
        if !left.is_empty() {
            tracing::warn!(pids = ?left, "processes of interrupted jobs could not be killed");
        }
        for job in jobs {
            match close_interrupted(job, HOST_DIED, clock::now_micros()) {
                Ok(end) => self.serve_ended(job, self.complete(&job.folder, end)),
                Err(error) => self.set_aside(&job.folder, &Chain(&error).to_string()),
            }
        }
    }

    /// FollowSteps of an interrupted job ends with a root of status failure (service.md §3.3): adds it if whoever
    /// wrote the end did not, and counts the steps before it.
    fn complete(&self, folder: &JobFolder, end: End) -> End {
        let stored = folder.read_steps().ok().filter(|stored| stored.damage.is_none());
        let Some(stored) = stored.filter(|_| end.outcome.class == EndClass::Interrupted) else { return end };
        let has_root = stored.records.last().is_some_and(|last| (self.is_root)(last));
        if !has_root {
            let root = StepResult { status: StepStatus::Failure, ..StepResult::default() };
            if let Err(error) = folder.append_step(&(self.encode)(&root)) {
                tracing::warn!(%error, "the result of an interrupted job was not stored");
            }
        }
        End { steps_done: (stored.records.len() - usize::from(has_root)) as u32, ..end }
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
        let state = State {
            state: JobState::Ended(end.outcome.class),
            outcome: Some(end.outcome),
            start_time: job.journal.started,
            end_time: Some(end.end_time),
            steps_done: end.steps_done,
            cpu_time: end.cpu_time.map(std::time::Duration::from_micros),
            peak_memory: end.peak_memory,
            since: Moment::BeforeStart(since(end.end_time)),
            unkilled: false,
        };
        let key = id.key();
        let trace = TraceFeed::new(job.folder.steps_len(), true);
        let log = LogFeed::new(end.log_len, true);
        let digest = job.record.digest.as_deref().and_then(|hex| u128::from_str_radix(hex, 16).ok());
        let digest = digest.map(u128::to_be_bytes);
        let view =
            JobView::new(id, key, job.record.registered, end.log_inode, None, digest, log, trace, state);
        self.registry.insert(Arc::new(view), None);
    }

    /// Registers a job that the keeper kept going, and replays its machine.
    fn go_on(&mut self, keeper: &Keeper, job: ScannedJob, held: HeldJob, me: &Addr<Self>) {
        let started = job.journal.started;
        let key = job.folder.key();
        // The request alone: nothing of the job was recorded, it waits or was just about to begin.
        let is_new = held.record.0.len() == 1;
        let head = held.record.0.first().and_then(|head| read_head(head));
        let cancel = job.journal.cancel;
        match self.try_revive(keeper, held, started, me, None) {
            Ok((view, actor)) => {
                tracing::info!(job = %view.id, "job goes on");
                let place = head.as_ref().filter(|_| is_new && started.is_none()).map(|head| &head.place);
                if let Some(head) = &head {
                    self.restore_queue(&view.id, &head.shell, place);
                }
                self.registry.insert(view, Some(actor.clone()));
                if let Some(cause) = cancel {
                    // A second cancel of the same job changes nothing.
                    deliver(&actor, CancelAsk { cause, grace_limit: None });
                } else if is_new && place.is_none() {
                    deliver(&actor, Begin);
                }
            }
            Err(reason) => {
                keeper.link.tell(Request::Drop { key });
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
                folder.renew(&self.recorded(&shell, held.tag)).map_err(|e| Chain(&e).to_string())?;
                folder.read_job()
            });
        match written {
            Ok(job) => self.go_on(keeper, job, held, me),
            Err(reason) => {
                keeper.link.tell(Request::Drop { key: folder.key() });
                self.set_aside(folder, &reason);
            }
        }
    }

    /// As [`Self::revived`]; a record that makes the replay panic costs its own job only.
    fn try_revive(
        &self,
        keeper: &Keeper,
        held: HeldJob,
        started: Option<i64>,
        me: &Addr<Self>,
        known: Option<Arc<JobView>>,
    ) -> Result<(Arc<JobView>, Addr<JobActor>), String> {
        let attempt = || self.revived(keeper, held, started, me, known);
        std::panic::catch_unwind(AssertUnwindSafe(attempt))
            .unwrap_or_else(|_| Err("a defect ended the replay of its record".into()))
    }

    fn revived(
        &self,
        keeper: &Keeper,
        held: HeldJob,
        started: Option<i64>,
        me: &Addr<Self>,
        known: Option<Arc<JobView>>,
    ) -> Result<(Arc<JobView>, Addr<JobActor>), String> {
        let HeldJob { tag, record: events, last_op, over, running: _, closed, log_inode, log_len } = held;
        let (first, events) = events.0.split_first().ok_or("the record is empty")?;
        let Head { shell, accepted, place: _ } = read_head(first).ok_or("the record's head is damaged")?;
        let Event::Accepted(spec) = accepted else {
            return Err("the record does not begin with a request".into());
        };
        let machine = Machine::new(&spec).map_err(|_| "the request does not parse any more")?;
        let events = events.iter().map(|event| record::decode(event)).collect::<Result<Vec<_>, _>>();
        let events = events.map_err(|e| Chain(&e).to_string())?;
        // A full disk may have refused the journal's line; the record has it.
        let started = started.or_else(|| events.iter().find_map(admitted_at));
        let id = JobId::parse(&shell.id).map_err(|e| e.to_string())?;
        let folder = self.state.folder(id.key());
        let (phrases, _warnings) =
            PhraseSet::prepare(&shell.phrases, &shell.token_prefixes, &mask_config(&self.config()))
                .map_err(|e| e.to_string())?;
        let fresh = || Arc::new(Self::view_of(&shell, id, started, log_inode, log_len, &folder));
        let view = known.unwrap_or_else(fresh);
        view.update(|state| state.steps_done = 0); // counted anew by the replay
        let stored = folder.read_steps().map_err(|e| Chain(&e).to_string())?.records.len() as u32;
        let parts = JobParts {
            view: Arc::clone(&view),
            around: Arc::clone(&self.around),
            folder,
            link: keeper.link.clone(),
            supervisor: me.clone(),
            machine,
            redactor: Redactor::new(phrases),
            shell,
            tag,
            encode: self.encode,
            head: (events.is_empty() && started.is_none()).then(|| first.clone()),
        };
        let replay = Replay { events, last_op, over, closed, stored };
        Ok((view, JobActor::start_replayed(parts, replay)))
    }

    fn view_of(
        shell: &ShellSpec,
        id: JobId,
        started: Option<i64>,
        log_inode: u64,
        log_len: u64,
        folder: &JobFolder,
    ) -> JobView {
        let state = State {
            state: if started.is_some() { JobState::Running } else { JobState::Queued },
            start_time: started,
            since: Moment::BeforeStart(since(started.unwrap_or(shell.registered))),
            ..State::default()
        };
        let key = id.key();
        let (log, trace) = (LogFeed::new(log_len, false), TraceFeed::new(folder.steps_len(), false));
        JobView::new(id, key, shell.registered, log_inode, Some(shell.digest), None, log, trace, state)
    }

    /// Takes up a job anew whose actor died of a defect, to end it; one that kills its actor again is interrupted.
    pub(super) fn revive(&self, id: JobId, me: Addr<Self>) -> impl ActorFuture<Self, Output = ()> + 'static {
        let (port, key) = (self.port.clone(), id.key());
        async move {
            let keeper = port.living().await?;
            match keeper.link.ask(Request::Resume { key }).await {
                Ok(Reply::Resumed(held)) => Some((keeper, *held)),
                _ => None,
            }
        }
        .into_actor(self)
        .map(move |held, supervisor, _| {
            let Some(view) = supervisor.registry.view(&id).filter(|view| !view.is_ended()) else { return };
            let started = view.state().start_time;
            let revived =
                held.ok_or_else(|| "the keeper does not hold it".to_owned()).and_then(|(keeper, held)| {
                    supervisor.try_revive(&keeper, held, started, &me, Some(Arc::clone(&view)))
                });
            match revived {
                Ok((_, actor)) => {
                    supervisor.registry.replace(&id, actor.clone());
                    deliver(
                        &actor,
                        Defect("a defect ended the part of the daemon that drove this job".into()),
                    );
                }
                Err(reason) => {
                    tracing::error!(job = %id, reason, "the job cannot be taken up again");
                    if let Some(keeper) = supervisor.port.now() {
                        keeper.link.tell(Request::Drop { key });
                    }
                    supervisor.end_unrevived(&view);
                }
            }
        })
    }
}

/// Takes over all jobs of a keeper.
async fn resume_all(keeper: &Keeper, keys: Vec<JobKey>) -> Result<Held, LinkError> {
    let mut held = Held::new();
    for key in keys {
        match keeper.link.ask(Request::Resume { key }).await {
            Ok(Reply::Resumed(job)) => drop(held.insert(key, *job)),
            // Dropped meanwhile: the others are not to suffer for it.
            Ok(_) | Err(LinkError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}

/// When a job was admitted.
const fn admitted_at(event: &Event) -> Option<i64> {
    match event {
        Event::Admitted { at } => Some(*at),
        _ => None,
    }
}

/// How long ago that was, by the wall clock: the only one there is across restarts (service.md §6.3).
fn since(at: i64) -> Duration {
    Duration::from_micros(u64::try_from(clock::now_micros().saturating_sub(at)).unwrap_or(0))
}

impl Supervisor {
    /// Writes the end of a job that cannot be driven any more.
    fn end_unrevived(&mut self, view: &JobView) {
        let closed = self.state.folder(view.key).read_job().and_then(|job| {
            let end = close_interrupted(&job, "a defect of the daemon", clock::now_micros());
            end.map(|end| self.complete(&job.folder, end)).map_err(|e| Chain(&e).to_string())
        });
        let end = closed.unwrap_or_else(|reason| {
            tracing::error!(job = %view.id, reason, "its end was not written");
            End {
                outcome: Outcome::interrupted("a defect of the daemon"),
                end_time: clock::now_micros(),
                log_len: view.log.len(),
                log_inode: view.log_inode,
                steps_done: 0,
                cpu_time: None,
                peak_memory: None,
            }
        });
        view.update(|state| {
            state.state = JobState::Ended(end.outcome.class);
            state.outcome = Some(end.outcome.clone());
            state.end_time = Some(end.end_time);
            state.since = Moment::AfterStart(clock::uptime());
        });
        view.trace.end();
        view.log.end(end.log_len);
        self.ended(&view.id);
    }
}

/// Kills what is left of jobs that nobody holds; the pids that outlive `limit`. Blocks. After a change of boot nothing
/// can be left.
pub(super) fn kill_remains<J: Borrow<ScannedJob>>(
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
    if any { remains.kill(limit) } else { Vec::new() }
}
