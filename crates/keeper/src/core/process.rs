//! The process of one step, from the request to start it to the report of its end (service.md §6.1, "Step").

use std::time::{Duration, Instant};

use super::ending::Ending;
use crate::protocol::{SpawnStep, StepEnded};
use step_runner_model::{ExitStatus, ProcessNumber, StepUsage};

/// A pipe that other processes hold counts as drained after this time without a byte.
const QUIET: Duration = Duration::from_millis(200);

/// Longest time to drain the pipes of a step, however much still comes.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Maximum number of retries to start a program whose file is open for writing.
pub(super) const BUSY_TRIES: u32 = 20;

/// Pause between two such retries.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(25);

/// Pause between attempts to continue a reaper that owes news: a process of the job may have stopped it.
pub(super) const WAKE_PAUSE: Duration = Duration::from_millis(100);

/// Pause between attempts to kill the processes that a step has left (`leftover = kill`).
pub(super) const CLEAR_PAUSE: Duration = Duration::from_millis(5);

/// The process of a step whose end was not reported yet.
pub(super) struct Process {
    /// Its number.
    pub(super) number: ProcessNumber,
    /// Name of the step, for lines about it.
    pub(super) name: String,
    pub(super) stage: Stage,
    /// The ladder that ends it, once that was asked for.
    pub(super) stop: Option<Ending>,
    /// True once SIGTERM was sent to it.
    pub(super) is_terminated: bool,
}

pub(super) enum Stage {
    /// It waits to be started: at the time `at`, or else when its turn comes.
    Starting { request: Box<SpawnStep>, tries: u32, at: Option<Instant> },
    /// The job's reaper was ordered to start it.
    Launching { request: Box<SpawnStep>, tries: u32, wake_at: Instant },
    /// It runs. `wake_at` is set once it has ended and its reaper owes the status.
    Running { wake_at: Option<Instant> },
    /// It has ended; others still hold its pipes.
    Draining { status: ExitStatus, usage: Option<StepUsage>, last_byte: Instant, until: Instant },
    /// The processes that it left are being killed (`leftover = kill`).
    Clearing { ended: Box<StepEnded>, give_up_at: Instant, at: Instant },
}

impl Process {
    pub(super) fn new(mut request: Box<SpawnStep>) -> Self {
        let (number, name) = (request.process, std::mem::take(&mut request.name));
        let stage = Stage::Starting { request, tries: 0, at: None };
        Self { number, name, stage, stop: None, is_terminated: false }
    }

    /// Returns when the ladder that ends it has something to do.
    pub(super) fn stop_due(&self) -> Option<Instant> {
        let has_process = self.has_process() || matches!(self.stage, Stage::Draining { .. });
        self.stop.as_ref().filter(|_| has_process).map(Ending::check_at)
    }

    /// True if a process lives or was ordered.
    pub(super) const fn has_process(&self) -> bool {
        matches!(self.stage, Stage::Running { .. } | Stage::Launching { .. })
    }

    /// Returns the request to start the process. `None` once the process runs.
    pub(super) fn request(&self) -> Option<&SpawnStep> {
        match &self.stage {
            Stage::Starting { request, .. } | Stage::Launching { request, .. } => Some(request),
            Stage::Running { .. } | Stage::Draining { .. } | Stage::Clearing { .. } => None,
        }
    }

    /// Takes the exit status. From now on, the time to drain the pipes is limited.
    pub(super) fn drain(&mut self, status: ExitStatus, usage: Option<StepUsage>, now: Instant) {
        self.stage = Stage::Draining { status, usage, last_byte: now, until: now + DRAIN_LIMIT };
    }

    /// Restarts the limits on draining, as the disk takes bytes again.
    pub(super) fn drain_anew(&mut self, now: Instant) {
        if let Stage::Draining { last_byte, until, .. } = &mut self.stage {
            *last_byte = now;
            *until = now + DRAIN_LIMIT;
        }
    }

    /// Returns when something is due. Nothing is due for a draining step while the disk is full, because bytes wait
    /// in the pipes.
    pub(super) fn due(&self, disk_is_full: bool) -> Option<Instant> {
        match &self.stage {
            Stage::Starting { at, .. } => *at,
            Stage::Launching { wake_at, .. } => Some(*wake_at),
            Stage::Running { wake_at, .. } => *wake_at,
            Stage::Draining { .. } if disk_is_full => None,
            Stage::Draining { last_byte, until, .. } => Some((*until).min(*last_byte + QUIET)),
            Stage::Clearing { at, .. } => Some(*at),
        }
    }
}
