//! The steps of a job: starts their processes, waits for them, drains their pipes, and reports their ends.

use std::time::Duration;

use super::action::{Action, Actions, EmptyCheck, FinishStep, JobAction, NotStarted, StartFailure};
use super::event::Moment;
use super::job::Job;
use super::process::{BUSY_PAUSE, BUSY_TRIES, CLEAR_PAUSE, Process, Stage, WAKE_PAUSE};
use crate::protocol::{FromKeeper, SpawnStep, StepEnd, StepEnded};
use step_runner_log::journal::event::Event as JournalEvent;
use step_runner_log::words::DaemonLine;
use step_runner_model::{ExitStatus, StepUsage};

/// Status of a process that nobody could wait for.
const KILLED: ExitStatus = ExitStatus::Signal(9);

impl Job {
    /// Takes a step to start. True if it waits for its turn, because requests are answered first. `StepEnded` reports
    /// the result in any case.
    pub(super) fn spawn(&mut self, request: Box<SpawnStep>, out: &mut Actions) -> bool {
        if request.watch_unfinished {
            out.job(self.serial, JobAction::WatchUnfinished);
        }
        // No new step starts once the end of the job was asked for.
        if self.is_ended() {
            self.not_started(request.step, NotStarted::Cancelled, out);
            return false;
        }
        if let Some(grace) = request.closes {
            self.last_step = Some((request.step, grace));
        }
        // Most jobs have one step at a time: the memory of a job counts when thousands run.
        self.processes.reserve_exact(1);
        self.processes.push(Process::new(request));
        true
    }

    /// True if the step was asked for before.
    pub(super) fn has_started(&self, step: u32) -> bool {
        self.index(step).is_some() || self.over.iter().rev().any(|over| over.step == step)
    }

    /// Starts the step, because its turn has come.
    pub(super) fn turn(&mut self, step: u32, out: &mut Actions) {
        let Some(index) = self.index(step) else { return };
        if self.processes.get(index).is_some_and(|process| matches!(process.stage, Stage::Starting { .. })) {
            self.start(index, out);
        }
    }

    fn start(&mut self, index: usize, out: &mut Actions) {
        let is_stopped = self.processes.get(index).is_some_and(|process| process.stop.is_some());
        if self.ending.is_some() || is_stopped {
            let process = self.processes.remove(index);
            self.not_started(process.step, NotStarted::Cancelled, out);
        } else if let Some(process) = self.processes.get_mut(index) {
            if let Stage::Starting { at, .. } = &mut process.stage {
                *at = None;
            }
            out.job(self.serial, JobAction::Start(process.step));
        }
    }

    pub(super) fn started(&mut self, step: u32) {
        if let Some(process) = self.process(step) {
            process.stage = Stage::Running { wake_at: None };
        }
    }

    pub(super) fn ordered(&mut self, step: u32, at: &Moment<'_>) {
        let Some(index) = self.index(step) else { return };
        let Some(process) = self.processes.get_mut(index) else { return };
        let stage = std::mem::replace(&mut process.stage, Stage::Running { wake_at: None });
        process.stage = match stage {
            Stage::Starting { request, tries, .. } => {
                Stage::Launching { request, tries, wake_at: at.now + WAKE_PAUSE }
            }
            other => other,
        };
    }

    pub(super) fn start_failed(
        &mut self,
        step: u32,
        failure: StartFailure,
        at: &Moment<'_>,
        out: &mut Actions,
    ) {
        let Some(index) = self.index(step) else { return };
        let process = self.processes.swap_remove(index);
        match process.stage {
            Stage::Starting { request, tries, .. } | Stage::Launching { request, tries, .. }
                if failure.is_busy && tries < BUSY_TRIES =>
            {
                let stage = Stage::Starting { request, tries: tries + 1, at: Some(at.now + BUSY_PAUSE) };
                self.processes.push(Process { stage, ..process });
            }
            _ => self.not_started(step, NotStarted::Failed(failure), out),
        }
    }

    pub(super) fn not_started(&self, step: u32, why: NotStarted, out: &mut Actions) {
        out.job(self.serial, JobAction::NotStarted(step, why));
    }

