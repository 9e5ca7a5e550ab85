//! The interface of the jobs for the services: one method per call.
//!
//! Status and the follow calls ask no actor. Run, Cancel and Finish ask the supervisor once.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use actix::Addr;

use super::admission::{self, Admit};
use super::context::DaemonContext;
use super::deliver;
use super::followers::out_of_descriptors;
use super::left_over::LeftOver;
use super::log_sink::LogCursor;
use super::messages::{CancelJob, FinishJob, Operate, QueueOrder, ReadUsages, Shutdown, WatchUnfinished};
use super::redact::{Redactor, UnmaskedRefusal};
use super::registry::{Registry, Reserve};
use super::supervisor::{RecoveryError, Supervisor, SupervisorEnd, SupervisorParts};
use super::trace_sink::{EventCursor, TraceCursor};
use super::view::{JobStatus, JobView};
use crate::clock;
use crate::config::{Config, JobLogFormat};
use crate::lang::document;
use crate::model::{JobId, JobState, Reason, Refusal};
use crate::request::{RequestOrigin, Run};
use crate::store::{LogLost, StateDir};
use crate::threads::{self, Work};

/// Largest request, in bytes, that the actors' thread itself checks, in about a millisecond …
const SMALL_REQUEST: usize = 16 << 10;

/// … if its phrases to mask have at most this many bytes.
const SMALL_PHRASES: usize = 2 << 10;

/// Minimum interval between two readings of a job's resource use. Each reading reads files of the job's control
/// group.
const USAGE_EVERY: Duration = Duration::from_millis(500);

/// Maximum number of jobs whose resource use is read for one Status call.
const MOST_USAGES: usize = 64;

/// Masks a refusal with the phrases of its request, on another thread if they are many.
async fn masked(refusal: UnmaskedRefusal, mut redactor: Redactor) -> Refusal {
    if redactor.is_ready() {
        return redactor.refusal(refusal);
    }
    let masked = threads::run(Work::Requests, move || redactor.refusal(refusal)).await;
    masked.unwrap_or_else(|error| Refusal::caused(Reason::Internal, &error))
}

/// Handle to all jobs. Clones share them.
#[derive(Clone)]
pub struct JobsHandle {
    registry: Arc<Registry>,
    supervisor: Addr<Supervisor>,
    context: Arc<DaemonContext>,
    state: StateDir,
}

impl JobsHandle {
    /// Reads the state folder, takes up the jobs that go on, and starts the supervisor. No call is answered before that.
    pub async fn start_recovered(parts: SupervisorParts) -> Result<(Self, SupervisorEnd), RecoveryError> {
        let (registry, state) = (Arc::<Registry>::default(), parts.state.clone());
        let (supervisor, context, ended) = Supervisor::start_recovered(parts, Arc::clone(&registry)).await?;
        Ok((Self { registry, supervisor, context, state }, ended))
    }

    /// Compares a request with the job that has its id; `None` if there is none. Warns of other content.
    pub(crate) fn registered(&self, id: &JobId, digest: &[u8; 32]) -> Option<Registered> {
        self.registry.present(id).map(|view| compare(&view, digest))
    }

    /// Returns when a job was finished, in microseconds since the epoch, if it is remembered.
    pub(crate) fn finished_at(&self, id: &JobId) -> Option<i64> {
        self.registry.finished_at(id)
    }

    /// Registers a job. Idempotent by id; concurrent calls are serialised.
    pub async fn run(&self, request: Run) -> Result<(), Refusal> {
        let reservation = loop {
            match self.registry.reserve(&request.id) {
                Reserve::Registered(view) => {
                    compare(&view, &request.digest);
                    return Ok(());
                }
                Reserve::Wait(change) => change.wait().await,
                Reserve::Granted(reservation) => break reservation,
            }
        };
        let folder = self.state.folder(request.id.key());
        let context = Arc::clone(&self.context);
        let is_large = request.size > SMALL_REQUEST
            || request.phrase_bytes() > SMALL_PHRASES
            || document::may_unfold(&request.steps);
        let check = move || admission::prepare(request, &context, folder, clock::now_micros());
        let mut prepared = if is_large {
            threads::run(Work::Requests, check).await.map_err(|e| Refusal::caused(Reason::Internal, &e))?
        } else {
            check()
        }?;
        // Dropped with this call, whether it ends or is cancelled.
        let call = Arc::new(());
        let caller = Arc::downgrade(&call);
        prepared.look_at_places(Weak::clone(&caller)).await;
        let redactor = prepared.redactor.clone();
        let admitted = self
            .supervisor
            .send(Admit { prepared: Box::new(prepared), reservation, caller })
            .await
            .map_err(|_| Refusal::stopping())?;
        match admitted {
            Ok(()) => Ok(()),
            Err(refusal) => Err(masked(refusal, redactor).await),
        }
    }

