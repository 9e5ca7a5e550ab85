//! The supervisor: the only actor that admits and removes jobs.
//!
//! It reacts to [`Admit`], [`CancelJob`] and [`FinishJob`] from calls, `AdmitWith`, `AdmitRegistered` and `BeginNext` from
//! its own admissions, [`JobEnded`] and [`JobBroken`] from jobs, [`KeeperGone`] from the keeper's connection, `Shutdown`
//! from the program, and its own reaper tick. It keeps no state of a job: that is in the [`Registry`] and in the job's
//! actor. Long work runs outside its mailbox, so a slow job delays no other.

mod admit;
mod loading;
mod places;
mod recover;
mod refusals;
mod remove;
mod revive;
mod shutdown;
mod slots;
mod times;
mod usages;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, Recipient, ResponseFuture,
    WrapFuture,
};

use tokio::sync::oneshot;

use super::admission::Admit;
use super::context::DaemonContext;
use super::deliver;
use super::host::Host;
use super::keeper_port::{KeeperPort, cgroup_mode};
use super::limits;
use super::messages::{
    Begin, CancelAsk, CancelJob, FinishJob, JobBroken, JobEnded, KeeperGone, KeeperLost, StorageLost,
};
use super::redact::UnmaskedRefusal;
use super::registry::Registry;
use super::stored::{Encode, StoredKind};
use super::sync_group::{NotSynced, SyncGroup};
use super::view::JobView;
use crate::config::{Config, Durability};
use crate::error::Chain;
use crate::failpoint;
use crate::fetch::Fetcher;
use crate::job::reaper::Moment;
use crate::model::{CancelCause, JobId, Refusal, ResourceLimits};
use crate::queue::Queue;
use crate::store::StateDir;
use crate::variables::Base;

use loading::PendingReplays;
pub use recover::RecoveryError;

/// Capacity of the supervisor's mailbox; further callers wait for room. It is larger than a job's, to take a burst of
/// Runs.
const MAILBOX: usize = 256;

/// Everything a supervisor is built from.
pub struct SupervisorParts {
    /// Settings.
    pub config: Arc<Config>,
    /// The part of the daemon's environment that steps get.
    pub base: Base,
    /// The state folder.
    pub state: StateDir,
    /// Path of the socket as steps see it.
    pub socket: Arc<std::path::Path>,
    /// `PATH` of the daemon.
    pub daemon_path: Option<std::ffi::OsString>,
    /// Finds and fetches functions.
    pub fetcher: Arc<Fetcher>,
    /// Boot id of the host.
    pub boot_id: String,
    /// Encodes results in their stored form.
    pub encode: Encode,
    /// Classifies a stored message of FollowSteps.
    pub kind: fn(&[u8]) -> StoredKind,
    /// True in the private daemon of one `run`.
    pub private: bool,
    /// The host that processes run on.
    pub host: Arc<dyn Host>,
}

/// Progress of a stop (service.md §6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    /// No stop.
    No,
    /// No new job is taken; registered jobs go on.
    Draining,
    /// All jobs are cancelled, none starts.
    Ending,
    /// Everything is killed.
    AtOnce,
}

impl Stop {
    /// Advances to `stop`. A stop never goes back: jobs that were killed cannot be drained any more.
    fn raise(&mut self, stop: Self) {
        *self = stop.max(*self);
    }
}

/// The actor that admits and removes jobs; see the module.
pub struct Supervisor {
    registry: Arc<Registry>,
    context: Arc<DaemonContext>,
    state: StateDir,
    port: KeeperPort,
    host: Arc<dyn Host>,
    encode: Encode,
    kind: fn(&[u8]) -> StoredKind,
    boot_id: Arc<str>,
    stop: Stop,
    queue: Queue<JobId>,
    /// Registered jobs that have a slot and are to begin, the next one first.
    begins: VecDeque<Recipient<Begin>>,
    pending_replays: PendingReplays,
    /// The keeper died while a record was being read: that record's job must be interrupted.
    is_keeper_forgotten: bool,
    /// Dropped with the actor, however the actor ends.
    _ended: oneshot::Sender<()>,
    /// Number of registered jobs at the reaper's last tick. If it changed, there may be memory to give back.
    jobs_at_last_tick: usize,
    /// Folders without a record: the time of the last change, and since when we have known it.
    orphans: BTreeMap<CString, (SystemTime, Moment)>,
}

/// Resolves when the supervisor is gone. Before the end of the program only a defect can cause that.
pub type SupervisorEnd = oneshot::Receiver<()>;

