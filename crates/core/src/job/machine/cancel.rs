//! Cancels, time limits and defects (language.md §15, service.md §6.2).

use std::time::Duration;

use step_runner_model::{CancelCause, LogChannel, Outcome, StepResult, StepStatus};

use crate::job::effect::Effect;

use super::frame::{Leaf, Stopping};
use super::{Constants, Machine, MachineState, Root};

impl Machine {
    /// Handles a cancel. A running process is stopped and awaited. In any other state the job has no process and ends
    /// at once.
    pub(super) fn cancel(&mut self, state: MachineState, cause: CancelCause, limit: Option<Duration>) {
        match state {
            MachineState::Running(leaf) => self.stop(leaf, cause, limit),
            MachineState::Queued(root) => {
                let result = StepResult { status: StepStatus::Cancelled, ..unstarted(&root) };
                self.over(Outcome::stopped(cause), vec![last_line(cause)], result);
            }
            MachineState::Fetching(fetching) => {
                let result = self.result_before_start(fetching.call);
                self.stopped(cause, Some(result));
            }
            MachineState::Loading(_) | MachineState::Handling | MachineState::Over => {
                self.stopped(cause, None);
            }
        }
    }

    /// Stops the process. Stops it again only if the grace is shorter than before.
    fn stop(&mut self, mut leaf: Box<Leaf>, cause: CancelCause, limit: Option<Duration>) {
        let told = leaf.stopping;
        let limit = told.and_then(|told| told.limit).into_iter().chain(limit).min();
        let grace = self.constants.grace(leaf.cancel_timeout, limit);
        leaf.stopping = Some(Stopping { cause: told.map_or(cause, |told| told.cause), limit, grace });
        if told.is_none_or(|told| grace < told.grace) {
            self.push(Effect::Stop { grace });
        }
        self.state = MachineState::Running(leaf);
    }

    /// Ends the job because of `cause`. `leaf` is the result of the process that was stopped.
    pub(super) fn stopped(&mut self, cause: CancelCause, leaf: Option<StepResult>) {
        let root = self.unwind(leaf, StepStatus::Cancelled);
        self.over(Outcome::stopped(cause), vec![last_line(cause)], root);
    }

    /// Ends the job because of a defect in the daemon. Does not stop a running process: the actor does that. If the
    /// process is being stopped already, the job ends as its cancel asked for.
    pub(super) fn broken(&mut self, state: MachineState, message: &str) {
        // A panic may have left effects that were never sent. Keep the phrases: they are counted as known.
        self.effects.retain(|effect| matches!(effect, Effect::Phrases(_)));
        match state {
            MachineState::Running(leaf) => match leaf.stopping {
                Some(Stopping { cause, .. }) => self.stopped(cause, Some(leaf.into_result())),
                None => self.internal(message, Some(leaf.into_result())),
            },
            MachineState::Queued(root) => self.internal(message, Some(unstarted(&root))),
            MachineState::Fetching(fetching) => {
                let result = self.result_before_start(fetching.call);
                self.internal(message, Some(result));
            }
            MachineState::Loading(_) | MachineState::Handling | MachineState::Over => {
                self.internal(message, None);
            }
        }
    }

    pub(super) fn cannot_begin(&mut self, root: &Root, message: &str) {
        let result = StepResult { status: StepStatus::Failure, ..unstarted(root) };
        self.over(
            Outcome::failed(message),
            vec![(LogChannel::Err, format!("job failed: {message}"))],
            result,
        );
    }

    fn internal(&mut self, message: &str, under_way: Option<StepResult>) {
        let root = self.unwind(under_way, StepStatus::Failure);
        let outcome = Outcome::defect(message);
        let line = format!("job failed: {}", outcome.message);
        self.over(outcome, vec![(LogChannel::Err, line)], root);
    }
}

impl Constants {
    /// Returns the grace of a process: its function's, else the setting's. The request and this cancel may shorten it.
    fn grace(&self, of_function: Option<Duration>, limit: Option<Duration>) -> Duration {
        let grace = of_function.unwrap_or(self.default_grace);
        [self.cancel_grace, limit].into_iter().flatten().fold(grace, Duration::min)
    }
}

fn unstarted(root: &Root) -> StepResult {
    StepResult { definition: Some(root.loaded.definition()), ..StepResult::default() }
}

/// Returns the last line of a log (logs.md §2).
fn last_line(cause: CancelCause) -> (LogChannel, String) {
    let begin = if cause.is_time_limit() { "job ended by time limit" } else { "job cancelled" };
    (LogChannel::Err, format!("{begin}: {}", cause.text()))
}
