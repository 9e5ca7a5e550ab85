//! The machine of one job: events in, effects out.
//!
//! It owns the order of language.md §14 (what runs when, what a failure ends, what a cancel leaves), the frames of run
//! functions under way, and the tree of results. It reads nothing and starts nothing, and it does not know the time:
//! the same events give the same effects, which is how a job outlives its daemon (architecture.md).
//!
//! ```text
//!   new ─▶ Queued ──Admitted──▶ Loading ──Fetched──▶ Running ──Exited──▶ Loading … ─▶ Over
//!            │                     │                    │
//!            └─────CancelAsked─────┴───▶ Over           └──CancelAsked──▶ Running (stopping) ──Exited──▶ Over
//! ```
//!
//! A job works on one thing at a time: it waits for its slot, for one function to be fetched, or for one process.

mod builtin;
mod cancel;
mod ends;
mod frame;
mod start;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;

use crate::lang::convert::contract;
use crate::lang::diagnostic::{Diagnostic, Position};
use crate::lang::environment::{Environment, LOG_LEVEL};
use crate::lang::eval::Steps;
use crate::lang::value::Value;
use crate::model::Kind;
use crate::plan::library::{Library, Loaded};
use crate::plan::secrets::Secrets;

use super::effect::{Effect, StepFiles};
use super::event::{CallId, Event, JobSpec};
use builtin::Fetching;
use frame::{Frame, Leaf, Loading};

/// One job's machine.
pub struct Machine {
    constants: Constants,
    state: State,
    /// Functions with `run` under way, the root's first.
    #[expect(
        clippy::vec_box,
        reason = "a vector's first four places would cost a small job more than its whole rest"
    )]
    frames: Vec<Box<Frame>>,
    environment: Environment,
    library: Library,
    secrets: Secrets,
    /// Number of the invocation made last.
    calls: CallId,
    /// Effects of the event being handled.
    effects: Vec<Effect>,
}

/// What a request fixes for the whole job.
struct Constants {
    vars: IndexMap<String, Value>,
    work_dir: Arc<str>,
    tmp_dir: Arc<str>,
    /// What `steps` shows outside of a `run` list.
    no_steps: Steps,
    /// The job asked for everything to be said: its log level is `debug` (language.md §13, layer 2).
    debug: bool,
    /// Bound of every grace.
    cancel_grace: Option<Duration>,
    /// Grace of a process whose function names none.
    default_grace: Duration,
}

/// What a job waits for.
enum State {
    /// Its slot; holds the root and its inputs.
    Queued(Box<Root>),
    /// A function.
    Loading(Box<Loading>),
    /// What a builtin fetches.
    Fetching(Box<Fetching>),
    /// A process.
    Running(Box<Leaf>),
    /// Nothing, while an event is handled; it stays so if that panics.
    Handling,
    /// Nothing: its last effect was [`Effect::Finish`].
    Over,
}

/// The function that the request itself is.
struct Root {
    loaded: Arc<Loaded>,
    func_dir: Arc<str>,
    inputs: IndexMap<String, Value>,
}

impl Machine {
    /// A machine for a request.
    ///
    /// # Errors
    /// All findings in `steps`, and all breaches of the root's interface by `inputs`.
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
            constants: Constants {
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
            },
            state: State::Queued(Box::new(root)),
            frames: Vec::new(),
            environment: Environment::new(Arc::clone(&spec.base_env), spec.env.clone())
                .masking(masked.collect()),
            library: Library::default(),
            secrets,
            calls: 0,
            effects: Vec::new(),
        })
    }

    /// Takes notice of `event` and says what to do, in this order. Late answers and everything after the end are
    /// ignored.
    pub fn handle(&mut self, event: &Event) -> Vec<Effect> {
        match (event, std::mem::replace(&mut self.state, State::Handling)) {
            (_, State::Over) => self.state = State::Over,
            (Event::Admitted { .. }, State::Queued(root)) => self.begin(*root),
            (Event::Fetched { call, result }, State::Loading(loading)) if *call == loading.call => {
                self.fetched(*loading, result);
            }
            (Event::Fetched { call, result }, State::Fetching(fetching)) if *call == fetching.call.id => {
                self.tree_fetched(*fetching, result);
            }
            (Event::Exited { call, end, shell, outputs, exports }, State::Running(mut leaf))
                if *call == leaf.call =>
            {
                leaf.ran_by(shell.as_deref());
                self.exited(*leaf, end, outputs.as_ref(), exports.as_ref());
            }
            (Event::CancelAsked { cause, grace_limit }, state) => self.cancel(state, *cause, *grace_limit),
            (Event::Unprepared { message }, State::Queued(root)) => self.cannot_begin(&root, message),
            (Event::Broken { message } | Event::Unmasked { message, .. }, state) => {
                self.broken(state, message);
            }
            (_, state) => self.state = state,
        }
        if matches!(self.state, State::Handling) {
            // Unreachable as far as known; a job that waits for nothing would look as if it were running for ever.
            self.broken(State::Handling, "the machine lost its place");
        }
        std::mem::take(&mut self.effects)
    }

    /// Whether the job is over: every further event is ignored.
    #[cfg(test)]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Adds an effect; phrases that became known come first (language.md §11.5).
    fn push(&mut self, effect: Effect) {
        let fresh = self.secrets.take_fresh();
        if !fresh.is_empty() {
            self.effects.push(Effect::Phrases(fresh));
        }
        self.effects.push(effect);
    }

    /// Adds a line to the job's log.
    fn log(&mut self, kind: Kind, text: String) {
        self.push(Effect::Log { kind, text });
    }

    /// Shows the warnings of a file (logs.md §2).
    fn warn(&mut self, warnings: &[Diagnostic]) {
        for warning in warnings {
            self.log(Kind::Err, format!("warning: {}", located(warning)));
        }
    }

    /// Number and files of a new invocation.
    fn next_call(&mut self) -> (CallId, StepFiles) {
        self.calls += 1;
        let folder = format!("{}/{}", self.constants.tmp_dir, self.calls);
        (self.calls, StepFiles { output: format!("{folder}/output"), export: format!("{folder}/export") })
    }
}

/// The folder of a request's file, if its name is an absolute path.
fn folder_of(file: Option<&str>) -> Option<&str> {
    match file?.rsplit_once('/')? {
        ("", _) => Some("/"),
        (folder, _) if folder.starts_with('/') => Some(folder),
        _ => None,
    }
}

/// An input of the request that its interface does not allow. It stands in no document: the place is that of the
/// declaration, if there is one.
fn root_input_error(root: &Loaded, error: contract::ContractError) -> Diagnostic {
    let function = &root.function;
    let at = function.spec.inputs.get(&error.name).map_or(Position::START, |declared| declared.at);
    Diagnostic::error(error.class, &function.file, at, error.message)
        .with_path(format!("inputs.{}", error.name))
}

/// `FILE:LINE:COLUMN: PATH: message`, without the word `warning`.
fn located(diagnostic: &Diagnostic) -> String {
    let mut plain = diagnostic.clone();
    plain.severity = crate::lang::diagnostic::Severity::Error;
    plain.to_string()
}
