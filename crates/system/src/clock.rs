//! The clocks: the wall clock for stamps, the monotonic ones for durations.
//!
//! In a program with failpoints, a test can replace all three, thread by thread (`steer`).

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Monotonic time since the first call, which the daemon makes when it starts. Never jumps (faults.md row 63).
pub fn uptime() -> Duration {
    #[cfg(feature = "failpoints")]
    if let Some(time) = steered::ask(|clock| clock.uptime()) {
        return time;
    }
    START.elapsed()
}

/// Microseconds since the host's boot, time asleep included. Never jumps, and is the same for every process of one
/// boot: it measures times across a restart of the daemon.
pub fn boot_micros() -> u64 {
    #[cfg(feature = "failpoints")]
    if let Some(micros) = steered::ask(|clock| clock.boot_micros()) {
        return micros;
    }
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000
}

/// Processor time of this thread: a thread that waits for a processor uses none.
pub fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The wall clock, now.
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub fn now() -> SystemTime {
    #[cfg(feature = "failpoints")]
    if let Some(now) = steered::ask(|clock| clock.now()) {
        return now;
    }
    SystemTime::now()
}

/// Microseconds since the epoch, now.
pub fn now_micros() -> i64 {
    match now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    }
}

#[cfg(feature = "failpoints")]
pub use steered::is_steered;
#[cfg(feature = "failpoints")]
pub use steered::{Clock, steer};

#[cfg(feature = "failpoints")]
mod steered {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::{Duration, SystemTime};

    /// Clocks of a test.
    pub trait Clock {
        /// See [`super::uptime`].
        fn uptime(&self) -> Duration;
        /// See [`super::boot_micros`].
        fn boot_micros(&self) -> u64;
        /// See [`super::now`].
        fn now(&self) -> SystemTime;
    }

    thread_local! {
        static CLOCK: RefCell<Option<Rc<dyn Clock>>> = const { RefCell::new(None) };
    }

    /// Makes this thread ask `clock`, or the system again (`None`).
    pub fn steer(clock: Option<Rc<dyn Clock>>) {
        CLOCK.set(clock);
    }

    /// True if a test steers this thread's clocks. All work runs in this thread then, so that nothing depends on
    /// scheduling.
    pub fn is_steered() -> bool {
        CLOCK.with_borrow(Option::is_some)
    }

    pub(super) fn ask<T>(question: impl FnOnce(&dyn Clock) -> T) -> Option<T> {
        CLOCK.with_borrow(|clock| clock.as_deref().map(question))
    }
}
