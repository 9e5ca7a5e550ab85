//! Attempts of steps: their begin, their end, and what becomes of the step (flow.md §2 to §4).

use indexmap::IndexMap;
use step_runner_lang::ast::Step;
use step_runner_lang::ast::flow::{Tolerance, When};
use step_runner_lang::diagnostic::Class;
use step_runner_lang::environment::Exports;
use step_runner_lang::eval::{EndedStep, Returned};
use step_runner_lang::value::Value;
use step_runner_log::words::{DaemonLine, Warning};
use step_runner_model::{LogChannel, Outcome, StepFacts, StepInfo, StepOutcome, StepResult, StepUsage};

use crate::job::effect::Effect;
use crate::job::event::CallId;

use super::call::{AttemptEnd, Attempts, Call, Domain, Member, StepAt, Work};
use super::ends::to_json_map;
use super::failure::{Failure, duration};
use super::stop::Timer;
use super::{Machine, Phase};

/// How an attempt ended, as its result says it.
struct Ending {
    outcome: StepOutcome,
    reason: String,
    class: Option<Class>,
    exit_code: Option<i32>,
}

impl Ending {
    const fn succeeded() -> Self {
        Self { outcome: StepOutcome::Success, reason: String::new(), class: None, exit_code: Some(0) }
    }

    fn cancelled() -> Self {
        Self { outcome: StepOutcome::Cancelled, reason: "cancelled".to_owned(), class: None, exit_code: None }
    }

    fn failed(failure: &Failure) -> Self {
        Self {
            outcome: StepOutcome::Failure,
            reason: failure.message(),
            class: Some(failure.class),
            exit_code: failure.exit_code,
        }
    }
}

impl Machine {
    /// Adds a call for a step of `parent`, which is a list or a group. Nothing of it has begun.
    pub(super) fn add_call(
        &mut self,
        parent: CallId,
        at: StepAt,
        name: String,
        member: Option<Member>,
    ) -> CallId {
        let id = self.next_call();
        let Some(around) = self.calls.get(&parent) else { return id };
        let is_member = member.is_some();
        let facts = self.facts(parent, &at, member.as_ref());
        let call = Call {
            parent: Some(parent),
            domain: if is_member { id } else { around.domain },
            exports: is_member.then(|| self.domain(parent).begin()),
            slot: around.slot,
            is_inside_member: is_member || around.is_inside_member,
            depth: around.depth + usize::from(around.list().is_some()),
            groups: around.groups,
            process: id,
            attempts: None,
            stop: None,
            is_noted: false,
            result: Box::new(StepResult {
                step: Some(StepInfo { name: name.clone(), ..StepInfo::default() }),
                facts,
                ..StepResult::default()
            }),
            step: Some(at),
            name,
            member,
            usage: None,
            work: Work::Nothing,
        };
        let has_flow = call.flow().is_some();
        self.calls.insert(id, Box::new(call));
        if has_flow {
            let exports = self.domain(id);
            let attempts = Attempts {
                started: 0,
                earlier: Vec::new(),
                exports,
                processes: Vec::new(),
                timer: None,
                is_timed_out: false,
            };
            if let Some(call) = self.calls.get_mut(&id) {
                call.attempts = Some(Box::new(attempts));
            }
        }
        id
    }

    /// Begins the first or a further attempt of a step.
    pub(super) fn begin_attempt(&mut self, id: CallId) {
        let is_plain = self.calls.get(&id).is_none_or(|call| self.is_in_plain_list(call));
        let next = self.last_call + 1;
        let Some(call) = self.calls.get_mut(&id) else { return };
        let limit = call.flow().and_then(|flow| flow.timeout);
        let is_further = call.attempts.as_ref().is_some_and(|attempts| attempts.started > 0);
        call.work = Work::Nothing;
        if is_further {
            call.process = next;
            self.last_call = next;
        }
        if let Some(attempts) = &mut call.attempts {
            attempts.started += 1;
            call.result.attempts.clone_from(&attempts.earlier);
        }
        if let Some(limit) = limit {
            let timer = self.wake(Timer::Limit(id), limit);
            if let Some(attempts) = self.calls.get_mut(&id).and_then(|call| call.attempts.as_mut()) {
                attempts.timer = Some(timer);
            }
        }
        if !is_plain {
            self.note_start(id);
        }
        let at = self.calls.get(&id).and_then(|call| call.step.clone());
        if at.as_ref().and_then(StepAt::get).is_some_and(super::start::calls_a_function) {
            self.begin_function(id);
        } else {
            self.begin_group(id);
        }
    }

    pub(super) fn attempt_failed(&mut self, id: CallId, failure: Failure) {
        self.attempt_ended(id, AttemptEnd::Failed(failure));
    }

