//! Starts and ends of steps, as the view shows them.

use std::time::Duration;

use crate::cli::{results, states};
use crate::insight::run::{Change, Steps};
use crate::pb::v1;
use crate::pb::v1::step_result::{Outcome, Status};

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    Succeeded,
    Failed,
    /// It failed, which is allowed.
    Allowed,
    Cancelled,
    Skipped,
}

/// Start or end of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepChange {
    Started(StepStarted),
    Ended(StepEnded),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepStarted {
    pub(super) call: u32,
    /// Names from the job's own list down to the step; empty for the job.
    pub(super) path: Vec<String>,
    /// Place in its list, from 1, and the length of that list; 0 if not known.
    pub(super) number: u32,
    pub(super) total: u32,
    /// Number of the attempt, from 1.
    pub(super) attempt: usize,
    /// Microseconds since the epoch.
    pub(super) at: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepEnded {
    pub(super) call: u32,
    pub(super) path: Vec<String>,
    /// Place in its list, from 1, and the length of that list; 0 if not known.
    pub(super) number: u32,
    pub(super) total: u32,
    pub(super) outcome: StepOutcome,
    /// 0 without a process.
    pub(super) exit_code: i32,
    pub(super) took: Option<Duration>,
    pub(super) at: Option<i64>,
    /// Number of attempts; 0 if it did not run.
    pub(super) attempts: usize,
    /// Why it did not run.
    pub(super) reason: String,
}

impl StepChange {
    /// Reads an event, which `steps` take. `None` for the end of the root, which ends with the job.
    pub(super) fn read(event: &v1::StepEvent, steps: &mut Steps) -> Option<Self> {
        let told = steps.take(event);
        let result = event.result.clone().unwrap_or_default();
        let at = |time: &Option<prost_types::Timestamp>| {
            time.as_ref().and_then(states::time).map(|time| time.timestamp_micros())
        };
        if matches!(told.change, Change::Started | Change::Again) {
            return Some(Self::Started(StepStarted {
                call: event.call,
                path: told.path,
                number: u32::try_from(result.number).unwrap_or(0),
                total: u32::try_from(result.total).unwrap_or(0),
                attempt: told.attempt,
                at: at(&result.start_time),
            }));
        }
        if told.path.is_empty() {
            return None;
        }
        let took = at(&result.start_time).zip(at(&result.end_time)).map(|(start, end)| end - start);
        Some(Self::Ended(StepEnded {
            call: event.call,
            path: told.path,
            number: u32::try_from(result.number).unwrap_or(0),
            total: u32::try_from(result.total).unwrap_or(0),
            outcome: StepOutcome::of(&result),
            exit_code: results::exit_code(&result).unwrap_or(0),
            took: took.and_then(|took| u64::try_from(took).ok()).map(Duration::from_micros),
            at: at(&result.end_time),
            attempts: told.attempt,
            reason: result.reason,
        }))
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
