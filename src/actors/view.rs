//! The part of a job's state that the daemon reads without asking the job's actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::log_sink::LogFeed;
use super::trace_sink::TraceFeed;
use crate::clock;
use crate::job::reaper::{Facts, Moment, Phase};
use crate::journal::event::End;
use crate::model::{CancelCause, JobId, JobKey, JobState, Outcome, StepUsage};
use crate::process::cgroup::Usage;
use crate::request::RequestOrigin;
use crate::store::FilesLeft;

/// A job as every call sees it: written by its actor, read by any call. It takes a few hundred bytes. Of an ended job
/// nothing else stays in memory.
pub(crate) struct JobView {
    /// The id.
    pub(crate) id: JobId,
    /// Its key.
    pub(crate) key: JobKey,
    /// Time of registration, microseconds since the epoch.
    pub(crate) registered: i64,
    /// Inode of its log, 0 until the keeper has opened it.
    log_inode: AtomicU64,
    /// The service through which it came.
    pub(crate) origin: RequestOrigin,
    /// Digest of the request. It is not on disk, so a later daemon does not have it for an ended job.
    pub(crate) digest: Option<[u8; 32]>,
    /// Keyed digest of the request, from the disk, for a job that ended before this daemon started.
    pub(crate) keyed_digest: Option<[u8; 16]>,
    /// Its log.
    pub(crate) log: Arc<LogFeed>,
    /// Its step results.
    pub(crate) trace: Arc<TraceFeed>,
    state: Mutex<JobViewState>,
    /// Number of its actors that died of a defect.
    broken: AtomicU32,
    /// Held while files that the job left behind are deleted.
    pub(super) leftovers: Arc<tokio::sync::Mutex<()>>,
}

/// The changing part of a job's view.
#[derive(Clone, Debug)]
pub(crate) struct JobViewState {
    /// Phase of the job's life.
    pub(crate) state: JobState,
    /// Outcome of an ended job.
    pub(crate) outcome: Option<Outcome>,
    /// Time of the start, microseconds since the epoch.
    pub(crate) start_time: Option<i64>,
    /// Time of the end, microseconds since the epoch.
    pub(crate) end_time: Option<i64>,
    /// Number of steps of its own list that have ended.
    pub(crate) steps_done: u32,
    /// CPU time of all its processes.
    pub(crate) cpu_time: Option<Duration>,
    /// Peak memory in bytes.
    pub(crate) peak_memory: Option<u64>,
    /// Time at which Status last asked for the two, as [`clock::uptime`].
    pub(super) usage_asked: Duration,
    /// The running step.
    pub(crate) current: CurrentStep,
    /// Number of failures that were allowed.
    pub(crate) allowed_failures: u32,
    /// Use of resources by the steps that have ended.
    pub(crate) usage: Option<StepUsage>,
    /// Time of the last change of `state`, for the reaper.
    pub(crate) since: Moment,
    /// Message while the disk refuses the log of a running job, for people.
    pub(crate) paused: Option<String>,
    /// Output waits until the disk takes it.
    pub(crate) output_waits: bool,
    /// Some processes of the job could not be killed.
    pub(crate) unkilled: bool,
    /// Whether file variables of the job may still exist.
    pub(crate) files_left: FilesState,
}

/// File variables of a job that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FilesState {
    /// None is left.
    #[default]
    Removed,
    /// Their contents are gone, some of their names are not.
    Emptied,
    /// Their contents may still be there.
    Kept,
}

impl FilesState {
    /// Returns the state of files that nobody has tried to remove, unless there are none.
    pub(super) const fn unless(none: bool) -> Self {
        if none { Self::Removed } else { Self::Kept }
    }

    /// Returns the state after an attempt to remove them.
    pub(super) fn after(removed: &Result<(), FilesLeft>) -> Self {
        match removed {
            Ok(()) => Self::Removed,
            Err(left) if left.has_content => Self::Kept,
            Err(_) => Self::Emptied,
        }
    }
}

/// The running step, masked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CurrentStep {
    /// Names, the outermost first; empty between two steps.
    pub(crate) names: Arc<Vec<String>>,
    /// Position of the outermost step in the job's own list, counted from 1.
    pub(crate) number: u32,
    /// Length of that list.
    pub(crate) total: u32,
}

