//! Time as a parameter: moments of a steady clock, times of the wall clock, waits and their jitter.
//!
//! Intervals and waits count on the steady clock, which never jumps. Records on disk have times of the wall clock,
//! because the steady clock begins anew with the machine.

mod dates;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use dates::{date, http_date};

/// A moment of the caller's steady clock, counted from a start of its choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The start of the clock.
    pub const START: Self = Self(Duration::ZERO);

    /// Makes the moment `elapsed` after the start of the clock.
    pub const fn after_start(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Returns the time since `earlier`; zero if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }
}

/// A time of the wall clock: milliseconds since the epoch. It can jump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WallTime(pub u64);

impl WallTime {
    /// Returns the time since `earlier`; zero if the clock was set back.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// A random part of a wait, drawn by the caller: 0 is none of it, 255 nearly all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter(pub u8);

impl Jitter {
    /// Shortens a wait by up to a half, so that clients which failed together do not come back together.
    #[must_use]
    pub fn shorten(self, wait: Duration) -> Duration {
        wait.saturating_sub(wait / 512 * u32::from(self.0))
    }
}

/// What the caller knows of the present: both clocks, and a random part for waits that begin now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The steady clock.
    pub steady: Moment,
    /// The wall clock.
    pub wall: WallTime,
    /// Random part of waits.
    pub jitter: Jitter,
}

/// A wait that doubles from attempt to attempt, up to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubling {
    first: Duration,
    limit: Duration,
    failures: u32,
}

impl Doubling {
    /// Makes the wait before any failure.
    pub const fn new(first: Duration, limit: Duration) -> Self {
        Self { first, limit, failures: 0 }
    }

    /// Counts a failure and returns the wait after it.
    pub fn failed(&mut self, jitter: Jitter) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        jitter.shorten(self.first.saturating_mul(factor).min(self.limit))
    }

    /// Forgets the failures.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of failures since the last reset.
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn waits_double_up_to_their_limit() {
        let mut wait = Doubling::new(Duration::from_secs(3), Duration::from_mins(1));
        let waits: Vec<u64> = (0..7).map(|_| wait.failed(Jitter(0)).as_secs()).collect();
        assert_eq!(waits, [3, 6, 12, 24, 48, 60, 60]);
        wait.reset();
        assert_eq!(wait.failed(Jitter(0)).as_secs(), 3);
    }

    #[test]
    fn a_clock_that_was_set_back_gives_no_time() {
        assert_eq!(WallTime(5).since(WallTime(9)), Duration::ZERO);
        assert_eq!(WallTime(9).since(WallTime(5)), Duration::from_millis(4));
    }

    proptest! {
        #[test]
        fn jitter_takes_at_most_half(jitter: u8, millis in 0..1_000_000_u64, failures in 0..200_u32) {
            let wait = Duration::from_millis(millis);
            let short = Jitter(jitter).shorten(wait);
            prop_assert!(short <= wait && short >= wait / 2);
            let mut doubling = Doubling::new(Duration::from_secs(1), Duration::from_mins(5));
            for _ in 0..failures {
                prop_assert!(doubling.failed(Jitter(jitter)) <= Duration::from_mins(5));
            }
        }
    }
}
