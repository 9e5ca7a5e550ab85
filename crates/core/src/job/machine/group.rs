//! Groups: members that run side by side (flow.md §5).

use std::collections::BTreeMap;

use indexmap::IndexMap;
use step_runner_lang::ast::Step;
use step_runner_lang::ast::flow::MEMBERS_AT_A_TIME;
use step_runner_lang::diagnostic::{Class, Diagnostic};
use step_runner_lang::eval::EndedStep;
use step_runner_log::words::{DaemonLine, Warning};
use step_runner_model::StepOutcome;

use crate::job::event::CallId;

use super::Machine;
use super::call::{AttemptEnd, Call, Domain, Group, GroupMember, List, Member, StepAt, Work};
use super::failure::Failure;
use super::list::Verdict;

/// Deepest nesting of groups, through functions. Results must stay within the depth that usual decoders take (flow.md §8).
const NESTING_LIMIT: usize = 8;

/// Reason of members that a failure of another one skips.
pub(super) const FAIL_FAST: &str = "fail_fast";

/// Slots of the members under way, 1 to 14 (flow.md §5).
#[derive(Default)]
pub(super) struct Slots {
    taken: u16,
}

impl Slots {
    /// Takes the lowest free slot.
    fn take(&mut self) -> u8 {
        let slot = (1..=MEMBERS_AT_A_TIME).find(|slot| self.taken & (1 << slot) == 0).unwrap_or(1);
        self.taken |= 1 << slot;
        slot
    }

    const fn free(&mut self, slot: u8) {
        self.taken &= !(1 << slot);
    }
}

impl Machine {
    /// Begins a step that is written as a group.
    pub(super) fn begin_group(&mut self, id: CallId) {
        let Some(at) = self.calls.get(&id).and_then(|call| call.step.clone()) else { return };
        let Some(step) = at.get() else { return };
        let members = step.members().iter().enumerate().map(|(index, member)| {
            let at = StepAt { member: Some(index), ..at.clone() };
            GroupMember::new(at, member.name.clone(), Member { index, values: None })
        });
        let members = members.collect();
        self.open_group(id, step, members);
    }

    /// Opens a group whose start is noted.
    pub(super) fn open_group(&mut self, id: CallId, step: &Step, members: Vec<GroupMember>) {
        let default = self.constants.members_at_a_time;
        let before =
            self.caller(id).and_then(|caller| self.list(caller)).map(List::state).unwrap_or_default();
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.groups += 1;
        call.result.facts.steps = Some(members.len() as u32);
        let group = Group::new(members, step, default, call.is_inside_member, before);
        call.work = Work::Group(Box::new(group));
        self.ready.push_front(id);
    }

    /// True if a group in this list would be nested too deeply.
    pub(super) fn is_too_nested(&self, list: CallId) -> bool {
        self.calls.get(&list).is_some_and(|call| call.groups >= NESTING_LIMIT)
    }

    pub(super) fn too_nested(at: &StepAt, step: &Step) -> Failure {
        let message = format!("groups are nested more than {NESTING_LIMIT} levels deep, functions included");
        let finding = Diagnostic::error(Class::Limit, &at.loaded.function.file, step.at, message);
        Failure::at(&[finding.with_path(step.path.clone())])
    }

    /// Begins the next member if it is its turn, or ends the group.
    pub(super) fn next_members(&mut self, id: CallId) {
        let Some(group) = self.group_mut(id) else { return };
        if group.next < group.members.len() && group.running < group.max {
            // What follows from the begin of a member comes before the next one.
            self.ready.push_front(id);
            self.begin_member(id);
        } else if group.next == group.members.len() && group.running == 0 {
            self.end_group(id);
        }
    }

    /// Begins or skips the next member.
    fn begin_member(&mut self, id: CallId) {
        let Some(group) = self.group_mut(id) else { return };
        let index = group.next;
        group.next += 1;
        let Some(member) = group.members.get(index) else { return };
        let (at, name) = (member.at.clone(), member.name.clone());
        let position = Member { index, values: member.member.values.clone() };
        match self.verdict_of_member(id, &at, &position) {
            Verdict::Skip(reason) => self.skip_member(id, index, &reason),
            verdict => {
                if let Some(group) = self.group_mut(id) {
                    group.running += 1;
                }
                let call = self.add_call(id, at, name, Some(position));
                self.take_slot(call);
                match verdict {
                    Verdict::Fail(failure) => self.fail_unbegun(call, failure),
                    _ => self.begin_attempt(call),
                }
            }
        }
    }

