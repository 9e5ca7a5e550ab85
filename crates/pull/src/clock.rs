//! The clocks and the randomness that the decisions of the agent take as parameters.

use std::time::Instant;

use step_runner_agent::time::{Jitter, Moment, Now, WallTime};

/// A steady clock that began with the agent, and the wall clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts the clock.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the present.
    pub(super) fn now(&self) -> Now {
        Now { steady: self.steady(), wall: wall(), jitter: jitter() }
    }

    /// Returns the present of the steady clock.
    pub(super) fn steady(&self) -> Moment {
        Moment::after_start(self.start.elapsed())
    }

    /// Waits until a moment; for ever without one.
    pub(super) async fn reach(&self, moment: Option<Moment>) {
        match moment {
            Some(moment) => tokio::time::sleep(moment.since(self.steady())).await,
            None => std::future::pending().await,
        }
    }
}

/// Returns the time of the wall clock.
pub(super) fn wall() -> WallTime {
    WallTime(u64::try_from(step_runner_system::clock::now_micros() / 1_000).unwrap_or_default())
}

/// Draws the random part of a wait. Without a source of randomness returns the middle: it is not essential.
pub(super) fn jitter() -> Jitter {
    let byte = getrandom::u32().map_or(u8::MAX / 2, |bits| bits.to_le_bytes()[0]);
    Jitter(byte)
}
