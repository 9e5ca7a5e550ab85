//! The supervisor: the only one that lets jobs in and takes them out.
//!
//! Inputs: [`Admit`], [`CancelJob`], [`FinishJob`] from calls; [`JobOver`], [`JobBroken`] from jobs; [`KeeperGone`] from
//! the keeper's connection; its own reaper tick; [`Shutdown`] from the program. It keeps no state of a job: that is in
//! the [`Registry`] and in the job's actor. Long work runs beside its mailbox, so one slow job delays no other.

mod admit;
mod recover;
mod remove;
mod revive;
mod shutdown;
mod slots;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, ResponseActFuture, ResponseFuture,
    WrapFuture,
};

use tokio::sync::oneshot;

use super::admission::{Prepared, Surroundings};
use super::handle::JobsHandle;
use super::host::Host;
use super::job::{CancelAsk, KeeperLost, StorageLost};
use super::keeper_port::{KeeperPort, cgroup_mode};
use super::limits;
use super::registry::{Registry, Reservation};
use super::sync_group::{NotSynced, SyncGroup};
use super::trace_sink::EncodeResult;
use super::view::JobView;
use super::{blocking, deliver};
use crate::config::{Config, Durability};
use crate::failpoint;
use crate::fetch::Fetcher;
use crate::job::reaper::Moment;
use crate::model::{CancelCause, JobId, JobKey, Limits, Refusal};
use crate::queue::Queue;
use crate::store::{Removed, StateDir};
use crate::variables::Base;

pub use recover::RecoveryError;
pub use shutdown::Shutdown;
pub(super) use slots::{HoldAgain, NotHeld, Operate};

/// Room in the supervisor's mailbox: callers beyond it wait for room. A burst of Runs is answered from here, so it is
/// larger than a job's.
const MAILBOX: usize = 256;

/// What a supervisor is made of.
pub struct SupervisorParts {
    /// Settings.
    pub config: Arc<Config>,
    /// What steps get of the daemon's environment.
    pub base: Base,
    /// The state folder.
    pub state: StateDir,
    /// The socket as steps see it.
    pub socket: Arc<std::path::Path>,
    /// `PATH` of the daemon.
    pub daemon_path: Option<std::ffi::OsString>,
    /// What finds functions.
    pub fetcher: Arc<Fetcher>,
    /// Boot id of the host.
    pub boot_id: String,
    /// Makes the stored form of results.
    pub encode: EncodeResult,
    /// Whether a stored result is the root's.
    pub is_root: fn(&[u8]) -> bool,
    /// This is the private daemon of one `run`.
    pub private: bool,
    /// Where processes live.
    pub host: Arc<dyn Host>,
}

/// How far a stop has come (service.md §6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    /// No stop.
    No,
    /// No job is taken; those that are there go on.
    Draining,
    /// All jobs are cancelled, none starts.
    Ending,
    /// Everything is killed.
    AtOnce,
}

/// See the module's text.
pub struct Supervisor {
    registry: Arc<Registry>,
    around: Arc<Surroundings>,
    state: StateDir,
    port: KeeperPort,
    host: Arc<dyn Host>,
    encode: EncodeResult,
    is_root: fn(&[u8]) -> bool,
    boot_id: Arc<str>,
    stop: Stop,
    queue: Queue<JobId>,
    /// Dropped with the actor, however it ends.
    _ended: oneshot::Sender<()>,
    /// Jobs registered at the reaper's last tick: when their number has changed, there may be memory to give back.
    jobs_at_last_tick: usize,
    /// Folders without a record: when each last changed, and since when that is known.
    orphans: BTreeMap<CString, (SystemTime, Moment)>,
}

/// Resolves when the supervisor is gone, which before the end of the program only a defect brings about.
pub type SupervisorEnd = oneshot::Receiver<()>;