impl Supervisor {
    /// Reads the state folder, takes up the jobs that go on, and starts the actor. No call is answered before that.
    pub(super) async fn start_recovered(
        parts: SupervisorParts,
        registry: Arc<Registry>,
    ) -> Result<(Addr<Self>, Arc<DaemonContext>, SupervisorEnd), RecoveryError> {
        let SupervisorParts {
            config,
            base,
            state,
            socket,
            daemon_path,
            fetcher,
            boot_id,
            encode,
            kind,
            private,
            host,
        } = parts;
        let (policy, limits_of_queue) = slots::rules(&config);
        let sync_group = (config.durability == Durability::Power).then(|| SyncGroup::new(state.clone()));
        let context =
            Arc::new(DaemonContext::new(Arc::clone(&config), base, socket, daemon_path, fetcher, sync_group));
        let port = KeeperPort::new(state.clone(), config, Arc::clone(&registry), private, Arc::clone(&host))?;
        let (sender, ended) = oneshot::channel();
        let supervisor = Self {
            registry,
            context: Arc::clone(&context),
            state,
            port,
            host,
            encode,
            kind,
            boot_id: boot_id.into(),
            stop: Stop::No,
            queue: Queue::new(policy, limits_of_queue),
            begins: VecDeque::new(),
            pending_replays: PendingReplays::default(),
            is_keeper_forgotten: false,
            _ended: sender,
            jobs_at_last_tick: 0,
            orphans: BTreeMap::new(),
        };
        let address = Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            supervisor
        });
        address.send(recover::Recover).await.map_err(|_| RecoveryError::Stopped)??;
        Ok((address, context, ended))
    }

    fn config(&self) -> Arc<Config> {
        self.context.config()
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(self.config().reap_interval, Self::reap);
        if let Some(group) = &self.context.sync_group {
            let me = ctx.address();
            actix::spawn(Arc::clone(group).run(move |error| deliver(&me, SyncFailed(error))));
        }
    }
}

/// A sync failed: data of the jobs may be lost although every file still reads well (faults.md row 27).
#[derive(Message)]
#[rtype(result = "()")]
struct SyncFailed(NotSynced);

impl Handler<SyncFailed> for Supervisor {
    type Result = ();

    fn handle(&mut self, SyncFailed(error): SyncFailed, _: &mut Self::Context) {
        self.lose_storage(&error);
    }
}

impl Handler<Admit> for Supervisor {
    type Result = ResponseFuture<Result<(), UnmaskedRefusal>>;

    fn handle(&mut self, admit: Admit, ctx: &mut Self::Context) -> Self::Result {
        failpoint::hit("actors::supervisor::admit");
        let admitted = self.admit(admit, ctx.address());
        Box::pin(async { Ok(admitted.await?) })
    }
}

impl Handler<CancelJob> for Supervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, CancelJob { id, force }: CancelJob, _: &mut Self::Context) -> Self::Result {
        failpoint::hit("actors::supervisor::cancel");
        self.pending_replays.prefer(&id);
        let job = self.registry.job(&id);
        Box::pin(async move {
            if let Some(job) = job {
                // No error: a job whose actor is gone has ended by itself.
                job.send(CancelAsk { cause: CancelCause::Cancel, grace_limit: None, force }).await.ok();
            }
        })
    }
}

impl Handler<FinishJob> for Supervisor {
    type Result = ResponseFuture<Result<(), Refusal>>;

    fn handle(&mut self, FinishJob(id): FinishJob, _: &mut Self::Context) -> Self::Result {
        failpoint::hit("actors::supervisor::finish");
        let (port, removed) = (self.port.clone(), self.remove(&id));
        // The removal goes on if the keeper does not answer. A repeated call joins it.
        Box::pin(async move { port.unless_silent(removed).await? })
    }
}

impl Handler<JobEnded> for Supervisor {
    type Result = ();

    fn handle(&mut self, JobEnded(id): JobEnded, _: &mut Self::Context) {
        failpoint::hit("actors::supervisor::job_ended");
        self.ended(&id);
    }
}

impl Handler<JobBroken> for Supervisor {
    type Result = ();

    fn handle(&mut self, JobBroken(id): JobBroken, ctx: &mut Self::Context) {
        failpoint::hit("actors::supervisor::job_broken");
        // Only this stop kills all jobs. Any other stop waits for the end of this job too.
        if self.stop == Stop::AtOnce {
            return;
        }
        // The Run of a job that is not registered yet finds out by itself.
        if self.registry.view(&id).is_none() {
            return;
        }
        tracing::error!(job = %id, "a defect ended the actor of this job; the job is ended too");
        let revived = self.revive(id);
        ctx.spawn(revived);
    }
}

