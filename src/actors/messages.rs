//! Messages between actors, by receiver, with the plain data that only they carry.
//!
//! An actor that tells another one a few things holds a [`Recipient`] for each, so it names the messages here and not the
//! other actor. Two kinds of message stand elsewhere:
//! - those that an actor sends to itself, in the actor's own room;
//! - [`Admit`](super::admission::Admit), which carries a reservation: the registry that made it holds addresses of jobs.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Context, Handler, Message, Recipient};

use super::redact::MaskedResult;
use super::spec::JobActorSpec;
use super::sync_group::NotSynced;
use crate::config::Config;
use crate::job::event::{CallId, FileContent, ProcessEnd, ProcessNumber};
use crate::keeper::link::KeeperLink;
use crate::keeper::protocol::{Closed, StepEnded};
use crate::model::{CancelCause, FinishedProcess, JobId, JobKey, Refusal};
use crate::process::cgroup::Usage;
use crate::store::StoreError;

// To the supervisor.

/// The Cancel call. It is answered once the job has recorded its cancellation.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct CancelJob {
    pub(super) id: JobId,
    /// End the job at once.
    pub(super) force: bool,
}

/// The Finish call. The reaper uses it too, for stale jobs.
#[derive(Message)]
#[rtype(result = "Result<(), Refusal>")]
pub(super) struct FinishJob(pub(super) JobId);

/// Asks for the waiting jobs, in the order in which they will start.
#[derive(Message)]
#[rtype(result = "Vec<JobId>")]
pub(super) struct QueueOrder;

/// Asks the keeper, if it lives, for the resource use of these jobs. Jobs that it does not know are missing from the
/// answer.
#[derive(Message)]
#[rtype(result = "Vec<(JobKey, Usage)>")]
pub(super) struct ReadUsages(pub(super) Vec<JobKey>);

/// A request of the operator to a running daemon (queue.md §2, §6).
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum Operate {
    /// Start no waiting job.
    Pause,
    /// Start them again.
    Resume,
    /// Apply new settings.
    Configure(Box<Config>),
    /// Do nothing: the answer shows that this actor works.
    Answer,
}

/// Stops the service: no new job is admitted. The answer comes when all jobs have ended or the time is up. It is the
/// unused part of `shutdown_grace`.
#[derive(Message)]
#[rtype(result = "Duration")]
pub(super) struct Shutdown {
    /// Kill everything now.
    pub(super) at_once: bool,
}

/// Reports that a job has ended.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct JobEnded(pub(super) JobId);

/// Reports that a defect killed the actor of a job.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct JobBroken(pub(super) JobId);

/// Reports that the connection to the keeper is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct KeeperGone;

/// Hands a waiting job whose keeper died to the next keeper: no step of it has run (architecture.md).
#[derive(Message)]
#[rtype(result = "Result<KeeperLink, NotRegistered>")]
pub(super) struct RegisterAgain {
    pub(super) key: JobKey,
    pub(super) spec: JobActorSpec,
    pub(super) request: RegisteredRequest,
    pub(super) tag: u128,
    /// Length of its log, as its last keeper reported.
    pub(super) log_len: u64,
}

/// A job's request, in the form that the keeper holds.
#[derive(Clone, Default)]
pub(super) struct RegisteredRequest {
    /// First event of the record.
    pub(super) head: Arc<[u8]>,
    /// See [`Brief`](super::spec::Brief).
    pub(super) brief: Arc<[u8]>,
}

/// Reason why no keeper has taken a waiting job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotRegistered {
    /// The next keeper died too; the report of that is under way.
    Died,
    /// Temporary: processes, memory or descriptors are used up, or the keeper is silent.
    NotNow,
    /// Permanent: no keeper can be started, or the keeper refuses the job.
    Impossible,
}

/// Addresses of the supervisor for what a job tells it.
pub(super) struct ToSupervisor {
    pub(super) ended: Recipient<JobEnded>,
    pub(super) broken: Recipient<JobBroken>,
    pub(super) register_again: Recipient<RegisterAgain>,
}

