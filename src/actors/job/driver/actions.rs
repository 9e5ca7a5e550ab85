//! Turns the machine's effects into actions, in the same order. Numbers each one, and skips those that an earlier
//! daemon has performed.

use std::collections::VecDeque;
use std::time::Duration;

use super::Driver;
use crate::job::effect::{Effect, Spawn, StepFiles};
use crate::job::event::CallId;
use crate::lang::ast::Reference;
use crate::model::{LogChannel, StepResult};

/// One thing for the actor to do.
#[derive(PartialEq)]
pub(in crate::actors::job) enum Action {
    /// Send a line for the log to the keeper.
    Line {
        /// Number of the request.
        op: u32,
        /// `00O` or `00E`.
        kind: LogChannel,
        /// The unmasked text.
        text: String,
    },
    /// Add phrases to the masking of results, and ask the keeper to mask them. [`Driver::cannot_mask`] takes a failure.
    AddPhrases {
        /// Number of the request. `None` if the keeper masks them already.
        op: Option<u32>,
        /// The phrases.
        phrases: Vec<Vec<u8>>,
    },
    /// Make two empty files.
    MakeFiles(StepFiles),
    /// Remove the files of an invocation, once all records so far are in the keeper's socket.
    RemoveFiles(CallId),
    /// Fetch a function. See [`Effect::Fetch`].
    Fetch {
        /// The invocation.
        call: CallId,
        /// The function.
        reference: Box<Reference>,
        /// The tree that a local path must stay inside.
        inside: Option<String>,
        /// Environment of a fetch over the network.
        environment: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Start a step's actor, then call [`Driver::launched`].
    Spawn {
        /// Number of the request. `None` if the process runs already.
        op: Option<u32>,
        /// The process.
        spawn: Box<Spawn>,
    },
    /// Ask the keeper to stop the running process.
    Stop {
        /// Time until SIGKILL.
        grace: Duration,
    },
    /// Show the running step.
    News {
        /// The path of results down to the step.
        news: Box<StepResult>,
        /// True if it is to be stored, too.
        is_new: bool,
    },
    /// Note that a step of the job's own list has ended, and store its result. `None` if that is stored already.
    StepEnded(Option<Box<StepResult>>),
    /// End the fetch under way, if any, and ask the keeper to close the job. Then call
    /// [`Driver::take_reported_close`].
    Finish(Option<CloseRequest>),
}

/// The last request of a job to the keeper.
#[derive(PartialEq)]
pub(in crate::actors::job) struct CloseRequest {
    /// Number of the request.
    pub(in crate::actors::job) op: u32,
    /// Last lines of the log, unmasked.
    pub(in crate::actors::job) lines: Vec<(LogChannel, String)>,
}

impl Driver {
    /// Returns the next action. `None` if there is none, or if an await must end first.
    pub(in crate::actors::job) fn next_action(&mut self) -> Option<Action> {
        while self.awaits == 0 && self.phase.is_running() {
            let Some(effect) = self.queue.pop_front() else { break };
            let action = self.action_of(effect);
            if action.is_some() {
                return action;
            }
        }
        if self.queue.is_empty() {
            // A step may run for hours. Even a small idle buffer is a tenth of the memory of its job.
            self.queue = VecDeque::new();
        }
        None
    }

    /// Returns the action for an effect. `None` if an earlier daemon has performed it.
    fn action_of(&mut self, effect: Effect) -> Option<Action> {
        let numbering = &mut self.numbering;
        match effect {
            Effect::Log { kind, text } => numbering.next_op().map(|op| Action::Line { op, kind, text }),
            Effect::Phrases(phrases) => {
                let op = numbering.next_op();
                match numbering.take_unmasked() {
                    None => Some(Action::AddPhrases { op, phrases }),
                    Some(message) => {
                        self.queue_unmasked_end(message);
                        None
                    }
                }
            }
            Effect::MakeFiles(files) => Some(Action::MakeFiles(files)),
            Effect::RemoveFiles(call) => Some(Action::RemoveFiles(call)),
            Effect::Fetch { call, reference, inside, environment } => (!numbering.has_fetched(call))
                .then_some(Action::Fetch { call, reference, inside, environment }),
            Effect::Spawn(spawn) => {
                let op = numbering.next_op();
                (!numbering.has_exited(spawn.call)).then_some(Action::Spawn { op, spawn })
            }
            Effect::Stop { grace } => Some(Action::Stop { grace }),
            Effect::News(news) => Some(Action::News { news, is_new: numbering.next_result() }),
            Effect::Emit(result) => {
                let is_new = numbering.next_result();
                Some(Action::StepEnded(is_new.then_some(result)))
            }
            Effect::Finish { outcome, root, lines } => {
                let op = self.decide_end(outcome, root);
                Some(Action::Finish(op.map(|op| CloseRequest { op, lines })))
            }
        }
    }
}
