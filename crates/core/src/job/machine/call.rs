//! Calls under way: the nodes of the tree.

mod members;

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use step_runner_lang::ast::flow::Flow;
use step_runner_lang::ast::{Body, Reference, Step};
use step_runner_lang::environment::{Environment, Exports};
use step_runner_lang::eval::{ListState, Steps};
use step_runner_lang::reference;
use step_runner_lang::value::Value;
use step_runner_model::{StepResult, StepUsage};

use crate::job::effect::{StepFiles, Success};
use crate::job::event::{CallId, Fetched, ProcessNumber, TimerId};
use crate::plan::library::Loaded;
use crate::plan::locate;

use super::failure::Failure;
use super::{Machine, ROOT};
pub(super) use members::{Group, GroupMember};

/// A step under way, or the root. All attempts of a step are one call.
pub(super) struct Call {
    /// The function or group that it is part of; `None` for the root.
    pub(super) parent: Option<CallId>,
    /// Its step; `None` for the root.
    pub(super) step: Option<StepAt>,
    /// Its name; of a member of a matrix with the values. Empty for the root.
    pub(super) name: String,
    /// Its position and number in its group, if it is a member.
    pub(super) member: Option<Member>,
    /// The call that holds the exports in force for it.
    pub(super) domain: CallId,
    /// Exports, if they are its own: of the root and of members of groups.
    pub(super) exports: Option<Domain>,
    /// Number of the stream that its processes write.
    pub(super) slot: u8,
    /// True inside of a member of a group.
    pub(super) is_inside_member: bool,
    /// Number of functions with steps around it.
    pub(super) depth: usize,
    /// Number of groups around it, through functions.
    pub(super) groups: usize,
    /// Number of its current attempt: of its process or its fetch. The first attempt has the number of the call.
    pub(super) process: ProcessNumber,
    /// State of its attempts, if the step has keys of control flow.
    pub(super) attempts: Option<Box<Attempts>>,
    /// The part of the job whose stop has stopped it, by the part's root.
    pub(super) stop: Option<CallId>,
    /// True once its start is noted.
    pub(super) is_noted: bool,
    /// Resources that the calls below it used.
    pub(super) usage: Option<StepUsage>,
    /// Its result, complete except for its end.
    pub(super) result: Box<StepResult>,
    /// The thing that it waits for.
    pub(super) work: Work,
}

/// Position of a member in its group.
pub(super) struct Member {
    /// Index in the group.
    pub(super) index: usize,
    /// Its values, if the group is a matrix.
    pub(super) values: Option<Arc<IndexMap<String, Value>>>,
}

/// State of the attempts of a step.
pub(super) struct Attempts {
    /// Number of attempts started.
    pub(super) started: u32,
    /// Results of earlier attempts.
    pub(super) earlier: Vec<StepResult>,
    /// Exports before the step.
    pub(super) exports: Domain,
    /// Processes of the current attempt, if the step can be tried again.
    pub(super) processes: Vec<ProcessNumber>,
    /// Timer of the limit.
    pub(super) timer: Option<TimerId>,
    /// True once the limit has passed.
    pub(super) is_timed_out: bool,
}

/// End of an attempt.
pub(super) enum AttemptEnd {
    /// It has succeeded with these outputs.
    Success(IndexMap<String, Value>),
    /// It has failed.
    Failed(Failure),
    /// It was stopped.
    Cancelled,
}

/// Exports in force for a part of the job.
#[derive(Clone, Default)]
pub(super) struct Domain {
    /// All exports.
    pub(super) all: Exports,
    /// Exports of steps of this part alone.
    pub(super) own: Exports,
}

/// The thing that a call waits for.
pub(super) enum Work {
    /// Nothing: it is being started or ended.
    Nothing,
    /// Its function is being fetched.
    Loading(Box<Loading>),
    /// The tree that the builtin fetches.
    Fetching(Box<Fetching>),
    /// Its process.
    Running(Box<Leaf>),
    /// The current step of its list.
    List(Box<List>),
    /// Its members.
    Group(Box<Group>),
    /// The time of the next attempt, and the end of what the last attempt left.
    Delay {
        /// `None` once the time has come.
        timer: Option<TimerId>,
        /// True once nothing of the last attempt is left.
        is_clear: bool,
    },
}

