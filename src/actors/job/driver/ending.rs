//! The end of a job: decided by its machine, or by the keeper's death. Nothing is published before the log is closed
//! (docs/spec/service.md §6.1).

use super::events::DeferredInput;
use super::phase::{AfterClose, Ending, Interrupted, Phase};
use super::{CancelAsk, Driver, Noted};
use crate::actors::sync_group::NotSynced;
use crate::job::effect::{Effect, StepNote};
use crate::job::event::Event;
use crate::job::machine::ROOT;
use crate::journal::event::End;
use crate::keeper::link::KeeperFrame;
use crate::keeper::protocol::Closed;
use crate::log::frame::STEP;
use crate::log::words::DaemonLine;
use crate::model::{EndClass, Outcome, StepOutcome, StepResult, StepStatus};

/// A job whose log the keeper has closed: store its result, then its end.
pub(in crate::actors::job) struct ClosedJob {
    /// Its end. The message is not masked yet.
    pub(in crate::actors::job) outcome: Outcome,
    /// Its own result.
    pub(in crate::actors::job) root: EndedRoot,
    /// Number of failures that were allowed.
    pub(in crate::actors::job) allowed_failures: u32,
    /// The keeper's report.
    pub(in crate::actors::job) closed: Closed,
}

/// The end of the root, as far as it is to be stored.
pub(in crate::actors::job) struct EndedRoot {
    /// The event.
    pub(in crate::actors::job) event: Option<Box<StepNote>>,
    /// The job's own result, with those of all steps.
    pub(in crate::actors::job) result: Option<Box<StepResult>>,
}

/// Results and end of a job whose keeper died.
pub(in crate::actors::job) struct InterruptedJob {
    /// What was not stored of steps.
    pub(in crate::actors::job) notes: Vec<Noted>,
    /// What was not stored of the job itself.
    pub(in crate::actors::job) root: EndedRoot,
    /// End of the job.
    pub(in crate::actors::job) outcome: Outcome,
}

/// Returns the outcome to store for a closed job. `outcome` has its message masked and on one line.
pub(in crate::actors::job) fn outcome_at_close(outcome: Outcome, closed: &Closed) -> Outcome {
    let mut outcome = if closed.log_damaged {
        // The log itself does not show that its end is missing.
        Outcome::failed("storage error: the log could not be written to its end")
    } else {
        outcome
    };
    if !closed.unkilled.is_empty() {
        let separator = if outcome.message.is_empty() { "" } else { "; " };
        let not_killed = DaemonLine::NotKilled { count: closed.unkilled.len() };
        outcome.message = format!("{}{separator}{not_killed}", outcome.message);
    }
    outcome
}

/// Returns the end of a closed job whose data may not have reached the disk: a failure (faults.md row 27). `shown` is the
/// length of the log that followers have seen, in bytes.
pub(in crate::actors::job) fn end_at_loss(mut end: End, lost: &NotSynced, shown: u64) -> End {
    end.lost_from = Some(end.lost_from.map_or(shown, |from| from.min(shown)));
    end.outcome = Outcome::failed(lost.to_string());
    end
}

impl Driver {
    /// Notes how the job ends. Returns the number of the request that closes it. `None` if no request is needed: an
    /// earlier daemon made it, or the keeper closes the job with its last step.
    pub(super) fn decide_end(
        &mut self,
        outcome: Outcome,
        root: Box<StepResult>,
        allowed_failures: u32,
    ) -> Option<u32> {
        let is_closed_by_step = self.phase.is_closed_by_step();
        self.phase = Phase::Ending(Ending { outcome, root, allowed_failures });
        self.numbering.next_op().filter(|_| !is_closed_by_step)
    }

