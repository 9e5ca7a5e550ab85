//! Lists of steps: which step runs, and the end of the list (language.md §14.1, flow.md §3).

use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_lang::ast::flow::{Condition, Flow, When};
use step_runner_lang::ast::{Body, Delegate, Function, Outputs, Step};
use step_runner_lang::diagnostic::{Class, Diagnostic};
use step_runner_lang::eval::{self, EndedStep, ListState};
use step_runner_lang::value::{Data, Value};

use crate::job::event::CallId;
use crate::plan::{bind, returned};

use super::Machine;
use super::call::{AttemptEnd, List, Member, StepAt, steps_of};
use super::failure::Failure;

/// Decision about a step whose turn it is.
pub(super) enum Verdict {
    /// It runs.
    Run,
    /// It does not run, for this reason.
    Skip(String),
    /// It fails without running.
    Fail(Failure),
}

impl Machine {
    /// Begins or skips the next step of a list, or ends the list.
    pub(super) fn next_step(&mut self, id: CallId) {
        let Some(list) = self.list_mut(id) else { return };
        let is_over = list.is_plain && (list.failure.is_some() || list.cancelled.is_some());
        let at = StepAt { loaded: Arc::clone(&list.loaded), index: list.next, member: None };
        let Some(step) = at.get().filter(|_| !is_over) else { return self.end_list(id) };
        list.next += 1;
        match self.verdict_in_list(id, step) {
            Verdict::Run => self.begin_step(id, &at, step),
            Verdict::Skip(reason) => self.skip_step(id, &at, &reason),
            Verdict::Fail(failure) => {
                let call = self.add_call(id, at.clone(), step.name.clone(), None);
                self.fail_unbegun(call, failure);
            }
        }
    }

    /// Decides by `when`, then by `if`.
    fn verdict_in_list(&mut self, id: CallId, step: &Step) -> Verdict {
        let Some(flow) = step.flow.as_deref() else {
            let state = self.list(id).map_or(ListState::Success, List::state);
            return match state {
                ListState::Success => Verdict::Run,
                _ => Verdict::Skip(skipped_by(When::OnSuccess)),
            };
        };
        let state = self.list(id).map_or(ListState::Success, List::state);
        let applies = match flow.when {
            When::OnSuccess => state == ListState::Success,
            When::OnFailure => state == ListState::Failure,
            When::Always => true,
        };
        if !applies {
            return Verdict::Skip(skipped_by(flow.when));
        }
        if matches!(state, ListState::Cancelled | ListState::Timeout)
            && let Some(reason) = self.no_cleanup(id)
        {
            return Verdict::Skip(reason.to_owned());
        }
        let verdict = self.verdict_of_condition(id, id, step, flow);
        if matches!(verdict, Verdict::Run) && matches!(state, ListState::Cancelled | ListState::Timeout) {
            self.begin_cleanup(id);
        }
        verdict
    }

    /// Decides by `if`, in the context of the list `caller`. `around` is this list, or the group in it that the step is a
    /// member of.
    fn verdict_of_condition(&mut self, caller: CallId, around: CallId, step: &Step, flow: &Flow) -> Verdict {
        let (template, text) = match &flow.condition {
            None | Some(Condition::Constant(true)) => return Verdict::Run,
            Some(Condition::Constant(false)) => return Verdict::Skip("false".to_owned()),
            Some(Condition::Expression { template, text }) => (template, text),
        };
        let environment = self.environment_of(caller);
        let (value, used) = {
            let Some(view) = self.view_of_list(caller, around, &environment) else { return Verdict::Run };
            (eval::evaluate_native(template, &view), view.files_used.get())
        };
        self.make_files_if(caller, used);
        let path = format!("{}.if", step.path);
        match value {
            Ok(Value { data: Data::Bool(true), .. }) => Verdict::Run,
            Ok(Value { data: Data::Bool(false), .. }) => Verdict::Skip(text.clone()),
            Ok(value) => {
                let Some(list) = self.list(caller) else { return Verdict::Run };
                let message = format!("expected a boolean, got {}", value.type_name());
                let finding =
                    Diagnostic::error(Class::Type, &list.loaded.function.file, template.at, message);
                let help = "write a comparison, or bool(…)";
                Verdict::Fail(Failure::at(&[finding.with_path(path).with_help(help)]))
            }
            Err(finding) => Verdict::Fail(Failure::at(&[explained(finding.with_path(path))])),
        }
    }

    /// Begins a step that runs: a group, or the first attempt.
    fn begin_step(&mut self, list: CallId, at: &StepAt, step: &Step) {
        if step.is_group() && self.is_too_nested(list) {
            let call = self.add_call(list, at.clone(), step.name.clone(), None);
            return self.fail_unbegun(call, Self::too_nested(at, step));
        }
        if let Some(matrix) = step.flow.as_ref().and_then(|flow| flow.matrix.as_ref()) {
            return self.begin_matrix(list, at, step, matrix);
        }
        let call = self.add_call(list, at.clone(), step.name.clone(), None);
        self.begin_attempt(call);
    }

