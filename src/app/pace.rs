//! Paces the event loop: while very many calls come, the loop handles all events of a few milliseconds in one turn.
//!
//! With hundreds of short jobs at once, an event comes every 100 µs: a call, the end of a step, a line of a log. A loop that
//! handles each at once wakes up for each, and each answer wakes its client, which calls again. Batches cost both sides
//! less (docs/internals/performance-history.md, "Many jobs at once"). They add latency, which is small beside that of such a load.
//!
//! The pause is a sleep of the thread, not a timer: it must also hold back the wake-ups of sockets.

use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::grpc::accept::CallCounters;

/// Largest number of calls under way at which turns are not paced. Followers of quiet jobs do not count as under way: the
/// number is computed from calls that have ended.
const FEW_CALLS: u128 = 8;

/// Minimum rate of new calls, in calls per second, at which turns are paced.
const MANY_CALLS: u128 = 2_000;

/// Shortest time over which calls are counted.
const COUNTED: Duration = Duration::from_millis(32);

/// Time between the beginnings of two turns, for each call under way …
const FOR_A_CALL: Duration = Duration::from_micros(32);

/// … up to this limit.
const LONGEST: Duration = Duration::from_millis(4);

/// Returns a hook that the event loop calls before it waits for events. The hook sleeps until the next turn may begin.
pub(super) fn before_waiting(calls: CallCounters) -> impl Fn() + Send + Sync + 'static {
    let turns = Mutex::new(Turns::new(Instant::now()));
    move || {
        let mut turns = turns.lock();
        let now = Instant::now();
        let pause = turns.pause(now, calls.begun(), calls.spent());
        turns.latest = if pause.is_zero() {
            now
        } else {
            thread::sleep(pause);
            Instant::now()
        };
    }
}

/// The turns of the event loop.
#[derive(Debug)]
struct Turns {
    /// End of the latest pause. The turn after it begins then, or later if no event has come.
    latest: Instant,
    /// Minimum time from [`Self::latest`] to the next turn.
    apart: Duration,
    /// Start of the period in which calls are counted, with the arguments of [`Self::pause`] at that time.
    counted_from: (Instant, u64, Duration),
}

impl Turns {
    const fn new(now: Instant) -> Self {
        Self { latest: now, apart: Duration::ZERO, counted_from: (now, 0, Duration::ZERO) }
    }

    /// Returns the pause before the next turn. `begun` is the number of calls so far, `spent` the total duration of those
    /// that have ended.
    fn pause(&mut self, now: Instant, begun: u64, spent: Duration) -> Duration {
        let (from, begun_before, spent_before) = self.counted_from;
        let time = now.saturating_duration_since(from);
        if time >= COUNTED {
            let came = u128::from(begun.saturating_sub(begun_before));
            self.apart = apart(time, came, spent.saturating_sub(spent_before));
            self.counted_from = (now, begun, spent);
        }
        (self.latest + self.apart).saturating_duration_since(now)
    }
}

/// Returns the least time between two turns. In `time`, `came` calls have begun, and calls with a total duration of `spent`
/// have ended. By Little's law, `spent / time` calls are under way.
fn apart(time: Duration, came: u128, spent: Duration) -> Duration {
    let under_way = spent.as_micros() / time.as_micros().max(1);
    if came * 1_000_000 < MANY_CALLS * time.as_micros() || under_way <= FEW_CALLS {
        return Duration::ZERO;
    }
    FOR_A_CALL.saturating_mul(u32::try_from(under_way).unwrap_or(u32::MAX)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pauses of one second. Each turn takes `work`; `under_way` calls are under way, and `calls` begin in each
    /// millisecond.
    fn pauses(under_way: u32, calls: u64, work: Duration) -> Vec<Duration> {
        let begin = Instant::now();
        let (mut turns, mut now, mut pauses) = (Turns::new(begin), begin, Vec::new());
        while now < begin + Duration::from_secs(1) {
            now += work;
            let begun = u64::try_from((now - begin).as_millis()).unwrap() * calls;
            let pause = turns.pause(now, begun, (now - begin) * under_way);
            now += pause;
            turns.latest = now;
            pauses.push(pause);
        }
        pauses
    }

    const WORK: Duration = Duration::from_micros(50);

    #[test]
    fn few_calls_under_way_and_few_new_calls_are_not_paced() {
        for (under_way, calls) in [(0, 0), (1, 4), (8, 20), (1_000, 0), (1_000, 1), (0, 40)] {
            assert!(pauses(under_way, calls, WORK).iter().all(Duration::is_zero), "{under_way} {calls}");
        }
    }

    #[test]
    fn turns_are_the_further_apart_the_more_calls_are_under_way() {
        for (under_way, apart) in [(9, 288), (64, 2_048), (125, 4_000), (5_000, 4_000), (u32::MAX, 4_000)] {
            let pauses = pauses(under_way, 6, WORK);
            let longest = pauses.iter().max().unwrap();
            assert_eq!(*longest + WORK, Duration::from_micros(apart), "{under_way}");
        }
    }

    #[test]
    fn a_loop_with_enough_to_do_never_waits() {
        assert!(pauses(1_000, 20, LONGEST).iter().all(Duration::is_zero));
    }

    #[test]
    fn a_burst_is_over_as_soon_as_no_calls_come() {
        let begin = Instant::now();
        let spent = COUNTED * 500;
        let mut turns = Turns::new(begin);
        assert!(turns.pause(begin + COUNTED, 1_000, spent).is_zero(), "the turn began long ago");
        turns.latest = begin + COUNTED;
        assert_eq!(turns.pause(begin + COUNTED + WORK, 1_000, spent) + WORK, LONGEST);
        let later = begin + 2 * COUNTED;
        turns.latest = later;
        assert!(turns.pause(later, 1_000, spent).is_zero());
    }
}