impl Default for JobViewState {
    fn default() -> Self {
        Self {
            state: JobState::Queued,
            outcome: None,
            start_time: None,
            end_time: None,
            steps_done: 0,
            cpu_time: None,
            peak_memory: None,
            usage_asked: Duration::ZERO,
            current: CurrentStep::default(),
            allowed_failures: 0,
            usage: None,
            since: Moment::AfterStart(clock::uptime()),
            paused: None,
            output_waits: false,
            unkilled: false,
            files_left: FilesState::Removed,
        }
    }
}

impl JobViewState {
    /// Notes the end of the job. Where the end has no usage figures, those seen so far stay.
    pub(super) fn end(&mut self, end: End, since: Moment) {
        let End { outcome, end_time, steps_done, allowed_failures, cpu_time, peak_memory, usage, .. } = end;
        self.state = JobState::Ended(outcome.class);
        (self.outcome, self.end_time) = (Some(outcome), Some(end_time));
        (self.steps_done, self.allowed_failures) = (steps_done, allowed_failures);
        self.cpu_time = cpu_time.map(Duration::from_micros).or(self.cpu_time);
        self.peak_memory = peak_memory.or(self.peak_memory);
        self.usage = self.usage.or(usage);
        self.current = CurrentStep::default();
        self.since = since;
    }

    fn is_paused(&self) -> bool {
        self.paused.is_some() && !matches!(self.state, JobState::Ended(_))
    }

    pub(super) fn used(&mut self, usage: Option<StepUsage>) {
        self.usage = [self.usage, usage].into_iter().flatten().reduce(StepUsage::and);
    }

    /// Notes what the job's processes have used so far, unless it has ended: its end tells more.
    pub(super) fn uses(&mut self, usage: Usage) {
        if !matches!(self.state, JobState::Ended(_)) {
            (self.cpu_time, self.peak_memory) = (usage.cpu_time, usage.peak_memory);
        }
    }

    /// Marks a running job as being cancelled.
    pub(crate) fn cancel(&mut self) {
        if self.state == JobState::Running {
            self.state = JobState::Cancelling;
        }
    }
}

impl JobView {
    /// Creates a view of a job whose request is not known.
    pub(crate) fn new(
        id: JobId,
        registered: i64,
        log_inode: u64,
        log: Arc<LogFeed>,
        trace: Arc<TraceFeed>,
        state: JobViewState,
    ) -> Self {
        Self {
            key: id.key(),
            id,
            registered,
            log_inode: AtomicU64::new(log_inode),
            origin: RequestOrigin::V1,
            digest: None,
            keyed_digest: None,
            log,
            trace,
            state: Mutex::new(state),
            broken: AtomicU32::new(0),
            leftovers: Arc::default(),
        }
    }

    pub(super) fn of_request(self, digest: [u8; 32], origin: RequestOrigin) -> Self {
        Self { digest: Some(digest), origin, ..self }
    }

    /// Adds what the record on disk tells of the request.
    pub(super) fn of_record(self, keyed_digest: Option<[u8; 16]>, origin: RequestOrigin) -> Self {
        Self { origin, keyed_digest, ..self }
    }

    /// Inode of its log: another file at that path is never served as the log (faults.md row 29).
    pub(crate) fn log_inode(&self) -> u64 {
        self.log_inode.load(Ordering::Acquire)
    }

    /// Notes that the keeper has opened the log, and its length.
    pub(super) fn opened_log(&self, inode: u64, len: u64) {
        self.log_inode.store(inode, Ordering::Release);
        self.log.announce(len);
    }

    /// Publishes the end, in the order of service.md §6.1: first in Status, then to the followers.
    pub(super) fn end(&self, end: End) {
        let (log_len, lost_from) = (end.log_len, end.lost_from);
        self.update(|state| state.end(end, Moment::AfterStart(clock::uptime())));
        self.trace.end();
        match lost_from {
            Some(from) => self.log.end_early(from),
            None => self.log.end(log_len),
        }
    }

    /// Returns facts of the changing part, without a copy of all of it.
    pub(super) fn read<T>(&self, facts: impl FnOnce(&JobViewState) -> T) -> T {
        facts(&self.state.lock())
    }

    /// Returns a copy of the changing part.
    pub(crate) fn state(&self) -> JobViewState {
        self.state.lock().clone()
    }

    /// Counts one more dead actor. Returns the new count.
    pub(crate) fn breaks(&self) -> u32 {
        self.broken.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the phase of the job's life.
    pub(crate) fn life(&self) -> JobState {
        self.state.lock().state
    }

    /// True if the job has ended.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.life(), JobState::Ended(_))
    }

