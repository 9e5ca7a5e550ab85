//! The steps under way, as Status shows them: a projection of what happens to steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actors::view::CurrentStep;
use crate::job::event::CallId;
use crate::job::machine::ROOT;
use crate::model::{StepFacts, StepOutcome};

/// Steps that have begun and not ended.
#[derive(Default)]
pub(super) struct OpenSteps {
    steps: BTreeMap<CallId, OpenStep>,
    /// Length of the job's own list.
    total: u32,
}

/// A step under way.
struct OpenStep {
    parent: CallId,
    /// Its name, masked.
    name: String,
    number: u32,
    is_member: bool,
}

/// Facts of an event that decide what runs.
pub(super) struct StepChange {
    pub(super) call: CallId,
    pub(super) parent: CallId,
    pub(super) is_member: bool,
    pub(super) outcome: StepOutcome,
    pub(super) facts: StepFacts,
}

impl OpenSteps {
    /// Takes an event of a step with this masked name. Returns the steps that run now.
    pub(super) fn take(&mut self, change: StepChange, name: String) -> CurrentStep {
        let StepChange { call, parent, is_member, outcome, facts } = change;
        if call == ROOT {
            self.total = facts.steps.unwrap_or_default();
            return self.current(ROOT);
        }
        if parent == ROOT {
            self.total = facts.total;
        }
        if outcome == StepOutcome::Unspecified {
            self.steps.insert(call, OpenStep { parent, name, number: facts.number, is_member });
            return self.current(call);
        }
        self.steps.remove(&call);
        self.current(parent)
    }

    /// Returns the path from the outermost step to `call`. It ends at the group if several steps may run.
    fn current(&self, call: CallId) -> CurrentStep {
        let (mut names, mut number, mut at) = (Vec::new(), 0, call);
        // A parent has a smaller number, so this ends.
        while let Some(step) = self.steps.get(&at) {
            if step.is_member {
                names.clear();
            } else {
                names.push(step.name.clone());
            }
            (number, at) = (step.number, step.parent);
        }
        names.reverse();
        CurrentStep { names: Arc::new(names), number, total: self.total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(
        open: &mut OpenSteps,
        call: CallId,
        parent: CallId,
        name: &str,
        is_member: bool,
        ends: bool,
    ) -> String {
        let outcome = if ends { StepOutcome::Success } else { StepOutcome::Unspecified };
        let facts = StepFacts { number: call, total: 9, ..StepFacts::default() };
        let current = open.take(StepChange { call, parent, is_member, outcome, facts }, name.to_owned());
        format!("{} {}/{}", current.names.join("/"), current.number, current.total)
    }

    #[test]
    fn the_path_ends_at_a_group_and_goes_back_when_a_step_ends() {
        let mut open = OpenSteps::default();
        assert_eq!(take(&mut open, 1, 0, "build", false, false), "build 1/9");
        assert_eq!(take(&mut open, 2, 1, "inner", false, false), "build/inner 1/9");
        assert_eq!(take(&mut open, 2, 1, "inner", false, true), "build 1/9");
        assert_eq!(take(&mut open, 1, 0, "build", false, true), " 0/9");
        assert_eq!(take(&mut open, 3, 0, "group", false, false), "group 3/9");
        assert_eq!(take(&mut open, 4, 3, "member", true, false), "group 3/9");
        assert_eq!(take(&mut open, 5, 4, "inside", false, false), "group 3/9");
        assert_eq!(take(&mut open, 6, 3, "other", true, true), "group 3/9");
    }
}