/// A function that is being fetched.
pub(super) struct Loading {
    pub(super) files: StepFiles,
    pub(super) reference: Reference,
}

/// A tree that functions were fetched into.
pub(super) struct FetchedTree {
    /// Its folder, absolute.
    pub(super) root: String,
    /// The place that it comes from, for messages, without credentials.
    origin: String,
}

impl FetchedTree {
    /// Describes the tree that `reference` was fetched into; `None` for a file of the job's environment.
    pub(super) fn new(reference: &Reference, fetched: &Fetched) -> Option<Self> {
        Some(Self { root: fetched.tree.clone()?, origin: reference::origin(reference)? })
    }

    /// Returns the name of its file `path` in messages: the folder means nothing to people, and is gone when they look.
    pub(super) fn name_of(&self, path: &str) -> String {
        let inside = locate::tidy(path.strip_prefix(&self.root).unwrap_or(path));
        format!("{} {}", self.origin, inside.trim_start_matches('/'))
    }
}

/// A function that is about to begin.
pub(super) struct Entry {
    /// Its call.
    pub(super) id: CallId,
    pub(super) files: StepFiles,
    pub(super) loaded: Arc<Loaded>,
    pub(super) inputs: IndexMap<String, Value>,
    pub(super) func_dir: Arc<str>,
    pub(super) tree: Option<Arc<FetchedTree>>,
    /// The caller's environment and that of the step, without the exports.
    pub(super) environment: Environment,
}

/// A builtin that waits for a tree to be fetched.
pub(super) struct Fetching {
    pub(super) entry: Entry,
    pub(super) reference: Reference,
}

/// A process under way.
pub(super) struct Leaf {
    pub(super) loaded: Arc<Loaded>,
    pub(super) cancel_timeout: Option<Duration>,
    /// The exits that count as success.
    pub(super) success: Success,
    /// True if it has files that are to be removed at its end.
    pub(super) has_files: bool,
    /// True if its success ends the job in silence.
    pub(super) ends_job: bool,
    /// The grace that it was told, once it is being stopped.
    pub(super) grace: Option<Duration>,
}

/// A run function under way.
pub(super) struct List {
    pub(super) loaded: Arc<Loaded>,
    pub(super) func_dir: Arc<str>,
    pub(super) tree: Option<Arc<FetchedTree>>,
    pub(super) inputs: IndexMap<String, Value>,
    /// Ended steps as the object `steps` (language.md §10).
    pub(super) steps: Steps,
    /// Index of the step to start next.
    pub(super) next: usize,
    /// True if no step has a key of control flow (flow.md).
    pub(super) is_plain: bool,
    /// The failure that decides.
    pub(super) failure: Option<Failure>,
    /// Set once it is cancelled.
    pub(super) cancelled: Option<ListState>,
    pub(super) files: StepFiles,
    /// True once its files are made, because an expression has named them.
    pub(super) files_made: bool,
    /// Environment in force inside, without the exports.
    pub(super) environment: Environment,
}

/// Place of a step: in the list of a function, or among the members of one of its steps.
#[derive(Clone)]
pub(super) struct StepAt {
    pub(super) loaded: Arc<Loaded>,
    pub(super) index: usize,
    /// Index among the members of a group that is written as one.
    pub(super) member: Option<usize>,
}

impl StepAt {
    /// Returns the step. Only a place that never was gives `None`.
    pub(super) fn get(&self) -> Option<&Step> {
        let step = steps_of(&self.loaded).get(self.index)?;
        match self.member {
            Some(member) => step.members().get(member),
            None => Some(step),
        }
    }

    pub(super) fn flow(&self) -> Option<&Flow> {
        self.get()?.flow.as_deref()
    }
}

/// Returns the steps of a function.
pub(super) fn steps_of(loaded: &Loaded) -> &[Step] {
    match &loaded.function.definition.body {
        Body::Run(run) => &run.steps,
        Body::Exec(_) => &[],
    }
}

impl List {
    /// Returns its state as `run.status` shows it (flow.md §2).
    pub(super) fn state(&self) -> ListState {
        match (self.cancelled, &self.failure) {
            (Some(state), _) => state,
            (None, Some(_)) => ListState::Failure,
            (None, None) => ListState::Success,
        }
    }
}

