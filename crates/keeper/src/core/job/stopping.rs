//! Ends of single steps while their job goes on (flow.md §3.1, §4): a stop of a running step, and the end of what earlier
//! steps have left.

use std::time::{Duration, Instant};

use super::Job;
use crate::core::action::{Actions, ClearReason, JobAction};
use crate::core::ending::Ending;
use crate::core::event::Moment;
use crate::protocol::FromKeeper;
use step_runner_model::{CallId, ProcessNumber};

/// The end of what some steps have left.
pub(super) struct Clearance {
    reason: ClearReason,
    /// The processes of the steps that have left it.
    processes: Vec<ProcessNumber>,
    ending: Ending,
    /// True once the processes were asked to end.
    is_asked: bool,
}

impl Job {
    /// Writes running processes to the log, once for each attempt whose limit has passed.
    pub(in crate::core) fn show_processes(
        &mut self,
        attempt: ProcessNumber,
        processes: Vec<ProcessNumber>,
        out: &mut Actions,
    ) {
        if self.closed.is_none() && !self.shown.contains(&attempt) {
            self.shown.push(attempt);
            out.job(self.serial, JobAction::ShowProcesses(processes));
        }
    }

    /// Asks a step to end, and kills it after `grace`. A shorter grace wins, a longer one is ignored. A step that is not
    /// started yet does not start.
    pub(in crate::core) fn stop_step(
        &mut self,
        number: ProcessNumber,
        grace: Duration,
        now: Instant,
        out: &mut Actions,
    ) {
        let Some(process) = self.process(number) else { return };
        let is_first = process.stop.is_none();
        let stop = process.stop.get_or_insert_with(|| Ending::new(now, grace));
        stop.shorten(grace);
        stop.rest();
        if is_first && process.has_process() {
            process.is_terminated = true;
            out.job(self.serial, JobAction::Thaw);
            out.job(self.serial, JobAction::Terminate(number));
        }
    }

    /// Performs the next stage of the end of a step, if it is due.
    pub(super) fn climb_stop(&mut self, index: usize, at: &Moment<'_>, out: &mut Actions) {
        let Some(process) = self.processes.get_mut(index) else { return };
        if process.stop_due().is_none_or(|due| due > at.now) {
            return;
        }
        let (number, Some(stop)) = (process.number, &mut process.stop) else { return };
        let rung = stop.check(at.now, false, at.settings.kill_wait);
        if rung.again {
            out.job(self.serial, JobAction::ThawSurvivors);
        }
        if rung.kill {
            out.job(self.serial, JobAction::KillStep(number));
        }
        if rung.given_up {
            self.give_up_step(number, out);
        }
    }

    /// Ends what the steps of `processes` have left, first gently, for a call that waits for it. Told once for each call that
    /// waits, however often it is asked for.
    pub(in crate::core) fn clear(
        &mut self,
        call: CallId,
        processes: Vec<ProcessNumber>,
        grace: Duration,
        now: Instant,
        out: &mut Actions,
    ) {
        let reason = ClearReason::NextAttempt(call);
        if self.is_to_end() || self.clearances.iter().any(|clearance| clearance.reason == reason) {
            return;
        }
        let ending = Ending::new(now, grace);
        out.job(self.serial, JobAction::CheckLeftEmpty { reason, processes: processes.clone() });
        self.clearances.push(Clearance { reason, processes, ending, is_asked: false });
    }

    /// Ends what a stopped step has left, whose process has ended before its grace. Its group got SIGTERM, so only SIGKILL
    /// is to come. The job goes on meanwhile.
    pub(super) fn clear_stopped(&mut self, number: ProcessNumber, stop: Ending, out: &mut Actions) {
        // The end of the job, once it was asked for, ends this, too.
        if self.is_to_end() {
            return;
        }
        let (reason, processes) = (ClearReason::Stopped(number), vec![number]);
        out.job(self.serial, JobAction::CheckLeftEmpty { reason, processes: processes.clone() });
        self.clearances.push(Clearance { reason, processes, ending: stop, is_asked: true });
    }

    /// Takes the answer whether anything is left that is to be ended.
    pub(super) fn checked_left_empty(
        &mut self,
        reason: ClearReason,
        is_empty: bool,
        at: &Moment<'_>,
        out: &mut Actions,
    ) {
        let Some(index) = self.clearances.iter().position(|clearance| clearance.reason == reason) else {
            return;
        };
        let Some(clearance) = self.clearances.get_mut(index) else { return };
        let processes = clearance.processes.clone();
        if !is_empty && !std::mem::replace(&mut clearance.is_asked, true) {
            out.job(self.serial, JobAction::Thaw);
            out.job(self.serial, JobAction::TerminateLeft(processes.clone()));
        }
        let rung = clearance.ending.check(at.now, is_empty, at.settings.kill_wait);
        if is_empty || rung.given_up {
            self.clearances.swap_remove(index);
            if let ClearReason::NextAttempt(call) = reason {
                self.tell(FromKeeper::Cleared { key: self.key(), call }, out);
            }
            return;
        }
        if !rung.kill && matches!(reason, ClearReason::Stopped(_)) {
            clearance.ending.rest();
        }
        if rung.again {
            out.job(self.serial, JobAction::ThawSurvivors);
        }
        if rung.kill {
            for process in processes {
                out.job(self.serial, JobAction::KillStep(process));
            }
        }
    }

    /// Looks again for what steps have left, where that is due.
    pub(super) fn clearances_due(&self, at: &Moment<'_>, out: &mut Actions) {
        for clearance in self.clearances.iter().filter(|clearance| clearance.ending.check_at() <= at.now) {
            let (reason, processes) = (clearance.reason, clearance.processes.clone());
            out.job(self.serial, JobAction::CheckLeftEmpty { reason, processes });
        }
    }

    /// Returns when a look is due.
    pub(super) fn clearance_due(&self) -> Option<Instant> {
        self.clearances.iter().map(|clearance| clearance.ending.check_at()).min()
    }

    /// Looks at once for what steps have left, as processes of the job have ended.
    pub(super) fn clear_anew(&mut self, now: Instant) {
        self.clearances.iter_mut().for_each(|clearance| clearance.ending.hurry(now));
    }
}
