//! Slots: which job starts when (queue.md). The rule is the queue's; here it meets jobs.

use std::io;
use std::sync::Arc;

use actix::{AsyncContext, Context, Handler, Message, ResponseFuture};

use super::admit::RETRY;
use super::{Stop, Supervisor};
use crate::actors::admission::{self, Prepared, ShellSpec};
use crate::actors::deliver;
use crate::actors::job::Begin;
use crate::actors::keeper_port::KeeperProblem;
use crate::clock;
use crate::config::{Config, QueuePolicy};
use crate::failpoint;
use crate::keeper::link::{KeeperLink, LinkError};
use crate::keeper::protocol::{KeeperError, Reply};
use crate::model::{JobId, JobKey, Reason, Refusal};
use crate::queue::{Full, Limits, Policy, Submitted};
use crate::store;

/// The settings of queue.md §2 as the queue takes them.
pub(super) fn rules(config: &Config) -> (Policy, Limits) {
    let policy = match config.queue_policy {
        QueuePolicy::Fifo => Policy::Fifo,
        QueuePolicy::Fair => Policy::Fair,
    };
    let size = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
    let limits = Limits {
        running: Some(config.max_running).filter(|limit| *limit > 0).map(size),
        running_per_key: config.max_running_per_project.0.map(size),
        queued: config.max_queued.0.map(size),
        queued_bytes: Some(config.max_queued_bytes.0),
    };
    (policy, limits)
}

impl Supervisor {
    /// Gives the job its place, and perhaps a slot.
    pub(super) fn enqueue(&mut self, prepared: &mut Prepared) -> Result<(), Refusal> {
        let share = &prepared.shell.share;
        let mut starts = Vec::new();
        let submitted =
            self.queue.submit(&prepared.id, share.key.clone(), share.number, share.bytes, &mut starts);
        starts.retain(|id| *id != prepared.id);
        self.begin_all(&starts);
        let place = match submitted {
            Submitted::Started(place) | Submitted::Queued(place) => place,
            Submitted::Full(full) => return Err(refusal(full)),
            Submitted::Existing => {
                // The registry lets one Run of an id in at a time, and knows of every job that holds a slot.
                return Err(Refusal::new(Reason::Internal, "the queue holds a job that is not registered"));
            }
        };
        admission::seal(&mut prepared.head, &place).inspect_err(|_| self.leave_queue(&prepared.id))
    }

    /// A job is gone, wherever in the queue it was: what may start now starts.
    pub(super) fn leave_queue(&mut self, id: &JobId) {
        let mut starts = Vec::new();
        self.queue.leave(id, &mut starts);
        self.begin_all(&starts);
    }

    /// Nothing starts until [`Self::resume_queue`].
    pub(super) fn pause_queue(&mut self) {
        self.queue.pause();
    }

    /// Starts what waited.
    pub(super) fn resume_queue(&mut self) {
        let mut starts = Vec::new();
        self.queue.resume(&mut starts);
        self.begin_all(&starts);
    }

    /// Tells jobs that they have their slots. One that is still being registered begins when it is.
    fn begin_all(&self, starts: &[JobId]) {
        for id in starts {
            let (Some(job), Some(view)) = (self.registry.job(id), self.registry.view(id)) else { continue };
            let waited = clock::now_micros().saturating_sub(view.registered) / 1_000_000;
            let (server, project) = self.queue.key(id).map_or(("", ""), |key| (&key.server, &key.project));
            tracing::info!(job = %id, server, project, seconds = waited, "the job had to wait and starts now");
            deliver(&job, Begin);
        }
    }

    /// Takes up what a keeper held: jobs that have not begun wait at their old places.
    pub(super) fn restore_queue(
        &mut self,
        id: &JobId,
        shell: &ShellSpec,
        waits_at: Option<&crate::queue::Place>,
    ) {
        let share = &shell.share;
        match waits_at {
            Some(place) => self.queue.restore_waiting(id.clone(), share.key.clone(), place, share.bytes),
            None => self.queue.restore_running(id.clone(), share.key.clone()),
        }
    }
}

