//! The machine of one job: events in, effects out.
//!
//! It owns the order of language.md §14 and flow.md (which step runs when, and what failures, limits and stops do), and the
//! calls under way. It reads nothing, starts nothing and has no clock. The same events always give the same effects, so a
//! job can outlive its daemon (architecture.md).
//!
//! Calls form a tree: the root, the steps of its list, the steps of the functions that they call, the members of groups.
//! Each call under way waits for one thing ([`call::Work`]): a fetch, a process, a delay, or the calls below it. An event
//! ends the wait of one call. What follows from that is done before the next event, list by list and group by group:
//!
//! ```text
//!            ┌─ when, if ─▶ skipped
//!   step ────┤                                      ┌─ retry ─▶ Delay ─▶ the next attempt
//!            └─▶ Loading ─▶ Running, List or Group ─┴─▶ success, failure, allowed failure, cancelled
//! ```

mod attempt;
mod builtin;
mod call;
mod ends;
mod enter;
mod failure;
mod group;
mod list;
mod matrix;
mod sections;
mod start;
mod stop;
#[cfg(test)]
mod tests;
mod times;
mod weight;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use step_runner_lang::convert::contract;
use step_runner_lang::diagnostic::{Diagnostic, Position};
use step_runner_lang::environment::{Environment, LOG_LEVEL};
use step_runner_lang::eval::Steps;
use step_runner_lang::value::Value;
use step_runner_log::words::{DaemonLine, Warning};
use step_runner_model::CancelCause;

use crate::plan::library::{Library, Loaded};
use crate::plan::secrets::Secrets;

use super::effect::Effect;
use super::event::{CallId, Event, JobSpec, ProcessEnd, TimerId};
use call::{Call, Work};
use group::Slots;
use stop::{Cleanup, Timer};
use times::Timeline;

/// Number of the root.
pub const ROOT: CallId = 0;

/// One job's machine.
pub struct Machine {
    constants: Arc<Constants>,
    phase: Phase,
    /// Calls under way, by number. Boxed: a leaf of the map has room for eleven, and most jobs have one step.
    calls: BTreeMap<CallId, Box<Call>>,
    /// Lists and groups whose turn it is, in this order.
    ready: VecDeque<CallId>,
    /// Number of the latest call.
    last_call: CallId,
    /// Timers that are awaited.
    timers: BTreeMap<TimerId, Timer>,
    last_timer: TimerId,
    /// The stops of parts of the job whose cleanup is not over, by the part's root.
    cleanups: BTreeMap<CallId, Cleanup>,
    /// Cause of the first stop of the job.
    stop: Option<CancelCause>,
    /// Number of allowed failures so far.
    allowed_failures: u32,
    /// Slots of members under way.
    slots: Slots,
    library: Library,
    secrets: Secrets,
    /// Bytes that results may still occupy.
    room: usize,
    times: Timeline,
    /// Effects of the event being handled.
    effects: Vec<Effect>,
}

/// Values that the request fixes for the whole job.
struct Constants {
    /// Environment before the first step.
    environment: Environment,
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
    /// Limit of a cleanup.
    cleanup_timeout: Duration,
    /// Members of a group at the same time, by default.
    members_at_a_time: u8,
    /// True if a failing line ends a script whose step does not say otherwise.
    errexit: bool,
    /// True if the log has marks of sections.
    trace_sections: bool,
}

