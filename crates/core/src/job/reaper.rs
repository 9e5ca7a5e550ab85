//! The reaper's policy: which jobs are stale, runaway, silent or waiting too long (service.md §6.3).
//!
//! Pure: facts and the time in, actions out. Times are monotonic, counted from the daemon's start. An earlier event is
//! known by its age at the start. Followers and Status calls do not count: only Finish ends a job's stay.

use std::time::Duration;

use step_runner_model::CancelCause;

use crate::config::Config;

/// Time limits of the rules. Zero switches a rule off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Limit for an ended job that no client finishes.
    pub(crate) stale_after: Duration,
    /// Earliest removal, after the start, of a job that ended before the start.
    pub(crate) stale_floor: Duration,
    /// Limit for a running job.
    pub(crate) runaway_after: Duration,
    /// Limit for a running job without output.
    pub(crate) silent_after: Duration,
    /// Limit for a job that waits for a slot.
    pub(crate) queued_after: Duration,
}

impl Rules {
    /// Takes the limits from the settings.
    pub const fn of(config: &Config) -> Self {
        Self {
            stale_after: config.stale_after,
            stale_floor: config.stale_floor,
            runaway_after: config.runaway_after,
            silent_after: config.silent_after,
            queued_after: config.queued_after,
        }
    }
}

/// Time of an event, relative to the daemon's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// This long after the daemon's start.
    AfterStart(Duration),
    /// This long before the daemon's start. Zero if the wall clock was set back in between.
    BeforeStart(Duration),
}

impl Moment {
    /// Creates the moment that is `age` ago at `now` and before the daemon's start.
    pub const fn before_start(age: Duration, now: Duration) -> Self {
        Self::BeforeStart(age.saturating_sub(now))
    }

    /// Returns the age of this moment at `now`.
    pub fn age(self, now: Duration) -> Duration {
        match self {
            Self::AfterStart(at) => now.saturating_sub(at),
            Self::BeforeStart(before) => now.saturating_add(before),
        }
    }
}

/// Facts about a job that the reaper needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts<I> {
    /// Identifies the job.
    pub id: I,
    /// Its phase.
    pub phase: Phase,
}

/// Phase of a job's life, with its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for a slot.
    Queued {
        /// Time of the registration.
        since: Moment,
    },
    /// Its steps run.
    Running {
        /// Time of the start.
        since: Moment,
        /// Time of the last output, or of the start if there was none. After a restart it is not before the daemon's
        /// start: the earlier silence is unknown.
        output: Moment,
    },
    /// Being cancelled, which has its own time limit.
    Cancelling,
    /// Over.
    Ended {
        /// Time of the end.
        since: Moment,
    },
}

/// An action that the reaper asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<I> {
    /// Remove the job as Finish does.
    Remove(I),
    /// Cancel, with this cause in the job's log.
    Cancel(I, CancelCause),
}

/// Makes one pass at `now`, the time since the daemon's start. Returns at most one action per job.
pub fn decide<I: Clone>(rules: &Rules, now: Duration, jobs: &[Facts<I>]) -> Vec<Action<I>> {
    jobs.iter().filter_map(|job| judge(rules, now, job)).collect()
}

fn judge<I: Clone>(rules: &Rules, now: Duration, job: &Facts<I>) -> Option<Action<I>> {
    let cancel = |cause| Some(Action::Cancel(job.id.clone(), cause));
    match job.phase {
        Phase::Queued { since } if is_over(rules.queued_after, since.age(now)) => {
            cancel(CancelCause::QueuedTooLong)
        }
        // The rule with the longer time explains more, so it goes first.
        Phase::Running { since, .. } if is_over(rules.runaway_after, since.age(now)) => {
            cancel(CancelCause::Runaway)
        }
        // The log may be older than the start: waiting is not silence (queue.md §5).
        Phase::Running { since, output }
            if is_over(rules.silent_after, output.age(now).min(since.age(now))) =>
        {
            cancel(CancelCause::Silent)
        }
        Phase::Ended { since }
            if is_over(rules.stale_after, since.age(now)) && may_be_stale(rules, now, since) =>
        {
            Some(Action::Remove(job.id.clone()))
        }
        Phase::Queued { .. } | Phase::Running { .. } | Phase::Cancelling | Phase::Ended { .. } => None,
    }
}

fn is_over(rule: Duration, age: Duration) -> bool {
    !rule.is_zero() && age >= rule
}

