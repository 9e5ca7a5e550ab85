//! Turns the machine's effects into actions, in the same order. Numbers each one, and skips those that an earlier
//! daemon has performed.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Driver, EventPlace};
use crate::job::effect::{Effect, Spawn, StepFiles, StepNote};
use crate::job::event::{CallId, ProcessNumber, TimerId};
use crate::job::machine::ROOT;
use crate::lang::ast::Reference;
use crate::model::{LogChannel, StepOutcome, StepResult};

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
    /// Remove the files of an attempt, once all records so far are in the keeper's socket.
    RemoveFiles(ProcessNumber),
    /// Fetch a function. See [`Effect::Fetch`].
    Fetch {
        /// Number of the attempt.
        process: ProcessNumber,
        /// The function.
        reference: Box<Reference>,
        /// The tree that a local path must stay inside.
        inside: Option<String>,
        /// Environment of a fetch over the network.
        environment: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Give up a fetch.
    StopFetch(ProcessNumber),
    /// Start a step's actor, then call [`Driver::launched`].
    Spawn {
        /// True if the keeper was asked for the process before.
        is_asked: bool,
        /// The process.
        spawn: Box<Spawn>,
    },
    /// Ask the keeper to stop a process, or give up its start.
    Stop {
        /// Its number.
        process: ProcessNumber,
        /// Time until SIGKILL.
        grace: Duration,
    },
    /// Ask the keeper to write processes to the log.
    ShowProcesses {
        /// Number of the attempt whose limit has passed.
        attempt: ProcessNumber,
        /// Their numbers.
        processes: Vec<ProcessNumber>,
    },
    /// Ask the keeper to end what an attempt has left.
    Clear {
        /// The call that waits for it.
        call: CallId,
        /// Its processes.
        processes: Vec<ProcessNumber>,
    },
    /// Set a timer, which calls [`Driver::due`].
    Wake {
        /// The timer.
        timer: TimerId,
        /// The time, in microseconds since the host's boot.
        at: u64,
    },
    /// Show and store something that has happened to a step.
    Note(Noted),
    /// End the fetches under way, and ask the keeper to close the job. Then call [`Driver::take_reported_close`].
    Finish(Option<CloseRequest>),
}

/// Something that has happened to a step, with what is to be stored of it.
#[derive(PartialEq)]
pub(in crate::actors::job) struct Noted {
    /// The event.
    pub(in crate::actors::job) note: Box<StepNote>,
    /// Its place.
    pub(in crate::actors::job) place: EventPlace,
    /// True if the event is to be stored.
    pub(in crate::actors::job) is_new: bool,
    /// The result of a step of the job's own list that has ended, with those of its steps, to be stored.
    pub(in crate::actors::job) result: Option<Box<StepResult>>,
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
        if self.phase.is_running()
            && let Some(action) = self.urgent.pop_front()
        {
            return Some(action);
        }
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
            Effect::RemoveFiles(process) => Some(Action::RemoveFiles(process)),
            Effect::Fetch { process, reference, inside, environment } => (!numbering.has_fetched(process))
                .then_some(Action::Fetch { process, reference, inside, environment }),
            Effect::StopFetch(process) => Some(Action::StopFetch(process)),
            Effect::Spawn(spawn) => {
                let is_asked = numbering.has_asked(spawn.process);
                self.launched.insert(spawn.process);
                if numbering.has_exited(spawn.process) {
                    return None;
                }
                self.processes.insert(spawn.process);
                Some(Action::Spawn { is_asked, spawn })
            }
            Effect::Stop { process, grace } => {
                self.processes.contains(&process).then_some(Action::Stop { process, grace })
            }
            Effect::ShowProcesses { attempt, processes, .. } => {
                Some(Action::ShowProcesses { attempt, processes })
            }
            Effect::Clear { call, processes } => Some(Action::Clear { call, processes }),
            Effect::Wake { timer, at } => {
                let is_awaited = self.machine.as_ref().is_none_or(|machine| machine.awaits(timer));
                is_awaited.then_some(Action::Wake { timer, at })
            }
            Effect::Note(note) => Some(Action::Note(self.noted(note))),
            Effect::Finish { outcome, root, lines, allowed_failures } => {
                let op = self.decide_end(outcome, root, allowed_failures);
                Some(Action::Finish(op.map(|op| CloseRequest { op, lines })))
            }
        }
    }

    /// Adds a note to the tree of results, and tells what of it is to be stored.
    pub(super) fn noted(&mut self, note: Box<StepNote>) -> Noted {
        let is_step =
            note.parent == ROOT && note.call != ROOT && note.result.outcome != StepOutcome::Unspecified;
        let noted = self.noted_without_result(note);
        let result =
            if is_step && self.numbering.next_result() { self.tree.subtree(noted.note.call) } else { None };
        Noted { result: result.map(Box::new), ..noted }
    }

    /// Like [`Self::noted`], but a step of the job's own list has no result.
    pub(super) fn noted_without_result(&mut self, note: Box<StepNote>) -> Noted {
        let is_new = self.numbering.next_result();
        let place = self.numbering.next_place(note.place);
        self.tree.add((*note).clone());
        Noted { note, place, is_new, result: None }
    }
}
