//! The pace of the event loop: while very many calls come, what a short time brings is handled in one turn.
//!
//! With hundreds of short jobs under way something happens every 100 µs: a call, the end of a step, a line of a log.
//! Handled at once, each wakes this process, and each answer wakes its client, which calls again. Handled together they
//! cost less on both sides (docs/internals/performance.md). The price is latency, little beside what such a load has.

use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::grpc::accept::CallCounters;

/// Number of open calls up to which turns are not paced.
const FEW_CALLS: u64 = 8;

/// Calls a second from which on turns are paced. Followers of quiet jobs are open calls too, and a stream of log lines
/// takes many turns, but neither brings many new calls.
const MANY_CALLS: u64 = 2_000;

/// Shortest time over which calls are counted.
const COUNTED: Duration = Duration::from_millis(8);

/// Time between the beginnings of two turns, for each open call …
const FOR_A_CALL: Duration = Duration::from_micros(32);

/// … up to this limit.
const LONGEST: Duration = Duration::from_millis(4);

/// Returns what the event loop is to call before it waits for events. It sleeps as long as the next turn is too early.
pub(super) fn before_waiting(calls: CallCounters) -> impl Fn() + Send + Sync + 'static {
    let turns = Mutex::new(Turns::new(Instant::now()));
    move || {
        let (begun, open) = (calls.begun(), calls.open());
        if open > FEW_CALLS {
            let mut turns = turns.lock();
            let pause = turns.pause(Instant::now(), begun, open);
            if !pause.is_zero() {
                thread::sleep(pause);
            }
            turns.latest = Instant::now();
        }
    }
}

/// The turns of the event loop.
#[derive(Debug)]
struct Turns {
    /// Beginning of the latest turn. It may have begun later, if there was nothing to do.
    latest: Instant,
    /// When counting began, and the number of calls at that time.
    counted_from: (Instant, u64),
    /// True if many calls came in the time counted last.
    is_busy: bool,
}

impl Turns {
    const fn new(now: Instant) -> Self {
        Self { latest: now, counted_from: (now, 0), is_busy: false }
    }

    /// Returns how long the next turn must wait. `begun`: the number of calls so far; `open`: the number of those that
    /// are not answered yet.
    fn pause(&mut self, now: Instant, begun: u64, open: u64) -> Duration {
        self.count(now, begun);
        if !self.is_busy || open <= FEW_CALLS {
            return Duration::ZERO;
        }
        let apart = FOR_A_CALL.saturating_mul(u32::try_from(open).unwrap_or(u32::MAX)).min(LONGEST);
        (self.latest + apart).saturating_duration_since(now)
    }

    fn count(&mut self, now: Instant, begun: u64) {
        let (from, before) = self.counted_from;
        let time = now.saturating_duration_since(from);
        if time >= COUNTED {
            let came = u128::from(begun.saturating_sub(before));
            self.is_busy = came * 1_000_000 >= u128::from(MANY_CALLS) * time.as_micros();
            self.counted_from = (now, begun);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event loop whose turns take `work` each, with `open` calls open and `calls` new ones in each millisecond.
    /// Returns its pauses over a second.
    fn pauses(open: u64, calls: u64, work: Duration) -> Vec<Duration> {
        let begin = Instant::now();
        let (mut turns, mut now, mut pauses) = (Turns::new(begin), begin, Vec::new());
        while now < begin + Duration::from_secs(1) {
            now += work;
            let begun = u64::try_from((now - begin).as_millis()).unwrap() * calls;
            let pause = turns.pause(now, begun, open);
            now += pause;
            turns.latest = now;
            pauses.push(pause);
        }
        pauses
    }

    const WORK: Duration = Duration::from_micros(50);

    #[test]
    fn few_open_calls_and_followers_of_quiet_jobs_are_not_paced() {
        for (open, calls) in [(0, 0), (1, 4), (FEW_CALLS, 20), (1_000, 0), (1_000, 1)] {
            assert!(pauses(open, calls, WORK).iter().all(Duration::is_zero), "{open} {calls}");
        }
    }

    #[test]
    fn turns_are_the_further_apart_the_more_calls_are_open() {
        for (open, apart) in
            [(FEW_CALLS + 1, 288), (64, 2_048), (125, 4_000), (5_000, 4_000), (u64::MAX, 4_000)]
        {
            let pauses = pauses(open, 6, WORK);
            let longest = pauses.iter().max().unwrap();
            assert_eq!(*longest + WORK, Duration::from_micros(apart), "{open}");
            // Calls are counted first.
            assert!(pauses.iter().filter(|pause| pause.is_zero()).count() < 200, "{open}");
        }
    }

    #[test]
    fn a_loop_with_enough_to_do_never_waits() {
        assert!(pauses(1_000, 20, LONGEST).iter().all(Duration::is_zero));
    }

    #[test]
    fn a_burst_is_over_as_soon_as_no_calls_come() {
        let begin = Instant::now();
        let mut turns = Turns::new(begin);
        assert!(turns.pause(begin + COUNTED, 1_000, 500).is_zero(), "the turn began long ago");
        turns.latest = begin + COUNTED;
        assert_eq!(turns.pause(begin + COUNTED + WORK, 1_000, 500) + WORK, LONGEST);
        let later = begin + 2 * COUNTED;
        turns.latest = later;
        assert!(turns.pause(later, 1_000, 500).is_zero());
    }
}
