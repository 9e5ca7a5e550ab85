//! Slots: which job starts when (queue.md). The queue decides; this module applies its decisions to jobs.

use std::io;

use actix::{AsyncContext, Context, Handler, ResponseFuture};

use super::refusals::RETRY;
use super::{Stop, Supervisor};
use crate::actors::admission::PreparedJob;
use crate::actors::deliver;
use crate::actors::keeper_port::KeeperProblem;
use crate::actors::messages::{Begin, NotRegistered, Operate, QueueOrder, RegisterAgain};
use crate::actors::spec::Share;
use crate::config::{Config, QueuePolicy, Reloaded};
use crate::failpoint;
use crate::keeper::link::{KeeperLink, LinkError};
use crate::keeper::protocol::{KeeperError, Reply};
use crate::model::{JobId, Reason, Refusal};
use crate::queue::{Full, Policy, QueueLimits, Submitted};
use crate::store;

/// Converts the settings of queue.md §2 to the queue's types.
pub(super) fn rules(config: &Config) -> (Policy, QueueLimits) {
    let policy = match config.queue_policy {
        QueuePolicy::Fifo => Policy::Fifo,
        QueuePolicy::Fair => Policy::Fair,
    };
    let size = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
    let limits = QueueLimits {
        running: Some(config.max_running).filter(|limit| *limit > 0).map(size),
        running_per_key: config.max_running_per_project.0.map(size),
        running_bytes: Some(config.max_running_bytes.0),
        queued: config.max_queued.0.map(size),
        queued_bytes: Some(config.max_queued_bytes.0),
    };
    (policy, limits)
}

impl Supervisor {
    /// Puts the job in the queue; it may get a slot at once.
    pub(super) fn enqueue(&mut self, prepared: &mut PreparedJob) -> Result<(), Refusal> {
        let share = &prepared.spec.share;
        let mut starts = Vec::new();
        let submitted =
            self.queue.submit(&prepared.id, share.key.clone(), share.number, share.bytes, &mut starts);
        starts.retain(|id| *id != prepared.id);
        self.begin_all(&starts);
        let place = match submitted {
            Submitted::Started(place) | Submitted::Queued(place) => place,
            Submitted::Full(full) => return Err(refusal(full)),
            Submitted::Existing => {
                // The registry admits one Run of an id at a time and knows every job that holds a slot.
                return Err(Refusal::new(Reason::Internal, "the queue holds a job that is not registered"));
            }
        };
        prepared.place = Some(place);
        Ok(())
    }

    /// Removes a job from the queue, running or waiting, and starts the jobs that now may start.
    pub(super) fn leave_queue(&mut self, id: &JobId) {
        let mut starts = Vec::new();
        self.queue.remove_job(id, &mut starts);
        self.begin_all(&starts);
    }

    /// Starts no job until [`Self::resume_queue`].
    pub(super) fn pause_queue(&mut self) {
        self.queue.pause();
    }

    pub(super) fn resume_queue(&mut self) {
        let mut starts = Vec::new();
        self.queue.resume(&mut starts);
        self.begin_all(&starts);
    }

    /// Tells jobs that they have their slots. A job that is still being registered begins after its registration.
    fn begin_all(&self, starts: &[JobId]) {
        for id in starts {
            if let Some(job) = self.registry.job(id) {
                deliver(&job, Begin { has_waited: true });
            }
        }
    }

    /// Restores a job that the keeper held. A job that has not begun waits at its old place.
    pub(super) fn restore_queue(
        &mut self,
        id: &JobId,
        share: &Share,
        waits_at: Option<&crate::queue::Place>,
    ) {
        match waits_at {
            Some(place) => self.queue.restore_waiting(id.clone(), share.key.clone(), place, share.bytes),
            None => self.queue.restore_running(id.clone(), share.key.clone(), share.bytes),
        }
    }
}

impl Handler<QueueOrder> for Supervisor {
    type Result = Vec<JobId>;

    fn handle(&mut self, _: QueueOrder, _: &mut Context<Self>) -> Vec<JobId> {
        self.queue.order()
    }
}

fn refusal(full: Full) -> Refusal {
    let text = match full {
        Full::Jobs { waiting, limit } => format!("{waiting} jobs waiting (limit {limit})"),
        Full::Bytes { waiting, limit } => format!("{waiting} bytes of jobs waiting (limit {limit})"),
    };
    Refusal::for_now(Reason::QueueFull, text, RETRY)
}

impl Handler<Operate> for Supervisor {
    type Result = ();

    fn handle(&mut self, operate: Operate, _: &mut Context<Self>) {
        failpoint::hit("actors::supervisor::operate");
        match operate {
            Operate::Pause => {
                tracing::info!("admission is paused; jobs waiting: {}", self.queue.waiting());
                self.pause_queue();
            }
            // The queue stays paused after a stop.
            Operate::Resume if self.stop >= Stop::Ending => {}
            Operate::Resume => {
                tracing::info!("admission goes on; jobs waiting: {}", self.queue.waiting());
                self.resume_queue();
            }
            Operate::Configure(config) => self.configure(&config),
            Operate::Answer => {}
        }
    }
}

impl Supervisor {
    fn configure(&mut self, fresh: &Config) {
        let Reloaded { config, changed, waiting } = self.config().reloaded(fresh);
        let (policy, limits) = rules(&config);
        self.warn_of_limits(&config);
        self.context.set_config(config);
        self.port.configure(self.config());
        let mut starts = Vec::new();
        self.queue.configure(policy, limits, &mut starts);
        self.begin_all(&starts);
        tracing::info!(changed = changed.join(", "), "settings were read again");
        if !waiting.is_empty() {
            tracing::warn!(settings = waiting.join(", "), "these settings take effect at the next start");
        }
    }
}

impl From<KeeperProblem> for NotRegistered {
    fn from(problem: KeeperProblem) -> Self {
        match problem {
            KeeperProblem::Link(error) => error.into(),
            KeeperProblem::Io(error) if store::reason_of(&error).may_pass() => Self::NotNow,
            KeeperProblem::Lasting { .. } => Self::NotNow,
            _ => Self::Impossible,
        }
    }
}

impl From<LinkError> for NotRegistered {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Gone => Self::Died,
            LinkError::Silent => Self::NotNow,
            LinkError::Refused(KeeperError::Log { errno, .. })
                if store::reason_of(&io::Error::from_raw_os_error(errno)).may_pass() =>
            {
                Self::NotNow
            }
            LinkError::Refused(_) | LinkError::TooLarge(_) | LinkError::Protocol => Self::Impossible,
        }
    }
}

impl Handler<RegisterAgain> for Supervisor {
    type Result = ResponseFuture<Result<KeeperLink, NotRegistered>>;

    fn handle(
        &mut self,
        RegisterAgain { key, spec, request, tag, log_len }: RegisterAgain,
        ctx: &mut Context<Self>,
    ) -> Self::Result {
        failpoint::hit("actors::supervisor::register_again");
        let (port, me) = (self.port.clone(), ctx.address().recipient());
        Box::pin(async move {
            let keeper = port.get(&me).await?;
            let asked = super::admit::register_request(&spec, key, &keeper, &request, tag, log_len);
            match keeper.link.ask(asked).await? {
                Reply::Registered { .. } => Ok(keeper.link),
                _ => Err(NotRegistered::Impossible),
            }
        })
    }
}