    /// Ends an attempt. Another one follows, or the step has ended.
    pub(super) fn attempt_ended(&mut self, id: CallId, end: AttemptEnd) {
        let end = self.decided(id, end);
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Some(timer) = call.attempts.as_mut().and_then(|attempts| attempts.timer.take()) {
            self.timers.remove(&timer);
        }
        self.cleanup_ended(id);
        match end {
            AttemptEnd::Failed(failure) if self.is_tried_again(id, &failure) => self.try_again(id, &failure),
            end => self.step_ended(id, end),
        }
    }

    /// Returns the end that counts. A limit that has passed counts before a stop, and a stop before all but the success
    /// of a process that had ended before.
    fn decided(&self, id: CallId, end: AttemptEnd) -> AttemptEnd {
        let Some(call) = self.calls.get(&id) else { return end };
        if let Some(limit) = call.flow().and_then(|flow| flow.timeout)
            && call.attempts.as_ref().is_some_and(|attempts| attempts.is_timed_out)
        {
            return AttemptEnd::Failed(Failure::timed_out(limit));
        }
        match end {
            AttemptEnd::Success(outputs) if matches!(call.work, Work::Running(_)) => {
                AttemptEnd::Success(outputs)
            }
            _ if call.stop.is_some() => AttemptEnd::Cancelled,
            end => end,
        }
    }

    /// True if a failed step is tried again. A step that a stop has reached is not.
    fn is_tried_again(&self, id: CallId, failure: &Failure) -> bool {
        let Some(call) = self.calls.get(&id) else { return false };
        let Some(flow) = call.flow() else { return false };
        let Some(retry) = &flow.retry else { return false };
        let started = call.attempts.as_ref().map_or(1, |attempts| attempts.started);
        let is_stopped = call.stop.is_some_and(|scope| scope != id);
        let is_around_closed =
            match call.parent.and_then(|parent| self.calls.get(&parent)).map(|call| &call.work) {
                Some(Work::List(list)) => list.cancelled.is_some() && flow.when != When::Always,
                Some(Work::Group(group)) => group.closing.is_some(),
                _ => true,
            };
        started <= u32::from(retry.max)
            && retry.applies_to(failure.kind, failure.exit_code)
            && !is_stopped
            && !is_around_closed
    }

    /// Waits for the time of the next attempt, and for the end of what this one has left.
    fn try_again(&mut self, id: CallId, failure: &Failure) {
        let Some(call) = self.calls.get(&id) else { return };
        let Some(retry) = call.flow().and_then(|flow| flow.retry.clone()) else { return };
        let next = call.attempts.as_ref().map_or(1, |attempts| attempts.started) + 1;
        let (of, name) = (u32::from(retry.max) + 1, call.name.clone());
        let delay = retry.delay_before(next);
        self.log(&DaemonLine::Retrying {
            name: &name,
            attempt: next,
            of,
            delay: &duration(delay),
            error: &failure.in_passing(),
        });
        let result = self.close_attempt(id, Ending::failed(failure));
        let timer = self.wake(Timer::Delay(id), delay);
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Some(attempts) = &mut call.attempts else { return };
        let exports = attempts.exports.clone();
        let processes = std::mem::take(&mut attempts.processes);
        attempts.earlier.push(StepResult { attempts: Vec::new(), ..result });
        attempts.is_timed_out = false;
        call.stop = None;
        call.usage = None;
        call.work = Work::Delay { timer: Some(timer), is_clear: processes.is_empty() };
        // The next attempt begins with nothing of this one.
        call.result.outputs = IndexMap::new();
        call.result.exports = IndexMap::new();
        call.result.exec = None;
        call.result.outcome = StepOutcome::Unspecified;
        call.result.reason = String::new();
        call.result.error_class = None;
        call.result.exit_code = None;
        call.result.facts.end = None;
        call.result.facts.log_end = None;
        self.set_domain(id, exports);
        if !processes.is_empty() {
            self.push(Effect::Clear { call: id, processes });
        }
    }

    /// Completes the result of an attempt, and removes its files. Returns the result.
    fn close_attempt(&mut self, id: CallId, ending: Ending) -> StepResult {
        let end = self.times.end_facts();
        let Some(call) = self.calls.get_mut(&id) else { return StepResult::default() };
        let (process, has_files) = match &call.work {
            Work::Running(leaf) => (call.process, leaf.has_files),
            Work::List(list) => (call.process, list.files_made),
            _ => (call.process, false),
        };
        if matches!(call.work, Work::List(_) | Work::Group(_)) {
            call.result.facts.usage = call.usage;
        }
        let result = &mut call.result;
        end.note(&mut result.facts);
        result.outcome = ending.outcome;
        result.status = ending.outcome.status();
        result.reason = ending.reason;
        result.error_class = ending.class.map(Class::word);
        result.exit_code = ending.exit_code;
        let result = (**result).clone();
        if has_files {
            self.push(Effect::RemoveFiles(process));
        }
        result
    }

