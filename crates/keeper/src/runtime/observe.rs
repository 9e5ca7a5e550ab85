//! Tells the core what was observed: processes that have ended, pipes that were read, reapers, time.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::process::Pid;

use super::job::JobBody;
use super::processes::{Seen, StartedProcess, reported_failure};
use super::server::Keeper;
use crate::core::{Event, Registered, Serial};
use step_runner_model::{ExitStatus, StepUsage};
use step_runner_process::reaper::{OrderedPipes, ReaperEvent};

/// Status of a process that nobody could wait for.
const KILLED: ExitStatus = ExitStatus::Signal(9);

impl Keeper {
    /// Passes an event of job `serial` to the core, and performs the actions that follow.
    fn tell(&mut self, serial: Serial, event: Event) {
        self.core.on(serial, event, Instant::now());
        self.drive();
    }

    /// Reaps ended children: processes of steps, and orphans that came to us.
    pub(super) fn reap(&mut self) {
        while let Some(pid) = step_runner_process::peek_exited_child() {
            if let Some(serial) = self.shared.leaders.get(&pid).copied() {
                self.on_process(serial, |_, process| process == pid);
                // If that did not reap the child, reap it here. Otherwise it would be found again for ever.
                if self.shared.leaders.remove(&pid).is_none() {
                    continue;
                }
            }
            self.shared.reap_orphan(pid);
        }
    }

    /// Checks if a process of a running step has ended. `is_it` selects the process by step and process id.
    pub(super) fn on_process(&mut self, serial: Serial, is_it: impl Fn(u32, u32) -> bool) {
        let Some(Registered { body, .. }) = self.core.get_mut(serial) else { return };
        match body.processes.look_at(is_it, &mut self.shared) {
            Seen::Nothing => {}
            Seen::Reported(step) => self.tell(serial, Event::ExitSeen(step)),
            Seen::Reaped(step, status, usage) => {
                self.exited(serial, step, status, Some(usage));
            }
        }
        self.settle(serial);
    }

    /// Reads the pipes of a step whose process has ended, and tells the core.
    fn exited(&mut self, serial: Serial, step: u32, status: ExitStatus, usage: Option<StepUsage>) {
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        let is_drained = body.output.read_at_end(step, job, &mut self.shared);
        self.tell(serial, Event::Exited { step, status, usage, is_drained });
    }

    /// Reads a pipe of a job.
    pub(super) fn on_pipe(&mut self, serial: Serial, pipe: u32) {
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        let read = body.output.on_pipe(pipe, job, &mut self.shared);
        if let Some(read) = read.filter(|read| job.is_draining(read.step)) {
            self.tell(serial, Event::Read { step: read.step, came: read.came, is_drained: read.is_drained });
        }
        self.settle(serial);
    }

    /// Reads the messages of a job's reaper, and handles its end.
    pub(super) fn on_reaper(&mut self, serial: Serial) {
        while let Some(Registered { body, .. }) = self.core.get_mut(serial)
            && let Some((step, event, pidfd)) = body.processes.containment.receive(&self.shared)
        {
            self.on_reaper_event(serial, step, event, pidfd);
        }
        while let Some(Registered { body, .. }) = self.core.get_mut(serial)
            && let Some(lost) = body.processes.containment.take_lost_reaper()
        {
            self.reaper_lost(serial, lost.step);
        }
        self.settle(serial);
    }

    /// Handles a message of a reaper, which holds `step` or nothing.
    fn on_reaper_event(
        &mut self,
        serial: Serial,
        step: Option<u32>,
        event: ReaperEvent,
        pidfd: Option<OwnedFd>,
    ) {
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        let launched = |body: &mut JobBody| Some((step?, body.processes.take_launched(step?)?));
        match event {
            ReaperEvent::Started { pid, start_time } => {
                // The number of a process is always valid.
                if let Some(pid) = Pid::from_raw(pid as i32)
                    && let Some((step, OrderedPipes { stdout, stderr })) = launched(body)
                {
                    let started = StartedProcess { pid, pidfd, is_ours: false, start_time, stdout, stderr };
                    let event = body.started(step, started, job, &mut self.shared);
                    self.tell(serial, event);
                }
            }
            ReaperEvent::NotStarted { stage, errno } => {
                if let Some((step, _)) = launched(body) {
                    self.tell(serial, Event::StartFailed(step, reported_failure(stage, errno)));
                }
            }
            ReaperEvent::Exited(status, usage) => {
                if let Some(step) = step.filter(|step| body.processes.take_reported(*step)) {
                    self.exited(serial, step, status, Some(usage));
                }
            }
            ReaperEvent::Deserted => {}
        }
        if let Some(Registered { body, .. }) = self.core.get_mut(serial)
            && body.processes.is_empty(&self.shared)
        {
            self.tell(serial, Event::Fewer);
        }
    }

    /// Handles the death of a job's reaper: the kernel has killed the process of `step` with it.
    fn reaper_lost(&mut self, serial: Serial, step: Option<u32>) {
        self.tell(serial, Event::ReaperLost(step));
        let Some(Registered { body, .. }) = self.core.get_mut(serial) else { return };
        if let Some(step) = step.filter(|step| body.processes.take_reported(*step)) {
            self.exited(serial, step, KILLED, None);
        }
        self.tell(serial, Event::Fewer);
    }

    /// Runs the timers of a job: log, steps, end.
    pub(super) fn tick(&mut self, serial: Serial, now: Instant) {
        let Some(Registered { body, .. }) = self.core.get_mut(serial) else { return };
        if body.output.retry(now, &mut self.shared) {
            self.tell(serial, Event::DiskTakes);
        }
        self.tell(serial, Event::StepsDue);
        self.tell(serial, Event::EndDue);
        if let Some(Registered { job, body }) = self.core.get_mut(serial) {
            body.output.unfinished_tick(now, job, &mut self.shared);
        }
        self.settle(serial);
    }
}
