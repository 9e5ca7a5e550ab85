//! The pace of the event loop: while very many calls come, what a short time brings is handled in one turn.
//!
//! With hundreds of short jobs under way something happens every 100 µs: a call, the end of a step, a line of a log.
//! Handled at once, each wakes this process, and each answer wakes its client, which calls again. Handled together they
//! cost less on both sides (docs/internals/performance.md). The price is latency, little beside what such a load has.

use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::grpc::accept::CallCounters;

/// Number of calls under way up to which turns are not paced. Followers of quiet jobs are not among them: only calls that
/// end count, for as long as they took.
const FEW_CALLS: u128 = 8;

/// Calls a second from which on turns are paced.
const MANY_CALLS: u128 = 2_000;

/// Shortest time over which calls are counted.
const COUNTED: Duration = Duration::from_millis(32);

/// Time between the beginnings of two turns, for each call under way …
const FOR_A_CALL: Duration = Duration::from_micros(32);

/// … up to this limit.
const LONGEST: Duration = Duration::from_millis(4);

/// Returns what the event loop is to call before it waits for events. It sleeps as long as the next turn is too early.
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
    /// Beginning of the latest turn. It may have begun later, if there was nothing to do.
    latest: Instant,
    /// Least time between the beginnings of two turns.
    apart: Duration,
    /// When counting began, with the number of calls and what they had spent at that time.
    counted_from: (Instant, u64, Duration),
}

impl Turns {
    const fn new(now: Instant) -> Self {
        Self { latest: now, apart: Duration::ZERO, counted_from: (now, 0, Duration::ZERO) }
    }

    /// Returns how long the next turn must wait. `begun`: the number of calls so far; `spent`: the durations of those that
    /// have ended, added up.
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

/// Returns how far turns are to be apart if in `time` so many calls `came`, and those that ended had `spent` so much.
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

    /// An event loop whose turns take `work` each, with `under_way` calls under way and `calls` new ones in each
    /// millisecond. Returns its pauses over a second.
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