/// After a restart clients get time to come back and finish their jobs.
fn may_be_stale(rules: &Rules, now: Duration, ended: Moment) -> bool {
    matches!(ended, Moment::AfterStart(_)) || now >= rules.stale_floor
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: Rules = Rules {
        stale_after: Duration::from_secs(100),
        stale_floor: Duration::from_secs(30),
        runaway_after: Duration::from_secs(1_000),
        silent_after: Duration::from_secs(200),
        queued_after: Duration::from_mins(5),
    };
    const OFF: Rules = Rules {
        stale_after: Duration::ZERO,
        stale_floor: Duration::ZERO,
        runaway_after: Duration::ZERO,
        silent_after: Duration::ZERO,
        queued_after: Duration::ZERO,
    };
    const KEY: &str = "1";

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    const fn at(count: u64) -> Moment {
        Moment::AfterStart(seconds(count))
    }

    fn one(rules: &Rules, now: u64, phase: Phase) -> Option<Action<&'static str>> {
        let mut actions = decide(rules, seconds(now), &[Facts { id: KEY, phase }]);
        assert!(actions.len() <= 1);
        actions.pop()
    }

    #[test]
    fn each_rule_acts_from_its_time_on_and_not_before() {
        let ended = Phase::Ended { since: at(5) };
        let queued = Phase::Queued { since: at(5) };
        let running = Phase::Running { since: at(5), output: at(900) };
        let silent = Phase::Running { since: at(5), output: at(9) };
        for (phase, due, action) in [
            (ended, 105, Action::Remove(KEY)),
            (queued, 305, Action::Cancel(KEY, CancelCause::QueuedTooLong)),
            (running, 1_005, Action::Cancel(KEY, CancelCause::Runaway)),
            (silent, 209, Action::Cancel(KEY, CancelCause::Silent)),
        ] {
            assert_eq!(one(&RULES, due - 1, phase), None, "{phase:?}");
            assert_eq!(one(&RULES, due, phase), Some(action), "{phase:?}");
            assert_eq!(one(&OFF, due * 1_000, phase), None, "{phase:?}");
        }
    }

    #[test]
    fn job_that_ended_before_a_restart_waits_for_the_floor() {
        let ended = Phase::Ended { since: Moment::BeforeStart(seconds(10_000)) };
        assert_eq!(one(&RULES, 29, ended), None);
        assert_eq!(one(&RULES, 30, ended), Some(Action::Remove(KEY)));
        let young = Phase::Ended { since: Moment::BeforeStart(seconds(60)) };
        assert_eq!(one(&RULES, 39, young), None);
        assert_eq!(one(&RULES, 40, young), Some(Action::Remove(KEY)));
    }

    #[test]
    fn running_time_counts_over_a_restart() {
        let running = Phase::Running { since: Moment::BeforeStart(seconds(995)), output: at(0) };
        assert_eq!(one(&RULES, 4, running), None);
        assert_eq!(one(&RULES, 5, running), Some(Action::Cancel(KEY, CancelCause::Runaway)));
    }

    #[test]
    fn what_is_found_some_time_after_the_start_is_no_older_for_it() {
        let found = Moment::before_start(seconds(50), seconds(9));
        assert_eq!(found.age(seconds(9)), seconds(50));
        assert_eq!(found.age(seconds(19)), seconds(60));
        // The clock was set back meanwhile.
        assert_eq!(Moment::before_start(seconds(0), seconds(9)), Moment::BeforeStart(seconds(0)));
    }

    #[test]
    fn the_time_a_job_waited_is_no_silence() {
        let running = Phase::Running { since: at(500), output: at(0) };
        assert_eq!(one(&RULES, 699, running), None);
        assert_eq!(one(&RULES, 700, running), Some(Action::Cancel(KEY, CancelCause::Silent)));
    }

    fn moment() -> impl Strategy<Value = Moment> {
        let time = any::<u32>().prop_map(|count| seconds(count.into()));
        (any::<bool>(), time).prop_map(|(before, time)| {
            if before { Moment::BeforeStart(time) } else { Moment::AfterStart(time) }
        })
    }

    fn phase() -> impl Strategy<Value = Phase> {
        prop_oneof![
            moment().prop_map(|since| Phase::Queued { since }),
            (moment(), moment()).prop_map(|(since, output)| Phase::Running { since, output }),
            Just(Phase::Cancelling),
            moment().prop_map(|since| Phase::Ended { since }),
        ]
    }

    proptest! {
        #[test]
        fn actions_fit_the_phase(now: u32, phase in phase()) {
            let fits = match one(&RULES, now.into(), phase) {
                None => true,
                Some(Action::Remove(_)) => matches!(phase, Phase::Ended { .. }),
                Some(Action::Cancel(_, CancelCause::QueuedTooLong)) => matches!(phase, Phase::Queued { .. }),
                Some(Action::Cancel(_, cause)) => cause.is_time_limit() && matches!(phase, Phase::Running { .. }),
            };
            prop_assert!(fits);
        }

        #[test]
        fn what_is_due_stays_due(now: u32, later: u32, phase in phase()) {
            let first = one(&RULES, now.into(), phase);
            let second = one(&RULES, u64::from(now) + u64::from(later), phase);
            prop_assert!(first.is_none() || second.is_some());
        }

        #[test]
        fn with_all_rules_off_no_job_is_touched(now: u32, phase in phase()) {
            prop_assert_eq!(one(&OFF, now.into(), phase), None);
        }

        #[test]
        fn extreme_times_do_not_overflow(now in any::<u64>().prop_map(Duration::from_secs), before: u64) {
            let since = Moment::BeforeStart(Duration::from_secs(before));
            let facts = Facts { id: KEY, phase: Phase::Queued { since } };
            drop(decide(&RULES, now, &[facts]));
        }
    }
}
