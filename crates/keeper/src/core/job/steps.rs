//! The steps of a job: starts their processes, waits for them, drains their pipes, and reports their ends.

use std::time::Duration;

use super::Job;
use crate::core::action::{Action, Actions, EmptyCheck, FinishStep, JobAction, NotStarted, StartFailure};
use crate::core::event::Moment;
use crate::core::process::{BUSY_PAUSE, BUSY_TRIES, CLEAR_PAUSE, Process, Stage, WAKE_PAUSE};
use crate::protocol::{FromKeeper, SpawnStep, StepEnd, StepEnded};
use step_runner_log::journal::event::Event as JournalEvent;
use step_runner_log::words::DaemonLine;
use step_runner_model::{ExitStatus, ProcessNumber, StepUsage};

/// Status of a process that nobody could wait for.
const KILLED: ExitStatus = ExitStatus::Signal(9);

impl Job {
    /// Takes a step to start. True if it waits for its turn, because requests are answered first. `StepEnded` reports
    /// the result in any case.
    pub(in crate::core) fn spawn(&mut self, request: Box<SpawnStep>, out: &mut Actions) -> bool {
        if request.watch_unfinished {
            out.job(self.serial, JobAction::WatchUnfinished);
        }
        // No new step starts once the end of the job was asked for.
        if self.is_to_end() {
            self.not_started(request.process, NotStarted::Cancelled, out);
            return false;
        }
        if let Some(grace) = request.closes {
            self.last_step = Some((request.process, grace));
        }
        // Most jobs have one step at a time: the memory of a job counts when thousands run.
        self.processes.reserve_exact(1);
        self.processes.push(Process::new(request));
        true
    }

    /// True if the step was asked for before.
    pub(in crate::core) fn is_registered(&self, number: ProcessNumber) -> bool {
        self.index(number).is_some() || self.ended.iter().rev().any(|ended| ended.process == number)
    }

    /// Starts the step, because its turn has come.
    pub(super) fn turn(&mut self, number: ProcessNumber, out: &mut Actions) {
        let Some(index) = self.index(number) else { return };
        if self.processes.get(index).is_some_and(|process| matches!(process.stage, Stage::Starting { .. })) {
            self.start(index, out);
        }
    }

    fn start(&mut self, index: usize, out: &mut Actions) {
        let is_stopped = self.processes.get(index).is_some_and(|process| process.stop.is_some());
        if self.ending.is_some() || is_stopped {
            let process = self.processes.remove(index);
            self.not_started(process.number, NotStarted::Cancelled, out);
        } else if let Some(process) = self.processes.get_mut(index) {
            if let Stage::Starting { at, .. } = &mut process.stage {
                *at = None;
            }
            out.job(self.serial, JobAction::Start(process.number));
        }
    }

    pub(in crate::core) fn started(&mut self, number: ProcessNumber) {
        if let Some(process) = self.process(number) {
            process.stage = Stage::Running { wake_at: None };
        }
    }

    pub(super) fn ordered(&mut self, number: ProcessNumber, at: &Moment<'_>) {
        let Some(index) = self.index(number) else { return };
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
        number: ProcessNumber,
        failure: StartFailure,
        at: &Moment<'_>,
        out: &mut Actions,
    ) {
        let Some(index) = self.index(number) else { return };
        let process = self.processes.swap_remove(index);
        match process.stage {
            Stage::Starting { request, tries, .. } | Stage::Launching { request, tries, .. }
                if failure.is_busy && tries < BUSY_TRIES =>
            {
                let stage = Stage::Starting { request, tries: tries + 1, at: Some(at.now + BUSY_PAUSE) };
                self.processes.push(Process { stage, ..process });
            }
            _ => self.not_started(number, NotStarted::Failed(failure), out),
        }
    }

    pub(in crate::core) fn not_started(&self, number: ProcessNumber, why: NotStarted, out: &mut Actions) {
        out.job(self.serial, JobAction::NotStarted(number, why));
    }

    /// Continues a reaper that owes news of the step, now and from time to time.
    pub(in crate::core) fn wake(&mut self, number: ProcessNumber, at: &Moment<'_>, out: &mut Actions) {
        let next = at.now + WAKE_PAUSE;
        match self.process(number).map(|process| &mut process.stage) {
            Some(Stage::Launching { wake_at, .. }) => *wake_at = next,
            Some(Stage::Running { wake_at, .. }) => *wake_at = Some(next),
            _ => return,
        }
        out.job(self.serial, JobAction::WakeReaper(number));
    }

