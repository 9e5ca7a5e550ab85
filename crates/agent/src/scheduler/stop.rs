//! Signals and the end of an agent (agent.md §4.4).

use serde::{Deserialize, Serialize};

use super::{Action, Limits};
use crate::time::Moment;

/// What SIGTERM does to jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// They go on; the next agent takes them up.
    #[default]
    Detach,
    /// They are ended.
    Fail,
}

/// A signal to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGQUIT.
    Quit,
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
}

/// How the agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Nothing is left to do: exit code 0.
    Done,
    /// Jobs go on without it: exit code 0.
    Detached,
    /// The stop failed jobs: exit code 1.
    Failed,
}

/// Phase of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// It asks no more and ends with its last job.
    Draining,
    /// It leaves its jobs, once requests in flight have come back.
    Detaching {
        until: Moment,
    },
    /// It ends its jobs.
    Failing {
        until: Moment,
        is_forced: bool,
    },
    Over,
}

/// The stop of an agent.
pub(super) struct Stop {
    phase: Phase,
    /// An end that a signal has decided.
    exit_now: Option<Exit>,
    /// True if the stop ended a job.
    has_failed_jobs: bool,
}

impl Stop {
    pub(super) const fn new() -> Self {
        Self { phase: Phase::Running, exit_now: None, has_failed_jobs: false }
    }

    /// True while the agent asks for jobs.
    pub(super) const fn asks(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// Asks no more, and ends with the last job.
    pub(super) const fn drain(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Draining;
        }
    }

    /// Takes a signal. `open` counts jobs and requests that can bring some.
    pub(super) fn signal(
        &mut self,
        signal: Signal,
        limits: &Limits,
        open: usize,
        now: Moment,
    ) -> Option<Action> {
        let until = now + limits.shutdown_timeout;
        match (self.phase, signal) {
            (_, Signal::Quit) => self.drain(),
            (Phase::Running | Phase::Draining, Signal::Terminate) if limits.on_stop == OnStop::Detach => {
                self.phase = Phase::Detaching { until };
            }
            (Phase::Running | Phase::Draining, _) => {
                self.has_failed_jobs = open > 0;
                self.phase = Phase::Failing { until, is_forced: false };
                return Some(Action::EndJobs { force: false });
            }
            (Phase::Detaching { .. }, _) => self.exit_now = Some(Exit::Detached),
            (Phase::Failing { until, is_forced: false }, _) => {
                self.phase = Phase::Failing { until, is_forced: true };
                return Some(Action::EndJobs { force: true });
            }
            (Phase::Failing { is_forced: true, .. }, _) => self.exit_now = Some(Exit::Failed),
            (Phase::Over, _) => {}
        }
        None
    }

    /// Ends a job that a request in flight brought after a stop.
    pub(super) fn job_came(&mut self, has_job: bool) -> Option<Action> {
        match self.phase {
            Phase::Failing { is_forced, .. } if has_job => {
                self.has_failed_jobs = true;
                Some(Action::EndJobs { force: is_forced })
            }
            _ => None,
        }
    }

    /// Returns the end of the agent, once.
    pub(super) fn exit(&mut self, requests: usize, open: usize, now: Moment) -> Option<Exit> {
        let failed = if self.has_failed_jobs { Exit::Failed } else { Exit::Done };
        let detached = if open > 0 { Exit::Detached } else { Exit::Done };
        let exit = match self.phase {
            Phase::Running | Phase::Over => None,
            Phase::Draining => (requests == 0 && open == 0).then_some(Exit::Done),
            Phase::Detaching { until } => (requests == 0 || until <= now).then_some(detached),
            Phase::Failing { until, .. } => (requests == 0 && open == 0 || until <= now).then_some(failed),
        };
        let exit = self.exit_now.take().or(exit);
        if exit.is_some() {
            self.phase = Phase::Over;
        }
        exit
    }

    /// Returns when a stop is over at the latest.
    pub(super) const fn wake(&self) -> Option<Moment> {
        match self.phase {
            Phase::Detaching { until } | Phase::Failing { until, .. } => Some(until),
            Phase::Running | Phase::Draining | Phase::Over => None,
        }
    }
}