impl Supervisor {
    /// Reads the state folder, takes up what goes on, and starts the actor. The socket is not open before this is done.
    pub async fn start_recovered(
        parts: SupervisorParts,
    ) -> Result<(JobsHandle, SupervisorEnd), RecoveryError> {
        let SupervisorParts {
            config,
            base,
            state,
            socket,
            daemon_path,
            fetcher,
            boot_id,
            encode,
            is_root,
            private,
            host,
        } = parts;
        let registry = Arc::<Registry>::default();
        let (policy, limits_of_queue) = slots::rules(&config);
        let sync_group = (config.durability == Durability::Power).then(|| SyncGroup::new(state.clone()));
        let around =
            Arc::new(Surroundings::new(Arc::clone(&config), base, socket, daemon_path, fetcher, sync_group));
        let port = KeeperPort::new(state.clone(), config, Arc::clone(&registry), private, Arc::clone(&host))?;
        let (sender, ended) = oneshot::channel();
        let supervisor = Self {
            registry: Arc::clone(&registry),
            around: Arc::clone(&around),
            state: state.clone(),
            port,
            host,
            encode,
            is_root,
            boot_id: boot_id.into(),
            stop: Stop::No,
            queue: Queue::new(policy, limits_of_queue),
            _ended: sender,
            jobs_at_last_tick: 0,
            orphans: BTreeMap::new(),
        };
        let address = Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            supervisor
        });
        address.send(recover::Recover).await.map_err(|_| RecoveryError::Stopped)??;
        Ok((JobsHandle { registry, supervisor: address, around, state }, ended))
    }

    fn config(&self) -> Arc<Config> {
        self.around.config()
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(self.config().reap_interval, Self::reap);
        if let Some(group) = &self.around.sync_group {
            let me = ctx.address();
            actix::spawn(Arc::clone(group).run(move |error| deliver(&me, SyncFailed(error))));
        }
    }
}

/// A sync failed: what jobs wrote may be lost, though every file still reads well (faults.md row 27).
#[derive(Message)]
#[rtype(result = "()")]
struct SyncFailed(NotSynced);

impl Handler<SyncFailed> for Supervisor {
    type Result = ();

    fn handle(&mut self, SyncFailed(error): SyncFailed, _: &mut Self::Context) {
        self.lose_storage(&error);
    }
}

/// A checked request, to be registered.
#[derive(Message)]
#[rtype(result = "Result<(), Refusal>")]
pub(super) struct Admit {
    pub(super) prepared: Box<Prepared>,
    pub(super) reservation: Reservation,
    pub(super) caller: admit::Caller,
}

impl Handler<Admit> for Supervisor {
    type Result = ResponseActFuture<Self, Result<(), Refusal>>;

    fn handle(
        &mut self,
        Admit { prepared, reservation, caller }: Admit,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        failpoint::hit("actors::supervisor::admit");
        self.admit(*prepared, reservation, caller, ctx.address())
    }
}

/// The Cancel call. Answered when the job has written down that it is cancelled.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct CancelJob(pub(super) JobId);

impl Handler<CancelJob> for Supervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, CancelJob(id): CancelJob, _: &mut Self::Context) -> Self::Result {
        failpoint::hit("actors::supervisor::cancel");
        let job = self.registry.job(&id);
        Box::pin(async move {
            if let Some(job) = job {
                // A job that is gone has ended by itself.
                job.send(CancelAsk { cause: CancelCause::Cancel, grace_limit: None }).await.ok();
            }
        })
    }
}

/// The Finish call; also what the reaper does to stale jobs.
#[derive(Message)]
#[rtype(result = "Result<(), Refusal>")]
pub(super) struct FinishJob(pub(super) JobId);

impl Handler<FinishJob> for Supervisor {
    type Result = ResponseActFuture<Self, Result<(), Refusal>>;

    fn handle(&mut self, FinishJob(id): FinishJob, _: &mut Self::Context) -> Self::Result {
        failpoint::hit("actors::supervisor::finish");
        Box::pin(self.remove(&id).into_actor(self))
    }
}

/// A job has ended.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct JobOver(pub(super) JobId);

impl Handler<JobOver> for Supervisor {
    type Result = ();

    fn handle(&mut self, JobOver(id): JobOver, _: &mut Self::Context) {
        failpoint::hit("actors::supervisor::job_over");
        self.ended(&id);
    }
}

/// The actor of a job died of a defect.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct JobBroken(pub(super) JobId);

impl Handler<JobBroken> for Supervisor {
    type Result = ();

