//! The end of a job: close, drop (service.md §6.1 "Job", §6.2).

use std::time::{Duration, Instant};

use super::{Job, Presence};
use crate::core::action::{Actions, EmptyCheck, JobAction};
use crate::core::ending::Ending;
use crate::core::event::Moment;
use crate::protocol::{Closed, FromKeeper};
use step_runner_log::words::DaemonLine;
use step_runner_model::{LogChannel, Outcome};

/// A close under way.
pub(super) struct Closing {
    /// Last lines for the log.
    lines: Vec<(LogChannel, String)>,
    /// Outcome to record, if no daemon is there to do it.
    outcome: Option<Outcome>,
    /// Report to send once the log is written to its end.
    written: Option<Closed>,
}

impl Job {
    fn terminate_steps(&self, out: &mut Actions) {
        for process in self.processes.iter().filter(|process| process.has_process()) {
            out.job(self.serial, JobAction::Terminate(process.number));
        }
    }

    /// Ends the remaining processes and closes the log.
    pub(in crate::core) fn close(
        &mut self,
        grace: Duration,
        lines: Vec<(LogChannel, String)>,
        outcome: Option<Outcome>,
        now: Instant,
        out: &mut Actions,
    ) {
        if self.closed.is_some() || self.closing.is_some() {
            return;
        }
        self.closing = Some(Closing { lines, outcome, written: None });
        self.clearances = Vec::new();
        let was_asked = self.ending.is_some();
        self.ending.get_or_insert_with(|| Ending::new(now, grace)).hurry(now);
        out.job(self.serial, JobAction::CheckEmpty(EmptyCheck::Close(was_asked)));
    }

    /// Drops the job for the daemon: kills its processes. Once none is left, the job is `Gone`.
    pub(in crate::core) fn drop_job(&mut self, at: &Moment<'_>, out: &mut Actions) {
        self.presence = Presence::Dropped;
        let ending = self.ending.get_or_insert_with(|| Ending::new(at.now, Duration::ZERO));
        ending.kill_now(at.now);
        ending.hurry(at.now);
        self.check_end(at, out);
    }

    /// Ends the job without a daemon, first gently, and records that `cause` interrupted it.
    pub(in crate::core) fn interrupt(
        &mut self,
        grace: Duration,
        cause: &str,
        now: Instant,
        out: &mut Actions,
    ) {
        let outcome = Outcome::interrupted(cause);
        if self.closed.is_some() {
            // The log was closed for a daemon, which may have died before it recorded the end.
            return out.job(self.serial, JobAction::RecordEnd(outcome));
        }
        if let Some(closing) = &mut self.closing {
            closing.outcome = Some(outcome);
        } else {
            let line = DaemonLine::JobInterrupted { cause };
            self.close(grace, vec![line.to_parts()], Some(outcome), now, out);
        }
    }

    /// Continues at once everything that waited for the disk, even a close that pauses because of survivors.
    pub(super) fn disk_takes(&mut self, at: &Moment<'_>) {
        for process in &mut self.processes {
            process.drain_anew(at.now);
        }
        if let (Some(_), Some(ending)) = (&self.closing, &mut self.ending) {
            ending.hurry(at.now);
        }
    }

    /// Continues a close or drop at once: processes of the job have ended.
    pub(super) fn end_anew(&mut self, at: &Moment<'_>) {
        let waits = self.closing.is_some() || self.is_dropped();
        if let Some(ending) = self.ending.as_mut().filter(|_| waits) {
            ending.hurry(at.now);
        }
    }

    /// Returns when [`Job::check_end`] next has something to do.
    pub(super) fn end_due(&self) -> Option<Instant> {
        let ending = self.ending.as_ref()?;
        let has_work = self.closing.is_some() || !self.processes.is_empty();
        (has_work && self.closed.is_none() || self.is_dropped()).then_some(ending.check_at())
    }

    /// Performs the next stage of the job's end, if it is due.
    pub(in crate::core) fn check_end(&mut self, at: &Moment<'_>, out: &mut Actions) {
        if self.end_due().is_none_or(|due| due > at.now) {
            return;
        }
        if self.processes.is_empty() {
            out.job(self.serial, JobAction::CheckEmpty(EmptyCheck::End));
        } else {
            self.climb(false, at, out);
        }
    }

    pub(super) fn checked_empty(
        &mut self,
        check: EmptyCheck,
        is_empty: bool,
        at: &Moment<'_>,
        out: &mut Actions,
    ) {
        match check {
            EmptyCheck::Close(was_asked) => {
                if !is_empty {
                    out.job(self.serial, JobAction::Thaw);
                    // SIGTERM goes to the whole group of a running step, and to each other process.
                    if !was_asked {
                        self.terminate_steps(out);
                    }
                    out.job(self.serial, JobAction::TerminateRest);
                }
                self.check_end(at, out);
            }
            EmptyCheck::End => self.climb(is_empty, at, out),
            EmptyCheck::GivenUp => self.finish_close(!is_empty, at, out),
            EmptyCheck::Clear(_) => {}
        }
    }

    /// Performs what the next check of the ladder asks for. `is_empty` is true if neither a step nor a process is
    /// left.
    fn climb(&mut self, is_empty: bool, at: &Moment<'_>, out: &mut Actions) {
        if is_empty && self.is_dropped() {
            self.presence = Presence::Gone;
        }
        let Some(ending) = &mut self.ending else { return };
        let rung = ending.check(at.now, is_empty, at.settings.kill_wait);
        if rung.again {
            out.job(self.serial, JobAction::ThawSurvivors);
        }
        if rung.kill {
            out.job(self.serial, JobAction::Kill);
        }
        if rung.given_up && self.give_up_steps(out) {
            // Report the ends of these steps before the end of the job.
            out.job(self.serial, JobAction::CheckEmpty(EmptyCheck::GivenUp));
        } else if is_empty || rung.given_up {
            self.finish_close(!is_empty, at, out);
        }
    }

    /// Writes the last bytes of the log and reports the end. Called again while the disk refuses them.
    fn finish_close(&mut self, has_survivors: bool, at: &Moment<'_>, out: &mut Actions) {
        if at.log.is_waiting() {
            return;
        }
        let Some(closing) = &mut self.closing else { return };
        if let Some(closed) = closing.written.take() {
            self.close_log(closed, out);
        } else {
            let lines = std::mem::take(&mut closing.lines);
            out.job(self.serial, JobAction::WriteEnd { lines, has_survivors });
        }
    }

    pub(super) fn end_written(&mut self, closed: Closed, at: &Moment<'_>, out: &mut Actions) {
        if !at.log.is_waiting() {
            self.close_log(closed, out);
        } else if let Some(closing) = &mut self.closing {
            closing.written = Some(closed);
        }
    }

    fn close_log(&mut self, closed: Closed, out: &mut Actions) {
        let outcome = self.closing.take().and_then(|closing| closing.outcome);
        out.job(self.serial, JobAction::CloseLog { closed, outcome });
    }

    pub(super) fn log_closed(&mut self, closed: Closed, out: &mut Actions) {
        self.closed = Some(closed.clone());
        self.tell(FromKeeper::Closed { key: self.key(), closed }, out);
    }
}
