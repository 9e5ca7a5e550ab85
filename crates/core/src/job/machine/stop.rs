//! Stops, cleanup and timers (flow.md §3.1, §4; language.md §15; service.md §6.2).
//!
//! A stop reaches a part of the job: all of it (a cancel, a time limit), a step (its `timeout`) or the members of a group
//! (`fail_fast`). It stops what runs, except for `always` steps, and cancels the open lists. Their later `always` steps
//! are the cleanup of that part, which has a limit of its own.

use std::time::Duration;

use step_runner_lang::ast::flow::When;
use step_runner_lang::eval::ListState;
use step_runner_log::words::DaemonLine;
use step_runner_model::{CancelCause, LogChannel, Outcome, StepOutcome, StepResult, StepStatus};

use crate::job::effect::Effect;
use crate::job::event::{CallId, ProcessNumber, TimerId};

use super::call::{AttemptEnd, Work};
use super::{Constants, Machine, ROOT, Root};

/// Reason of steps that a stop without cleanup skips.
const CANCELLED: &str = "cancelled";

/// Reason of steps that the limit of the cleanup skips.
const CLEANUP_TIMEOUT: &str = "cleanup_timeout";

/// Purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// `timeout` of a step.
    Limit(CallId),
    /// Delay before the next attempt of a step.
    Delay(CallId),
    /// Limit of the cleanup of a part.
    Cleanup(CallId),
    /// The daemon's grace for the whole job.
    Shutdown,
}

/// Cleanup of a part of the job that was stopped.
#[derive(Default)]
pub(super) struct Cleanup {
    /// Set once its time has begun.
    timer: Option<TimerId>,
    /// Set once no further step of it begins: the reason.
    ended: Option<&'static str>,
}

/// How a stop treats what it reaches.
#[derive(Clone, Copy)]
struct Stop {
    /// State of the lists that it cancels.
    state: ListState,
    /// Upper bound of the grace.
    limit: Option<Duration>,
    /// Reason of the steps that do not run any more, if there is no cleanup.
    no_cleanup: Option<&'static str>,
    /// Upper bound of the grace in parts that an earlier stop has reached. `None` leaves them alone.
    inside: Option<Duration>,
    /// Reason of members that have not begun.
    rest: &'static str,
}

/// What a stop has found.
#[derive(Default)]
struct Reached {
    /// Calls that end at once.
    ended: Vec<CallId>,
    /// Groups whose other members do not begin.
    groups: Vec<CallId>,
}

impl Machine {
    /// Handles a cancel, a time limit, a Finish or a stop of the daemon.
    pub(super) fn cancel(&mut self, cause: CancelCause, limit: Option<Duration>, force: bool) {
        let is_first = self.stop.is_none();
        self.stop.get_or_insert(cause);
        let state = if cause.is_time_limit() { ListState::Timeout } else { ListState::Cancelled };
        let usual = Stop { state, limit, no_cleanup: None, inside: None, rest: CANCELLED };
        let is_finish = cause == CancelCause::Finish;
        let at_once = Some(Duration::ZERO);
        let stop = match (force, is_finish, is_first) {
            (true, ..) | (_, true, false) => {
                Stop { limit: at_once, no_cleanup: Some(CANCELLED), inside: at_once, ..usual }
            }
            (_, true, true) => Stop { no_cleanup: Some(CANCELLED), inside: at_once, ..usual },
            (_, false, true) => usual,
            (_, false, false) if cause == CancelCause::Shutdown => usual,
            // A cancel can be repeated safely.
            (_, false, false) => return,
        };
        self.stop_part(ROOT, stop);
        if let Some(limit) = limit.filter(|_| cause == CancelCause::Shutdown)
            && self.calls.values().any(|call| call.list().is_some_and(|list| !list.is_plain))
        {
            self.wake(Timer::Shutdown, limit);
        }
    }