    /// Takes the keeper's report that the log is closed and no process is left. Returns the job to store. `None` if
    /// the job's own end is not decided yet, so that the report must wait, or if the close is handled already.
    pub(in crate::actors::job) fn closed(&mut self, closed: Closed) -> Option<ClosedJob> {
        match std::mem::replace(&mut self.phase, Phase::Closed(AfterClose::Store)) {
            Phase::Ending(Ending { outcome, mut root, allowed_failures }) => {
                // The job's log includes what the daemon writes about its end.
                root.facts.log_end = root.facts.end.map(|_| closed.log_len);
                let root = self.ended_root(*root);
                Some(ClosedJob { outcome, root, allowed_failures, closed })
            }
            phase => {
                if matches!(phase, Phase::Waiting(_) | Phase::Running(_)) {
                    self.reports.closed = Some(Box::new(closed));
                }
                self.phase = phase;
                None
            }
        }
    }

    /// Returns the job to store if the keeper reported its close before the job's own end.
    pub(in crate::actors::job) fn take_reported_close(&mut self) -> Option<ClosedJob> {
        let closed = self.reports.closed.take()?;
        self.closed(*closed)
    }

    /// Returns what is to be stored of the root's end. `root` is its result alone.
    fn ended_root(&mut self, root: StepResult) -> EndedRoot {
        let (place, result) = (root.facts.log_end, root.clone());
        let note = StepNote { call: ROOT, parent: ROOT, is_member: false, slot: STEP, place, result };
        let event = self.numbering.next_result().then(|| Box::new(note));
        let result = self.numbering.next_result().then(|| Box::new(self.tree.take_root(root)));
        EndedRoot { event, result }
    }

    /// Ends the job because masking would be incomplete: no process may start and no output may leave. Returns the
    /// frame that records this, so that no later daemon goes on here. `None` if the machine is away: then no effect is
    /// performed before [`DeferredInput::Unmasked`].
    pub(in crate::actors::job) fn cannot_mask(
        &mut self,
        message: String,
        at: u64,
    ) -> Option<Result<KeeperFrame, String>> {
        let op = self.numbering.op();
        if self.machine.is_none() {
            self.awaits += 1;
            self.deferred.push_back(DeferredInput::Unmasked { op, message });
            return None;
        }
        Some(self.end_unmasked(op, message, at))
    }

    /// Ends the job because the phrases of request `op` could not be masked. Returns the frame that records this, or
    /// the reason why there is none.
    pub(in crate::actors::job) fn end_unmasked(
        &mut self,
        op: u32,
        message: String,
        at: u64,
    ) -> Result<KeeperFrame, String> {
        let event = Event::Unmasked { op, message: message.clone() };
        let frame = match &mut self.machine {
            Some(machine) => {
                let framed = machine.framed(event.clone(), at);
                drop(machine.handle_unrecorded(&event, at));
                framed.map(|(_, frame)| frame)
            }
            None => Err("its machine is away".into()),
        };
        self.queue_unmasked_end(message);
        frame
    }

    /// Replaces all remaining effects with the end of the job.
    pub(super) fn queue_unmasked_end(&mut self, message: String) {
        let (status, outcome) = (StepStatus::Failure, StepOutcome::Failure);
        let root = StepResult { status, outcome, ..StepResult::default() };
        let lines = vec![DaemonLine::JobFailed { message: &message }.to_parts()];
        self.queue.clear();
        let allowed_failures = 0;
        self.queue.push_back(Effect::Finish {
            outcome: Outcome::failed(message),
            root: Box::new(root),
            lines,
            allowed_failures,
        });
    }

    /// Ends the job without a keeper. No effect of it is performed any more.
    pub(super) fn interrupt(&mut self) {
        let (ending, requests) = match std::mem::replace(&mut self.phase, Phase::Published) {
            Phase::Waiting(waiting) => (None, Some(waiting.into_requests())),
            Phase::Running(_) => (None, None),
            Phase::Ending(ending) => (Some(ending), None),
            phase => return self.phase = phase,
        };
        self.phase = Phase::Closed(AfterClose::Collect(Box::new(Interrupted { ending, requests })));
    }

