//! Events on their way to the machine. If handling one takes long, the machine leaves for another thread and comes back
//! with the effects. Further inputs wait meanwhile, so events are handled and recorded in the order in which they came.

use super::{Action, Driver};
use crate::actors::messages::EndedStep;
use crate::error::Chain;
use crate::job::effect::Effect;
use crate::job::event::{Event, ProcessEnd, ProcessNumber, TimerId};
use crate::job::machine::Machine;
use crate::job::record::Recorder;
use crate::keeper::link::KeeperFrame;
use crate::keeper::protocol::Request;
use crate::model::JobKey;

/// The machine of a job, and the encoder of the record from which a next daemon rebuilds it. Both handle an event
/// together, on any thread.
pub(in crate::actors::job) struct RecordedMachine {
    key: JobKey,
    machine: Machine,
    recorder: Recorder,
}

/// Result of handling an event.
pub(in crate::actors::job) struct HandledEvent {
    /// Frame that records the event, for the keeper.
    frame: Option<KeeperFrame>,
    effects: Vec<Effect>,
    /// Failures to record, each with its reason.
    errors: Vec<String>,
}

/// Record of a handled event, to be sent before the next action.
pub(in crate::actors::job) struct RecordToSend {
    /// The frame for the keeper; `None` if the event cannot be recorded.
    pub(in crate::actors::job) frame: Option<KeeperFrame>,
    /// True if the frame can wait for the next request: each write wakes the keeper.
    pub(in crate::actors::job) may_wait: bool,
    /// Failures to record, for the operator.
    pub(in crate::actors::job) errors: Vec<String>,
}

/// Next act of the actor after an event.
pub(in crate::actors::job) enum EventReaction {
    /// None: the event waits until the machine is back.
    Deferred,
    /// The event is handled: send its record, then perform the actions.
    Handled(RecordToSend),
    /// Call [`RecordedMachine::handle`] on another thread, then [`Driver::came_back`].
    Elsewhere(Box<RecordedMachine>, Event),
}

/// An input that waits for the machine.
pub(in crate::actors::job) enum DeferredInput {
    /// Give it to [`Driver::event`].
    Event(Event),
    /// Give it to [`Driver::end_unmasked`].
    Unmasked {
        /// Number of the request whose phrases could not be masked.
        op: u32,
        /// The reason, for people.
        message: String,
    },
    /// Call [`Driver::collect_results`].
    CollectResults,
}

impl RecordedMachine {
    /// Combines the machine of the job `key` with a recorder that has counted the machine's events.
    pub(in crate::actors::job) const fn new(key: JobKey, machine: Machine, recorder: Recorder) -> Self {
        Self { key, machine, recorder }
    }

    /// True if only the request is recorded.
    pub(super) const fn is_new(&self) -> bool {
        self.recorder.count() == 1
    }

    /// Records an event, then handles it. `at` is the time in microseconds since the host's boot. An event that cannot
    /// be recorded would be missing from every replay, so the job fails instead.
    pub(in crate::actors::job) fn handle(&mut self, event: Event, at: u64) -> HandledEvent {
        let mut errors = Vec::new();
        let (event, frame) = match self.framed(self.machine.read_files(event), at) {
            Ok((event, frame)) => (event, Some(frame)),
            Err(reason) => {
                errors.push(format!("an event was not recorded: {reason}"));
                let broken =
                    Event::Broken { message: format!("an event of the job cannot be recorded: {reason}") };
                let frame = self.framed(broken.clone(), at).map(|(_, frame)| frame).map_err(|reason| {
                    errors.push(format!("the failure of the job was not recorded either: {reason}"));
                });
                (broken, frame.ok())
            }
        };
        HandledEvent { frame, effects: self.machine.handle(&event, at), errors }
    }

    /// See [`Machine::awaits`].
    pub(super) fn awaits(&self, timer: TimerId) -> bool {
        self.machine.awaits(timer)
    }

    /// See [`Machine::note_log`].
    pub(super) fn note_log(&mut self, len: u64) {
        self.machine.note_log(len);
    }

