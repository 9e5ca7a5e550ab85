//! Decides when the keeper gives memory back. It has no clock; [`Keeper`](super::server::Keeper) gives the memory back.

use std::time::{Duration, Instant};

/// Time without a request or an end until the keeper counts as quiet, and between two rounds while it is busy.
const REST_AFTER: Duration = Duration::from_secs(1);

/// Memory that can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveBack {
    /// Free memory of the heap: there is more to do.
    Heap,
    /// The program's mapped pages too, though jobs may run on: while they only print, little of the program is used.
    Program,
}

/// Schedule for giving memory back.
#[derive(Debug)]
pub(super) struct Rest {
    at: Option<Instant>,
    was_busy: bool,
}

impl Rest {
    pub(super) fn new(now: Instant) -> Self {
        Self { at: Some(now + REST_AFTER), was_busy: false }
    }

    /// Notes a request, or the end of a job.
    pub(super) fn busy(&mut self, now: Instant) {
        self.was_busy = true;
        self.at.get_or_insert(now + REST_AFTER);
    }

    /// Returns when to call [`Self::due`] next.
    pub(super) const fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Returns what to give back now.
    pub(super) fn due(&mut self, now: Instant) -> Option<GiveBack> {
        self.at.filter(|at| *at <= now)?;
        if std::mem::take(&mut self.was_busy) {
            self.at = Some(now + REST_AFTER);
            return Some(GiveBack::Heap);
        }
        self.at = None;
        Some(GiveBack::Program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_keeper_gives_its_heap_back_and_a_quiet_one_its_program_once() {
        let start = Instant::now();
        let mut rest = Rest::new(start);
        assert_eq!(rest.due(start), None);
        let mut now = start + REST_AFTER;
        rest.busy(now);
        for _ in 0..3 {
            assert_eq!(rest.due(now), Some(GiveBack::Heap));
            assert_eq!(rest.due(now), None);
            rest.busy(now);
            now += REST_AFTER;
        }
        assert_eq!(rest.due(now), Some(GiveBack::Heap));
        now += REST_AFTER;
        assert_eq!(rest.due(now), Some(GiveBack::Program));
        assert_eq!((rest.at(), rest.due(now + 100 * REST_AFTER)), (None, None));
    }

    #[test]
    fn many_requests_do_not_put_the_time_off() {
        let start = Instant::now();
        let mut rest = Rest::new(start);
        (0..100).for_each(|n| rest.busy(start + n * REST_AFTER / 100));
        assert_eq!(rest.due(start + REST_AFTER), Some(GiveBack::Heap));
    }
}