    /// Skips a step of a list, which then is known to later steps.
    pub(super) fn skip_step(&mut self, list: CallId, at: &StepAt, reason: &str) {
        let Some(step) = at.get() else { return };
        self.skip(list, at, &step.name, None, reason);
        let ended = EndedStep::skipped(at.nothing_returned());
        if let Some(list) = self.list_mut(list) {
            list.steps.extend(at.skipped_members());
            list.steps.insert(step.name.clone(), ended);
        }
        self.ready.push_front(list);
    }

    /// Ends a list: with the failure that decided, or with its outputs.
    fn end_list(&mut self, id: CallId) {
        let Some(list) = self.list(id) else { return };
        let failure = list.failure.clone();
        if list.cancelled.is_some() {
            return self.attempt_ended(id, AttemptEnd::Cancelled);
        }
        let end = match failure {
            Some(failure) => AttemptEnd::Failed(failure),
            None => self.list_outputs(id).map_or_else(AttemptEnd::Failed, AttemptEnd::Success),
        };
        self.attempt_ended(id, end);
    }

    /// Returns the outputs of a function with steps (language.md §4).
    fn list_outputs(&mut self, id: CallId) -> Result<IndexMap<String, Value>, Failure> {
        let Some(list) = self.list(id) else { return Ok(IndexMap::new()) };
        let loaded = Arc::clone(&list.loaded);
        let function = &loaded.function;
        let Body::Run(run) = &function.definition.body else { return Ok(IndexMap::new()) };
        let declared = match &function.spec.outputs {
            Outputs::Declared(declared) => declared,
            Outputs::Delegate => {
                let named =
                    run.delegate.as_ref().and_then(|named| Some((named, list.steps.get(&named.name)?)));
                return delegated(function, named);
            }
        };
        let environment = self.environment_of(id);
        let (evaluated, used) = {
            let Some(view) = self.view_of_list(id, id, &environment) else { return Ok(IndexMap::new()) };
            (bind::outputs(run, declared, &view), view.files_used.get())
        };
        self.make_files_if(id, used);
        let evaluated = evaluated.map_err(|finding| Failure::at(&[finding]))?;
        let outputs =
            returned::of_sequence(evaluated, declared, function).map_err(|errors| Failure::at(&errors))?;
        self.note_outputs(&outputs, &function.spec.outputs);
        Ok(outputs)
    }

    /// True if the job is over once a process of `function` that writes no file has succeeded. Nothing that a success
    /// evaluates, weighs or logs may fail then: the log is closed before it happens.
    pub(super) fn ends_with(&self, id: CallId, function: &Function) -> bool {
        let is_last = |list: &List| match &list.loaded.function.definition.body {
            Body::Run(run) => {
                list.is_plain
                    && list.next >= steps_of(&list.loaded).len()
                    && run.outputs.is_empty()
                    && returns_nothing(&list.loaded.function.spec.outputs)
            }
            Body::Exec(_) => false,
        };
        returns_nothing(&function.spec.outputs)
            && self.has_room_for(id)
            && self.stop.is_none()
            && self.chain(id).skip(1).all(|(_, call)| call.list().is_some_and(is_last))
    }

    /// Decides by `if` of a member.
    pub(super) fn verdict_of_member(&mut self, group: CallId, at: &StepAt, member: &Member) -> Verdict {
        // The condition of a matrix was looked at once, before its lists.
        if member.values.is_some() {
            return Verdict::Run;
        }
        let (Some(step), Some(caller)) = (at.get(), self.caller(group)) else { return Verdict::Run };
        match step.flow.as_deref() {
            Some(flow) => self.verdict_of_condition(caller, group, step, flow),
            None => Verdict::Run,
        }
    }
}

/// Returns the reason of a step that `when` skips.
fn skipped_by(when: When) -> String {
    format!("when: {}", when.word())
}

/// Returns the outputs of the step that a function delegates to.
fn delegated(
    function: &Function,
    named: Option<(&Delegate, &EndedStep)>,
) -> Result<IndexMap<String, Value>, Failure> {
    let Some((Delegate { name, at }, step)) = named else { return Ok(IndexMap::new()) };
    match step.lack(name) {
        Some(lack) => {
            let message = format!("the outputs of step \"{name}\" were not found");
            let finding = Diagnostic::error(Class::NotFound, &function.file, *at, message);
            Err(Failure::at(&[finding.with_path("delegate").with_help(lack)]))
        }
        None => Ok(step.outputs().cloned().unwrap_or_default()),
    }
}

/// Adds the remedy to an error in a condition that names a missing variable.
fn explained(finding: Diagnostic) -> Diagnostic {
    let root = finding.message.split(['.', '[']).next().unwrap_or_default();
    if finding.class != Class::NotFound || !["vars", "job", "env"].contains(&root) {
        return finding;
    }
    let known = finding.help.clone().map(|help| format!("{help}; ")).unwrap_or_default();
    finding.with_help(format!("{known}for a variable that may be missing write bool(vars.NAME || \"\")"))
}

/// True if a function declares no outputs.
pub(super) fn returns_nothing(outputs: &Outputs) -> bool {
    matches!(outputs, Outputs::Declared(declared) if declared.is_empty())
}