    /// Ends a job that waits for its slot.
    pub(super) fn cancel_queued(&mut self, root: &Root, cause: CancelCause) {
        let result =
            StepResult { status: StepStatus::Cancelled, outcome: StepOutcome::Cancelled, ..unstarted(root) };
        self.finish(Outcome::stopped(cause), vec![last_line(cause)], result);
    }

    /// Stops the members of a group, because one has failed.
    pub(super) fn stop_members(&mut self, group: CallId) {
        let rest = super::group::FAIL_FAST;
        let stop = Stop { state: ListState::Cancelled, limit: None, no_cleanup: None, inside: None, rest };
        self.cleanups.entry(group).or_default();
        let mut reached = Reached { groups: vec![group], ..Reached::default() };
        for member in self.below(group) {
            self.reach(member, group, stop, &mut reached);
        }
        self.finish_stop(stop, reached);
    }

    /// Stops the part of the job below `scope`, and `scope` itself.
    fn stop_part(&mut self, scope: CallId, stop: Stop) {
        let cleanup = self.cleanups.entry(scope).or_default();
        cleanup.ended = cleanup.ended.or(stop.no_cleanup);
        let mut reached = Reached::default();
        self.reach_inside(scope, scope, stop, &mut reached);
        self.finish_stop(stop, reached);
    }

    /// Skips members that have not begun, then ends the calls that wait for no process.
    fn finish_stop(&mut self, stop: Stop, reached: Reached) {
        for group in reached.groups {
            self.skip_rest(group, stop.rest);
        }
        for call in reached.ended {
            self.attempt_ended(call, AttemptEnd::Cancelled);
        }
    }

    /// Reaches a call below `scope`.
    fn reach(&mut self, id: CallId, scope: CallId, stop: Stop, reached: &mut Reached) {
        let Some(call) = self.calls.get(&id) else { return };
        let earlier = call.stop.filter(|earlier| *earlier != scope);
        let is_always = call.flow().is_some_and(|flow| flow.when == When::Always);
        if let Some(inner) = earlier {
            // An earlier stop has reached it: its cleanup goes on unless this stop ends that, too.
            if let Some(limit) = stop.inside {
                if let Some(cleanup) = self.cleanups.get_mut(&inner) {
                    cleanup.ended = cleanup.ended.or(stop.no_cleanup);
                }
                self.reach_inside(id, inner, Stop { limit: Some(limit), ..stop }, reached);
            }
        } else if is_always && stop.no_cleanup.is_none() {
            self.begin_cleanup_of(scope);
        } else {
            self.reach_inside(id, scope, stop, reached);
        }
    }

