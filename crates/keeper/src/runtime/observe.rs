//! Tells the core what was observed: processes that have ended, pipes that were read, reapers, time.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::process::Pid;

use super::job::JobBody;
use super::processes::{Seen, StartedProcess, reported_failure};
use super::server::Keeper;
use crate::core::{Event, Registered, Serial};
use step_runner_model::{ExitStatus, ProcessNumber, StepUsage};
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
                self.on_process(serial, |_, leader| leader == pid);
                // If that did not reap the child, reap it here. Otherwise it would be found again for ever.
                if self.shared.leaders.remove(&pid).is_none() {
                    continue;
                }
            }
            self.shared.reap_orphan(pid);
        }
    }

    /// Checks if a process of a running step has ended. `is_it` selects the process by its number and its pid.
    pub(super) fn on_process(&mut self, serial: Serial, is_it: impl Fn(ProcessNumber, u32) -> bool) {
        let Some(Registered { body, .. }) = self.core.get_mut(serial) else { return };
        match body.processes.look_at(is_it, &mut self.shared) {
            Seen::Nothing => {}
            Seen::Reported(process) => self.tell(serial, Event::ExitSeen(process)),
            Seen::Reaped(process, status, usage) => {
                self.exited(serial, process, status, Some(usage));
            }
        }
        self.settle(serial);
    }

    /// Reads the pipes of a step whose process has ended, and tells the core.
    fn exited(
        &mut self,
        serial: Serial,
        process: ProcessNumber,
        status: ExitStatus,
        usage: Option<StepUsage>,
    ) {
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        let is_drained = body.output.read_at_end(process, job, &mut self.shared);
        self.tell(serial, Event::Exited { process, status, usage, is_drained });
    }

    /// Reads a pipe of a job.
    pub(super) fn on_pipe(&mut self, serial: Serial, pipe: u32) {
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        let read = body.output.on_pipe(pipe, job, &mut self.shared);
        if let Some(read) = read.filter(|read| job.is_draining(read.process)) {
            self.tell(
                serial,
                Event::Read { process: read.process, came: read.came, is_drained: read.is_drained },
            );
        }
        self.settle(serial);
    }

    /// Reads the messages of a job's reaper, and handles its end.
    pub(super) fn on_reaper(&mut self, serial: Serial) {
        while let Some(Registered { body, .. }) = self.core.get_mut(serial)
            && let Some((process, event, pidfd)) = body.processes.containment.receive(&self.shared)
        {
            self.on_reaper_event(serial, process, event, pidfd);
        }
        while let Some(Registered { body, .. }) = self.core.get_mut(serial)
            && let Some(lost) = body.processes.containment.take_lost_reaper()
        {
            self.reaper_lost(serial, lost.process);
        }
        self.settle(serial);
    }

    /// Handles a message of a reaper, which holds `process` or nothing.
    fn on_reaper_event(
        &mut self,
        serial: Serial,
        process: Option<ProcessNumber>,
        event: ReaperEvent,
        pidfd: Option<OwnedFd>,
    ) {
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        let launched = |body: &mut JobBody| Some((process?, body.processes.take_launched(process?)?));
        match event {
            ReaperEvent::Started { pid, start_time } => {
                // The number of a process is always valid.
                if let Some(pid) = Pid::from_raw(pid as i32)
                    && let Some((process, OrderedPipes { stdout, stderr })) = launched(body)
                {
                    let started = StartedProcess { pid, pidfd, is_ours: false, start_time, stdout, stderr };
                    let event = body.started(process, started, job, &mut self.shared);
                    self.tell(serial, event);
                }
            }
            ReaperEvent::NotStarted { stage, errno } => {
                if let Some((process, _)) = launched(body) {
                    self.tell(serial, Event::StartFailed(process, reported_failure(stage, errno)));
                }
            }
            ReaperEvent::Exited(status, usage) => {
                if let Some(process) = process.filter(|process| body.processes.take_reported(*process)) {
                    self.exited(serial, process, status, Some(usage));
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

    /// Handles the death of a job's reaper: the kernel has killed `process` with it.
    fn reaper_lost(&mut self, serial: Serial, process: Option<ProcessNumber>) {
        self.tell(serial, Event::ReaperLost(process));
        let Some(Registered { body, .. }) = self.core.get_mut(serial) else { return };
        if let Some(process) = process.filter(|process| body.processes.take_reported(*process)) {
            self.exited(serial, process, KILLED, None);
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