    /// Fails a step before its first attempt, so it has no start.
    pub(super) fn fail_unbegun(&mut self, id: CallId, failure: Failure) {
        if let Some(call) = self.calls.get_mut(&id) {
            (call.result.facts.start, call.result.facts.log_start) = (None, None);
        }
        self.step_ended(id, AttemptEnd::Failed(failure));
    }

    /// Ends a step, and tells the list or group around it.
    pub(super) fn step_ended(&mut self, id: CallId, end: AttemptEnd) {
        let end = self.kept(id, end);
        let Some(call) = self.calls.get(&id) else { return };
        let (outcome, failure) = match &end {
            AttemptEnd::Success(_) => (StepOutcome::Success, None),
            AttemptEnd::Cancelled => (StepOutcome::Cancelled, None),
            AttemptEnd::Failed(failure) => {
                let tolerance = call.tolerance();
                let is_allowed = tolerance.is_some_and(|tolerance| tolerance.allows(failure.exit_code));
                let outcome = if is_allowed { StepOutcome::AllowedFailure } else { StepOutcome::Failure };
                (outcome, Some(failure))
            }
        };
        if outcome == StepOutcome::AllowedFailure {
            self.allowed_failures += 1;
            if let Some(exports) = call.attempts.as_ref().map(|attempts| attempts.exports.clone()) {
                self.set_domain(id, exports);
            }
            let (name, error) = (self.name_of(id), failure.map(Failure::in_passing).unwrap_or_default());
            self.log(&DaemonLine::Warning(Warning::AllowedFailure { name: &name, error: &error }));
        }
        let ending = match &end {
            AttemptEnd::Success(_) => Ending::succeeded(),
            AttemptEnd::Cancelled => Ending::cancelled(),
            AttemptEnd::Failed(failure) => Ending { outcome, ..Ending::failed(failure) },
        };
        let (class, exit_code) = (ending.class, ending.exit_code);
        if let (AttemptEnd::Success(outputs), Some(call)) = (&end, self.calls.get_mut(&id)) {
            call.result.outputs = to_json_map(outputs);
        }
        let result = self.close_attempt(id, ending);
        let Some(call) = self.calls.remove(&id) else { return };
        self.free_slot(&call);
        if call.parent.is_none() {
            return self.job_ended(end, result);
        }
        let outputs = match &end {
            AttemptEnd::Success(outputs) => outputs.clone(),
            AttemptEnd::Failed(_) | AttemptEnd::Cancelled => IndexMap::new(),
        };
        let ended = EndedStep {
            outcome,
            exit_code,
            error: class,
            attempts: self.attempts_of(&call),
            returned: call.returned(outputs),
            is_plain: self.is_in_plain_list(&call),
        };
        self.note_ended(id, &call, result);
        let failure = match end {
            AttemptEnd::Failed(failure) if outcome == StepOutcome::Failure => {
                Some(failure.within(&call.name))
            }
            _ => None,
        };
        self.tell_parent(*call, ended, failure);
    }

    /// Reserves room for what a step returns. Without room the step has failed.
    fn kept(&mut self, id: CallId, end: AttemptEnd) -> AttemptEnd {
        let AttemptEnd::Success(outputs) = end else { return end };
        let Some(call) = self.calls.get(&id) else { return AttemptEnd::Success(outputs) };
        let returned = StepResult {
            outputs: to_json_map(&outputs),
            exports: call.result.exports.clone(),
            exec: call.result.exec.clone(),
            ..StepResult::default()
        };
        match self.keep_returned(&returned) {
            Ok(()) => AttemptEnd::Success(outputs),
            Err(message) => AttemptEnd::Failed(Failure::plain(Class::Limit, message)),
        }
    }

    fn attempts_of(&self, call: &Call) -> u32 {
        match (&call.attempts, &call.work) {
            (Some(attempts), _) => attempts.started,
            (None, _) if call.is_noted || self.is_in_plain_list(call) => 1,
            (None, _) => 0,
        }
    }

    pub(super) fn name_of(&self, id: CallId) -> String {
        self.calls.get(&id).map(|call| call.name.clone()).unwrap_or_default()
    }