fn refusal(full: Full) -> Refusal {
    let text = match full {
        Full::Jobs { waiting, limit } => format!("{waiting} jobs waiting (limit {limit})"),
        Full::Bytes { waiting, limit } => format!("{waiting} bytes of jobs waiting (limit {limit})"),
    };
    Refusal::for_now(Reason::QueueFull, text, RETRY)
}

/// What an operator asks of a running daemon (queue.md §2, §5).
#[derive(Message)]
#[rtype(result = "()")]
pub(in crate::actors) enum Operate {
    /// Start no waiting job.
    Pause,
    /// Start them again.
    Resume,
    /// Other settings.
    Configure(Box<Config>),
    /// Nothing: the answer shows that this actor works.
    Answer,
}

impl Handler<Operate> for Supervisor {
    type Result = ();

    fn handle(&mut self, operate: Operate, _: &mut Context<Self>) {
        failpoint::hit("actors::supervisor::operate");
        match operate {
            Operate::Pause => {
                tracing::info!("admission is paused; {} jobs wait", self.queue.waiting());
                self.pause_queue();
            }
            // What a stop has paused stays so.
            Operate::Resume if self.stop >= Stop::Ending => {}
            Operate::Resume => {
                tracing::info!("admission goes on; {} jobs wait", self.queue.waiting());
                self.resume_queue();
            }
            Operate::Configure(config) => self.configure(&config),
            Operate::Answer => {}
        }
    }
}

impl Supervisor {
    fn configure(&mut self, fresh: &Config) {
        let (config, waiting) = self.config().reloaded(fresh);
        let (policy, limits) = rules(&config);
        self.warn_of_limits(&config);
        self.around.set_config(config);
        let mut starts = Vec::new();
        self.queue.configure(policy, limits, &mut starts);
        self.begin_all(&starts);
        tracing::info!("settings were read again");
        if !waiting.is_empty() {
            tracing::warn!(settings = waiting.join(", "), "these settings take effect at the next start");
        }
    }
}

/// The keeper that held a waiting job died: nothing of the job has run, so the next keeper takes it (architecture.md).
#[derive(Message)]
#[rtype(result = "Result<KeeperLink, NotHeld>")]
pub(in crate::actors) struct HoldAgain {
    pub(in crate::actors) key: JobKey,
    pub(in crate::actors) shell: ShellSpec,
    pub(in crate::actors) head: Arc<[u8]>,
    pub(in crate::actors) tag: u128,
}

/// Why a waiting job has no keeper.
pub(in crate::actors) enum NotHeld {
    /// The next one died too; `KeeperGone` is under way.
    Died,
    /// None can be started or takes the job for now: processes, memory or descriptors are used up.
    NotNow,
    /// None can be started, or it refuses.
    Impossible,
}

impl From<KeeperProblem> for NotHeld {
    fn from(problem: KeeperProblem) -> Self {
        match problem {
            KeeperProblem::Link(error) => error.into(),
            KeeperProblem::Io(error) if store::reason_of(&error).may_pass() => Self::NotNow,
            KeeperProblem::Lasting { .. } => Self::NotNow,
            _ => Self::Impossible,
        }
    }
}

impl From<LinkError> for NotHeld {
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

impl Handler<HoldAgain> for Supervisor {
    type Result = ResponseFuture<Result<KeeperLink, NotHeld>>;

    fn handle(
        &mut self,
        HoldAgain { key, shell, head, tag }: HoldAgain,
        ctx: &mut Context<Self>,
    ) -> Self::Result {
        failpoint::hit("actors::supervisor::hold_again");
        let (port, me) = (self.port.clone(), ctx.address());
        Box::pin(async move {
            let keeper = port.get(&me).await?;
            let request = super::admit::hold_request(&shell, key, &keeper, &head, tag);
            match keeper.link.ask(request).await? {
                Reply::Held { .. } => Ok(keeper.link),
                _ => Err(NotHeld::Impossible),
            }
        })
    }
}
