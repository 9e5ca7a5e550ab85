//! A job whose fetches are answered at once, and whose processes end when the test says so, in any order.

use std::collections::VecDeque;

use step_runner_model::{CancelCause, ExitStatus};

use super::world::World;
use crate::job::effect::{Effect, Spawn};
use crate::job::event::{Event, FileContent, JobSpec, ProcessEnd, ProcessNumber, TimerId};
use crate::job::machine::Machine;

pub(super) struct Job {
    pub(super) machine: Machine,
    /// All effects so far.
    pub(super) effects: Vec<Effect>,
    world: World,
}

impl Job {
    /// Begins a job.
    pub(super) fn begin(world: &World, spec: &JobSpec) -> Self {
        let machine = Machine::new(spec).unwrap_or_else(|findings| panic!("{findings:?}"));
        let mut job = Self { machine, effects: Vec::new(), world: world.clone() };
        job.tell(Event::Admitted { at: 7 });
        job
    }

    /// Handles an event, and returns what follows from it.
    pub(super) fn tell(&mut self, event: Event) -> Vec<Effect> {
        let mut followed = Vec::new();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.machine.handle(&event, 0) {
                if let Effect::Fetch { .. } = &effect {
                    events.extend(self.world.answer(&effect));
                }
                followed.push(effect);
            }
        }
        self.effects.extend(followed.iter().cloned());
        followed
    }

    /// Returns the latest process of a step.
    pub(super) fn process(&self, name: &str) -> &Spawn {
        let found = spawns(&self.effects).into_iter().rfind(|spawn| spawn.name == name);
        found.unwrap_or_else(|| panic!("{name} has not begun"))
    }

    /// Ends the latest process of a step.
    pub(super) fn exit(&mut self, name: &str, code: u8) -> Vec<Effect> {
        self.end(name, code, None)
    }

    /// Ends the latest process of a step successfully, after it has written its export file.
    pub(super) fn export(&mut self, name: &str, exports: &str) -> Vec<Effect> {
        self.end(name, 0, Some(exports))
    }

    fn end(&mut self, name: &str, code: u8, exports: Option<&str>) -> Vec<Effect> {
        let process = self.process(name).process;
        let exports = exports.map(|text| FileContent::Bytes(text.as_bytes().to_vec()));
        let end = ProcessEnd::Exited(ExitStatus::Code(code));
        self.tell(Event::Exited { process, end, shell: None, outputs: None, exports, ran: None })
    }

    pub(super) fn cancel(&mut self, cause: CancelCause) -> Vec<Effect> {
        self.tell(Event::CancelAsked { cause, grace_limit: None, force: false })
    }
}

pub(super) fn spawns(effects: &[Effect]) -> Vec<&Spawn> {
    let spawns = effects.iter().filter_map(|effect| match effect {
        Effect::Spawn(spawn) => Some(&**spawn),
        _ => None,
    });
    spawns.collect()
}

/// Names of the processes that begin.
pub(super) fn started(effects: &[Effect]) -> Vec<&str> {
    spawns(effects).into_iter().map(|spawn| spawn.name.as_str()).collect()
}

/// Processes that are stopped, with their grace in seconds.
pub(super) fn stopped(effects: &[Effect]) -> Vec<(ProcessNumber, u64)> {
    let stops = effects.iter().filter_map(|effect| match effect {
        Effect::Stop { process, grace } => Some((*process, grace.as_secs())),
        _ => None,
    });
    stops.collect()
}

/// Timers that are set.
pub(super) fn timers(effects: &[Effect]) -> Vec<TimerId> {
    let timers = effects.iter().filter_map(|effect| match effect {
        Effect::Wake { timer, .. } => Some(*timer),
        _ => None,
    });
    timers.collect()
}

/// Lines of the log.
pub(super) fn lines(effects: &[Effect]) -> Vec<&str> {
    let lines = effects.iter().filter_map(|effect| match effect {
        Effect::Log { text, .. } => Some(text.as_str()),
        _ => None,
    });
    lines.collect()
}