    /// Stops a call and reaches those below it.
    fn reach_inside(&mut self, id: CallId, scope: CallId, stop: Stop, reached: &mut Reached) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.stop = Some(call.stop.unwrap_or(scope));
        match &mut call.work {
            Work::Nothing => {}
            Work::Loading(_) | Work::Fetching(_) => {
                let process = call.process;
                self.push(Effect::StopFetch(process));
                reached.ended.push(id);
            }
            Work::Delay { .. } => reached.ended.push(id),
            Work::Running(leaf) => {
                let grace = self.constants.grace(leaf.cancel_timeout, stop.limit);
                if leaf.grace.is_none_or(|told| grace < told) {
                    leaf.grace = Some(grace);
                    let process = call.process;
                    self.push(Effect::Stop { process, grace });
                }
            }
            Work::List(list) => {
                list.cancelled.get_or_insert(stop.state);
                for below in self.below(id) {
                    self.reach(below, scope, stop, reached);
                }
            }
            Work::Group(group) => {
                group.closing.get_or_insert(stop.rest);
                reached.groups.push(id);
                for below in self.below(id) {
                    self.reach(below, scope, stop, reached);
                }
            }
        }
    }

    /// Returns the reason if no further step of the cleanup of a cancelled list begins.
    pub(super) fn no_cleanup(&self, list: CallId) -> Option<&'static str> {
        let scope = self.calls.get(&list)?.stop?;
        self.cleanups.get(&scope)?.ended
    }

    /// Notes that a step of the cleanup of a cancelled list begins: its time runs from the first.
    pub(super) fn begin_cleanup(&mut self, list: CallId) {
        if let Some(scope) = self.calls.get(&list).and_then(|call| call.stop) {
            self.begin_cleanup_of(scope);
        }
    }

    fn begin_cleanup_of(&mut self, scope: CallId) {
        let limit = self.constants.cleanup_timeout;
        let is_new = self.cleanups.entry(scope).or_default().timer.is_none();
        if is_new {
            let timer = self.wake(Timer::Cleanup(scope), limit);
            if let Some(cleanup) = self.cleanups.get_mut(&scope) {
                cleanup.timer = Some(timer);
            }
        }
    }

    /// Forgets the cleanup of a part that has ended.
    pub(super) fn cleanup_ended(&mut self, scope: CallId) {
        if let Some(timer) = self.cleanups.remove(&scope).and_then(|cleanup| cleanup.timer) {
            self.timers.remove(&timer);
        }
    }

    /// Forgets that the job was stopped: it had ended before.
    pub(super) fn forget_stops(&mut self) {
        self.stop = None;
        for call in self.calls.values_mut() {
            call.stop = None;
            if let Work::List(list) = &mut call.work {
                list.cancelled = None;
            }
        }
    }

    /// Sets a timer.
    pub(super) fn wake(&mut self, timer: Timer, after: Duration) -> TimerId {
        self.last_timer += 1;
        self.timers.insert(self.last_timer, timer);
        let at = self.times.after(after);
        self.push(Effect::Wake { timer: self.last_timer, at });
        self.last_timer
    }

    /// Handles the end of a timer.
    pub(super) fn due(&mut self, timer: TimerId) {
        match self.timers.remove(&timer) {
            Some(Timer::Limit(id)) => self.limit_passed(id),
            Some(Timer::Delay(id)) => self.delay_passed(id),
            Some(Timer::Cleanup(scope)) => self.cleanup_timed_out(scope),
            Some(Timer::Shutdown) => self.cancel(CancelCause::Shutdown, None, true),
            None => {}
        }
    }

    /// Ends a step whose `timeout` has passed. A step that a stop has reached ends as that says.
    fn limit_passed(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.stop.is_none()) else { return };
        let Some(attempts) = &mut call.attempts else { return };
        attempts.is_timed_out = true;
        attempts.timer = None;
        let attempt = call.process;
        let running = self.processes_below(id);
        if !running.is_empty() {
            self.push(Effect::ShowProcesses { call: id, attempt, processes: running });
        }
        let stop =
            Stop { state: ListState::Timeout, limit: None, no_cleanup: None, inside: None, rest: CANCELLED };
        self.stop_part(id, stop);
    }

    /// Returns the processes of a call and of those below it.
    fn processes_below(&self, id: CallId) -> Vec<ProcessNumber> {
        let Some(call) = self.calls.get(&id) else { return Vec::new() };
        match call.work {
            Work::Running(_) => vec![call.process],
            Work::List(_) | Work::Group(_) => {
                self.below(id).into_iter().flat_map(|below| self.processes_below(below)).collect()
            }
            Work::Nothing | Work::Loading(_) | Work::Fetching(_) | Work::Delay { .. } => Vec::new(),
        }
    }

    fn delay_passed(&mut self, id: CallId) {
        if let Some(Work::Delay { timer, .. }) = self.calls.get_mut(&id).map(|call| &mut call.work) {
            *timer = None;
        }
        self.begin_next_attempt(id);
    }

    /// Nothing is left of the last attempt of a step.
    pub(super) fn cleared(&mut self, id: CallId) {
        if let Some(Work::Delay { is_clear, .. }) = self.calls.get_mut(&id).map(|call| &mut call.work) {
            *is_clear = true;
        }
        self.begin_next_attempt(id);
    }

    fn begin_next_attempt(&mut self, id: CallId) {
        if let Some(Work::Delay { timer: None, is_clear: true }) = self.calls.get(&id).map(|call| &call.work)
        {
            self.begin_attempt(id);
        }
    }

    /// Stops the cleanup of a part whose limit has passed. The rest of it is skipped.
    fn cleanup_timed_out(&mut self, scope: CallId) {
        let stop = Stop {
            state: ListState::Cancelled,
            limit: None,
            no_cleanup: Some(CLEANUP_TIMEOUT),
            // A bound that shortens no grace.
            inside: Some(Duration::MAX),
            rest: CLEANUP_TIMEOUT,
        };
        if let Some(cleanup) = self.cleanups.get_mut(&scope) {
            cleanup.ended = Some(CLEANUP_TIMEOUT);
        }
        let mut reached = Reached::default();
        for below in self.below(scope) {
            self.reach(below, scope, stop, &mut reached);
        }
        self.finish_stop(stop, reached);
    }

    /// Ends the job because of a defect in the daemon. Does not stop running processes: the actor does that. If the job is
    /// being stopped already, it ends as that asked for.
    pub(super) fn broken(&mut self, message: &str) {
        // A panic may have left effects that were never sent. Keep the phrases: they are counted as known.
        self.effects.retain(|effect| matches!(effect, Effect::Phrases(_)));
        if let Some(cause) = self.stop {
            let root = self.unwind(StepOutcome::Cancelled);
            return self.finish(Outcome::stopped(cause), vec![last_line(cause)], root);
        }
        let root = self.unwind(StepOutcome::Failure);
        self.internal(message, root);
    }

    pub(super) fn broken_queued(&mut self, root: &Root, message: &str) {
        self.effects.retain(|effect| matches!(effect, Effect::Phrases(_)));
        let result =
            StepResult { status: StepStatus::Failure, outcome: StepOutcome::Failure, ..unstarted(root) };
        self.internal(message, result);
    }

    pub(super) fn cannot_begin(&mut self, root: &Root, message: &str) {
        let result =
            StepResult { status: StepStatus::Failure, outcome: StepOutcome::Failure, ..unstarted(root) };
        let line = DaemonLine::JobFailed { message };
        self.finish(Outcome::failed(message), vec![line.to_parts()], result);
    }

    fn internal(&mut self, message: &str, root: StepResult) {
        let outcome = Outcome::defect(message);
        let line = DaemonLine::JobFailed { message: &outcome.message }.to_parts();
        self.finish(outcome, vec![line], root);
    }

    /// Ends everything under way, the latest first. Returns the root's result.
    fn unwind(&mut self, outcome: StepOutcome) -> StepResult {
        let end = self.times.end_facts();
        let mut root = StepResult::default();
        while let Some((id, mut call)) = self.calls.pop_last() {
            end.note(&mut call.result.facts);
            call.result.outcome = outcome;
            call.result.status = outcome.status();
            match call.parent {
                None => root = *call.result,
                Some(parent) if call.is_noted => {
                    let (is_member, slot) = (call.member.is_some(), call.slot);
                    self.note_step(id, parent, is_member, slot, *call.result);
                    self.close_section(parent, &call.name);
                }
                Some(_) => {}
            }
        }
        root
    }
}

impl Constants {
    /// Returns the grace of a process: its function's, else the setting's. The request and this stop may shorten it.
    fn grace(&self, of_function: Option<Duration>, limit: Option<Duration>) -> Duration {
        let grace = of_function.unwrap_or(self.default_grace);
        [self.cancel_grace, limit].into_iter().flatten().fold(grace, Duration::min)
    }
}

fn unstarted(root: &Root) -> StepResult {
    StepResult { definition: Some(root.loaded.definition()), ..StepResult::default() }
}

/// Returns the last line of a log (logs.md §2).
pub(super) fn last_line(cause: CancelCause) -> (LogChannel, String) {
    let text = cause.text();
    let line = if cause.is_time_limit() {
        DaemonLine::JobTimedOut { cause: text }
    } else {
        DaemonLine::JobCancelled { cause: text }
    };
    line.to_parts()
}
