//! Start and end times of steps, and what is told of them.
//!
//! Times of events count from the host's boot. The start of the job ties them to the wall clock once, so setting the
//! wall clock changes no duration. Replayed events carry the time at which they were handled, so every daemon reports
//! the same times.

use std::time::Duration;

use step_runner_model::{FinishedProcess, StepFacts, StepInfo, StepOutcome, StepResult, StepStatus};

use crate::job::effect::{Effect, StepNote};
use crate::job::event::CallId;

use super::call::{Call, Member, StepAt, Work, steps_of};
use super::{Machine, ROOT};

/// Times of the event that is being handled.
#[derive(Clone, Copy, Default)]
pub(super) struct Timeline {
    /// Microseconds since the epoch and since boot when the job started.
    start: Option<(i64, u64)>,
    /// Time at which the event is handled, since boot. Steps that it starts start now.
    now: u64,
    /// Time of the end that the event reports. Steps that it ends ended then.
    ended: u64,
    /// Length of the log at the end of the latest process.
    log: u64,
    /// True while this is the length of the log that the next event has as its place.
    is_log_exact: bool,
}

impl Timeline {
    /// Starts the handling of an event at `now`, in microseconds since boot.
    pub(super) fn at(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.ended = self.now;
        self.is_log_exact = false;
    }

    pub(super) fn start(&mut self, wall: i64) {
        self.start = Some((wall, self.now));
        // The job begins before everything in its log.
        self.is_log_exact = true;
    }

    pub(super) fn ran(&mut self, ran: Option<&FinishedProcess>) {
        if let Some(ran) = ran {
            self.ended = ran.ended.min(self.now);
            self.note_log(ran.log_len);
        }
    }

    pub(super) fn note_log(&mut self, len: u64) {
        self.log = self.log.max(len);
        self.is_log_exact = true;
    }

    /// Notes that a line is written, which belongs before the events that follow.
    pub(super) const fn log_grows(&mut self) {
        self.is_log_exact = false;
    }

    /// Returns the place of an event with this result, if it is known. An end has that of the process that it is of.
    fn place(&self, result: &StepResult) -> Option<u64> {
        let of_end = result.facts.log_end.filter(|_| result.outcome != StepOutcome::Unspecified);
        of_end.or_else(|| self.is_log_exact.then_some(self.log))
    }

    /// Returns the time `after` from now, in microseconds since boot.
    pub(super) fn after(&self, after: Duration) -> u64 {
        self.now.saturating_add(u64::try_from(after.as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns what is known of a step that begins now.
    pub(super) fn start_facts(&self) -> StepFacts {
        StepFacts { start: self.wall(self.now), log_start: Some(self.log), ..StepFacts::default() }
    }

    /// Returns the time of the event that is handled, in seconds since the epoch; 0 before the job's start.
    pub(super) fn seconds(&self) -> i64 {
        self.wall(self.now).map_or(0, |micros| micros / 1_000_000)
    }

    /// Returns what is known of a step that ends now.
    pub(super) fn end_facts(&self) -> EndFacts {
        EndFacts { time: self.wall(self.ended), log: self.log }
    }

    /// Converts a time since boot to microseconds since the epoch.
    fn wall(&self, boot: u64) -> Option<i64> {
        let (wall, started) = self.start?;
        Some(wall.saturating_add_unsigned(boot.saturating_sub(started)))
    }
}

/// The facts of the end of a step: its time, and the length of the log then.
#[derive(Clone, Copy)]
pub(super) struct EndFacts {
    time: Option<i64>,
    log: u64,
}

impl EndFacts {
    /// Adds the end to what is known of a step that had begun.
    pub(super) fn note(self, facts: &mut StepFacts) {
        facts.end = self.time.max(facts.start);
        facts.log_end = Some(self.log);
    }
}

impl Machine {
    /// Tells the length of the log in bytes, for the ends that follow. Usually the end of a process tells it.
    pub fn note_log(&mut self, len: u64) {
        self.times.note_log(len);
    }

    /// Returns what is known of a step that begins in the list or group `parent`.
    pub(super) fn facts(&self, parent: CallId, at: &StepAt, member: Option<&Member>) -> StepFacts {
        let line = at.get().map_or(0, |step| step.at.line);
        let total = match (self.calls.get(&parent).map(|call| &call.work), member) {
            (Some(Work::Group(group)), _) => group.members.len(),
            _ => steps_of(&at.loaded).len(),
        };
        let number = member.map_or(at.index, |member| member.index) + 1;
        StepFacts {
            number: number as u32,
            total: total as u32,
            place: format!("{}:{line}", at.loaded.function.file),
            ..self.times.start_facts()
        }
    }

    /// Tells that an attempt of a step has begun, with its name, place and times.
    pub(super) fn note_start(&mut self, id: CallId) {
        self.open_section(id);
        let Some(call) = self.calls.get_mut(&id) else { return };
        let parent = call.parent.unwrap_or(ROOT);
        call.is_noted = true;
        let result = StepResult {
            status: StepStatus::Running,
            attempts: call.result.attempts.clone(),
            ..brief(&call.name, &call.result.facts)
        };
        let result = if id == ROOT { StepResult { step: None, ..result } } else { result };
        let (is_member, slot) = (call.member.is_some(), call.slot);
        self.note_step(id, parent, is_member, slot, result);
    }

    /// Tells that a step of a plain list has begun, now that its function is loaded. Other steps are told of before.
    pub(super) fn note_start_once(&mut self, id: CallId) {
        if self.calls.get(&id).is_some_and(|call| !call.is_noted) {
            self.note_start(id);
        }
    }

    /// Tells that a step has ended. A step of a plain list that was never loaded has no result (language.md §14.2).
    pub(super) fn note_ended(&mut self, id: CallId, call: &Call, result: StepResult) {
        let Some(parent) = call.parent else { return };
        if call.is_noted || !self.is_in_plain_list(call) {
            let (is_member, slot) = (call.member.is_some(), call.slot);
            self.note_step(id, parent, is_member, slot, result);
        }
        if call.is_noted {
            self.close_section(parent, &call.name);
        }
    }

    /// Tells that something has happened to the step `id`.
    pub(super) fn note_step(
        &mut self,
        id: CallId,
        parent: CallId,
        is_member: bool,
        slot: u8,
        result: StepResult,
    ) {
        let place = self.times.place(&result);
        self.push(Effect::Note(Box::new(StepNote { call: id, parent, is_member, slot, place, result })));
    }
}

/// Returns a result with only name, place and times of a step.
fn brief(name: &str, facts: &StepFacts) -> StepResult {
    let step = StepInfo { name: name.to_owned(), ..StepInfo::default() };
    StepResult { step: Some(step), facts: facts.clone(), ..StepResult::default() }
}
