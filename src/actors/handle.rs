//! The face of the jobs towards the services: one method per call.
//!
//! Status and the follow calls ask no actor; Run, Cancel and Finish ask the supervisor once.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use indexmap::IndexMap;

use super::admission::{self, Surroundings};
use super::log_sink::{LogCursor, out_of_descriptors};
use super::registry::{Registry, Reserve};
use super::supervisor::{Admit, CancelJob, FinishJob, Operate, Shutdown, Supervisor};
use super::trace_sink::TraceCursor;
use super::view::{JobStatus, JobView};
use crate::clock;
use crate::config::Config;
use crate::lang::value::Value;
use crate::model::{JobId, Limits, Reason, Refusal};
use crate::store::{LogLost, Origin, StateDir};
use crate::variables;

/// Requests over this many bytes are checked on a blocking thread: parsing them takes milliseconds, which the other
/// calls shall not wait for.
pub const LARGE_REQUEST: usize = 64 << 10;

/// A request to run a job, its shape checked. Holds secrets, so it has no `Debug`.
pub struct RunRequest {
    /// The id.
    pub id: JobId,
    /// Digest of the request's bytes.
    pub digest: [u8; 32],
    /// Length of the request in bytes.
    pub size: usize,
    /// Service it came through, whose rules it follows.
    pub origin: Origin,
    /// `job_id` and `pipeline_id`: labels for the operator's log.
    pub labels: (String, String),
    /// Environment, variables, directories, masking.
    pub variables: variables::Request,
    /// Text of the steps.
    pub steps: String,
    /// Name of the document; an absolute path is the base of relative references.
    pub file: Option<String>,
    /// Inputs of the root.
    pub inputs: IndexMap<String, Value>,
    /// Limit of the job's time.
    pub timeout: Option<Duration>,
    /// Upper bound of the grace.
    pub cancel_grace: Option<Duration>,
    /// What the job may use.
    pub limits: Limits,
}

/// The jobs. Clones share them.
#[derive(Clone)]
pub struct JobsHandle {
    pub(super) registry: Arc<Registry>,
    pub(super) supervisor: Addr<Supervisor>,
    pub(super) around: Arc<Surroundings>,
    pub(super) state: StateDir,
}

impl JobsHandle {
    /// Whether a Run of `id` with this digest has nothing to do: the id is registered.
    pub fn is_registered(&self, id: &JobId, digest: &[u8; 32]) -> bool {
        let registered = self.registry.present(id);
        if let Some(view) = &registered {
            warn_of_other(view, digest);
        }
        registered.is_some()
    }

    /// Registers a job. Idempotent by id; racing calls are put in order.
    pub async fn run(&self, request: RunRequest) -> Result<(), Refusal> {
        let reservation = loop {
            match self.registry.reserve(&request.id) {
                Reserve::Registered(view) => {
                    warn_of_other(&view, &request.digest);
                    return Ok(());
                }
                Reserve::Wait(change) => change.wait().await,
                Reserve::Granted(reservation) => break reservation,
            }
        };
        let folder = self.state.folder(request.id.key());
        let around = Arc::clone(&self.around);
        let is_large = request.size > LARGE_REQUEST;
        let check = move || admission::prepare(request, &around, folder, clock::now_micros());
        let prepared = if is_large {
            super::blocking(check).await.map_err(|e| Refusal::new(Reason::Internal, e.to_string()))?
        } else {
            check()
        }?;
        // Dropped with this call, whether it ends or is given up.
        let call = Arc::new(());
        let caller = Arc::downgrade(&call);
        self.supervisor
            .send(Admit { prepared: Box::new(prepared), reservation, caller })
            .await
            .map_err(|_| Refusal::stopping())?
    }

    /// Returns when the job of an answered Run is on the disk, if it has to be (`durability = power`).
    pub async fn kept(&self) -> Result<(), Refusal> {
        match &self.around.sync_group {
            Some(group) => group.synced().await.map_err(|e| Refusal::new(Reason::DataLoss, e.to_string())),
            None => Ok(()),
        }
    }