    /// Collects results and end of an interrupted job. `has_started`: the job had its slot. `at` is the time in
    /// microseconds since the host's boot, `log_len` the number of bytes that the dead keeper has written to the log. `None`
    /// if the machine is away: then [`DeferredInput::CollectResults`] follows.
    pub(in crate::actors::job) fn collect_results(
        &mut self,
        has_started: bool,
        at: u64,
        log_len: u64,
    ) -> Option<InterruptedJob> {
        let Some(machine) = &mut self.machine else {
            self.deferred.push_back(DeferredInput::CollectResults);
            return None;
        };
        machine.note_log(log_len);
        let interrupted = match std::mem::replace(&mut self.phase, Phase::Closed(AfterClose::Store)) {
            Phase::Closed(AfterClose::Collect(interrupted)) => *interrupted,
            phase => {
                self.phase = phase;
                return None;
            }
        };
        let (mut outcome, root) =
            interrupted.ending.map(|Ending { outcome, root, .. }| (outcome, root)).unzip();
        if let Some(CancelAsk { cause, grace_limit, force }) =
            interrupted.requests.and_then(|requests| requests.cancel)
        {
            outcome = Some(Outcome::stopped(cause));
            let effects = self.handle_unrecorded(&Event::CancelAsked { cause, grace_limit, force }, at);
            self.queue.extend(effects);
        }
        let cancelled = outcome.filter(|outcome| outcome.class == EndClass::Cancelled);
        let end = if cancelled.is_some() { StepOutcome::Cancelled } else { StepOutcome::Failure };
        let (notes, root) = self.unstored_results(root, end, at);
        // No step of it ran, so the job ends the way its canceller asked for.
        let outcome = cancelled
            .filter(|_| !has_started)
            .unwrap_or_else(|| Outcome::interrupted("the process that ran it died"));
        Some(InterruptedJob { notes, root, outcome })
    }

    /// Returns what was not stored. `root` is the job's own result, if its end was decided; `end` is the outcome that it
    /// gets.
    fn unstored_results(
        &mut self,
        mut root: Option<Box<StepResult>>,
        end: StepOutcome,
        at: u64,
    ) -> (Vec<Noted>, EndedRoot) {
        let mut notes = Vec::new();
        for effect in std::mem::take(&mut self.queue) {
            match effect {
                Effect::Note(note) => notes.push(self.noted(note)),
                Effect::Finish { root: last, .. } => root = Some(last),
                _ => {}
            }
        }
        if root.is_none() {
            let effects = self.handle_unrecorded(&Event::Broken { message: "interrupted".into() }, at);
            for effect in effects {
                match effect {
                    // Steps under way have an end, but no result of their own: they were interrupted.
                    Effect::Note(note) => notes.push(self.noted_without_result(note)),
                    Effect::Finish { root: last, .. } => root = Some(last),
                    _ => {}
                }
            }
        }
        // Its steps may all have been over, but not the job itself.
        let root =
            StepResult { status: end.status(), outcome: end, ..root.map(|root| *root).unwrap_or_default() };
        (notes, self.ended_root(root))
    }

    fn handle_unrecorded(&mut self, event: &Event, at: u64) -> Vec<Effect> {
        self.machine.as_mut().map(|machine| machine.handle_unrecorded(event, at)).unwrap_or_default()
    }

    /// Notes that Status is to show the end now. False if it must not: the log is not closed, or results are left to
    /// collect, or the end is published already.
    pub(in crate::actors::job) fn publish(&mut self) -> bool {
        let is_due = matches!(self.phase, Phase::Closed(AfterClose::Store));
        if is_due {
            self.phase = Phase::Published;
        }
        is_due
    }

    /// Drops a job that the keeper did not take: nobody hears of its end.
    pub(in crate::actors::job) fn abandon(&mut self) {
        self.phase = Phase::Published;
    }

    /// True if nothing of the job is left to do.
    pub(in crate::actors::job) const fn is_published(&self) -> bool {
        matches!(self.phase, Phase::Published)
    }
}
