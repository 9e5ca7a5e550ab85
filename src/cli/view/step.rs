//! Reads starts and ends of steps from messages of the protocol.

use std::time::Duration;

use crate::cli::states;
use crate::pb::v1;
use crate::pb::v1::step_result::Status;

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    Succeeded,
    Failed,
    Cancelled,
}

/// Start or end of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepEvent {
    Started(StepStarted),
    Ended(StepEnded),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepStarted {
    /// Names from the job's own list down to the step; empty for the job.
    pub(super) path: Vec<String>,
    /// Place in its list, from 1, and the length of that list; 0 if not known.
    pub(super) number: u32,
    pub(super) total: u32,
    /// Microseconds since the epoch.
    pub(super) at: Option<i64>,
    pub(super) log_at: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepEnded {
    pub(super) path: Vec<String>,
    pub(super) outcome: StepOutcome,
    /// 0 without a process.
    pub(super) exit_code: i32,
    pub(super) took: Option<Duration>,
    pub(super) at: Option<i64>,
    pub(super) log_at: Option<u64>,
}

impl StepEvent {
    /// Reads a message of the stream of results. It holds the path to a step that has started or ended, or the result
    /// of an ended step of the job's own list.
    pub(super) fn read(result: &v1::StepResult) -> Option<Self> {
        let mut path: Vec<String> = Some(name(result)).into_iter().filter(|name| !name.is_empty()).collect();
        let mut step = result;
        if is_running(result) {
            while let Some(inner) = step.sub_step_results.first().filter(|_| is_running(step)) {
                path.push(name(inner));
                step = inner;
            }
        }
        let at = |time: &Option<prost_types::Timestamp>| {
            time.as_ref().and_then(states::time).map(|time| time.timestamp_micros())
        };
        let place = |at: Option<i64>| at.and_then(|at| u64::try_from(at).ok());
        if is_running(step) {
            return Some(Self::Started(StepStarted {
                path,
                number: u32::try_from(step.number).unwrap_or(0),
                total: u32::try_from(step.total).unwrap_or(0),
                at: at(&step.start_time),
                log_at: place(step.log_start),
            }));
        }
        // The root ends with the job.
        let outcome = match step.status() {
            _ if path.is_empty() => return None,
            Status::Success => StepOutcome::Succeeded,
            Status::Cancelled => StepOutcome::Cancelled,
            _ => StepOutcome::Failed,
        };
        let took = at(&step.start_time).zip(at(&step.end_time)).map(|(start, end)| end - start);
        Some(Self::Ended(StepEnded {
            path,
            outcome,
            exit_code: step.exec_result.as_ref().map_or(0, |process| process.exit_code),
            took: took.and_then(|took| u64::try_from(took).ok()).map(Duration::from_micros),
            at: at(&step.end_time),
            log_at: place(step.log_end),
        }))
    }

    pub(super) const fn is_start(&self) -> bool {
        matches!(self, Self::Started(_))
    }

    pub(super) fn path(&self) -> &[String] {
        match self {
            Self::Started(started) => &started.path,
            Self::Ended(ended) => &ended.path,
        }
    }

    /// Returns the length of the log at that moment.
    pub(super) const fn log_at(&self) -> Option<u64> {
        match self {
            // A daemon that sends starts sends their places, too.
            Self::Started(started) => match started.log_at {
                None => Some(0),
                at => at,
            },
            Self::Ended(ended) => ended.log_at,
        }
    }
}

fn is_running(result: &v1::StepResult) -> bool {
    result.status() == Status::Running
}

fn name(result: &v1::StepResult) -> String {
    result.step.as_ref().map(|step| step.name.clone()).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn owned(path: &[&str]) -> Vec<String> {
        path.iter().map(|&name| name.to_owned()).collect()
    }

    pub(in crate::cli::view) fn started(path: &[&str], log_at: u64) -> StepEvent {
        let (number, total) = (1, 2);
        StepEvent::Started(StepStarted {
            path: owned(path),
            number,
            total,
            at: Some(0),
            log_at: Some(log_at),
        })
    }

    pub(in crate::cli::view) fn ended(path: &[&str], log_at: u64) -> StepEvent {
        let took = Some(Duration::from_millis(1200));
        let (outcome, exit_code) = (StepOutcome::Succeeded, 0);
        let at = Some(1_200_000);
        StepEvent::Ended(StepEnded { path: owned(path), outcome, exit_code, took, at, log_at: Some(log_at) })
    }

    pub(in crate::cli::view) fn failed(path: &[&str], exit_code: i32, log_at: u64) -> StepEvent {
        match ended(path, log_at) {
            StepEvent::Ended(ended) => {
                StepEvent::Ended(StepEnded { outcome: StepOutcome::Failed, exit_code, ..ended })
            }
            other @ StepEvent::Started(_) => other,
        }
    }

    impl StepEvent {
        pub(in crate::cli::view) fn unplaced_end(path: &[&str]) -> Self {
            match ended(path, 0) {
                Self::Ended(ended) => Self::Ended(StepEnded { log_at: None, took: None, ..ended }),
                other @ Self::Started(_) => other,
            }
        }
    }

    fn result(name: &str, status: Status) -> v1::StepResult {
        let step = (!name.is_empty()).then(|| v1::Step { name: name.into(), ..Default::default() });
        v1::StepResult { step, status: status as i32, ..Default::default() }
    }

    #[test]
    fn news_name_the_innermost_step_of_their_path() {
        let second = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let inner = v1::StepResult {
            start_time: second(1),
            end_time: second(3),
            log_end: Some(7),
            ..result("compile", Status::Failure)
        };
        let outer = v1::StepResult { sub_step_results: vec![inner], ..result("build", Status::Running) };
        let Some(StepEvent::Ended(ended)) = StepEvent::read(&outer) else { panic!("{outer:?}") };
        assert_eq!((ended.path.join("/").as_str(), ended.outcome), ("build/compile", StepOutcome::Failed));
        assert_eq!((ended.took, ended.log_at), (Some(Duration::from_secs(2)), Some(7)));
    }

    #[test]
    fn a_result_of_a_daemon_without_news_is_the_end_of_a_step_and_the_root_is_none() {
        let Some(event) = StepEvent::read(&result("a", Status::Success)) else { panic!("no event") };
        assert_eq!((event.path(), event.log_at()), (&["a".to_owned()][..], None));
        assert_eq!(StepEvent::read(&result("", Status::Success)), None);
        let Some(start) = StepEvent::read(&result("", Status::Running)) else { panic!("no event") };
        assert!(start.is_start() && start.path().is_empty());
    }
}
