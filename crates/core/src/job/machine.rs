//! The machine of one job: events in, effects out.
//!
//! It owns the order of language.md §14 (which step runs when, and how failures and cancels end the job), the frames of
//! functions under way, and the tree of results. It reads nothing, starts nothing and has no clock. The same events
//! always give the same effects, so a job can outlive its daemon (architecture.md).
//!
//! ```text
//!   new ─▶ Queued ──Admitted──▶ Loading ──Fetched──▶ Running ──Exited──▶ Loading … ─▶ Over
//!            │                     │                    │
//!            └─────CancelAsked─────┴───▶ Over           └──CancelAsked──▶ Running (stopping) ──Exited──▶ Over
//! ```
//!
//! A job waits for one thing at a time: its slot, the fetch of one function, or one process.

mod builtin;
mod cancel;
mod ends;
mod frame;
mod start;
#[cfg(test)]
mod tests;
mod times;
mod weight;

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use step_runner_lang::convert::contract;
use step_runner_lang::diagnostic::{Diagnostic, Position};
use step_runner_lang::environment::{Environment, LOG_LEVEL};
use step_runner_lang::eval::Steps;
use step_runner_lang::value::Value;
use step_runner_model::LogChannel;

use crate::plan::library::{Library, Loaded};
use crate::plan::secrets::Secrets;

use super::effect::{Effect, StepFiles};
use super::event::{CallId, Event, JobSpec, ProcessEnd};
use builtin::Fetching;
use frame::{FunctionFrame, Leaf, Loading};
use times::Timeline;

/// One job's machine.
pub struct Machine {
    constants: Arc<Constants>,
    state: MachineState,
    /// Functions with `run` under way, outermost first.
    #[expect(
        clippy::vec_box,
        reason = "a vector's first four places would cost a small job more than its whole rest"
    )]
    frames: Vec<Box<FunctionFrame>>,
    environment: Environment,
    library: Library,
    secrets: Secrets,
    /// Number of the latest invocation.
    calls: CallId,
    /// Bytes that results may still occupy.
    room: usize,
    times: Timeline,
    /// Effects of the event being handled.
    effects: Vec<Effect>,
}

/// Values that the request fixes for the whole job.
struct Constants {
    vars: IndexMap<String, Value>,
    work_dir: Arc<str>,
    tmp_dir: Arc<str>,
    /// Value of `steps` outside of a `run` list.
    no_steps: Steps,
    /// True if the job's log level is `debug` (language.md §13, layer 2).
    debug: bool,
    /// Upper bound of every grace.
    cancel_grace: Option<Duration>,
    /// Grace of a process whose function sets none.
    default_grace: Duration,
}

/// The thing that a job waits for.
enum MachineState {
    /// Its slot. Holds the root and its inputs.
    Queued(Box<Root>),
    /// A function to be fetched.
    Loading(Box<Loading>),
    /// A tree that a builtin fetches.
    Fetching(Box<Fetching>),
    /// A process.
    Running(Box<Leaf>),
    /// Nothing: an event is being handled. The state stays if that panics.
    Handling,
    /// Nothing: its last effect was [`Effect::Finish`].
    Over,
}

/// The request itself as a function.
struct Root {
    loaded: Arc<Loaded>,
    func_dir: Arc<str>,
    inputs: IndexMap<String, Value>,
}

impl Machine {
    /// Creates the machine of a request.
    ///
    /// # Errors
    /// Returns all findings in `steps`, or all violations of the root's interface by `inputs`.
    pub fn new(spec: &JobSpec) -> Result<Self, Vec<Diagnostic>> {
        let loaded = Arc::new(Loaded::request(&spec.steps, spec.file.as_deref())?);
        let inputs =
            contract::bind_inputs(spec.inputs.clone(), &loaded.function.spec.inputs).map_err(|errors| {
                errors.into_iter().map(|error| root_input_error(&loaded, error)).collect::<Vec<_>>()
            })?;
        let func_dir = folder_of(spec.file.as_deref()).unwrap_or(&spec.work_dir);
        let mut secrets = Secrets::default();
        secrets.note_references(&loaded.function);
        let root = Root { loaded, func_dir: func_dir.into(), inputs };
        let masked = spec.vars.iter().filter(|(_, value)| value.sensitive).map(|(name, _)| name.clone());
        Ok(Self {
            constants: Arc::new(Constants {
                vars: spec.vars.clone(),
                work_dir: spec.work_dir.as_str().into(),
                tmp_dir: spec.tmp_dir.as_str().into(),
                no_steps: Steps::new(),
                debug: spec
                    .base_env
                    .iter()
                    .any(|(name, level)| name == LOG_LEVEL.as_bytes() && level == b"debug"),
                cancel_grace: spec.cancel_grace,
                default_grace: spec.default_grace,
            }),
            state: MachineState::Queued(Box::new(root)),
            frames: Vec::new(),
            environment: Environment::new(Arc::clone(&spec.base_env), spec.env.clone())
                .masking(masked.collect()),
            library: Library::default(),
            secrets,
            calls: 0,
            room: weight::ROOM,
            times: Timeline::default(),
            effects: Vec::new(),
        })
    }

