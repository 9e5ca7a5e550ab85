//! Cancels, time limits and defects (language.md §15, service.md §6.2).

use std::time::Duration;

use crate::job::effect::Effect;
use crate::model::{CancelCause, Kind, Outcome, StepResult, StepStatus};

use super::frame::Leaf;
use super::{Constants, Machine, Root, State};

impl Machine {
    /// Somebody wants the job to stop. A running process is stopped and awaited; in every other state nothing of the
    /// job is alive, so it ends at once.
    pub(super) fn cancel(&mut self, state: State, cause: CancelCause, limit: Option<Duration>) {
        match state {
            State::Running(leaf) => self.stop(leaf, cause, limit),
            State::Queued(root) => {
                let result = StepResult { status: StepStatus::Cancelled, ..unstarted(&root) };
                self.over(Outcome::stopped(cause), vec![last_line(cause)], result);
            }
            State::Fetching(fetching) => {
                let result = self.result_before_start(fetching.call);
                self.stopped(cause, Some(result));
            }
            State::Loading(_) | State::Handling | State::Over => self.stopped(cause, None),
        }
    }

    /// Asks for the end of the process; again only if there is less time than was told before.
    fn stop(&mut self, mut leaf: Box<Leaf>, cause: CancelCause, limit: Option<Duration>) {
        let grace = self.constants.grace(leaf.cancel_timeout, limit);
        let told = leaf.stopping;
        if told.is_none_or(|(_, before)| grace < before) {
            leaf.stopping = Some((told.map_or(cause, |(first, _)| first), grace));
            self.push(Effect::Stop { grace });
        }
        self.state = State::Running(leaf);
    }

    /// Ends the job because of `cause`; `leaf` is the result of the process that was stopped.
    pub(super) fn stopped(&mut self, cause: CancelCause, leaf: Option<StepResult>) {
        let root = self.unwind(leaf, StepStatus::Cancelled);
        self.over(Outcome::stopped(cause), vec![last_line(cause)], root);
    }

    /// Ends the job because the daemon met a defect in itself. What still runs is the shell's to end. A cancel that
    /// came first counts.
    pub(super) fn broken(&mut self, state: State, message: &str) {
        // A panic may have left effects that nobody has seen; phrases among them are counted as known.
        self.effects.retain(|effect| matches!(effect, Effect::Phrases(_)));
        match state {
            State::Running(leaf) => match leaf.stopping {
                Some((cause, _)) => self.stopped(cause, Some(leaf.into_result())),
                None => self.internal(message, Some(leaf.into_result())),
            },
            State::Queued(root) => self.internal(message, Some(unstarted(&root))),
            State::Fetching(fetching) => {
                let result = self.result_before_start(fetching.call);
                self.internal(message, Some(result));
            }
            State::Loading(_) | State::Handling | State::Over => self.internal(message, None),
        }
    }

    /// Ends a job that could not begin.
    pub(super) fn cannot_begin(&mut self, root: &Root, message: &str) {
        let message = super::ends::one_line(message);
        let result = StepResult { status: StepStatus::Failure, ..unstarted(root) };
        self.over(
            Outcome::failed(message.clone()),
            vec![(Kind::Err, format!("job failed: {message}"))],
            result,
        );
    }

    fn internal(&mut self, message: &str, under_way: Option<StepResult>) {
        let root = self.unwind(under_way, StepStatus::Failure);
        let message = super::ends::one_line(&format!("internal: {message}"));
        self.over(
            Outcome::failed(message.clone()),
            vec![(Kind::Err, format!("job failed: {message}"))],
            root,
        );
    }
}

impl Constants {
    /// Grace of a process: what its function says, else the setting; never more than the request allows, nor than
    /// this ask leaves.
    fn grace(&self, of_function: Option<Duration>, limit: Option<Duration>) -> Duration {
        let grace = of_function.unwrap_or(self.default_grace);
        [self.cancel_grace, limit].into_iter().flatten().fold(grace, Duration::min)
    }
}

/// Result of a root that never began.
fn unstarted(root: &Root) -> StepResult {
    StepResult { definition: Some(root.loaded.definition()), ..StepResult::default() }
}

/// Last line of a log (logs.md §2).
fn last_line(cause: CancelCause) -> (Kind, String) {
    let begin = if cause.is_time_limit() { "job ended by time limit" } else { "job cancelled" };
    (Kind::Err, format!("{begin}: {}", cause.text()))
}