    /// Tells the list or group around a step that it has ended.
    fn tell_parent(&mut self, call: Call, ended: EndedStep, failure: Option<Failure>) {
        let Some(parent) = call.parent else { return };
        self.ready.push_front(parent);
        if let Some(parent) = self.calls.get_mut(&parent) {
            parent.usage =
                [parent.usage, call.result.facts.usage].into_iter().flatten().reduce(StepUsage::and);
        }
        if let Some(Work::Group(_)) = self.calls.get(&parent).map(|parent| &parent.work) {
            return self.member_ended(parent, call, ended, failure);
        }
        let members = match call.work {
            Work::Group(group) => group.into_visible(),
            _ => call.step.as_ref().map(StepAt::skipped_members).unwrap_or_default(),
        };
        if let Some(list) = self.list_mut(parent) {
            list.steps.extend(members);
            list.steps.insert(call.name, ended);
            if list.failure.is_none() {
                list.failure = failure;
            }
        }
    }

    /// Ends the job with the end of its root.
    fn job_ended(&mut self, end: AttemptEnd, root: StepResult) {
        match (self.stop, end) {
            (Some(cause), _) => {
                self.finish(Outcome::stopped(cause), vec![super::stop::last_line(cause)], root);
            }
            (None, AttemptEnd::Failed(failure)) => {
                let message = failure.message();
                let exit_code = failure.exit_code.unwrap_or(-1);
                let lines = failure.lines();
                self.finish(Outcome { exit_code, ..Outcome::failed(message) }, lines, root);
            }
            (None, _) => self.finish(Outcome::success(), Vec::new(), root),
        }
    }

    /// Ends the job. `lines` are the last ones of its log, `root` is the result of the root.
    pub(super) fn finish(&mut self, outcome: Outcome, lines: Vec<(LogChannel, String)>, root: StepResult) {
        // The files of all steps are removed at the job's end.
        self.effects.retain(|effect| !matches!(effect, Effect::RemoveFiles(_)));
        let allowed_failures = self.allowed_failures;
        self.push(Effect::Finish { outcome, root: Box::new(root), lines, allowed_failures });
        self.phase = Phase::Ended;
        self.calls.clear();
        self.ready.clear();
        self.timers.clear();
        self.cleanups.clear();
    }

    /// Notes that a step does not run (flow.md §3).
    pub(super) fn skip(
        &mut self,
        parent: CallId,
        at: &StepAt,
        name: &str,
        member: Option<&Member>,
        reason: &str,
    ) {
        let id = self.next_call();
        let facts = self.facts(parent, at, member);
        self.log(&DaemonLine::Skipped { name, reason });
        let result = StepResult {
            step: Some(StepInfo { name: name.to_owned(), ..StepInfo::default() }),
            outcome: StepOutcome::Skipped,
            reason: reason.to_owned(),
            facts: StepFacts { start: None, log_start: None, ..facts },
            ..StepResult::default()
        };
        let slot = self.calls.get(&parent).map_or(1, |parent| parent.slot);
        self.note_step(id, parent, member.is_some(), slot, result);
    }
}

impl Call {
    /// Returns its `continue_on_error`. That of a matrix holds for its members, and for the matrix only if it could not
    /// begin.
    fn tolerance(&self) -> Option<&Tolerance> {
        let flow = self.step.as_ref()?.flow()?;
        let has_members = matches!(self.work, Work::Group(_));
        (self.flow().is_some() || !has_members).then_some(&flow.tolerance)
    }

    /// Returns what expressions see of its outputs.
    fn returned(&self, outputs: IndexMap<String, Value>) -> Returned {
        match (&self.work, &self.step) {
            (Work::Group(group), _) if group.is_matrix => Returned::Results(group.results()),
            (Work::Group(_), _) => Returned::Group,
            (_, Some(at)) if self.member.is_none() => {
                at.nothing_returned().unwrap_or(Returned::Outputs(outputs))
            }
            _ => Returned::Outputs(outputs),
        }
    }
}

impl StepAt {
    /// Returns what expressions see of a group that did not run; `None` for a step that calls a function.
    pub(super) fn nothing_returned(&self) -> Option<Returned> {
        let step = self.get().filter(|step| step.is_group())?;
        Some(match step.members() {
            [] => Returned::Results(Value::array([])),
            _ => Returned::Group,
        })
    }

    /// Returns the members that the list around a group sees if the group did not begin.
    pub(super) fn skipped_members(&self) -> Vec<(String, EndedStep)> {
        let members = self.get().map(Step::members).unwrap_or_default();
        members.iter().map(|member| (member.name.clone(), EndedStep::skipped(None))).collect()
    }
}

impl Domain {
    /// Returns the exports in force for a member that begins: it has exported nothing itself.
    pub(super) fn begin(self) -> Self {
        Self { own: Exports::default(), ..self }
    }
}
