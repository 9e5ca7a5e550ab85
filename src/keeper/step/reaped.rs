//! A step that the job's reaper starts and waits for, and the death of that reaper.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::Pid;

use super::{Job, KILLED, KeeperShared, StartedProcess, Step, StepState, WAKE_PAUSE};
use crate::model::LogChannel;
use crate::process::reaper::{OrderedPipes, ReaperEvent, Received};
use crate::process::spawn::Stage;

impl Job {
    /// Reads the messages of the job's reaper, and handles its end.
    pub(in crate::keeper) fn on_reaper(&mut self, shared: &mut KeeperShared) {
        while let Received::Event(event, pidfd) = self.containment.receive(shared) {
            self.on_reaper_event(event, pidfd, shared);
        }
        if self.containment.has_lost_reaper() {
            self.reaper_lost(shared);
        }
    }

    fn on_reaper_event(&mut self, event: ReaperEvent, pidfd: Option<OwnedFd>, shared: &mut KeeperShared) {
        match (event, self.step.take()) {
            (
                ReaperEvent::Started { pid, start_time },
                Some(Step { state: StepState::Launching { request, pipes, .. }, .. }),
            ) => {
                // The number of a process is always valid.
                let Some(pid) = Pid::from_raw(pid as i32) else { return };
                let OrderedPipes { stdout, stderr } = pipes;
                let started = StartedProcess { pid, pidfd, is_ours: false, start_time, stdout, stderr };
                self.started(&request, started, shared);
            }
            (
                ReaperEvent::NotStarted { stage, errno },
                Some(Step { state: StepState::Launching { request, tries, .. }, .. }),
            ) => self.start_failed(request, tries, ReaperEvent::error(stage, errno), shared),
            (ReaperEvent::Exited(status, usage), Some(step))
                if matches!(step.state, StepState::Running { .. }) =>
            {
                self.step = Some(step);
                self.process_ended(status, Some(usage), shared);
            }
            (_, step) => self.step = step,
        }
        if self.containment.is_empty(shared) {
            self.end_anew();
        }
    }

    /// Continues a reaper that still owes news.
    pub(super) fn wake_again(&mut self, now: Instant) {
        let next = now + WAKE_PAUSE;
        match self.step.as_mut().map(|step| &mut step.state) {
            Some(StepState::Launching { wake_at, .. }) => *wake_at = next,
            Some(StepState::Running { wake_at, .. }) => *wake_at = Some(next),
            _ => return,
        }
        self.containment.wake_reaper();
    }

    /// Handles the death of the job's reaper: the kernel has killed the running step's process with it. Its other
    /// descendants are ours now. They cannot be told from those of other killed reapers, so all are killed.
    fn reaper_lost(&mut self, shared: &mut KeeperShared) {
        const WHAT: &str = "the process that holds this job's processes together was killed; they are ended";
        shared.notice(format!("job {}: {WHAT}", self.key));
        if self.closed.is_none() {
            self.line(LogChannel::Err, WHAT, shared);
        }
        self.containment.kill(None, shared);
        match self.step.take() {
            Some(Step { state: StepState::Launching { request, .. }, .. }) => {
                self.not_started(request.step, Stage::Fork.name(), Errno::CHILD, shared);
            }
            Some(step) if matches!(step.state, StepState::Running { is_ours: false, .. }) => {
                self.step = Some(step);
                self.process_ended(KILLED, None, shared);
            }
            step => self.step = step,
        }
        self.end_anew();
    }
}