    /// Resolves when the job of an answered Run is on the disk, if required (`durability = power`).
    pub(crate) async fn kept(&self) -> Result<(), Refusal> {
        match &self.context.sync_group {
            Some(group) => group.synced().await.map_err(|e| Refusal::caused(Reason::DataLoss, &e)),
            None => Ok(()),
        }
    }

    /// Returns the state of one job.
    pub fn status(&self, id: &JobId) -> Result<JobStatus, Refusal> {
        self.registry.known(id).map(|view| view.status())
    }

    /// Returns the states of all jobs, ordered by registration, then id.
    pub fn all(&self) -> Vec<JobStatus> {
        let mut jobs: Vec<Arc<JobView>> = self.registry.all().into_iter().map(|(view, _)| view).collect();
        jobs.sort_by(|a, b| (a.registered, &a.id).cmp(&(b.registered, &b.id)));
        jobs.iter().map(|view| view.status()).collect()
    }

    /// Returns what could not be removed of jobs, the oldest first, and the number of all such things.
    pub(crate) fn left_over(&self) -> (Vec<LeftOver>, usize) {
        self.context.left_over.told()
    }

    /// Fills in the queue positions of waiting jobs.
    pub async fn place(&self, jobs: &mut [JobStatus]) {
        if jobs.iter().all(|job| job.state != JobState::Queued) {
            return;
        }
        // A supervisor that has stopped has no queue.
        let Ok(order) = self.supervisor.send(QueueOrder).await else { return };
        let places: HashMap<JobId, u32> = order.into_iter().zip(1..).collect();
        for job in jobs.iter_mut().filter(|job| job.state == JobState::Queued) {
            job.queue_position = places.get(&job.id).copied().unwrap_or_default();
        }
    }

    /// Updates the resource use of running jobs: of at most [`MOST_USAGES`] jobs, and of each at most once every
    /// [`USAGE_EVERY`].
    pub(crate) async fn read_usages(&self, jobs: &mut [JobStatus]) {
        let now = clock::uptime();
        let is_due = |job: &&JobStatus| matches!(job.state, JobState::Running | JobState::Cancelling);
        let due: Vec<_> = jobs
            .iter()
            .filter(is_due)
            .filter_map(|job| self.registry.view(&job.id))
            .filter(|view| view.may_ask_for_usage(USAGE_EVERY, now))
            .take(MOST_USAGES)
            .collect();
        if due.is_empty() {
            return;
        }
        let keys = due.iter().map(|view| view.key).collect();
        // A supervisor that has stopped reads nothing.
        let Ok(usages) = self.supervisor.send(ReadUsages(keys)).await else { return };
        for (key, usage) in usages {
            let Some(view) = due.iter().find(|view| view.key == key) else { continue };
            view.update(|state| state.uses(usage));
            if let Some(job) = jobs.iter_mut().find(|job| job.id == view.id) {
                (job.cpu_time, job.peak_memory) = (usage.cpu_time, usage.peak_memory);
            }
        }
    }

    /// Follows a job's log from `offset` on, together with its unfinished lines.
    pub(crate) fn follow_live_logs(&self, id: &JobId, offset: u64) -> Result<LogCursor, Refusal> {
        let cursor = self.follow_logs(id, offset)?.with_unfinished();
        let view = self.registry.known(id)?;
        if view.log.watch_unfinished()
            && let Some((_, Some(job))) = self.registry.by_key(view.key)
        {
            deliver(&job, WatchUnfinished);
        }
        Ok(cursor)
    }

    /// Follows a job's log from `offset` on.
    pub fn follow_logs(&self, id: &JobId, offset: u64) -> Result<LogCursor, Refusal> {
        let view = self.registry.known(id)?;
        let max = self.context.config().max_followers as usize;
        let opened = self.state.folder(view.key).open_log(Some(view.log_inode()));
        let lost = match opened.and_then(|file| file.check_reaches(view.log.len()).map(|()| file)) {
            Ok(file) => return view.log.follow(file, offset, max),
            Err(lost) => lost,
        };
        match (lost, self.gone(id)) {
            // The job is being removed, or was during this call.
            (LogLost::Removed, Some(unknown)) => view.log.follow_held(offset, max).unwrap_or(Err(unknown)),
            (lost, _) => {
                Err(out_of_descriptors(&lost).unwrap_or_else(|| Refusal::caused(Reason::DataLoss, &lost)))
            }
        }
    }

