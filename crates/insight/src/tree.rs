//! The tree of a job's steps, folded from their events.
//!
//! It knows where in the log each step began and ended. So it tells which step has written a line: of a line that is read
//! now, and of one that was read before its events came. Both ways give the same step.

use std::collections::BTreeMap;
use std::ops::Range;

use step_runner_proto::v1;
use step_runner_proto::v1::step_result::{Outcome, Status};

/// Number of the root.
pub const ROOT: u32 = 0;

/// All steps of a job that have begun or were skipped, the root among them.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    steps: BTreeMap<u32, Step>,
    /// Steps under way, in the order of a tree: each behind the step that it belongs to, siblings as they began.
    open: Vec<u32>,
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Number of the step that it belongs to.
    pub parent: u32,
    /// True for a member of a group or matrix.
    pub is_member: bool,
    /// Its name; empty for the root.
    pub name: String,
    /// Position in its list, from 1.
    pub number: i32,
    /// Length of that list.
    pub total: i32,
    /// Number of the stream that its processes write.
    pub stream: u32,
    /// Number of the attempt, from 1; 0 if there was none.
    pub attempt: usize,
    /// Start of the attempt.
    pub start: Option<prost_types::Timestamp>,
    /// Its end; `None` if no event has told of one.
    pub end: Option<StepEnd>,
    place: Place,
}

/// End of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepEnd {
    /// Time of the end.
    pub time: Option<prost_types::Timestamp>,
    /// Outcome of the step.
    pub outcome: StepOutcome,
    /// Why it is no success.
    pub reason: String,
}

/// Bytes of the log between which a step was under way.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    begin: u64,
    /// Begin of the latest attempt.
    attempt: u64,
    /// `None` while it is under way.
    end: Option<u64>,
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// It did what it should.
    Succeeded,
    /// It failed.
    Failed,
    /// It failed, which is allowed.
    Allowed,
    /// It was stopped.
    Cancelled,
    /// It did not run.
    Skipped,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The step has begun.
    Started,
    /// It is tried again.
    Again,
    /// It has ended.
    Ended,
    /// It does not run.
    Skipped,
}

impl Change {
    /// Returns the kind of an event by its result.
    pub fn of(result: &v1::StepResult) -> Self {
        match (result.outcome(), result.status()) {
            (Outcome::Skipped, _) => Self::Skipped,
            (Outcome::Unspecified, Status::Running) if result.attempts.is_empty() => Self::Started,
            (Outcome::Unspecified, Status::Running) => Self::Again,
            _ => Self::Ended,
        }
    }

    /// True if nothing more happens to the step.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Ended | Self::Skipped)
    }
}

impl StepOutcome {
    fn of(result: &v1::StepResult) -> Self {
        match (result.outcome(), result.status()) {
            (Outcome::AllowedFailure, _) => Self::Allowed,
            (Outcome::Skipped, _) => Self::Skipped,
            (_, Status::Success) => Self::Succeeded,
            (_, Status::Cancelled) => Self::Cancelled,
            _ => Self::Failed,
        }
    }
}

