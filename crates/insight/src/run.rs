//! The tree of the steps under way, folded from events.

use std::collections::BTreeMap;

use step_runner_proto::v1;
use step_runner_proto::v1::step_result::{Outcome, Status};

/// Number of the root.
pub const ROOT: u32 = 0;

/// Steps that have begun and not ended, the root among them.
#[derive(Debug, Default)]
pub struct Steps {
    open: BTreeMap<u32, OpenStep>,
}

/// A step under way.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenStep {
    /// Number of the step that it belongs to.
    pub parent: u32,
    /// Its name; empty for the root.
    pub name: String,
    /// Position in its list, from 1.
    pub number: i32,
    /// Length of that list.
    pub total: i32,
    /// Number of the stream that its processes write.
    pub stream: u32,
    /// Number of the attempt, from 1.
    pub attempt: usize,
    /// Its start.
    pub start: Option<prost_types::Timestamp>,
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

/// An event with its place in the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// What has happened.
    pub change: Change,
    /// Names from the job's own list down to the step; empty for the root.
    pub path: Vec<String>,
    /// Positions in their lists, joined by dots; `0` for the root.
    pub id: String,
    /// Number of the attempt, from 1; 0 if there was none.
    pub attempt: usize,
}

impl Steps {
    /// Takes an event.
    pub fn take(&mut self, event: &v1::StepEvent) -> Told {
        let result = event.result.clone().unwrap_or_default();
        let change = match (result.outcome(), result.status()) {
            (Outcome::Skipped, _) => Change::Skipped,
            (Outcome::Unspecified, Status::Running) if result.attempts.is_empty() => Change::Started,
            (Outcome::Unspecified, Status::Running) => Change::Again,
            _ => Change::Ended,
        };
        let attempt = if change == Change::Skipped { 0 } else { result.attempts.len() + 1 };
        let step = OpenStep {
            parent: event.parent,
            name: result.step.as_ref().map(|step| step.name.clone()).unwrap_or_default(),
            number: result.number,
            total: result.total,
            stream: event.stream,
            attempt,
            start: result.start_time,
        };
        self.open.insert(event.call, step);
        let told = Told { change, path: self.path(event.call), id: self.id(event.call), attempt };
        if matches!(change, Change::Ended | Change::Skipped) {
            self.open.remove(&event.call);
        } else if change == Change::Again {
            // What the attempt before called has ended.
            self.open.retain(|call, step| step.parent != event.call || *call == event.call);
        }
        told
    }

    /// Returns the steps under way, each after the step that it belongs to.
    pub fn all(&self) -> impl Iterator<Item = (u32, &OpenStep)> {
        self.open.iter().map(|(call, step)| (*call, step))
    }

    /// Returns a step under way.
    pub fn get(&self, call: u32) -> Option<&OpenStep> {
        self.open.get(&call)
    }

    /// Returns the step whose processes write the stream now: the innermost one. The root if there is none.
    pub fn of_stream(&self, stream: u32) -> u32 {
        self.open.iter().rev().find(|(_, step)| step.stream == stream).map_or(ROOT, |(call, _)| *call)
    }

    /// Returns the innermost step if each one under way is within the one before it, else the root: what the daemon says is
    /// about it.
    pub fn innermost(&self) -> u32 {
        let mut last = ROOT;
        for (call, step) in self.open.iter().filter(|(call, _)| **call != ROOT) {
            if step.parent != last {
                return ROOT;
            }
            last = *call;
        }
        last
    }

    /// True if steps run side by side.
    pub fn is_parallel(&self) -> bool {
        self.innermost() == ROOT && self.open.keys().any(|call| *call != ROOT)
    }

    /// Returns the names from the job's own list down to a step.
    pub fn path(&self, call: u32) -> Vec<String> {
        let mut names: Vec<String> = self.line(call).map(|step| step.name.clone()).collect();
        names.reverse();
        names
    }

    /// Returns the positions from the job's own list down to a step, joined by dots; `0` for the root.
    pub fn id(&self, call: u32) -> String {
        let mut numbers: Vec<String> = self.line(call).map(|step| step.number.to_string()).collect();
        numbers.reverse();
        if numbers.is_empty() { "0".to_owned() } else { numbers.join(".") }
    }

    /// Returns a step and those around it, without the root.
    fn line(&self, call: u32) -> impl Iterator<Item = &OpenStep> {
        let mut at = call;
        std::iter::from_fn(move || {
            // A parent begins before its steps, so numbers fall and this ends, whatever a daemon sends.
            let step = self.open.get(&at).filter(|step| at != ROOT && step.parent < at)?;
            at = step.parent;
            Some(step)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(
        call: u32,
        parent: u32,
        name: &str,
        number: i32,
        stream: u32,
        outcome: Outcome,
    ) -> v1::StepEvent {
        let status = if outcome == Outcome::Unspecified { Status::Running } else { Status::Success };
        let step = (call != ROOT).then(|| v1::Step { name: name.into(), ..v1::Step::default() });
        let result = v1::StepResult {
            step,
            number,
            total: 3,
            status: status.into(),
            outcome: outcome.into(),
            ..v1::StepResult::default()
        };
        v1::StepEvent { call, parent, result: Some(result), log_bytes: 0, stream }
    }

    #[test]
    fn lines_belong_to_the_innermost_step_of_their_stream() {
        let mut steps = Steps::default();
        let open = Outcome::Unspecified;
        steps.take(&event(0, 0, "", 0, 1, open));
        assert_eq!((steps.of_stream(1), steps.innermost()), (0, 0));
        steps.take(&event(1, 0, "group", 1, 1, open));
        assert_eq!(steps.take(&event(2, 1, "a", 1, 1, open)).id, "1.1");
        assert_eq!((steps.of_stream(1), steps.innermost(), steps.is_parallel()), (2, 2, false));
        let told = steps.take(&event(3, 1, "b", 2, 2, open));
        assert_eq!((told.path, told.id.as_str()), (vec!["group".into(), "b".into()], "1.2"));
        steps.take(&event(4, 3, "inner", 1, 2, open));
        assert_eq!((steps.of_stream(1), steps.of_stream(2), steps.innermost()), (2, 4, 0));
        assert!(steps.is_parallel());
        let ended = steps.take(&event(2, 1, "a", 1, 1, Outcome::Success));
        assert_eq!((ended.change, ended.path.join("/")), (Change::Ended, "group/a".into()));
        assert_eq!((steps.of_stream(1), steps.innermost()), (1, 4));
        let skipped = steps.take(&event(5, 1, "c", 3, 1, Outcome::Skipped));
        assert_eq!((skipped.change, skipped.attempt, steps.get(5)), (Change::Skipped, 0, None));
    }

    #[test]
    fn a_further_attempt_ends_what_the_one_before_called() {
        let mut steps = Steps::default();
        steps.take(&event(1, 0, "f", 1, 1, Outcome::Unspecified));
        steps.take(&event(2, 1, "inner", 1, 1, Outcome::Unspecified));
        let mut again = event(1, 0, "f", 1, 1, Outcome::Unspecified);
        again.result.as_mut().unwrap().attempts.push(v1::StepResult::default());
        let told = steps.take(&again);
        assert_eq!((told.change, told.attempt), (Change::Again, 2));
        assert_eq!(steps.all().map(|(call, _)| call).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn numbers_that_make_no_tree_end_no_walk() {
        let mut steps = Steps::default();
        steps.take(&event(1, 2, "a", 1, 1, Outcome::Unspecified));
        steps.take(&event(2, 1, "b", 1, 1, Outcome::Unspecified));
        assert_eq!(steps.path(2), ["b"]);
    }
}
