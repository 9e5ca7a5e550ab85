//! State of functions under way.

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use step_runner_lang::ast::{Body, Reference, Step};
use step_runner_lang::eval::Steps;
use step_runner_lang::value::Value;
use step_runner_model::{CancelCause, FinishedProcess, StepFacts, StepInfo, StepResult, StepStatus};

use crate::job::effect::{StepFiles, Success};
use crate::job::event::CallId;
use crate::plan::library::Loaded;

use super::times::used_by;

/// A step whose function is being fetched. It is the current step of the innermost frame.
pub(super) struct Loading {
    pub(super) call: CallId,
    pub(super) files: StepFiles,
    pub(super) reference: Reference,
}

/// A run function under way.
pub(super) struct FunctionFrame {
    pub(super) loaded: Arc<Loaded>,
    pub(super) func_dir: Arc<str>,
    pub(super) tree: Option<Arc<str>>,
    pub(super) inputs: IndexMap<String, Value>,
    /// Ended steps of this list as the object `steps` (language.md §10).
    pub(super) steps: Steps,
    /// Index of the step to start next.
    pub(super) next: usize,
    /// Number of environment layers that end with it.
    pub(super) layers: usize,
    pub(super) files: StepFiles,
    pub(super) call: CallId,
    /// True once its files are made, because an expression has named them.
    pub(super) files_made: bool,
    /// The invocation; `None` for the root.
    pub(super) step: Option<Box<StepInfo>>,
    /// Effective environment above the base, for the result.
    pub(super) env: IndexMap<String, String>,
    pub(super) sub_steps: Vec<StepResult>,
    pub(super) facts: StepFacts,
}

/// Returns the step before index `next` of a function: the one that began last.
pub(super) fn step_before(function: &Loaded, next: usize) -> Option<&Step> {
    let Body::Run(run) = &function.function.definition.body else { return None };
    run.steps.get(next.checked_sub(1)?)
}

impl FunctionFrame {
    pub(super) fn current(&self) -> Option<&Step> {
        step_before(&self.loaded, self.next)
    }

    /// True if its last step has begun.
    pub(super) fn has_begun_all(&self) -> bool {
        match &self.loaded.function.definition.body {
            Body::Run(run) => self.next >= run.steps.len(),
            Body::Exec(_) => true,
        }
    }

    /// Name of the calling step; `None` for the root.
    pub(super) fn name(&self) -> Option<&str> {
        self.step.as_ref().map(|step| step.name.as_str())
    }
}

/// A cancel of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopping {
    /// The first cause.
    pub(super) cause: CancelCause,
    /// The smallest limit that a cancel set for the grace of any process.
    pub(super) limit: Option<Duration>,
    /// The grace in force for this process.
    pub(super) grace: Duration,
}

/// A process under way.
pub(super) struct Leaf {
    pub(super) call: CallId,
    pub(super) loaded: Arc<Loaded>,
    /// Number of environment layers that end with it.
    pub(super) layers: usize,
    pub(super) cancel_timeout: Option<Duration>,
    /// The exits that count as success.
    pub(super) success: Success,
    /// True if it can return values in files.
    pub(super) has_files: bool,
    /// True if its program was written to a file.
    pub(super) has_program_file: bool,
    /// The cancel under way.
    pub(super) stopping: Option<Stopping>,
    /// The result, complete except for its end.
    pub(super) result: StepResult,
}

/// Creates the result of a step that begins; its definition is added at the end.
pub(super) fn started(step: Option<StepInfo>, facts: StepFacts, env: IndexMap<String, String>) -> StepResult {
    StepResult { step, status: StepStatus::Running, env, facts, ..StepResult::default() }
}

impl FunctionFrame {
    pub(super) fn into_result(self) -> StepResult {
        let facts = StepFacts { usage: used_by(&self.sub_steps), ..self.facts };
        StepResult {
            definition: Some(self.loaded.definition()),
            sub_steps: self.sub_steps,
            ..started(self.step.map(|step| *step), facts, self.env)
        }
    }
}

impl Leaf {
    /// Notes the usage and the shell of the process: results show the command as it ran (language.md §16).
    pub(super) fn ran(&mut self, ran: Option<&FinishedProcess>, shell: Option<&str>) {
        self.result.facts.usage = ran.and_then(|ran| ran.usage);
        let program = self.result.exec.as_mut().and_then(|exec| exec.command.first_mut());
        if let (Some(program), Some(shell)) = (program, shell) {
            shell.clone_into(program);
        }
    }

    pub(super) fn into_result(self) -> StepResult {
        StepResult { definition: Some(self.loaded.definition()), ..self.result }
    }
}