    /// Continues a reaper that owes news of the step, now and from time to time.
    pub(super) fn wake(&mut self, step: u32, at: &Moment<'_>, out: &mut Actions) {
        let next = at.now + WAKE_PAUSE;
        match self.process(step).map(|process| &mut process.stage) {
            Some(Stage::Launching { wake_at, .. }) => *wake_at = next,
            Some(Stage::Running { wake_at, .. }) => *wake_at = Some(next),
            _ => return,
        }
        out.job(self.serial, JobAction::WakeReaper(step));
    }

    pub(super) fn exited(
        &mut self,
        step: u32,
        status: ExitStatus,
        usage: Option<StepUsage>,
        at: &Moment<'_>,
    ) {
        if let Some(process) = self.process(step)
            && matches!(process.stage, Stage::Running { .. })
        {
            process.drain(status, usage, at.now);
        }
    }

    /// Handles a read of one of the step's pipes. The step is over once its process has ended and its pipes are
    /// drained.
    pub(super) fn read(
        &mut self,
        step: u32,
        came: bool,
        is_drained: bool,
        at: &Moment<'_>,
        out: &mut Actions,
    ) {
        let Some(index) = self.index(step) else { return };
        let Some(process) = self.processes.get_mut(index) else { return };
        let Stage::Draining { last_byte, .. } = &mut process.stage else { return };
        if came {
            *last_byte = at.now;
        }
        if is_drained {
            self.finish(index, out);
        }
    }

    /// Ends the output of a step and asks for its report.
    pub(super) fn finish(&mut self, index: usize, out: &mut Actions) {
        let Some(process) = self.processes.get_mut(index) else { return };
        // Once an end was requested, the processes end one after the other. The log does not name those.
        let names_left = self.ending.is_none() && process.stop.is_none();
        let (status, usage) = match &process.stage {
            Stage::Draining { status, usage, .. } => (*status, *usage),
            _ => (KILLED, None),
        };
        let (step, name) = (process.step, std::mem::take(&mut process.name));
        let finish = FinishStep { step, name, status, usage, names_left };
        out.job(self.serial, JobAction::FinishStep(finish));
    }

    /// Takes the description of a step's end and reports it. Kills the processes that the step left first, if it
    /// must.
    pub(super) fn step_ended(&mut self, mut over: StepEnded, at: &Moment<'_>, out: &mut Actions) {
        let StepEnd::Exited(status) = over.end else {
            self.tell_ended(over, out);
            return;
        };
        if over.left == 0
            && let Some(grace) = self.closes_with(&over)
        {
            // One message reports both ends. The journal needs no line, because no process is left to look for.
            over.closes = true;
            self.forget_process(over.step);
            self.tell_ended(over, out);
            return self.close(grace, Vec::new(), None, at.now, out);
        }
        let ended = JournalEvent::StepEnded { step: over.step, status: Some(status) };
        // Processes that were given up for the whole job are not killed once more for their step.
        let stop = self.process(over.step).and_then(|process| process.stop.clone());
        let is_given_up = self.ending.iter().chain(&stop).any(|ending| ending.has_given_up(at.now));
        if over.left > 0 && !at.settings.leftover_keep && !is_given_up {
            self.journal(ended, out);
            out.job(self.serial, JobAction::KillStep(over.step));
            let give_up_at = at.now + at.settings.kill_wait;
            if let Some(process) = self.process(over.step) {
                process.stage = Stage::Clearing { over: Box::new(over), give_up_at, at: at.now };
            }
        } else {
            // Report first, then write the journal line: it is read only if this process dies.
            self.forget_process(over.step);
            self.tell_ended(over, out);
            out.push(Action::Flush);
            self.journal(ended, out);
        }
    }

    /// Returns the grace for the end of the job, if the end of this step closes the job.
    fn closes_with(&self, over: &StepEnded) -> Option<Duration> {
        let (_, grace) = self.last_step.filter(|(step, _)| *step == over.step)?;
        let is_stopped =
            self.processes.iter().any(|process| process.step == over.step && process.stop.is_some());
        let is_free = self.ending.is_none() && self.closing.is_none() && self.closed.is_none() && !is_stopped;
        (is_free && matches!(over.end, StepEnd::Exited(status) if status.is_success())).then_some(grace)
    }