impl Tree {
    /// Takes the next event. Afterwards [`Self::get`] knows the step.
    pub fn take(&mut self, event: &v1::StepEvent) -> Change {
        let none = v1::StepResult::default();
        let result = event.result.as_ref().unwrap_or(&none);
        let change = Change::of(result);
        let at = u64::try_from(event.log_bytes).unwrap_or_default();
        // A daemon that sends only results tells of a step when it has ended.
        let begin = || result.log_start.and_then(|at| u64::try_from(at).ok()).unwrap_or(at);
        let known = self.steps.get(&event.call).map(|step| step.place);
        let place = match (known, change) {
            (Some(place), Change::Started | Change::Again) => Place { attempt: at, end: None, ..place },
            (None, Change::Started | Change::Again) => Place { begin: at, attempt: at, end: None },
            (Some(place), Change::Ended | Change::Skipped) => Place { end: Some(at), ..place },
            (None, Change::Ended | Change::Skipped) => {
                Place { begin: begin(), attempt: begin(), end: Some(at) }
            }
        };
        // A step that is skipped, or whose `if` or `matrix` failed, ends without a start (flow.md §2).
        let has_begun = !change.is_end() || known.is_some() || result.start_time.is_some();
        let step = Step {
            parent: event.parent,
            is_member: event.member,
            name: result.step.as_ref().map(|step| step.name.clone()).unwrap_or_default(),
            number: result.number,
            total: result.total,
            stream: event.stream,
            attempt: if has_begun { result.attempts.len() + 1 } else { 0 },
            start: result.start_time,
            end: change.is_end().then(|| StepEnd {
                time: result.end_time,
                outcome: StepOutcome::of(result),
                reason: result.reason.clone(),
            }),
            place,
        };
        self.steps.insert(event.call, step);
        if change.is_end() && event.call == ROOT {
            // Steps whose ends nobody saw stay under way.
            self.open.retain(|call| *call != ROOT);
        } else {
            // A further attempt begins with nothing of the one before.
            self.close(event.call, at);
        }
        if !change.is_end() {
            self.open(event.call, event.parent);
        }
        change
    }

    /// Removes a step and all within it from those under way.
    fn close(&mut self, call: u32, at: u64) {
        let mut open = std::mem::take(&mut self.open);
        open.retain(|other| {
            let is_within = self.is_within(*other, call);
            if let Some(step) = self.steps.get_mut(other).filter(|_| is_within && *other != call) {
                step.place.end = Some(at);
            }
            !is_within
        });
        self.open = open;
    }

    fn open(&mut self, call: u32, parent: u32) {
        let behind = self.open.iter().rposition(|other| self.is_within(*other, parent));
        let at = if call == ROOT { 0 } else { behind.map_or(self.open.len(), |at| at + 1) };
        self.open.insert(at, call);
    }

    /// Returns a step.
    pub fn get(&self, call: u32) -> Option<&Step> {
        self.steps.get(&call)
    }

    /// Returns the steps under way, in the order of a tree: each behind the step that it belongs to, siblings in the order of
    /// their starts.
    pub fn under_way(&self) -> impl DoubleEndedIterator<Item = (u32, &Step)> {
        self.open.iter().filter_map(|call| Some((*call, self.steps.get(call)?)))
    }

    /// Returns the steps of the job's own list that have begun or were skipped, in their order.
    pub fn own(&self) -> impl Iterator<Item = (u32, &Step)> {
        let own = self.steps.iter().filter(|(call, step)| **call != ROOT && step.parent == ROOT);
        own.map(|(call, step)| (*call, step))
    }

    /// Returns the step whose processes write the stream now: the innermost one. The root if there is none.
    pub fn of_stream(&self, stream: u32) -> u32 {
        // A step is created before those within it.
        let writes = |call: &u32| self.steps.get(call).is_some_and(|step| step.stream == stream);
        self.open.iter().copied().filter(writes).max().unwrap_or(ROOT)
    }

    /// Returns the innermost step: what the daemon says is about it. The root while a member of a group is under way, also if
    /// the other members have ended or not begun: the daemon may speak of those.
    pub fn innermost(&self) -> u32 {
        let has_member = self.under_way().any(|(_, step)| step.is_member);
        self.nested().filter(|_| !has_member).unwrap_or(ROOT)
    }

    /// True if steps run side by side.
    pub fn is_parallel(&self) -> bool {
        self.nested().is_none()
    }

    /// Returns the innermost step if each one under way is within the one before it.
    fn nested(&self) -> Option<u32> {
        let mut below_root = self.under_way().filter(|(call, _)| *call != ROOT);
        below_root.try_fold(ROOT, |last, (call, step)| (step.parent == last).then_some(call))
    }