    /// Handles an event that is not recorded.
    pub(super) fn handle_unrecorded(&mut self, event: &Event, at: u64) -> Vec<Effect> {
        self.machine.handle(event, at)
    }

    /// Returns the event in its recorded form and the frame that records it.
    pub(super) fn framed(&mut self, event: Event, at: u64) -> Result<(Event, KeeperFrame), String> {
        let (event, bytes) = self.recorder.encode(event, at).map_err(|error| Chain(&error).to_string())?;
        let (seq, len) = (self.recorder.count(), bytes.len());
        let frame = KeeperFrame::of(Request::Record { key: self.key, seq, event: bytes });
        let frame = frame.map_err(|error| Chain(&error).to_string())?;
        self.recorder.recorded(&event, len);
        Ok((event, frame))
    }
}

/// True if performing the effect sends a request to the keeper without waiting for anyone else.
const fn asks_keeper(effect: &Effect) -> bool {
    matches!(effect, Effect::Log { .. } | Effect::Spawn(_) | Effect::Finish { .. })
}

impl Driver {
    /// Gives an event to the machine. `at` is the time in microseconds since the host's boot.
    pub(in crate::actors::job) fn event(&mut self, event: Event, at: u64) -> EventReaction {
        match self.machine.take() {
            None => {
                self.deferred.push_back(DeferredInput::Event(event));
                EventReaction::Deferred
            }
            Some(mut machine) if machine.machine.is_small(&event) => {
                let handled = machine.handle(event, at);
                self.machine = Some(machine);
                EventReaction::Handled(self.take_effects(handled))
            }
            Some(machine) => EventReaction::Elsewhere(Box::new(machine), event),
        }
    }

    /// True if a step's actor watches this process.
    pub(in crate::actors::job) fn is_watching(&self, process: ProcessNumber) -> bool {
        self.processes.contains(&process)
    }

    /// Takes the machine back from another thread.
    pub(in crate::actors::job) fn came_back(
        &mut self,
        machine: RecordedMachine,
        handled: HandledEvent,
    ) -> RecordToSend {
        self.machine = Some(machine);
        self.take_effects(handled)
    }

    /// Returns the next input that has waited for the machine. `None` if there is none, or if the machine is away.
    pub(in crate::actors::job) fn next_deferred(&mut self) -> Option<DeferredInput> {
        self.machine.as_ref()?;
        let input = self.deferred.pop_front()?;
        if matches!(input, DeferredInput::Unmasked { .. }) {
            self.awaits -= 1;
        }
        Some(input)
    }

    /// Takes the machine out of the driver, so that the caller can free it. Only for a published job.
    pub(in crate::actors::job) const fn take_machine(&mut self) -> Option<RecordedMachine> {
        self.machine.take()
    }

    /// Returns the event for a process that is over.
    pub(in crate::actors::job) fn step_done(&mut self, step: EndedStep) -> Event {
        self.processes.remove(&step.process);
        let EndedStep { process, end, shell, outputs, exports, ran, closes } = step;
        match end {
            // The job's log ends here, so a cancel that came meanwhile came too late.
            ProcessEnd::Exited(status) if closes => Event::returned_nothing(process, status, shell, ran),
            end => Event::Exited { process, end, shell, outputs, exports, ran },
        }
    }

    fn take_effects(&mut self, handled: HandledEvent) -> RecordToSend {
        let HandledEvent { frame, effects, errors } = handled;
        // The record can wait in two cases. The keeper has closed the job: its report of the last step tells the next
        // daemon as much. Or a request that cannot wait follows and takes the record along.
        let may_wait = self.phase.is_closed_by_step() || effects.iter().any(asks_keeper);
        for effect in effects {
            match effect {
                Effect::Stop { process, grace } if self.processes.contains(&process) => {
                    self.urgent.push_back(Action::Stop { process, grace });
                }
                // Behind the stop, the processes would be gone.
                Effect::ShowProcesses { attempt, processes, .. } => {
                    self.urgent.push_back(Action::ShowProcesses { attempt, processes });
                }
                effect => self.queue.push_back(effect),
            }
        }
        RecordToSend { frame, may_wait, errors }
    }
}
