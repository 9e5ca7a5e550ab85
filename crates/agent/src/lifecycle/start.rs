//! From the server's answer until the daemon has the job, at first and after a restart.

use step_runner_log::frame::{LogChannel, Stamp, daemon_lines};
use step_runner_model::exit_code;

use super::log::{Disk, TraceFile};
use super::{Action, Job, RunAnswer};
use crate::answer::Reply;
use crate::answer::retry::is_temporary;
use crate::outcome::{CancelledBy, EnvironmentFailure, JobEnd};
use crate::record::{PREPARATIONS, Phase, Record, Wanted};
use crate::time::{Now, WallTime};
use crate::trace::Form;

impl Job {
    /// Goes on with a job of an earlier run of the agent.
    pub fn resume(record: Record, disk: &Disk, now: Now) -> (Self, Vec<Action>) {
        let mut actions = Vec::new();
        let trace = TraceFile::resumed(&record, disk, now.steady, &mut actions);
        let mut job = Self::with(record, trace, now);
        match job.record.phase {
            Phase::Taken => job.claim.start(now.steady),
            Phase::Preparing => job.prepare_anew("the agent was restarted", now, &mut actions),
            Phase::Submitted => job.look.start(now.steady),
            Phase::Running => job.begin_following(now),
            Phase::Ended | Phase::Reported => job.begin_removal(now),
        }
        job.proceed(now, &mut actions);
        (job, actions)
    }

    pub(super) fn proceed_taken(&mut self, now: Now, actions: &mut Vec<Action>) {
        if now.steady >= self.deadline {
            actions.push(Action::Tell(
                "the server did not acknowledge a job within the job's time limit: it is left to the server"
                    .to_owned(),
            ));
            return self.leave(actions);
        }
        if self.claim.due(now) {
            actions.push(Action::Claim);
        }
    }

    /// Takes the answer to the claim of the job.
    pub(super) fn claimed(&mut self, reply: &Reply, now: Now, actions: &mut Vec<Action>) {
        if !self.claim.is_out() {
            return;
        }
        match reply {
            Ok(answer) if answer.is_over() => self.leave(actions),
            Ok(answer) if answer.status == 200 => {
                self.record.wanted.cancel |= answer.is_canceling();
                self.record.acknowledged = Some(now.wall);
                self.deadline = now.steady + self.record.timeout;
                self.claim.done();
                self.record.phase = Phase::Preparing;
                self.trace.upload = crate::trace::Upload::new(0, now.steady);
                self.begin(now, actions);
            }
            Ok(answer) if (400..500).contains(&answer.status) && !is_temporary(answer.status) => {
                self.leave(actions);
            }
            Ok(_) | Err(_) => self.claim.answered(false, now),
        }
    }

    /// Begins with a job that the server has acknowledged.
    fn begin(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.record.refused.is_some() {
            actions.push(self.store());
        }
        self.prepare_if_wanted(now, actions);
    }

    /// Prepares, unless the job is refused or somebody wants it to end.
    fn prepare_if_wanted(&mut self, now: Now, actions: &mut Vec<Action>) {
        if let Some(reason) = self.record.refused.clone() {
            self.conclude(JobEnd::PayloadRefused, &reason, now, actions);
        } else if self.record.wanted.is_any() {
            self.wanted(now, actions);
        } else {
            self.prepare(now, actions);
        }
    }

    /// Leaves the job to the server: it is not ours. No further call follows.
    fn leave(&mut self, actions: &mut Vec<Action>) {
        actions.extend([Action::FreeSlot, Action::DeleteRecord]);
        self.is_over = true;
    }

    /// Begins a preparation: first everything goes that has the name.
    fn prepare(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.record.preparations += 1;
        actions.push(self.store());
        self.removal.start(now.steady);
        self.preparation.start(now.steady);
        self.prepare_until = now.steady + self.record.prepare_timeout;
    }

    /// Prepares once more, or gives up.
    pub(super) fn prepare_anew(&mut self, why: &str, now: Now, actions: &mut Vec<Action>) {
        let is_wanted = self.record.refused.is_none() && !self.record.wanted.is_any();
        if is_wanted && self.record.preparations >= PREPARATIONS {
            let text = format!("the environment was prepared {PREPARATIONS} times, and the last time {why}");
            return self.conclude(JobEnd::Environment(EnvironmentFailure::System), &text, now, actions);
        }
        self.prepare_if_wanted(now, actions);
    }

    pub(super) fn proceed_preparing(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.removal.due(now) {
            actions.push(Action::Remove);
        }
        if self.removal.is_done() && self.preparation.due(now) {
            actions.push(Action::Prepare);
        }
        if now.steady >= self.prepare_until {
            let text = "the environment was not ready in time (`prepare_timeout`)";
            self.conclude(JobEnd::Environment(EnvironmentFailure::System), text, now, actions);
        }
    }

    /// Takes the result of a preparation.
    pub(super) fn prepared(
        &mut self,
        result: Result<(), (EnvironmentFailure, String)>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        if self.record.phase != Phase::Preparing {
            return;
        }
        match result {
            Ok(()) => self.submit(now, actions),
            Err((failure, text)) => self.conclude(JobEnd::Environment(failure), &text, now, actions),
        }
    }

