//! A job that runs, its end, and the report of it.

use step_runner_model::exit_code;

use super::start::own_lines;
use super::{Action, CancelHow, Job};
use crate::answer::Reply;
use crate::final_update::{How, Next};
use crate::outcome::{CancelledBy, JobEnd, State};
use crate::record::{Phase, Stop};
use crate::time::Now;
use crate::trace::Notice;

impl Job {
    /// Follows log and end of a job that the daemon has.
    pub(super) fn begin_following(&mut self, now: Now) {
        self.follow.start(now.steady);
        if self.record.wanted.is_any() {
            self.begin_cancel(now);
        }
    }

    /// Cancels the daemon's job, unless it was cancelled as hard before.
    pub(super) fn begin_cancel(&mut self, now: Now) {
        let wanted = self.record.wanted;
        let how = match wanted.stop {
            _ if wanted.abort => CancelHow::Forced,
            Some(Stop::Forced) => CancelHow::Forced,
            Some(Stop::Gently) => CancelHow::Gently,
            None => CancelHow::WithCleanup,
        };
        if self.cancelled < Some(how) {
            self.cancelled = Some(how);
            self.cancel.start(now.steady);
        }
    }

    pub(super) fn proceed_running(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.follow.due(now) {
            actions.push(Action::Follow(self.trace.back_to_border()));
        }
        if self.cancel.due(now) {
            actions.extend(self.cancelled.map(Action::Cancel));
        }
        let has_log = self.is_log_over || self.trace.text.is_full();
        if let Some(end) = self.daemon_end.take_if(|_| has_log) {
            let wanted = self.record.wanted;
            let by = match wanted.stop {
                _ if wanted.cancel || wanted.abort => CancelledBy::Server,
                Some(_) => CancelledBy::Stop,
                None if end.is_stop => CancelledBy::Stop,
                None => CancelledBy::Daemon,
            };
            let (end, message) = match end.code {
                code if wanted.abort || code == exit_code::CANCELLED && by == CancelledBy::Server => {
                    (JobEnd::Cancelled(CancelledBy::Server), "canceled".to_owned())
                }
                exit_code::CANCELLED if by == CancelledBy::Stop && !end.is_stop => {
                    (JobEnd::Cancelled(by), "the agent was stopped".to_owned())
                }
                exit_code::CANCELLED => (JobEnd::Cancelled(by), end.message),
                exit_code::INTERRUPTED => (JobEnd::Lost, end.message),
                code => (JobEnd::Ended { code, failed: end.failed }, end.message),
            };
            self.conclude(end, &message, now, actions);
        }
    }

    /// Takes the answer to a piece of the trace or a sign of life.
    pub(super) fn traced(&mut self, reply: &Reply, now: Now, actions: &mut Vec<Action>) {
        let heard = self.trace.upload.answered(reply, now.steady);
        actions.extend(heard.sent.map(Action::StoreSent));
        match heard.notice {
            Some(_) if self.record.phase >= Phase::Ended => {}
            Some(Notice::Cancel) => {
                self.record.wanted.cancel = true;
                self.wanted(now, actions);
            }
            Some(Notice::Abort) => {
                self.record.wanted.abort = true;
                self.wanted(now, actions);
            }
            None => {}
        }
    }

    /// Ends the job. All its files are on disk before the record says so.
    pub(super) fn conclude(&mut self, end: JobEnd, message: &str, now: Now, actions: &mut Vec<Action>) {
        if let Some(is_system_failure) = end.of_preparation() {
            actions.push(Action::PreparationOver { is_system_failure });
            if is_system_failure {
                actions
                    .push(Action::Tell(format!("the job could not be prepared on this machine: {message}")));
            }
        }
        self.record.end = Some(end);
        self.record.ended = Some(now.wall);
        self.record.phase = Phase::Ended;
        self.record.payload = None;
        let is_success = self.record.outcome().is_some_and(|outcome| outcome.state == State::Success);
        let text =
            if is_success { "Job succeeded".to_owned() } else { format!("ERROR: Job failed: {message}") };
        let lines = own_lines(self.record.form(), &text, now.wall);
        let tail = self.trace.end(&lines, now.steady, actions);
        actions.extend([Action::StoreTail(tail), self.store(), Action::FreeSlot]);
        if self.record.wanted.abort {
            self.trace.upload.abort();
        }
        self.trace.upload.complete(self.trace.text.len(), now.steady);
        self.final_update = crate::final_update::FinalUpdate::new(
            now.steady,
            std::time::Duration::ZERO,
            self.record.wanted.abort,
        );
        self.begin_removal(now);
    }

    /// Lets daemon and environment go.
    pub(super) fn begin_removal(&mut self, now: Now) {
        if self.record.was_submitted {
            self.finish.start(now.steady);
        } else {
            self.finish.done();
        }
        self.removal.start(now.steady);
    }

    /// The daemon lets the job go before its environment does; the report waits for one try of both.
    fn proceed_removal(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.finish.due(now) {
            actions.push(Action::Finish);
        }
        if self.finish.has_been_tried() && self.removal.due(now) {
            actions.push(Action::Remove);
        }
    }

    pub(super) fn proceed_ended(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.proceed_removal(now, actions);
        if self.final_update.is_too_late(now.steady) {
            return self.report_over(How::GivenUp, now, actions);
        }
        let is_ready =
            self.trace.upload.is_done() && self.finish.has_been_tried() && self.removal.has_been_tried();
        if self.report.is_idle() && is_ready {
            self.report.start(now.steady);
        }
        if self.trace.upload.is_done()
            && self.report.due(now)
            && let Some(outcome) = self.record.outcome()
        {
            actions.push(Action::Report(outcome, self.trace.whole()));
        }
    }

    /// Takes the answer to the final update.
    pub(super) fn reported(&mut self, reply: &Reply, now: Now, actions: &mut Vec<Action>) {
        if !self.report.is_out() {
            return;
        }
        match self.final_update.answered(reply, now.steady, now.jitter) {
            Next::Done(how) => self.report_over(how, now, actions),
            Next::Again(at) => self.report.start(at),
            Next::TraceAgain(at) => {
                self.trace.upload.again_from_start(at);
                actions.push(Action::StoreSent(0));
                self.report.start(at);
            }
        }
    }

    fn report_over(&mut self, how: How, now: Now, actions: &mut Vec<Action>) {
        if how == How::GivenUp {
            actions.push(Action::Tell(
                "the server did not take the result of a job for 24 hours: it is given up".to_owned(),
            ));
        }
        self.report.done();
        self.record.phase = Phase::Reported;
        actions.push(self.store());
        self.proceed_reported(now, actions);
    }

    pub(super) fn proceed_reported(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.proceed_removal(now, actions);
        if self.finish.is_done() && self.removal.is_done() && !self.is_over {
            self.is_over = true;
            actions.push(Action::DeleteRecord);
        }
    }
}
