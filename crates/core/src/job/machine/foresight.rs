//! Works out the next start before the running process has ended, so that the keeper can start it without asking the
//! daemon (docs/internals/architecture.md, "The next step in advance").
//!
//! A copy of the machine handles the success of the running process. Its effects are usable if they are log lines,
//! messages for clients and one process. The machine itself comes to the same effects when it handles
//! [`Event::WentOn`].

use std::sync::Arc;

use step_runner_lang::ast::Reference;
use step_runner_model::{ExitStatus, LogChannel};

use crate::job::effect::{Effect, Program, Spawn};
use crate::job::event::{CallId, Event, Fetched};
use crate::plan::returned::ProcessOutputs;

use super::ends::returns_nothing;
use super::frame::{FunctionFrame, Leaf, Stopping};
use super::{Machine, MachineState};

/// Largest number of secrets and step results that are copied for one start. A larger copy costs more than it saves.
const MOST_COPIED: usize = 1_024;

/// A copy of a machine after the assumed success of the running process.
pub struct Foresight {
    after: CallId,
    machine: Machine,
    effects: Vec<Effect>,
}

/// The process that follows a success, and the lines of the log before it.
pub struct NextStart {
    /// Lines to write, unmasked.
    pub lines: Vec<(LogChannel, String)>,
    /// The process. It has no files, and its program is a command line or a short script.
    pub spawn: Box<Spawn>,
}

impl Machine {
    /// True if the running process cannot return values, a step follows it, and a copy of the machine is cheap.
    pub fn may_foresee(&self) -> bool {
        let MachineState::Running(leaf) = &self.state else { return false };
        let is_certain = !leaf.has_files && returns_nothing(&leaf.loaded.function.spec.outputs);
        let copied = self.frames.iter().map(|frame| frame.steps.len()).sum::<usize>() + self.secrets.count();
        is_certain && leaf.stopping.is_none() && copied <= MOST_COPIED && !self.is_last()
    }

    /// Handles the success of the running process in a copy of the machine. `None` unless [`Self::may_foresee`], and if
    /// the copy asks for anything but log lines, messages and one process or function.
    pub fn foresee(&self) -> Option<Foresight> {
        let MachineState::Running(leaf) = &self.state else { return None };
        if !self.may_foresee() {
            return None;
        }
        let success = Event::returned_nothing(leaf.call, ExitStatus::Code(0), None, None);
        if !self.is_small(&success) {
            return None;
        }
        let mut machine = self.copy(leaf);
        let effects = machine.handle(&success, self.times.latest());
        let foresight = Foresight { after: leaf.call, machine, effects };
        foresight.is_usable().then_some(foresight)
    }

    /// True if the function of the next step is noted, for [`Event::WentOn`].
    pub fn has_foreseen(&self) -> bool {
        matches!(&self.state, MachineState::Running(leaf) if leaf.foreseen.is_some())
    }

    /// True if no function under way has a further step.
    fn is_last(&self) -> bool {
        self.frames.iter().all(|frame| frame.has_begun_all())
    }

    /// Copies the machine without its ended results, which handling a success does not read.
    fn copy(&self, leaf: &Leaf) -> Self {
        Self {
            constants: Arc::clone(&self.constants),
            state: MachineState::Running(Box::new(leaf.copy())),
            frames: self.frames.iter().map(|frame| Box::new(frame.copy())).collect(),
            environment: self.environment.clone(),
            library: self.library.clone(),
            secrets: self.secrets.copy(),
            calls: self.calls,
            room: self.room,
            times: self.times,
            effects: Vec::new(),
        }
    }