    /// Returns the names from the job's own list down to a step; none for the root.
    pub fn path(&self, call: u32) -> Vec<String> {
        let mut names: Vec<String> = self.line(call).map(|(_, step)| step.name.clone()).collect();
        names.reverse();
        names
    }

    /// Returns the positions from the job's own list down to a step, joined by dots; `0` for the root.
    pub fn id(&self, call: u32) -> String {
        let mut numbers: Vec<String> = self.line(call).map(|(_, step)| step.number.to_string()).collect();
        numbers.reverse();
        if numbers.is_empty() { "0".to_owned() } else { numbers.join(".") }
    }

    /// Returns the step of the last of `results`, which lead to it from the job's own list on; of several attempts of the steps
    /// around it, that of the last one. `None` if no event told of it.
    pub fn find(&self, results: &[&v1::StepResult]) -> Option<u32> {
        results.iter().try_fold(ROOT, |parent, result| {
            let name = result.step.as_ref().map_or("", |step| step.name.as_str());
            let is_it =
                |step: &Step| step.parent == parent && step.number == result.number && step.name == name;
            self.steps.iter().rfind(|(call, step)| **call != ROOT && is_it(step)).map(|(call, _)| *call)
        })
    }

    /// Returns what the last attempt of a step has written. If steps belong to it, that is what was written since the last one of
    /// them began.
    pub fn last_output(&self, call: u32) -> Option<LastOutput<'_>> {
        let step = self.steps.get(&call)?;
        let within =
            self.steps.iter().filter(|(other, step)| step.attempt > 0 && self.is_within(**other, call));
        let from = within.map(|(_, step)| step.place.attempt).max()?;
        let to = step.place.end.unwrap_or(u64::MAX);
        let overlaps = |place: Place| place.begin < to && place.end.is_none_or(|end| end > from);
        let ran = |step: &Step| step.attempt > 0 && step.place.end != Some(step.place.begin);
        let beside = self.steps.iter().filter(|(_, step)| ran(step) && overlaps(step.place));
        let beside = beside.map(|(call, step)| (*call, step.stream, step.place));
        Some(LastOutput { tree: self, call, from, to, beside: beside.collect() })
    }

    /// True for a step itself and for those within it.
    fn is_within(&self, call: u32, outer: u32) -> bool {
        // A parent has a smaller number, so nothing above `outer` need be looked at.
        outer == ROOT || self.line(call).take_while(|(call, _)| *call >= outer).any(|(call, _)| call == outer)
    }

    /// Returns a step and those around it, without the root.
    fn line(&self, call: u32) -> impl Iterator<Item = (u32, &Step)> {
        let mut next = call;
        std::iter::from_fn(move || {
            // A parent begins before its steps, so numbers fall and this ends, whatever a daemon sends.
            let step = self.steps.get(&next).filter(|step| next != ROOT && step.parent < next)?;
            let call = std::mem::replace(&mut next, step.parent);
            Some((call, step))
        })
    }
}

/// Part of a log that a step has written.
pub struct LastOutput<'a> {
    tree: &'a Tree,
    call: u32,
    from: u64,
    to: u64,
    /// Steps that were under way meanwhile, with their streams and places.
    beside: Vec<(u32, u32, Place)>,
}

impl LastOutput<'_> {
    /// Returns the bytes of the log among which it is. Lines of other steps can be there, too.
    pub const fn range(&self) -> Range<u64> {
        self.from..self.to
    }

    /// Returns the step that has written to `stream` at byte `place` of the log, if that is the step itself or one within it.
    pub fn writer(&self, place: u64, stream: u32) -> Option<u32> {
        let was_open = |of: Place| of.begin <= place && of.end.is_none_or(|end| end > place);
        let open = self.beside.iter().filter(|(_, its, of)| *its == stream && was_open(*of));
        // A step is created before those within it.
        let writer = open.map(|(call, ..)| *call).max().unwrap_or(ROOT);
        (self.range().contains(&place) && self.tree.is_within(writer, self.call)).then_some(writer)
    }
}

#[cfg(test)]
mod tests;
