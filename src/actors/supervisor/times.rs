//! Points in time from which the age of a job counts, for jobs of an earlier daemon.

use std::time::Duration;

use crate::clock;
use crate::job::reaper::Moment;

/// Start of a job.
#[derive(Clone, Copy)]
pub(super) struct Start {
    /// Microseconds since the epoch.
    pub(super) at: i64,
    pub(super) since: Moment,
}

/// Points in time from which the age of a job counts.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) started: Option<Start>,
    /// Registration.
    pub(super) waits: Moment,
}

impl Start {
    /// Computes the age by the wall clock: there is no other clock if the journal has no boot time (service.md §6.3).
    pub(super) fn by_wall(at: i64) -> Self {
        Self { at, since: before_start(wall_age(at)) }
    }
}

/// [`Moment::before_start`] with the current uptime.
pub(super) fn before_start(age: Duration) -> Moment {
    Moment::before_start(age, clock::uptime())
}

pub(super) fn wall_age(at: i64) -> Duration {
    Duration::from_micros(u64::try_from(clock::now_micros().saturating_sub(at)).unwrap_or(0))
}