    /// Applies `change` to the changing part.
    pub(crate) fn update(&self, change: impl FnOnce(&mut JobViewState)) {
        change(&mut self.state.lock());
    }

    fn life_since(&self) -> (JobState, Moment) {
        let state = self.state.lock();
        (state.state, state.since)
    }

    /// True if the use of resources was asked for longer ago than `pause`; then it counts as asked for at `now`.
    pub(super) fn may_ask_for_usage(&self, pause: Duration, now: Duration) -> bool {
        let mut state = self.state.lock();
        let is_due = now.saturating_sub(state.usage_asked) >= pause;
        if is_due {
            state.usage_asked = now;
        }
        is_due
    }

    /// True while the disk refuses the log of this running job.
    pub(crate) fn is_paused(&self) -> bool {
        self.state.lock().is_paused()
    }

    /// True if some processes of the job could not be killed.
    pub(crate) fn is_unkilled(&self) -> bool {
        self.state.lock().unkilled
    }

    /// Returns whether file variables of the job may still exist after its end.
    pub(crate) fn files_left(&self) -> FilesState {
        self.state.lock().files_left
    }

    /// Returns the facts that the reaper needs.
    pub(crate) fn reaper_facts(&self) -> Facts<JobId> {
        let (state, since) = self.life_since();
        let phase = match state {
            JobState::Queued => Phase::Queued { since },
            JobState::Running => Phase::Running { since, output: Moment::AfterStart(self.log.grown_at()) },
            JobState::Cancelling => Phase::Cancelling,
            JobState::Ended(_) => Phase::Ended { since },
        };
        Facts { id: self.id.clone(), phase }
    }

    /// Returns the answer of the Status call.
    pub(crate) fn status(&self) -> JobStatus {
        let now = self.state();
        let is_paused = now.output_waits && !matches!(now.state, JobState::Ended(_));
        let JobViewState { state, outcome, start_time, end_time, steps_done, cpu_time, peak_memory, .. } =
            now;
        let JobViewState { paused, current, allowed_failures, usage, .. } = now;
        let is_defect = outcome.as_ref().is_some_and(|outcome| outcome.is_defect);
        let cancel_cause = outcome.as_ref().and_then(|outcome| outcome.cancel_cause);
        let (exit_code, message) =
            outcome.map_or_else(|| (0, paused.unwrap_or_default()), |o| (o.exit_code, o.message));
        JobStatus {
            id: self.id.clone(),
            registered: self.registered,
            state,
            exit_code,
            is_defect,
            cancel_cause,
            message,
            start_time,
            end_time,
            log_bytes: self.log.len(),
            steps_done,
            allowed_failures,
            cpu_time,
            peak_memory,
            current,
            queue_position: 0,
            is_paused,
            usage,
        }
    }
}

/// Answer of the Status call (service.md §3.5).
#[derive(Clone, Debug)]
pub struct JobStatus {
    /// The id.
    pub id: JobId,
    /// Time of registration, microseconds since the epoch.
    pub registered: i64,
    /// Phase of the job's life.
    pub state: JobState,
    /// Exit code of an ended job, else 0.
    pub exit_code: i32,
    /// True if a defect of this program ended the job.
    pub(crate) is_defect: bool,
    /// Reason for which an ended job was stopped, if it was.
    pub(crate) cancel_cause: Option<CancelCause>,
    /// Reason of a failure, masked; for a running job a message while the disk refuses its log.
    pub message: String,
    /// Microseconds since the epoch.
    pub start_time: Option<i64>,
    /// Microseconds since the epoch.
    pub end_time: Option<i64>,
    /// Length of the log.
    pub log_bytes: u64,
    /// Number of steps of the job's own list that have ended.
    pub(crate) steps_done: u32,
    /// Number of failures that were allowed.
    pub(crate) allowed_failures: u32,
    /// CPU time of all processes.
    pub(crate) cpu_time: Option<Duration>,
    /// Peak memory in bytes.
    pub(crate) peak_memory: Option<u64>,
    /// The running step.
    pub(crate) current: CurrentStep,
    /// Position of a waiting job in the queue, counted from 1; 0 if the job does not wait.
    pub queue_position: u32,
    /// True while output waits because the disk refuses the log.
    pub(crate) is_paused: bool,
    /// Use of resources so far.
    pub(crate) usage: Option<StepUsage>,
}
