//! What a machine keeps of functions under way.

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;

use crate::job::effect::{StepFiles, Success};
use crate::job::event::CallId;
use crate::lang::ast::{Body, Reference, Step};
use crate::lang::eval::Steps;
use crate::lang::value::Value;
use crate::model::{CancelCause, StepInfo, StepResult, StepStatus};
use crate::plan::library::Loaded;

/// A step whose function is being fetched. The step itself is the current one of the innermost frame.
pub(super) struct Loading {
    pub(super) call: CallId,
    pub(super) files: StepFiles,
    pub(super) reference: Reference,
}

/// A run function under way.
pub(super) struct Frame {
    pub(super) loaded: Arc<Loaded>,
    pub(super) func_dir: Arc<str>,
    pub(super) tree: Option<Arc<str>>,
    pub(super) inputs: IndexMap<String, Value>,
    /// Finished steps of this list as the object `steps` (language.md §10).
    pub(super) steps: Steps,
    /// Index of the step to start next.
    pub(super) next: usize,
    /// Environment frames that end with it.
    pub(super) layers: usize,
    pub(super) files: StepFiles,
    /// An expression has named its files: they have been made.
    pub(super) files_made: bool,
    /// The invocation; `None` for the root.
    pub(super) step: Option<Box<StepInfo>>,
    /// Effective environment above the base, for its result.
    pub(super) env: IndexMap<String, String>,
    /// Results of its steps that have ended.
    pub(super) sub_steps: Vec<StepResult>,
}

/// The step of a function that began last, if `next` is the index of the one to start next.
pub(super) fn step_before(function: &Loaded, next: usize) -> Option<&Step> {
    let Body::Run(run) = &function.function.definition.body else { return None };
    run.steps.get(next.checked_sub(1)?)
}

impl Frame {
    /// The step that began last.
    pub(super) fn current(&self) -> Option<&Step> {
        step_before(&self.loaded, self.next)
    }

    /// Name of the step that called it; `None` for the root.
    pub(super) fn name(&self) -> Option<&str> {
        self.step.as_ref().map(|step| step.name.as_str())
    }
}

/// A process under way.
pub(super) struct Leaf {
    pub(super) call: CallId,
    pub(super) loaded: Arc<Loaded>,
    /// Environment frames that end with it.
    pub(super) layers: usize,
    /// `cancel_timeout` of its function.
    pub(super) cancel_timeout: Option<Duration>,
    /// Which ends of it are successes.
    pub(super) success: Success,
    /// The cancel under way: the first cause, and the grace told last.
    pub(super) stopping: Option<(CancelCause, Duration)>,
    /// Complete but for how it ends.
    pub(super) result: StepResult,
}

/// A result at its beginning; its definition comes at its end.
pub(super) fn started(step: Option<StepInfo>, env: IndexMap<String, String>) -> StepResult {
    StepResult { step, status: StepStatus::Running, env, ..StepResult::default() }
}

impl Frame {
    /// Its result, when it ends.
    pub(super) fn into_result(self) -> StepResult {
        StepResult {
            definition: Some(self.loaded.definition()),
            sub_steps: self.sub_steps,
            ..started(self.step.map(|step| *step), self.env)
        }
    }
}

impl Leaf {
    /// The shell that a script was given to, by its name: results show the command as it ran (language.md §16).
    pub(super) fn ran_by(&mut self, shell: Option<&str>) {
        let program = self.result.exec.as_mut().and_then(|exec| exec.command.first_mut());
        if let (Some(program), Some(shell)) = (program, shell) {
            shell.clone_into(program);
        }
    }

    /// Its result, when it ends.
    pub(super) fn into_result(self) -> StepResult {
        StepResult { definition: Some(self.loaded.definition()), ..self.result }
    }
}