    /// Reads the files of a process that has succeeded, if this machine waits for it, because the record holds their
    /// values. For any other exit the files are dropped. Other events stay as they are.
    #[must_use]
    pub fn read_files(&self, event: Event) -> Event {
        match (event, &self.state) {
            (
                Event::Exited { call, end: ProcessEnd::Exited(status), shell, outputs, exports, ran },
                MachineState::Running(leaf),
            ) if leaf.call == call && leaf.stopping.is_none() && leaf.success.includes(status) => {
                let returned = self.returned(leaf, outputs.as_ref(), exports.as_ref());
                Event::Returned { call, status, shell, returned: Box::new(returned), ran }
            }
            (Event::Exited { call, end, shell, ran, .. }, _) => {
                Event::Exited { call, end, shell, outputs: None, exports: None, ran }
            }
            (event, _) => event,
        }
    }

    /// Handles `event` and returns the effects, in order. Ignores late answers and everything after the end. `at` is
    /// the time at which the event is or was handled, in microseconds since the host's boot.
    pub fn handle(&mut self, event: &Event, at: u64) -> Vec<Effect> {
        self.times.at(at);
        match (event, std::mem::replace(&mut self.state, MachineState::Handling)) {
            (_, MachineState::Over) => self.state = MachineState::Over,
            (Event::Admitted { at }, MachineState::Queued(root)) => {
                self.times.start(*at);
                self.begin(*root);
            }
            (Event::Fetched { call, result }, MachineState::Loading(loading)) if *call == loading.call => {
                self.fetched(*loading, result);
            }
            (Event::Fetched { call, result }, MachineState::Fetching(fetching))
                if *call == fetching.call.id =>
            {
                self.tree_fetched(*fetching, result);
            }
            (Event::Exited { call, end, shell, outputs, exports, ran }, MachineState::Running(mut leaf))
                if *call == leaf.call =>
            {
                self.times.ran(ran.as_ref());
                leaf.ran(ran.as_ref(), shell.as_deref());
                self.exited(*leaf, end, outputs.as_ref(), exports.as_ref());
            }
            (Event::Returned { call, status, shell, returned, ran }, MachineState::Running(mut leaf))
                if *call == leaf.call =>
            {
                self.times.ran(ran.as_ref());
                leaf.ran(ran.as_ref(), shell.as_deref());
                self.returned_by(*leaf, *status, (**returned).clone());
            }
            (Event::CancelAsked { cause, grace_limit }, state) => self.cancel(state, *cause, *grace_limit),
            (Event::Unprepared { message }, MachineState::Queued(root)) => self.cannot_begin(&root, message),
            (Event::Broken { message } | Event::Unmasked { message, .. }, state) => {
                self.broken(state, message);
            }
            (_, state) => self.state = state,
        }
        if matches!(self.state, MachineState::Handling) {
            // Believed unreachable. A job that waits for nothing would look as if it ran for ever.
            self.broken(MachineState::Handling, "the machine lost its place");
        }
        self.secrets.rest();
        std::mem::take(&mut self.effects)
    }

    /// True if the job is over and ignores all further events.
    #[cfg(test)]
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.state, MachineState::Over)
    }

    /// Adds an effect, preceded by phrases that became known (language.md §11.5).
    fn push(&mut self, effect: Effect) {
        let fresh = self.secrets.take_fresh();
        if !fresh.is_empty() {
            self.effects.push(Effect::Phrases(fresh));
        }
        self.effects.push(effect);
    }

    fn log(&mut self, kind: LogChannel, text: String) {
        self.push(Effect::Log { kind, text });
    }

    /// Shows the warnings of a file (logs.md §2).
    fn warn(&mut self, warnings: &[Diagnostic]) {
        for warning in warnings {
            self.log(LogChannel::Err, format!("warning: {}", located(warning)));
        }
    }

    fn next_call(&mut self) -> (CallId, StepFiles) {
        self.calls += 1;
        let folder = format!("{}/{}", self.constants.tmp_dir, self.calls);
        (self.calls, StepFiles { output: format!("{folder}/output"), export: format!("{folder}/export") })
    }
}

/// Returns the folder of the request's file, if its name is an absolute path.
fn folder_of(file: Option<&str>) -> Option<&str> {
    match file?.rsplit_once('/')? {
        ("", _) => Some("/"),
        (folder, _) if folder.starts_with('/') => Some(folder),
        _ => None,
    }
}

/// Describes an input of the request that violates the interface. The input is in no document, so the position is that
/// of the declaration, if any.
fn root_input_error(root: &Loaded, error: contract::ContractError) -> Diagnostic {
    let function = &root.function;
    let at = function.spec.inputs.get(&error.name).map_or(Position::START, |declared| declared.at);
    Diagnostic::error(error.class, &function.file, at, error.message)
        .with_path(format!("inputs.{}", error.name))
}

/// Returns `FILE:LINE:COLUMN: PATH: message`, without the word `warning`; not yet masked, cut or escaped.
fn located(diagnostic: &Diagnostic) -> String {
    let mut plain = diagnostic.clone();
    plain.severity = step_runner_lang::diagnostic::Severity::Error;
    plain.unmasked()
}
