//! The tree of a job's results, folded from what its machine tells of steps (architecture.md, "One order of events").

use std::collections::BTreeMap;

use step_runner_model::StepResult;

use super::effect::StepNote;
use super::event::CallId;
use super::machine::ROOT;

/// Results of the steps of a job, so far.
#[derive(Default)]
pub struct ResultTree {
    /// What was told last of each step.
    results: BTreeMap<CallId, StepResult>,
    /// Steps by the call that they belong to, in the order in which they began.
    steps: BTreeMap<CallId, Vec<CallId>>,
}

impl ResultTree {
    /// Takes what is told of a step.
    pub fn add(&mut self, note: StepNote) {
        if self.results.insert(note.call, note.result).is_none() {
            self.steps.entry(note.parent).or_default().push(note.call);
        }
    }

    /// Takes a step of the job's own list out of the tree: its result with those of its steps.
    pub fn take(&mut self, call: CallId) -> Option<StepResult> {
        if let Some(own) = self.steps.get_mut(&ROOT) {
            own.retain(|step| *step != call);
        }
        self.with_steps(call)
    }

    /// Returns the result of the job with those of all steps that are in the tree.
    pub fn with_root(&mut self, root: StepResult) -> StepResult {
        self.results.insert(ROOT, root);
        self.with_steps(ROOT).unwrap_or_default()
    }

    /// Returns the result of a call with those of its steps: of a list in the order in which they began, of a group in the
    /// order of its members. The language bounds the depth (language.md §6), so recursion is safe.
    fn with_steps(&mut self, call: CallId) -> Option<StepResult> {
        let result = self.results.remove(&call)?;
        let steps = self.steps.remove(&call).unwrap_or_default();
        let mut sub_steps: Vec<StepResult> =
            steps.into_iter().filter_map(|step| self.with_steps(step)).collect();
        sub_steps.sort_by_key(|step| step.facts.number);
        Some(StepResult { sub_steps, ..result })
    }
}