impl Handler<KeeperGone> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: KeeperGone, ctx: &mut Self::Context) {
        failpoint::hit("actors::supervisor::keeper_gone");
        // A keeper that was told to end is expected to go.
        if self.stop == Stop::AtOnce || (self.stop == Stop::Ending && self.living().is_empty()) {
            return;
        }
        // The lost connection had been replaced already, so no job lost its keeper.
        if self.port.now().is_some_and(|keeper| !keeper.link.is_over()) {
            return;
        }
        let port = self.port.clone();
        let jobs = started(&self.living());
        if jobs.is_empty() {
            tracing::warn!("the keeper is gone; it ran no job");
        } else {
            tracing::error!("the keeper is gone; the jobs it ran are interrupted");
        }
        let (host, groups) = (Arc::clone(&self.host), self.host.groups(&self.state));
        let dead = async move { port.forget().await };
        // A dying keeper ends its own children. Kill whatever survives its death.
        let cleared = dead.into_actor(self).then(move |(), supervisor, _| {
            let killed = supervisor.kill_remains(jobs);
            let cleared = async move {
                killed.await;
                host.remove_groups(&groups);
            };
            cleared.into_actor(supervisor)
        });
        ctx.spawn(cleared.map(|(), supervisor, ctx| {
            supervisor.interrupt_unloaded(ctx);
            for (view, job) in supervisor.registry.all() {
                if let Some(job) = job.filter(|_| !view.is_ended()) {
                    deliver(&job, KeeperLost);
                }
            }
        }));
    }
}

/// Jobs that may have started processes. Waiting jobs are excluded: none of their steps has run, and by the time the dead
/// keeper's remains are killed, the next keeper may have started them.
fn started(jobs: &[Arc<JobView>]) -> Vec<Arc<JobView>> {
    jobs.iter().filter(|view| view.read(|state| state.start_time).is_some()).map(Arc::clone).collect()
}

impl Supervisor {
    /// Frees the slot and the cache entries of a job that has no processes any more.
    fn ended(&mut self, id: &JobId) {
        self.registry.ended(id);
        if failpoint::io("actors::supervisor::free_slot").is_err() {
            return;
        }
        self.context.fetcher.release(id.key());
        self.leave_queue(id);
    }

    /// Warns the operator of limits in the settings that cannot be enforced. Asks the host only if limits are set.
    fn warn_of_limits(&self, config: &Config) {
        if limits::of_settings(config) == ResourceLimits::default() {
            return;
        }
        let unenforceable = match self.port.now() {
            Some(keeper) => keeper.unenforceable,
            None => self.host.unenforceable(cgroup_mode(config.cgroup)).into(),
        };
        limits::warn_of_settings(config, &unenforceable);
    }

    /// Fails every living job: a failed sync does not tell whose bytes were lost.
    fn lose_storage(&self, error: &NotSynced) {
        tracing::error!(error = %Chain(error), "a sync to the disk failed, so all unfinished jobs have failed: check the disk of the state folder, then run the jobs again");
        for (view, job) in self.registry.all() {
            if view.is_ended() {
                continue;
            }
            view.log.lose();
            view.trace.lose();
            if let Some(job) = job {
                deliver(&job, StorageLost(error.clone()));
            }
        }
    }

    fn cancel(&self, id: &JobId, cause: CancelCause, grace_limit: Option<Duration>) {
        if let Some((_, Some(job))) = self.registry.by_key(id.key()) {
            deliver(&job, CancelAsk { cause, grace_limit, force: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::log_sink::LogFeed;
    use crate::actors::trace_sink::TraceFeed;
    use crate::actors::view::JobViewState;

    #[test]
    fn what_a_dead_keeper_left_is_not_looked_for_in_jobs_that_waited() {
        let view = |id, start_time| {
            let (log, trace) = (LogFeed::new(0, false), TraceFeed::new(0, false));
            let state = JobViewState { start_time, ..JobViewState::default() };
            Arc::new(JobView::new(JobId::parse(id).unwrap(), 0, 1, log, trace, state))
        };
        let (waits, runs) = (view("waits", None), view("runs", Some(1)));
        let started: Vec<_> = started(&[waits, Arc::clone(&runs)]).iter().map(|view| view.key).collect();
        assert_eq!(started, [runs.key]);
    }
}