    /// State of one job.
    pub fn status(&self, id: &JobId) -> Result<JobStatus, Refusal> {
        self.registry.known(id).map(|view| view.status())
    }

    /// States of all jobs, ordered by registration, then id.
    pub fn all(&self) -> Vec<JobStatus> {
        let mut jobs: Vec<Arc<JobView>> = self.registry.all().into_iter().map(|(view, _)| view).collect();
        jobs.sort_by(|a, b| (a.registered, &a.id).cmp(&(b.registered, &b.id)));
        jobs.iter().map(|view| view.status()).collect()
    }

    /// A follower of a job's log from `offset` on.
    pub fn follow_logs(&self, id: &JobId, offset: u64) -> Result<LogCursor, Refusal> {
        let view = self.registry.known(id)?;
        let lost = |e: LogLost| match e {
            // It went away under this call.
            LogLost::Removed if self.registry.present(id).is_none() => {
                Refusal::new(Reason::UnknownJob, "the job was finished")
            }
            e => out_of_descriptors(&e).unwrap_or_else(|| Refusal::new(Reason::DataLoss, e.to_string())),
        };
        let file = self.state.folder(view.key).open_log(Some(view.log_inode)).map_err(lost)?;
        file.check_reaches(view.log.len()).map_err(lost)?;
        view.log.follow(file, offset, self.around.config().max_followers as usize)
    }

    /// A follower of a job's step results.
    pub fn follow_steps(&self, id: &JobId) -> Result<TraceCursor, Refusal> {
        let view = self.registry.known(id)?;
        view.trace.follow(&self.state.folder(view.key), self.around.config().max_followers as usize)
    }

    /// Cancels a job if it has not ended and removes it; returns when nothing of it is left.
    pub async fn finish(&self, id: &JobId) -> Result<(), Refusal> {
        // A Run that came first is answered first, so that its job is there to be removed (service.md §3.4).
        if let Some(change) = self.registry.reserved(id) {
            change.wait().await;
        }
        self.supervisor.send(FinishJob(id.clone())).await.map_err(|_| Refusal::stopping())?
    }

    /// Takes no more jobs, ends those there are, and the keeper; returns when nothing lives, or when time is over.
    pub async fn shut_down(&self) {
        self.supervisor.send(Shutdown { at_once: false }).await.ok();
    }

    /// Kills everything of every job.
    pub async fn kill_all(&self) {
        self.supervisor.send(Shutdown { at_once: true }).await.ok();
    }

    /// Starts no waiting job until [`Self::resume`] (queue.md §5).
    pub async fn pause(&self) {
        self.supervisor.send(Operate::Pause).await.ok();
    }

    /// Ends a pause.
    pub async fn resume(&self) {
        self.supervisor.send(Operate::Resume).await.ok();
    }

    /// Waits until the part of the daemon that lets jobs in has had a turn; whether it lives.
    pub async fn answers(&self) -> bool {
        self.supervisor.send(Operate::Answer).await.is_ok()
    }

    /// Takes over those settings that can change while the daemon runs.
    pub async fn configure(&self, config: Config) {
        self.supervisor.send(Operate::Configure(Box::new(config))).await.ok();
    }

    /// Stops a job and keeps it.
    pub async fn cancel(&self, id: &JobId) -> Result<(), Refusal> {
        self.registry.known(id)?;
        self.supervisor.send(CancelJob(id.clone())).await.map_err(|_| Refusal::stopping())
    }
}

/// The first request of an id counts, whatever a later one holds; the operator hears of a difference (service.md §3.1).
/// Of one that ended before this daemon came only a digest with the keeper's key is known: it is not compared.
fn warn_of_other(registered: &JobView, digest: &[u8; 32]) {
    if registered.digest.is_some_and(|first| first != *digest) {
        tracing::warn!(job = %registered.id, "a job with this id is registered with another content; it stays as it is");
    }
}