impl ToSupervisor {
    pub(super) fn new<A>(supervisor: &Addr<A>) -> Self
    where
        A: Actor<Context = Context<A>> + Handler<JobEnded> + Handler<JobBroken> + Handler<RegisterAgain>,
    {
        Self {
            ended: supervisor.clone().recipient(),
            broken: supervisor.clone().recipient(),
            register_again: supervisor.clone().recipient(),
        }
    }
}

// To a job.

/// Starts the job: it has its slot.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Begin {
    /// True if it had to wait for the slot.
    pub(super) has_waited: bool,
}

/// Ends the actor of a job that the keeper did not take. No client learns of such a job.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Abandon;

/// A request to end the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub(super) struct CancelAsk {
    /// Its cause.
    pub(super) cause: CancelCause,
    /// Upper bound of the grace, if this cancel has one (docs/spec/service.md §6.2).
    pub(super) grace_limit: Option<Duration>,
    /// True if the job ends at once, without grace and cleanup (flow.md §3.1).
    pub(super) force: bool,
}

/// Delivers a keeper event to the job.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct KeeperEventArrived(pub(super) KeeperEvent);

/// An event that the keeper reports about a job.
pub(super) enum KeeperEvent {
    StepEnded(StepEnded),
    /// Nothing is left of what this step waits for.
    Cleared(CallId),
    Closed(Closed),
}

/// Reports that a read of a fetch has failed and is tried again.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct FetchRetried {
    pub(super) process: ProcessNumber,
    /// Source of the fetch.
    pub(super) from: String,
    /// Reason and time of the next try, without credentials.
    pub(super) why: String,
}

/// Reports that the job's keeper died (service.md §6.4).
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct KeeperLost;

/// Reports that a sync failed while the job lived (faults.md row 27).
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct StorageLost(pub(super) NotSynced);

/// Makes the keeper report unfinished lines. A keeper that does not hold the job yet ignores this, so each start of a
/// step repeats it.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct WatchUnfinished;

/// Reports that a step is over and its files are read.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct StepDone(pub(super) EndedStep);

/// A process that is over and whose files are read.
pub(super) struct EndedStep {
    /// Number of the process.
    pub(super) process: ProcessNumber,
    /// Its end.
    pub(super) end: ProcessEnd,
    /// Name of the shell that ran the script, for a script.
    pub(super) shell: Option<String>,
    /// Content of the output file.
    pub(super) outputs: Option<FileContent>,
    /// Content of the export file.
    pub(super) exports: Option<FileContent>,
    /// Its run, as the keeper saw it.
    pub(super) ran: Option<FinishedProcess>,
    /// True if the keeper closes the job with it.
    pub(super) closes: bool,
}

/// Reports a defect of the daemon that drives this job.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Defect(pub(super) String);

/// Addresses of a job for what a step tells it.
pub(super) struct ToJob {
    pub(super) done: Recipient<StepDone>,
    pub(super) defect: Recipient<Defect>,
}

impl ToJob {
    pub(super) fn new<A>(job: &Addr<A>) -> Self
    where
        A: Actor<Context = Context<A>> + Handler<StepDone> + Handler<Defect>,
    {
        Self { done: job.clone().recipient(), defect: job.clone().recipient() }
    }
}

// To a step.

/// Delivers the keeper's report that the process is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Ended(pub(super) StepEnded);

// To the sink of step results.

/// Stores what is masked and encoded. The answer comes when it is written and handed to the feed. On an error it waits; the
/// next result or [`Flush`] tries again.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub(super) struct Append(pub(super) Vec<MaskedResult>);

/// Stores a masked and encoded event: at once if a client follows them, else with the next result, to save a write.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct AppendEvent(pub(super) MaskedResult);

/// Tries again to store waiting results.
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub(super) struct Flush {
    /// The last attempt: results that cannot be stored now are lost.
    pub(super) last: bool,
}
