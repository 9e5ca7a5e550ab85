//! Ends of steps, as the view shows them.

use std::time::Duration;

use crate::cli::states;
use crate::insight::tree::{Step, StepOutcome, Tree};

/// A step of the job's own list that has ended or was skipped.
#[derive(Clone, Debug)]
pub(super) struct OwnStep {
    /// Place in its list, from 1, and the length of that list; 0 if not known.
    pub(super) number: u32,
    pub(super) total: u32,
    pub(super) name: String,
    pub(super) outcome: StepOutcome,
    pub(super) took: Option<Duration>,
    pub(super) attempts: usize,
    /// Why it did not run.
    pub(super) reason: String,
}

/// End of a step.
pub(super) struct ShownEnd {
    pub(super) outcome: StepOutcome,
    /// Microseconds since the epoch.
    pub(super) at: Option<i64>,
    pub(super) took: Option<Duration>,
    /// Why it did not run.
    pub(super) reason: String,
}

/// End of the steps whose ends nobody saw: that of their job.
#[derive(Clone, Copy)]
pub(super) struct UnseenEnd {
    pub(super) outcome: StepOutcome,
    /// Microseconds since the epoch.
    pub(super) at: i64,
}

impl OwnStep {
    /// Returns the steps of the job's own list, without those under way.
    pub(super) fn all(tree: &Tree, unseen: Option<UnseenEnd>) -> Vec<Self> {
        let shown = |step: &Step| {
            let ShownEnd { outcome, took, reason, .. } = ShownEnd::of(step, unseen)?;
            let [number, total] = [step.number, step.total].map(|count| u32::try_from(count).unwrap_or(0));
            let name = step.name.clone();
            Some(Self { number, total, name, outcome, took, attempts: step.attempt, reason })
        };
        tree.own().filter_map(|(_, step)| shown(step)).collect()
    }
}

impl ShownEnd {
    /// Returns the end of a step, or `None` while it is under way.
    pub(super) fn of(step: &Step, unseen: Option<UnseenEnd>) -> Option<Self> {
        let (outcome, at, reason) = match (&step.end, unseen) {
            (Some(end), _) => (end.outcome, micros(end.time.as_ref()), end.reason.clone()),
            (None, Some(UnseenEnd { outcome, at })) => (outcome, Some(at), String::new()),
            (None, None) => return None,
        };
        let took = micros(step.start.as_ref())
            .zip(at)
            .and_then(|(start, end)| u64::try_from(end.saturating_sub(start)).ok());
        Some(Self { outcome, at, took: took.map(Duration::from_micros), reason })
    }
}

/// Converts a time to microseconds since the epoch.
pub(super) fn micros(time: Option<&prost_types::Timestamp>) -> Option<i64> {
    time.and_then(states::time).map(|time| time.timestamp_micros())
}
