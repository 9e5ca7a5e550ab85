//! What the rest of the daemon sees of a job without asking its actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::log_sink::LogFeed;
use super::trace_sink::TraceFeed;
use crate::clock;
use crate::job::reaper::{Facts, Moment, Phase};
use crate::journal::event::End;
use crate::model::{JobId, JobKey, JobState, Outcome};

/// A job as everybody sees it: written by its actor, read by any call. Costs a few hundred bytes, and it is all that
/// is kept of an ended job in memory.
pub struct JobView {
    /// The id.
    pub id: JobId,
    /// Its key.
    pub key: JobKey,
    /// When it was registered, microseconds since the epoch.
    pub registered: i64,
    /// Inode of its log, so that nobody else's file is ever served in its place (faults.md row 29).
    pub log_inode: u64,
    /// Digest of the request; it is not on disk, so a later daemon has none of an ended job.
    pub digest: Option<[u8; 32]>,
    /// The same with the keeper's key, of a job that ended before this daemon came.
    pub keyed_digest: Option<[u8; 16]>,
    /// Its log.
    pub log: Arc<LogFeed>,
    /// Its step results.
    pub trace: Arc<TraceFeed>,
    state: Mutex<State>,
    /// Actors of it that died of a defect.
    broken: AtomicU32,
}

/// The part that changes.
#[derive(Clone, Debug)]
pub struct State {
    /// Where in its life.
    pub state: JobState,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// When it started, microseconds since the epoch.
    pub start_time: Option<i64>,
    /// When it ended.
    pub end_time: Option<i64>,
    /// Steps of its own list that have ended.
    pub steps_done: u32,
    /// CPU time of all its processes.
    pub cpu_time: Option<Duration>,
    /// Peak memory in bytes.
    pub peak_memory: Option<u64>,
    /// When it came into this state, for the reaper.
    pub since: Moment,
    /// Processes of it could not be killed.
    pub unkilled: bool,
    /// File variables of it may not be removed.
    pub files_left: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            state: JobState::Queued,
            outcome: None,
            start_time: None,
            end_time: None,
            steps_done: 0,
            cpu_time: None,
            peak_memory: None,
            since: Moment::AfterStart(clock::uptime()),
            unkilled: false,
            files_left: false,
        }
    }
}

impl State {
    /// It has ended, at `since`. What it was seen to use until then counts if the end does not tell.
    pub(super) fn end(&mut self, end: End, since: Moment) {
        let End { outcome, end_time, steps_done, cpu_time, peak_memory, .. } = end;
        self.state = JobState::Ended(outcome.class);
        (self.outcome, self.end_time) = (Some(outcome), Some(end_time));
        self.steps_done = steps_done;
        self.cpu_time = cpu_time.map(Duration::from_micros).or(self.cpu_time);
        self.peak_memory = peak_memory.or(self.peak_memory);
        self.since = since;
    }

    /// A running job is being cancelled.
    pub fn cancel(&mut self) {
        if self.state == JobState::Running {
            self.state = JobState::Cancelling;
        }
    }
}

impl JobView {
    /// A view of a job in this state whose request is not known; see the fields.
    pub fn new(
        id: JobId,
        registered: i64,
        log_inode: u64,
        log: Arc<LogFeed>,
        trace: Arc<TraceFeed>,
        state: State,
    ) -> Self {
        Self {
            key: id.key(),
            id,
            registered,
            log_inode,
            digest: None,
            keyed_digest: None,
            log,
            trace,
            state: Mutex::new(state),
            broken: AtomicU32::new(0),
        }
    }

    /// The same view of a job whose request is known.
    pub(super) fn of_request(self, digest: [u8; 32]) -> Self {
        Self { digest: Some(digest), ..self }
    }

    /// The same of one of whose request only the keyed digest is.
    pub(super) fn of_keyed(self, keyed_digest: Option<[u8; 16]>) -> Self {
        Self { keyed_digest, ..self }
    }

    /// The end, in the order of service.md §6.1: Status shows it, then followers get theirs.
    pub(super) fn end(&self, end: End) {
        let (log_len, lost_from) = (end.log_len, end.lost_from);
        self.update(|state| state.end(end, Moment::AfterStart(clock::uptime())));
        self.trace.end();
        match lost_from {
            Some(from) => self.log.end_early(from),
            None => self.log.end(log_len),
        }
    }

    /// The part that changes, as it is now.
    pub fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// One more actor of it died; how many have.
    pub fn breaks(&self) -> u32 {
        self.broken.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Where in its life.
    pub fn life(&self) -> JobState {
        self.state.lock().state
    }

    /// It has ended.
    pub fn is_ended(&self) -> bool {
        matches!(self.life(), JobState::Ended(_))
    }

    /// Changes the part that changes.
    pub fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
    }

    fn life_since(&self) -> (JobState, Moment) {
        let state = self.state.lock();
        (state.state, state.since)
    }

    /// Whether processes of it could not be killed.
    pub fn is_unkilled(&self) -> bool {
        self.state.lock().unkilled
    }

    /// Whether file variables of it may be there though it has ended.
    pub fn has_files_left(&self) -> bool {
        self.state.lock().files_left
    }

    /// What the reaper judges it by.
    pub fn reaper_facts(&self) -> Facts<JobId> {
        let (state, since) = self.life_since();
        let phase = match state {
            JobState::Queued => Phase::Queued { since },
            JobState::Running => Phase::Running { since, output: Moment::AfterStart(self.log.grown_at()) },
            JobState::Cancelling => Phase::Cancelling,
            JobState::Ended(_) => Phase::Ended { since },
        };
        Facts { id: self.id.clone(), phase }
    }

    /// As the Status call tells it.
    pub fn status(&self) -> JobStatus {
        let State { state, outcome, start_time, end_time, steps_done, cpu_time, peak_memory, .. } =
            self.state();
        let (exit_code, message) = outcome.map_or((0, String::new()), |o| (o.exit_code, o.message));
        JobStatus {
            id: self.id.clone(),
            registered: self.registered,
            state,
            exit_code,
            message,
            start_time,
            end_time,
            log_bytes: self.log.len(),
            steps_done,
            cpu_time,
            peak_memory,
        }
    }
}

/// Answer of the Status call (service.md §3.5).
#[derive(Clone, Debug)]
pub struct JobStatus {
    /// The id.
    pub id: JobId,
    /// When it was registered, microseconds since the epoch.
    pub registered: i64,
    /// Where in its life.
    pub state: JobState,
    /// Exit code of an ended job, else 0.
    pub exit_code: i32,
    /// Why it failed, masked.
    pub message: String,
    /// Microseconds since the epoch.
    pub start_time: Option<i64>,
    /// Microseconds since the epoch.
    pub end_time: Option<i64>,
    /// Length of the log.
    pub log_bytes: u64,
    /// Steps of the job's own list that have ended.
    pub steps_done: u32,
    /// CPU time of all processes.
    pub cpu_time: Option<Duration>,
    /// Peak memory in bytes.
    pub peak_memory: Option<u64>,
}
