//! The clocks: the wall clock for stamps, the monotonic one for durations.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Monotonic time since the first call, which the daemon makes when it starts. Never jumps (faults.md row 63).
pub fn uptime() -> Duration {
    START.elapsed()
}

/// The wall clock, now.
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// Microseconds since the epoch, now.
pub fn now_micros() -> i64 {
    match now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    }
}