    /// Handles the success of a process after which the keeper has started the next one. Applies a cancel that came
    /// meanwhile to the new process.
    pub(super) fn went_on(&mut self, mut leaf: Leaf) {
        let (stopping, foreseen) = (leaf.stopping, leaf.foreseen.take());
        self.times.went_on();
        self.returned_by(leaf, ExitStatus::Code(0), Ok(ProcessOutputs::none()));
        if let Some(fetched) = foreseen {
            match std::mem::replace(&mut self.state, MachineState::Handling) {
                MachineState::Loading(loading) => self.fetched(*loading, &Ok(*fetched)),
                state => self.state = state,
            }
        }
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                // The keeper has written the lines, and the function is known.
                Effect::Log { .. } | Effect::Fetch { .. } => {}
                Effect::Spawn(spawn) => self.effects.push(Effect::Watch(spawn)),
                effect => self.effects.push(effect),
            }
        }
        match std::mem::replace(&mut self.state, MachineState::Handling) {
            MachineState::Running(leaf) => match stopping {
                Some(Stopping { cause, limit, .. }) => self.cancel(MachineState::Running(leaf), cause, limit),
                None => self.state = MachineState::Running(leaf),
            },
            MachineState::Over => self.state = MachineState::Over,
            state => self.broken(state, "a step began that did not follow from the one before"),
        }
    }
}

impl Foresight {
    /// True if the effects are messages, lines and one last thing to wait for.
    fn is_usable(&self) -> bool {
        let Some((last, others)) = self.effects.split_last() else { return false };
        let is_passing = |effect: &Effect| {
            matches!(effect, Effect::News(_) | Effect::Emit(_) | Effect::Log { .. } | Effect::RemoveFiles(_))
        };
        matches!(last, Effect::Spawn(_) | Effect::Fetch { .. }) && others.iter().all(is_passing)
    }

    /// The invocation whose process is under way.
    pub const fn after(&self) -> CallId {
        self.after
    }

    /// The function that is to be read first, if it is a file of the job's environment.
    pub fn wanted(&self) -> Option<&Reference> {
        match self.effects.last()? {
            Effect::Fetch { reference, inside: None, .. }
                if matches!(**reference, Reference::Local { .. }) =>
            {
                Some(reference)
            }
            _ => None,
        }
    }

    /// Goes on with the function that was read. `None` if it does not begin with a process.
    #[must_use]
    pub fn with(mut self, fetched: Fetched) -> Option<Self> {
        let Some(Effect::Fetch { call, .. }) = self.effects.pop() else { return None };
        let event = Event::Fetched { call, result: Ok(fetched) };
        if !self.machine.is_small(&event) {
            return None;
        }
        let at = self.machine.times.latest();
        self.effects.extend(self.machine.handle(&event, at));
        self.is_usable().then_some(self)
    }

    /// The process to start. `None` if a function must be read first, or if the process needs files.
    pub fn start(self) -> Option<NextStart> {
        let mut effects = self.effects;
        let Some(Effect::Spawn(spawn)) = effects.pop() else { return None };
        let is_plain = matches!(spawn.program, Program::Command(_) | Program::Script(_));
        if spawn.files.is_some() || !is_plain {
            return None;
        }
        let lines = effects.into_iter().filter_map(|effect| match effect {
            Effect::Log { kind, text } => Some((kind, text)),
            _ => None,
        });
        Some(NextStart { lines: lines.collect(), spawn })
    }
}

impl Leaf {
    /// Copies the process without its cancel and its foreseen function: the copy's process has ended.
    fn copy(&self) -> Self {
        Self {
            call: self.call,
            loaded: Arc::clone(&self.loaded),
            layers: self.layers,
            cancel_timeout: self.cancel_timeout,
            success: self.success,
            has_files: self.has_files,
            has_program_file: self.has_program_file,
            stopping: None,
            foreseen: None,
            result: self.result.clone(),
        }
    }
}

impl FunctionFrame {
    /// Copies all but the ended results.
    fn copy(&self) -> Self {
        Self {
            loaded: Arc::clone(&self.loaded),
            call: self.call,
            func_dir: Arc::clone(&self.func_dir),
            tree: self.tree.clone(),
            inputs: self.inputs.clone(),
            steps: self.steps.clone(),
            next: self.next,
            layers: self.layers,
            files: self.files.clone(),
            files_made: self.files_made,
            step: self.step.clone(),
            env: self.env.clone(),
            sub_steps: Vec::new(),
            facts: self.facts.clone(),
        }
    }
}