impl Call {
    /// Returns the control flow that holds for its attempts. The flow of a matrix holds for each member instead.
    pub(super) fn flow(&self) -> Option<&Flow> {
        let flow = self.step.as_ref()?.flow()?;
        let is_matrix = flow.matrix.is_some() && self.member.is_none();
        (!is_matrix).then_some(flow)
    }

    /// Returns its list, if it is a function with steps.
    pub(super) fn list(&self) -> Option<&List> {
        match &self.work {
            Work::List(list) => Some(list),
            _ => None,
        }
    }

    /// Returns its members, if it is a group.
    pub(super) fn group(&self) -> Option<&Group> {
        match &self.work {
            Work::Group(group) => Some(group),
            _ => None,
        }
    }
}

impl Machine {
    /// Returns the process of a call's current attempt, and its step.
    pub(super) fn leaf(&self, process: ProcessNumber) -> Option<(&Call, &Leaf)> {
        let call = self.calls.get(&self.step_of(process)?)?;
        match &call.work {
            Work::Running(leaf) => Some((call, leaf)),
            _ => None,
        }
    }

    /// Returns the step whose current attempt has this process or fetch.
    pub(super) fn step_of(&self, process: ProcessNumber) -> Option<CallId> {
        if self.calls.get(&process).is_some_and(|call| call.process == process) {
            return Some(process);
        }
        self.calls.iter().find(|(_, call)| call.process == process && process != ROOT).map(|(step, _)| *step)
    }

    pub(super) fn list(&self, id: CallId) -> Option<&List> {
        self.calls.get(&id)?.list()
    }

    pub(super) fn list_mut(&mut self, id: CallId) -> Option<&mut List> {
        match &mut self.calls.get_mut(&id)?.work {
            Work::List(list) => Some(list),
            _ => None,
        }
    }

    pub(super) fn group_mut(&mut self, id: CallId) -> Option<&mut Group> {
        match &mut self.calls.get_mut(&id)?.work {
            Work::Group(group) => Some(group),
            _ => None,
        }
    }

    /// Returns the innermost list around a call: the caller of its function.
    pub(super) fn caller(&self, id: CallId) -> Option<CallId> {
        let mut parent = self.calls.get(&id)?.parent?;
        loop {
            let call = self.calls.get(&parent)?;
            if matches!(call.work, Work::List(_)) {
                return Some(parent);
            }
            parent = call.parent?;
        }
    }

    /// Returns the call and the calls around it, innermost first.
    pub(super) fn chain(&self, id: CallId) -> impl Iterator<Item = (CallId, &Call)> {
        let mut next = Some(id);
        std::iter::from_fn(move || {
            let id = next?;
            let call = self.calls.get(&id)?.as_ref();
            next = call.parent;
            Some((id, call))
        })
    }

    /// True if the list around a step is plain: nothing of flow.md applies to the step.
    pub(super) fn is_in_plain_list(&self, call: &Call) -> bool {
        call.parent.is_none_or(|parent| self.list(parent).is_some_and(|list| list.is_plain))
    }

    /// Returns the exports in force for a call.
    pub(super) fn domain(&self, call: CallId) -> Domain {
        let domain = self.calls.get(&call).map_or(ROOT, |call| call.domain);
        self.calls.get(&domain).and_then(|call| call.exports.clone()).unwrap_or_default()
    }

    pub(super) fn set_domain(&mut self, call: CallId, exports: Domain) {
        let domain = self.calls.get(&call).map_or(ROOT, |call| call.domain);
        if let Some(call) = self.calls.get_mut(&domain) {
            call.exports = Some(exports);
        }
    }

    /// Returns the environment in force in a list.
    pub(super) fn environment_of(&self, list: CallId) -> Environment {
        let environment = self.list(list).map_or(&self.constants.environment, |list| &list.environment);
        environment.clone().with_exports(self.domain(list).all)
    }

    /// Returns the calls directly below a call, in the order in which they began.
    pub(super) fn below(&self, id: CallId) -> Vec<CallId> {
        let children = self.calls.iter().filter(|(_, call)| call.parent == Some(id));
        let mut children: Vec<(usize, CallId)> =
            children.map(|(id, call)| (call.member.as_ref().map_or(0, |member| member.index), *id)).collect();
        children.sort_unstable();
        children.into_iter().map(|(_, id)| id).collect()
    }
}