    fn tell_ended(&mut self, over: StepEnded, out: &mut Actions) {
        self.over.push(over.clone());
        self.tell(FromKeeper::StepEnded { key: self.key(), over }, out);
    }

    /// Performs the work that is due for each step.
    pub(super) fn steps_due(&mut self, at: &Moment<'_>, out: &mut Actions) {
        let mut index = 0;
        while let Some(process) = self.processes.get(index) {
            let step = process.step;
            self.climb_stop(index, at, out);
            let Some(process) = self.processes.get(index).filter(|process| process.step == step) else {
                continue;
            };
            if process.due(at.log.is_waiting()).is_some_and(|due| due <= at.now) {
                match process.stage {
                    Stage::Starting { .. } => self.start(index, out),
                    Stage::Launching { .. } | Stage::Running { .. } => self.wake(step, at, out),
                    Stage::Draining { .. } => self.finish(index, out),
                    Stage::Clearing { .. } => {
                        out.job(self.serial, JobAction::CheckEmpty(EmptyCheck::Clear(step)));
                    }
                }
            }
            // A step that could not be started was removed, and the next one has its index now.
            index += usize::from(self.processes.get(index).is_some_and(|process| process.step == step));
        }
    }

    /// Reports a step whose left-over processes are gone or cannot be killed, or kills them again.
    pub(super) fn checked_cleared(&mut self, step: u32, is_empty: bool, at: &Moment<'_>, out: &mut Actions) {
        let Some(index) = self.index(step) else { return };
        let Some(process) = self.processes.get_mut(index) else { return };
        let Stage::Clearing { give_up_at, at: next, .. } = &mut process.stage else { return };
        if !is_empty && at.now < *give_up_at {
            *next = at.now + CLEAR_PAUSE;
            out.job(self.serial, JobAction::KillStep(step));
        } else if let Stage::Clearing { over, .. } = self.processes.swap_remove(index).stage {
            self.tell_ended(*over, out);
        }
    }

    /// Ends the steps whose process cannot be killed (service.md §6.2). False if there is none.
    pub(super) fn give_up_steps(&mut self, out: &mut Actions) -> bool {
        let steps: Vec<u32> = self.processes.iter().map(|process| process.step).collect();
        let given_up = steps.into_iter().filter(|step| self.give_up_step(*step, out));
        given_up.count() > 0
    }

    /// Ends a step whose process cannot be killed. False if it has none yet.
    pub(super) fn give_up_step(&mut self, step: u32, out: &mut Actions) -> bool {
        let Some(index) = self.index(step) else { return false };
        let Some(process) = self.processes.get(index) else { return false };
        match process.stage {
            Stage::Running { .. } | Stage::Draining { .. } => self.finish(index, out),
            Stage::Launching { .. } => {
                let process = self.processes.remove(index);
                self.not_started(process.step, NotStarted::GivenUp, out);
            }
            Stage::Clearing { .. } => {
                if let Stage::Clearing { over, .. } = self.processes.remove(index).stage {
                    self.tell_ended(*over, out);
                }
            }
            Stage::Starting { .. } => return false,
        }
        true
    }

    /// Handles the death of the job's reaper: the kernel has killed the running process with it, whose end the shell
    /// reports. The job's other processes cannot be told from those of other killed reapers, so all are killed.
    pub(super) fn reaper_lost(&mut self, step: Option<u32>, out: &mut Actions) {
        let line = DaemonLine::ReaperKilled;
        out.push(Action::Notice(format!("job {}: {line}", self.key())));
        if self.closed.is_none() {
            self.line(&line, out);
        }
        out.job(self.serial, JobAction::Kill);
        let launching = |process: &Process| {
            Some(process.step) == step && matches!(process.stage, Stage::Launching { .. })
        };
        if let Some(index) = self.processes.iter().position(launching) {
            let process = self.processes.remove(index);
            self.not_started(process.step, NotStarted::ReaperKilled, out);
        }
    }

    pub(super) fn index(&self, step: u32) -> Option<usize> {
        self.processes.iter().position(|process| process.step == step)
    }

    pub(super) fn process(&mut self, step: u32) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.step == step)
    }

    fn forget_process(&mut self, step: u32) {
        self.processes.retain(|process| process.step != step);
    }
}