    pub(in crate::core) fn exited(
        &mut self,
        number: ProcessNumber,
        status: ExitStatus,
        usage: Option<StepUsage>,
        at: &Moment<'_>,
    ) {
        if let Some(process) = self.process(number)
            && matches!(process.stage, Stage::Running { .. })
        {
            process.drain(status, usage, at.now);
        }
    }

    /// Handles a read of one of the step's pipes. The step has ended once its process has and its pipes are
    /// drained.
    pub(in crate::core) fn read(
        &mut self,
        number: ProcessNumber,
        came: bool,
        is_drained: bool,
        at: &Moment<'_>,
        out: &mut Actions,
    ) {
        let Some(index) = self.index(number) else { return };
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
    pub(in crate::core) fn finish(&mut self, index: usize, out: &mut Actions) {
        let Some(process) = self.processes.get_mut(index) else { return };
        // Once an end was requested, the processes end one after the other. The log does not name those.
        let names_left = self.ending.is_none() && !process.is_terminated;
        let (status, usage) = match &process.stage {
            Stage::Draining { status, usage, .. } => (*status, *usage),
            _ => (KILLED, None),
        };
        let (number, name) = (process.number, std::mem::take(&mut process.name));
        let finish = FinishStep { process: number, name, status, usage, names_left };
        out.job(self.serial, JobAction::FinishStep(finish));
    }

    /// Takes the description of a step's end and reports it. Kills the processes that the step left first, if it
    /// must.
    pub(super) fn step_ended(&mut self, mut ended: StepEnded, at: &Moment<'_>, out: &mut Actions) {
        let StepEnd::Exited(status) = ended.end else {
            self.tell_ended(ended, out);
            return;
        };
        if ended.left == 0
            && let Some(grace) = self.closes_with(&ended)
        {
            // One message reports both ends. The journal needs no line, because no process is left to look for.
            ended.closes = true;
            self.forget_process(ended.process);
            self.tell_ended(ended, out);
            return self.close(grace, Vec::new(), None, at.now, out);
        }
        let line = JournalEvent::StepEnded { process: ended.process, status: Some(status) };
        // Processes that were given up for the whole job are not killed once more for their step.
        let process = self.process(ended.process);
        let is_terminated = process.as_ref().is_some_and(|process| process.is_terminated);
        let stop = process.and_then(|process| process.stop.clone());
        let is_given_up = self.ending.iter().chain(&stop).any(|ending| ending.has_given_up(at.now));
        let (number, left) = (ended.process, ended.left);
        if ended.left > 0 && !at.settings.leftover_keep && !is_given_up {
            self.journal(line, out);
            out.job(self.serial, JobAction::KillStep(ended.process));
            let give_up_at = at.now + at.settings.kill_wait;
            if let Some(process) = self.process(ended.process) {
                process.stage = Stage::Clearing { ended: Box::new(ended), give_up_at, at: at.now };
            }
        } else {
            // Report first, then write the journal line: it is read only if this process dies.
            self.forget_process(ended.process);
            self.tell_ended(ended, out);
            out.push(Action::Flush);
            self.journal(line, out);
            // A process that had ended before it could be stopped keeps what it has left.
            if let Some(stop) = stop.filter(|_| is_terminated && left > 0 && !is_given_up) {
                self.clear_stopped(number, stop, out);
            }
        }
    }

    /// Returns the grace for the end of the job, if the end of this step closes the job.
    fn closes_with(&self, ended: &StepEnded) -> Option<Duration> {
        let (_, grace) = self.last_step.filter(|(number, _)| *number == ended.process)?;
        let is_stopped =
            self.processes.iter().any(|process| process.number == ended.process && process.stop.is_some());
        let is_free = self.ending.is_none() && self.closing.is_none() && self.closed.is_none() && !is_stopped;
        (is_free && matches!(ended.end, StepEnd::Exited(status) if status.is_success())).then_some(grace)
    }

    fn tell_ended(&mut self, ended: StepEnded, out: &mut Actions) {
        self.ended.push(ended.clone());
        self.tell(FromKeeper::StepEnded { key: self.key(), ended }, out);
    }

    /// Performs the work that is due for each step.
    pub(super) fn steps_due(&mut self, at: &Moment<'_>, out: &mut Actions) {
        let mut index = 0;
        while let Some(process) = self.processes.get(index) {
            let number = process.number;
            self.climb_stop(index, at, out);
            let Some(process) = self.processes.get(index).filter(|process| process.number == number) else {
                continue;
            };
            if process.due(at.log.is_waiting()).is_some_and(|due| due <= at.now) {
                match process.stage {
                    Stage::Starting { .. } => self.start(index, out),
                    Stage::Launching { .. } | Stage::Running { .. } => self.wake(number, at, out),
                    Stage::Draining { .. } => self.finish(index, out),
                    Stage::Clearing { .. } => {
                        out.job(self.serial, JobAction::CheckEmpty(EmptyCheck::Clear(number)));
                    }
                }
            }
            // A step that could not be started was removed, and the next one has its index now.
            index += usize::from(self.processes.get(index).is_some_and(|process| process.number == number));
        }
    }

    /// Reports a step whose left-over processes are gone or cannot be killed, or kills them again.
    pub(super) fn checked_cleared(
        &mut self,
        number: ProcessNumber,
        is_empty: bool,
        at: &Moment<'_>,
        out: &mut Actions,
    ) {
        let Some(index) = self.index(number) else { return };
        let Some(process) = self.processes.get_mut(index) else { return };
        let Stage::Clearing { give_up_at, at: next, .. } = &mut process.stage else { return };
        if !is_empty && at.now < *give_up_at {
            *next = at.now + CLEAR_PAUSE;
            out.job(self.serial, JobAction::KillStep(number));
        } else if let Stage::Clearing { ended, .. } = self.processes.swap_remove(index).stage {
            self.tell_ended(*ended, out);
        }
    }

    /// Ends the steps whose process cannot be killed (service.md §6.2). False if there is none.
    pub(super) fn give_up_steps(&mut self, out: &mut Actions) -> bool {
        let numbers: Vec<ProcessNumber> = self.processes.iter().map(|process| process.number).collect();
        let given_up = numbers.into_iter().filter(|number| self.give_up_step(*number, out));
        given_up.count() > 0
    }

    /// Ends a step whose process cannot be killed. False if it has none yet.
    pub(super) fn give_up_step(&mut self, number: ProcessNumber, out: &mut Actions) -> bool {
        let Some(index) = self.index(number) else { return false };
        let Some(process) = self.processes.get(index) else { return false };
        match process.stage {
            Stage::Running { .. } | Stage::Draining { .. } => self.finish(index, out),
            Stage::Launching { .. } => {
                let process = self.processes.remove(index);
                self.not_started(process.number, NotStarted::GivenUp, out);
            }
            Stage::Clearing { .. } => {
                if let Stage::Clearing { ended, .. } = self.processes.remove(index).stage {
                    self.tell_ended(*ended, out);
                }
            }
            Stage::Starting { .. } => return false,
        }
        true
    }

    /// Handles the death of the job's reaper: the kernel has killed the running process with it, whose end the runtime
    /// reports. The job's other processes cannot be told from those of other killed reapers, so all are killed.
    pub(in crate::core) fn reaper_lost(&mut self, number: Option<ProcessNumber>, out: &mut Actions) {
        let line = DaemonLine::ReaperKilled;
        out.push(Action::Notice(format!("job {}: {line}", self.key())));
        if self.closed.is_none() {
            self.line(&line, out);
        }
        out.job(self.serial, JobAction::Kill);
        let launching = |process: &Process| {
            Some(process.number) == number && matches!(process.stage, Stage::Launching { .. })
        };
        if let Some(index) = self.processes.iter().position(launching) {
            let process = self.processes.remove(index);
            self.not_started(process.number, NotStarted::ReaperKilled, out);
        }
    }

    pub(super) fn index(&self, number: ProcessNumber) -> Option<usize> {
        self.processes.iter().position(|process| process.number == number)
    }

    pub(in crate::core) fn process(&mut self, number: ProcessNumber) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.number == number)
    }

    fn forget_process(&mut self, number: ProcessNumber) {
        self.processes.retain(|process| process.number != number);
    }
}