/// Phase of a job.
enum Phase {
    /// It waits for its slot. Holds the root and its inputs.
    Queued(Box<Root>),
    /// Calls are under way.
    Running,
    /// An event is being handled. The phase stays if that panics.
    Handling,
    /// Its last effect was [`Effect::Finish`].
    Ended,
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
        Ok(Self {
            constants: Arc::new(Constants::of(spec)),
            phase: Phase::Queued(Box::new(root)),
            calls: BTreeMap::new(),
            ready: VecDeque::new(),
            last_call: ROOT,
            timers: BTreeMap::new(),
            last_timer: 0,
            cleanups: BTreeMap::new(),
            stop: None,
            allowed_failures: 0,
            slots: Slots::default(),
            library: Library::default(),
            secrets,
            room: weight::ROOM,
            times: Timeline::default(),
            effects: Vec::new(),
        })
    }

    /// Reads the files of a process that has succeeded, if this machine waits for it, because the record holds their
    /// values. For any other exit the files are dropped. Other events stay as they are.
    #[must_use]
    pub fn read_files(&self, event: Event) -> Event {
        match event {
            Event::Exited { process, end, shell, outputs, exports, ran } => {
                if let ProcessEnd::Exited(status) = end
                    && let Some((step, leaf)) = self.leaf(process)
                    && step.stop.is_none()
                    && leaf.success.includes(status)
                {
                    let returned = self.returned(leaf, outputs.as_ref(), exports.as_ref());
                    return Event::Returned { process, status, shell, returned: Box::new(returned), ran };
                }
                Event::Exited { process, end, shell, outputs: None, exports: None, ran }
            }
            event => event,
        }
    }

    /// True if the machine waits for this timer. The end of a timer that is not awaited need not be recorded.
    pub fn awaits(&self, timer: TimerId) -> bool {
        self.timers.contains_key(&timer)
    }

    /// Handles `event` and returns the effects, in order. Ignores late answers and everything after the end. `at` is
    /// the time at which the event is or was handled, in microseconds since the host's boot.
    pub fn handle(&mut self, event: &Event, at: u64) -> Vec<Effect> {
        self.times.at(at);
        match std::mem::replace(&mut self.phase, Phase::Handling) {
            Phase::Ended => self.phase = Phase::Ended,
            Phase::Queued(root) => self.handle_queued(root, event),
            Phase::Running => self.handle_running(event),
            // The event before this one panicked. Nothing is certain any more but the calls under way.
            Phase::Handling => self.broken("the machine lost its place"),
        }
        self.go_on();
        if matches!(self.phase, Phase::Handling) {
            self.phase = Phase::Running;
        }
        self.secrets.rest();
        std::mem::take(&mut self.effects)
    }

    fn handle_queued(&mut self, root: Box<Root>, event: &Event) {
        match event {
            Event::Admitted { at } => {
                self.times.start(*at);
                self.begin(*root);
            }
            Event::CancelAsked { cause, .. } => self.cancel_queued(&root, *cause),
            Event::Unprepared { message } => self.cannot_begin(&root, message),
            Event::Broken { message } | Event::Unmasked { message, .. } => self.broken_queued(&root, message),
            _ => self.phase = Phase::Queued(root),
        }
    }

    fn handle_running(&mut self, event: &Event) {
        match event {
            Event::Fetched { process, result } => self.fetched(*process, result),
            Event::FetchRetried { process, why } => self.fetch_retried(*process, why),
            Event::Exited { process, end, shell, outputs, exports, ran } => {
                if let Some(step) = self.ran(*process, ran.as_ref(), shell.as_deref()) {
                    self.exited(step, end, outputs.as_ref(), exports.as_ref());
                }
            }
            Event::Returned { process, status, shell, returned, ran } => {
                if let Some(step) = self.ran(*process, ran.as_ref(), shell.as_deref()) {
                    self.returned_by(step, *status, (**returned).clone());
                }
            }
            Event::CancelAsked { cause, grace_limit, force } => self.cancel(*cause, *grace_limit, *force),
            Event::Due { timer } => self.due(*timer),
            Event::Cleared { call } => self.cleared(*call),
            Event::Broken { message } | Event::Unmasked { message, .. } => self.broken(message),
            Event::Accepted(_)
            | Event::Admitted { .. }
            | Event::Unprepared { .. }
            | Event::FetchedAgain { .. } => {}
        }
    }

    /// Goes on with lists and groups whose turn it is, until all wait.
    fn go_on(&mut self) {
        while let Some(call) = self.ready.pop_front() {
            match self.calls.get(&call).map(|call| &call.work) {
                Some(Work::List(_)) => self.next_step(call),
                Some(Work::Group(_)) => self.next_members(call),
                _ => {}
            }
        }
    }

    /// True if the job is over and ignores all further events.
    #[cfg(test)]
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Adds an effect, preceded by phrases that became known (language.md §11.5).
    fn push(&mut self, effect: Effect) {
        let fresh = self.secrets.take_fresh();
        if !fresh.is_empty() {
            self.effects.push(Effect::Phrases(fresh));
        }
        self.effects.push(effect);
    }

    fn log(&mut self, line: &DaemonLine<'_>) {
        let (kind, text) = line.to_parts();
        self.times.log_grows();
        self.push(Effect::Log { kind, text });
    }

    /// Shows the warnings of a file (logs.md §2).
    fn warn(&mut self, warnings: &[Diagnostic]) {
        for warning in warnings {
            self.log(&DaemonLine::Warning(Warning::Text(&failure::located(warning))));
        }
    }

    const fn next_call(&mut self) -> CallId {
        self.last_call += 1;
        self.last_call
    }
}

impl Constants {
    fn of(spec: &JobSpec) -> Self {
        let masked = spec.vars.iter().filter(|(_, value)| value.sensitive).map(|(name, _)| name.clone());
        let is_debug = |(name, level): &(Vec<u8>, Vec<u8>)| name == LOG_LEVEL.as_bytes() && level == b"debug";
        Self {
            environment: Environment::new(Arc::clone(&spec.base_env), spec.env.clone())
                .masking(masked.collect()),
            vars: spec.vars.clone(),
            work_dir: spec.work_dir.as_str().into(),
            tmp_dir: spec.tmp_dir.as_str().into(),
            no_steps: Steps::new(),
            debug: spec.base_env.iter().any(is_debug),
            cancel_grace: spec.cancel_grace,
            default_grace: spec.default_grace,
            cleanup_timeout: spec.cleanup_timeout,
            members_at_a_time: spec.members_at_a_time,
            errexit: spec.errexit,
            trace_sections: spec.trace_sections,
        }
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
