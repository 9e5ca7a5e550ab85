//! Steps of a list that cannot be used yet, to tell them from names that no step has (language.md §10).

use crate::ast::Step;
use crate::diagnostic::Position;

/// Steps of the list around an expression. Those of them that have ended are looked up elsewhere.
#[derive(Clone, Copy, Default)]
pub struct StepsAhead<'a> {
    /// All steps of the list.
    pub list: &'a [Step],
    /// Members of the group that the step with the expression is in.
    pub group: &'a [Step],
}

impl StepsAhead<'_> {
    /// Returns why the step `name`, which has not ended, cannot be used. `None`: there is no such step.
    pub(super) fn reason(&self, name: &str) -> Option<String> {
        if self.group.iter().any(|member| member.name == name) {
            return Some(beside());
        }
        let mut all = self.list.iter().flat_map(|step| std::iter::once(step).chain(step.members()));
        all.find(|step| step.name == name).map(|step| later(step.at))
    }
}

/// Returns why a step at `at` cannot be used by one that comes before it.
pub fn later(at: Position) -> String {
    format!("the step stands at line {}; only steps before this one can be used", at.line)
}

/// Returns why a member of a group cannot be used by another one.
pub fn beside() -> String {
    "members of a group do not see each other: they run side by side".to_owned()
}
