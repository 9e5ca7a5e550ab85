//! The tree of a job's results, folded from what its machine tells of steps (architecture.md, "One order of events").

use std::collections::BTreeMap;

use step_runner_model::{StepOutcome, StepResult};

use super::effect::StepNote;
use super::event::CallId;
use super::machine::ROOT;

/// Results of the steps of a job, so far.
#[derive(Default)]
pub struct ResultTree {
    /// The latest result of each step. Boxed: a leaf of the map has room for eleven values, and most jobs have one step.
    results: BTreeMap<CallId, Box<StepResult>>,
    /// Steps by the call that they belong to, in the order in which they began.
    steps: BTreeMap<CallId, Vec<CallId>>,
}

impl ResultTree {
    /// Takes what is told of a step.
    pub fn add(&mut self, note: StepNote) {
        let StepNote { call, parent, result, .. } = note;
        let begins = result.outcome == StepOutcome::Unspecified;
        if self.results.insert(call, Box::new(result)).is_none() {
            if call != ROOT {
                self.steps.entry(parent).or_default().push(call);
            }
        } else if begins {
            // A further attempt: what the one before called is not shown.
            self.drop_steps(call);
        }
    }

    fn drop_steps(&mut self, call: CallId) {
        for step in self.steps.remove(&call).unwrap_or_default() {
            self.results.remove(&step);
            self.drop_steps(step);
        }
    }

    /// Returns the result of a call with those of its steps, so far: of a list in the order in which they began, of a group
    /// in the order of its members. The language bounds the depth (language.md §6), so recursion is safe.
    pub fn subtree(&self, call: CallId) -> Option<StepResult> {
        let result = self.results.get(&call)?.as_ref().clone();
        let steps = self.steps.get(&call).map(Vec::as_slice).unwrap_or_default();
        let sub_steps = steps.iter().filter_map(|step| self.subtree(*step)).collect();
        Some(StepResult { sub_steps: by_number(sub_steps), ..result })
    }

    /// Returns the result of the job with those of all steps, and leaves nothing.
    pub fn take_root(&mut self, root: StepResult) -> StepResult {
        self.results.insert(ROOT, Box::new(root));
        self.take(ROOT).unwrap_or_default()
    }

    fn take(&mut self, call: CallId) -> Option<StepResult> {
        let result = *self.results.remove(&call)?;
        let steps = self.steps.remove(&call).unwrap_or_default();
        let sub_steps = steps.into_iter().filter_map(|step| self.take(step)).collect();
        Some(StepResult { sub_steps: by_number(sub_steps), ..result })
    }
}

fn by_number(mut steps: Vec<StepResult>) -> Vec<StepResult> {
    steps.sort_by_key(|step| step.facts.number);
    steps
}