    fn handle(&mut self, JobBroken(id): JobBroken, ctx: &mut Self::Context) {
        failpoint::hit("actors::supervisor::job_broken");
        // A stop that waits for jobs waits for this one too.
        if self.stop == Stop::AtOnce {
            return;
        }
        tracing::error!(job = %id, "a defect ended the actor of this job; the job is ended too");
        let revived = self.revive(id, ctx.address());
        ctx.spawn(revived);
    }
}

/// The connection to the keeper is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct KeeperGone;

impl Handler<KeeperGone> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: KeeperGone, ctx: &mut Self::Context) {
        failpoint::hit("actors::supervisor::keeper_gone");
        // A keeper that is told to end does.
        if self.stop == Stop::AtOnce || (self.stop == Stop::Ending && self.living().is_empty()) {
            return;
        }
        // A connection that another one has replaced took nothing with it.
        if self.port.now().is_some_and(|keeper| !keeper.link.is_over()) {
            return;
        }
        tracing::error!("the keeper is gone; the jobs it ran are interrupted");
        let port = self.port.clone();
        let keys = begun(&self.living());
        let (host, groups) = (Arc::clone(&self.host), self.host.groups(&self.state));
        let dead = async move { port.forget().await };
        // What the keeper's death did not end (it ends its own children) is ended then.
        let cleared = dead.into_actor(self).then(move |(), supervisor, _| {
            let killed = supervisor.kill_remains(keys);
            let cleared = async move {
                killed.await;
                host.remove_groups(&groups);
            };
            cleared.into_actor(supervisor)
        });
        ctx.spawn(cleared.map(|(), supervisor, _| {
            for (view, job) in supervisor.registry.all() {
                if let Some(job) = job.filter(|_| !view.is_ended()) {
                    deliver(&job, KeeperLost);
                }
            }
        }));
    }
}

/// Jobs of which something may have run. Nothing has of one that waits, and by the time the dead keeper's remains are killed
/// the next one may have begun it.
fn begun(jobs: &[Arc<JobView>]) -> Vec<JobKey> {
    jobs.iter().filter(|view| view.state().start_time.is_some()).map(|view| view.key).collect()
}

/// Deletes what is gone already. There may be much of it: nobody waits.
fn delete_later(removed: impl IntoIterator<Item = Removed>) {
    let removed: Vec<_> = removed.into_iter().collect();
    if removed.is_empty() {
        return;
    }
    drop(blocking(move || {
        for removed in removed {
            if let Err(error) = removed.delete() {
                tracing::warn!(%error, "not everything of a removed job was deleted");
            }
        }
    }));
}

impl Supervisor {
    /// Nothing of the job lives any more: its slot and what it used of the cache are free.
    fn ended(&mut self, id: &JobId) {
        self.registry.ended(id);
        if failpoint::io("actors::supervisor::free_slot").is_err() {
            return;
        }
        self.around.fetcher.release(id.key());
        self.leave_queue(id);
    }

    /// Tells the operator which limits of the settings are not kept. What the host allows is asked only if there are some.
    fn warn_of_limits(&self, config: &Config) {
        if limits::of_settings(config) == Limits::default() {
            return;
        }
        let unenforceable = match self.port.now() {
            Some(keeper) => keeper.unenforceable,
            None => self.host.unenforceable(cgroup_mode(config.cgroup)).into(),
        };
        limits::warn_of_settings(config, &unenforceable);
    }

    /// Every job that lives has lost its claim: whose bytes were lost cannot be told.
    fn lose_storage(&self, error: &NotSynced) {
        tracing::error!(%error, "what was written could not be brought to the disk; the jobs that live have failed");
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
        if let Some(job) = self.registry.job(id) {
            deliver(&job, CancelAsk { cause, grace_limit });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::log_sink::LogFeed;
    use crate::actors::trace_sink::TraceFeed;
    use crate::actors::view::State;

    #[test]
    fn what_a_dead_keeper_left_is_not_looked_for_in_jobs_that_waited() {
        let view = |id, start_time| {
            let (log, trace) = (LogFeed::new(0, false), TraceFeed::new(0, false));
            let state = State { start_time, ..State::default() };
            Arc::new(JobView::new(JobId::parse(id).unwrap(), 0, 1, log, trace, state))
        };
        let (waits, runs) = (view("waits", None), view("runs", Some(1)));
        assert_eq!(begun(&[waits, Arc::clone(&runs)]), [runs.key]);
    }
}