    /// Returns the refusal for calls about a job that is being removed or does not exist; `None` if it is present.
    fn gone(&self, id: &JobId) -> Option<Refusal> {
        if self.registry.present(id).is_some() {
            return None;
        }
        let unknown = self.registry.known(id).err();
        Some(unknown.unwrap_or_else(|| Refusal::new(Reason::UnknownJob, "the job was finished")))
    }

    /// Returns the setting `job_log_format`.
    pub(crate) fn job_log_format(&self) -> JobLogFormat {
        self.context.config().job_log_format
    }

    /// Returns the service through which a job came.
    pub(crate) fn origin(&self, id: &JobId) -> Result<RequestOrigin, Refusal> {
        self.registry.known(id).map(|view| view.origin)
    }

    /// Follows a job's step results. With `starts`, news of steps are written at once from now on.
    pub fn follow_steps(&self, id: &JobId) -> Result<TraceCursor, Refusal> {
        let view = self.registry.known(id)?;
        self.follow_trace(id, &view)
    }

    /// Follows a job's step results and events, with marks of how far the events are complete.
    pub fn follow_events(&self, id: &JobId) -> Result<EventCursor, Refusal> {
        let view = self.registry.known(id)?;
        view.trace.watch();
        let cursor = self.follow_trace(id, &view)?;
        Ok(EventCursor::new(cursor, Arc::clone(&view.log)))
    }

    fn follow_trace(&self, id: &JobId, view: &JobView) -> Result<TraceCursor, Refusal> {
        let folder = self.state.folder(view.key);
        view.trace.follow(&folder, self.context.config().max_followers as usize).map_err(|refusal| {
            match (refusal.reason, self.gone(id)) {
                // The job was removed during this call.
                (Reason::DataLoss, Some(unknown)) => unknown,
                _ => refusal,
            }
        })
    }

    /// Cancels a job if it has not ended, and removes it. Resolves when nothing of it is left.
    pub async fn finish(&self, id: &JobId) -> Result<(), Refusal> {
        // An earlier Run is answered first, so that its job exists and can be removed (service.md §3.4).
        if let Some(change) = self.registry.reserved(id) {
            change.wait().await;
        }
        self.supervisor.send(FinishJob(id.clone())).await.map_err(|_| Refusal::stopping())?
    }

    /// Stops: takes no more jobs, ends all jobs and the keeper. Resolves when no job lives or the time is up. Returns
    /// the rest of `shutdown_grace`.
    pub(crate) async fn shut_down(&self) -> Duration {
        self.supervisor.send(Shutdown { at_once: false }).await.unwrap_or_default()
    }

    /// Kills all processes of all jobs.
    pub(crate) async fn kill_all(&self) {
        self.supervisor.send(Shutdown { at_once: true }).await.ok();
    }

    /// Starts no waiting job until [`Self::resume`] (queue.md §6).
    pub async fn pause(&self) {
        self.supervisor.send(Operate::Pause).await.ok();
    }

    /// Ends a pause.
    pub async fn resume(&self) {
        self.supervisor.send(Operate::Resume).await.ok();
    }

    /// True if the supervisor answers a message, that is, if it is alive and has had a turn.
    pub(crate) async fn answers(&self) -> bool {
        self.supervisor.send(Operate::Answer).await.is_ok()
    }

    /// Applies the settings that can change while the daemon runs.
    pub async fn configure(&self, config: Config) {
        self.supervisor.send(Operate::Configure(Box::new(config))).await.ok();
    }

    /// Cancels a job but keeps it registered. With `force` it ends at once, without grace and cleanup.
    pub async fn cancel(&self, id: &JobId, force: bool) -> Result<(), Refusal> {
        self.registry.known(id)?;
        self.supervisor.send(CancelJob { id: id.clone(), force }).await.map_err(|_| Refusal::stopping())
    }
}

/// A registered job, as the request of a Run with its id sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    /// The job of this request.
    Same,
    /// The job of another request.
    OtherContent,
    /// The job of this request was finished at this time, in microseconds since the epoch, and is remembered.
    FinishedAt(i64),
}

/// Compares a request with the registered job, and warns if they differ: the first request counts (service.md §3.1). A
/// job that ended before this daemon started has only a keyed digest, which is not compared.
fn compare(registered: &JobView, digest: &[u8; 32]) -> Registered {
    if registered.digest.is_none_or(|first| first == *digest) {
        return Registered::Same;
    }
    tracing::warn!(job = %registered.id, "a job with this id is registered with another content; it stays as it is");
    Registered::OtherContent
}
