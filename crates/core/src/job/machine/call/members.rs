//! The members of a group or matrix under way (flow.md §5).

use indexmap::IndexMap;
use step_runner_lang::ast::Step;
use step_runner_lang::ast::flow::MEMBERS_AT_A_TIME;
use step_runner_lang::eval::{EndedStep, ListState};
use step_runner_lang::value::{Data, Value};

use super::super::failure::Failure;
use super::{Member, StepAt};

/// A group or matrix under way.
pub(in super::super) struct Group {
    /// Its members, in list order.
    pub(in super::super) members: Vec<GroupMember>,
    /// Index of the member to begin next.
    pub(in super::super) next: usize,
    /// Number of members under way.
    pub(in super::super) running: usize,
    /// Most members at a time.
    pub(in super::super) max: usize,
    pub(in super::super) fail_fast: bool,
    /// The failure of the member that failed first.
    pub(in super::super) failure: Option<Failure>,
    /// Set once no further member begins: their reason.
    pub(in super::super) closing: Option<&'static str>,
    pub(in super::super) is_matrix: bool,
    /// State of the list before the group, which is the one that its members see.
    pub(in super::super) before: ListState,
}

/// A member of a group.
pub(in super::super) struct GroupMember {
    pub(in super::super) at: StepAt,
    pub(in super::super) name: String,
    pub(in super::super) member: Member,
    /// Its end, for the expressions behind it.
    pub(in super::super) ended: Option<EndedStep>,
    /// Its exports, if it succeeded.
    pub(in super::super) exports: IndexMap<String, String>,
}

impl GroupMember {
    pub(in super::super) fn new(at: StepAt, name: String, member: Member) -> Self {
        Self { at, name, member, ended: None, exports: IndexMap::new() }
    }
}

impl Group {
    pub(in super::super) fn new(
        members: Vec<GroupMember>,
        step: &Step,
        default_max: u8,
        is_inside_member: bool,
        before: ListState,
    ) -> Self {
        let flow = step.flow.as_deref();
        let max = flow.and_then(|flow| flow.max).unwrap_or(default_max).clamp(1, MEMBERS_AT_A_TIME);
        Self {
            members,
            next: 0,
            running: 0,
            max: if is_inside_member { 1 } else { max.into() },
            fail_fast: flow.is_none_or(|flow| flow.fail_fast),
            failure: None,
            closing: None,
            is_matrix: flow.is_some_and(|flow| flow.matrix.is_some()),
            before,
        }
    }

    /// Returns the members that the list around the group sees after it. Those of a matrix are in its results.
    pub(in super::super) fn into_visible(self) -> Vec<(String, EndedStep)> {
        if self.is_matrix {
            return Vec::new();
        }
        self.members.into_iter().filter_map(|member| Some((member.name, member.ended?))).collect()
    }

    /// Returns the results of a matrix as expressions see them.
    pub(in super::super) fn results(&self) -> Value {
        let text = |text: &str| Value::text(text);
        let result = |member: &GroupMember| {
            let ended = member.ended.as_ref()?;
            let values = member.member.values.as_deref().cloned().unwrap_or_default();
            let code = ended.exit_code.map_or(Data::Null, |code| Data::Number(f64::from(code)));
            let members = [
                ("matrix", Value::object(values)),
                ("status", text(ended.outcome.word())),
                ("outputs", Value::object(ended.outputs().cloned().unwrap_or_default())),
                ("exit_code", Value::plain(code)),
            ];
            let members = members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            Some(Value::object(members))
        };
        Value::array(self.members.iter().filter_map(result))
    }
}