    fn skip_member(&mut self, id: CallId, index: usize, reason: &str) {
        let Some(member) = self.group_mut(id).and_then(|group| group.members.get_mut(index)) else { return };
        member.ended = Some(EndedStep::skipped(None));
        let (at, name) = (member.at.clone(), member.name.clone());
        let position = Member { index, values: None };
        self.skip(id, &at, &name, Some(&position), reason);
    }

    /// Skips all members that have not begun.
    pub(super) fn skip_rest(&mut self, id: CallId, reason: &str) {
        let Some(group) = self.group_mut(id) else { return };
        let rest = group.next..group.members.len();
        group.next = group.members.len();
        for index in rest {
            self.skip_member(id, index, reason);
        }
    }

    /// Gives a member its slot. Inside of another member it has that one's.
    fn take_slot(&mut self, id: CallId) {
        let is_nested = self
            .calls
            .get(&id)
            .and_then(|call| self.calls.get(&call.parent?))
            .is_some_and(|group| group.is_inside_member);
        if is_nested {
            return;
        }
        let slot = self.slots.take();
        if let Some(call) = self.calls.get_mut(&id) {
            call.slot = slot;
        }
    }

    /// Frees the slot of a call that has ended, if it had taken one.
    pub(super) fn free_slot(&mut self, call: &Call) {
        let group = call.parent.and_then(|parent| self.calls.get(&parent));
        let has_own = call.member.is_some() && group.is_some_and(|group| !group.is_inside_member);
        if has_own {
            self.slots.free(call.slot);
        }
    }

    /// Takes the end of a member.
    pub(super) fn member_ended(
        &mut self,
        id: CallId,
        call: Call,
        ended: EndedStep,
        failure: Option<Failure>,
    ) {
        let Some(group) = self.group_mut(id) else { return };
        group.running -= 1;
        let index = call.member.as_ref().map_or(0, |member| member.index);
        if let Some(member) = group.members.get_mut(index) {
            if ended.outcome == StepOutcome::Success {
                member.exports = call.exports.map(|exports| (*exports.own).clone()).unwrap_or_default();
            }
            member.ended = Some(ended);
        }
        if let Some(failure) = failure {
            let is_first = group.failure.is_none();
            group.failure.get_or_insert(failure);
            if is_first && group.fail_fast && group.closing.is_none() {
                group.closing = Some(FAIL_FAST);
                self.stop_members(id);
            }
        }
    }

    /// Ends a group. What its members have exported is in force from now on, in list order.
    fn end_group(&mut self, id: CallId) {
        self.apply_exports(id);
        let failure = self.group_mut(id).and_then(|group| group.failure.clone());
        let end = match failure {
            Some(failure) => AttemptEnd::Failed(failure),
            None => AttemptEnd::Success(IndexMap::new()),
        };
        self.attempt_ended(id, end);
    }

    fn apply_exports(&mut self, id: CallId) {
        let Some(group) = self.group_mut(id) else { return };
        let mut applied: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut exports: IndexMap<String, String> = IndexMap::new();
        let mut warnings = Vec::new();
        for member in &mut group.members {
            for (name, value) in std::mem::take(&mut member.exports) {
                let earlier = applied.insert(name.clone(), (member.name.clone(), value.clone()));
                if let Some((other, _)) = earlier.filter(|(_, other)| *other != value) {
                    warnings.push((other, member.name.clone(), name.clone()));
                }
                exports.insert(name, value);
            }
        }
        for (earlier, later, variable) in &warnings {
            self.log(&DaemonLine::Warning(Warning::ExportsDiffer { earlier, later, variable }));
        }
        let domain = self.domain(id).with(exports);
        self.set_domain(id, domain);
    }
}

impl Domain {
    /// Returns the exports after further ones.
    pub(super) fn with(mut self, exports: IndexMap<String, String>) -> Self {
        if !exports.is_empty() {
            std::sync::Arc::make_mut(&mut self.all).extend(exports.clone());
            std::sync::Arc::make_mut(&mut self.own).extend(exports);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_takes_the_lowest_free_slot() {
        let mut slots = Slots::default();
        assert_eq!([slots.take(), slots.take(), slots.take()], [1, 2, 3]);
        slots.free(2);
        assert_eq!([slots.take(), slots.take()], [2, 4]);
    }
}