    /// Allows the request to the daemon.
    fn submit(&mut self, now: Now, actions: &mut Vec<Action>) {
        let left = self.deadline.since(now.steady);
        if left.is_zero() {
            let text = "the time limit of the job was over before it could start";
            let end = JobEnd::Ended { code: exit_code::TIME_LIMIT, failed: None };
            return self.conclude(end, text, now, actions);
        }
        self.record.time_limit = Some(left);
        self.record.phase = Phase::Submitted;
        self.record.was_submitted = true;
        self.trace.flush(true, now.steady, actions);
        actions.push(self.store());
        self.prepare_until = now.steady + self.record.prepare_timeout;
        self.run.start(now.steady);
    }

    pub(super) fn proceed_submitted(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.look.due(now) {
            actions.push(Action::Look);
        }
        if self.run.due(now) {
            actions.push(Action::Run);
        }
        if now.steady >= self.prepare_until {
            let text = "the daemon did not answer the request for the job in time (`prepare_timeout`)";
            self.conclude(JobEnd::RunUnanswered, text, now, actions);
        }
    }

    /// Takes the answer about the environment of a job that may have started.
    pub(super) fn looked(&mut self, is_there: bool, now: Now, actions: &mut Vec<Action>) {
        if self.record.phase != Phase::Submitted {
            return;
        }
        self.look.done();
        if is_there {
            self.run.start(now.steady);
        } else {
            let text = "the environment is gone, and a script of the job may have run in it";
            self.conclude(JobEnd::Lost, text, now, actions);
        }
    }

    /// Takes the daemon's answer to the request.
    pub(super) fn run_answered(&mut self, answer: RunAnswer, now: Now, actions: &mut Vec<Action>) {
        if self.record.phase != Phase::Submitted {
            return;
        }
        match answer {
            RunAnswer::Accepted(stages) => {
                self.run.done();
                self.record.stages = stages;
                self.record.phase = Phase::Running;
                self.record.payload = None;
                actions.push(self.store());
                self.begin_following(now);
            }
            RunAnswer::Refused(refusal, text) => {
                self.conclude(JobEnd::RunRefused(refusal), &text, now, actions);
            }
            RunAnswer::None => self.run.answered(false, now),
        }
    }

    /// Takes the end of an environment. Before Run was sent another one is prepared.
    pub(super) fn lost(&mut self, message: &str, now: Now, actions: &mut Vec<Action>) {
        match self.record.phase {
            Phase::Preparing => self.prepare_anew(message, now, actions),
            // The end is known: it counts, and the rest of the log is lost.
            Phase::Running if self.daemon_end.is_some() => self.is_log_over = true,
            Phase::Submitted | Phase::Running => {
                let (cancel, stop) =
                    (self.record.wanted.cancel || self.record.wanted.abort, self.record.wanted.stop);
                let end = match (cancel, stop) {
                    (true, _) => JobEnd::Cancelled(CancelledBy::Server),
                    (false, Some(_)) => JobEnd::Cancelled(CancelledBy::Stop),
                    (false, None) => JobEnd::Lost,
                };
                self.conclude(end, message, now, actions);
            }
            Phase::Taken | Phase::Ended | Phase::Reported => {}
        }
    }

    /// Appends a line of the agent to the head of the trace.
    pub(super) fn head(&mut self, line: &str, now: Now, actions: &mut Vec<Action>) {
        if self.record.phase == Phase::Preparing {
            let lines = own_lines(self.record.form(), line, now.wall);
            actions.push(Action::StoreHead(lines.clone().into_bytes()));
            self.trace.head(&lines);
        }
    }

    /// Acts on what the server or a stop wants. The record has it before anything is done.
    pub(super) fn wanted(&mut self, now: Now, actions: &mut Vec<Action>) {
        let Wanted { cancel, abort, .. } = self.record.wanted;
        match self.record.phase {
            Phase::Preparing => {
                let (end, text) = if cancel || abort {
                    (JobEnd::Cancelled(CancelledBy::Server), "canceled")
                } else {
                    (JobEnd::Cancelled(CancelledBy::Stop), "the agent was stopped")
                };
                actions.push(self.store());
                self.conclude(end, text, now, actions);
            }
            Phase::Submitted => actions.push(self.store()),
            Phase::Running => {
                actions.push(self.store());
                self.begin_cancel(now);
            }
            // A job that was just taken ends once the server has acknowledged it.
            Phase::Taken | Phase::Ended | Phase::Reported => {}
        }
    }
}

/// Returns lines of the agent in the form of the trace.
pub(super) fn own_lines(form: Form, text: &str, now: WallTime) -> String {
    match form {
        Form::Entries => {
            let mut out = Vec::new();
            let micros = i64::try_from(now.0.saturating_mul(1_000)).unwrap_or(i64::MAX);
            daemon_lines(LogChannel::Out, text.as_bytes(), &Stamp::from_unix_micros(micros), &mut out);
            String::from_utf8_lossy(&out).into_owned()
        }
        Form::Lines => format!("{}\n", text.strip_suffix('\n').unwrap_or(text)),
    }
}
