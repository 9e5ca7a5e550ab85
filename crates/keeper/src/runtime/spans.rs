//! The times in which steps of each job ran: they tell whose a process without other signs is.

use std::collections::HashMap;

use rustix::time::ClockId;

use crate::core::Serial;

/// Nanoseconds of a clock tick in `/proc/PID/stat`.
const TICK: i64 = 10_000_000;

/// The time in which steps of a job ran, in clock ticks since boot.
struct Span {
    tag: u128,
    /// Start of its first step.
    began: u64,
    /// End of its latest step; `None` while that runs.
    ended: Option<u64>,
}

/// Times of all jobs that have started a step in a control group and are not closed.
#[derive(Default)]
pub(super) struct Spans(HashMap<Serial, Span>);

impl Spans {
    /// Notes the start of a step.
    pub(super) fn begin(&mut self, serial: Serial, tag: u128, start_time: u64) {
        let span = self.0.entry(serial).or_insert(Span { tag, began: start_time, ended: None });
        span.ended = None;
    }

    /// Notes the end of a step.
    pub(super) fn end(&mut self, serial: Serial) {
        if let Some(span) = self.0.get_mut(&serial) {
            span.ended = Some(now());
        }
    }

    /// Forgets a job that is closed.
    pub(super) fn forget(&mut self, serial: Serial) {
        self.0.remove(&serial);
    }

    /// True if another job than `serial` has this tag.
    pub(super) fn has_other(&self, serial: Serial, tag: u128) -> bool {
        self.0.iter().any(|(other, span)| *other != serial && span.tag == tag)
    }

    /// True if the job can have started a process at the time `start`, and no other job can. Jobs with a running step come
    /// first: what earlier steps left behind seldom starts processes.
    pub(super) fn is_only_suspect(&self, serial: Serial, start: u64) -> bool {
        let began = |span: &Span| span.began <= start;
        let ran = |span: &Span| began(span) && span.ended.is_none_or(|ended| start <= ended);
        let only = |is_suspect: &dyn Fn(&Span) -> bool| {
            let mut suspects = self.0.iter().filter(|(_, span)| is_suspect(span)).map(|(serial, _)| *serial);
            suspects.next().map(|first| first == serial && suspects.next().is_none())
        };
        only(&ran).or_else(|| only(&began)).unwrap_or_default()
    }
}

/// Returns the time since boot in clock ticks.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * (1_000_000_000 / TICK as u64) + (now.tv_nsec / TICK) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(spans: &[(u64, Option<u64>)]) -> Spans {
        let numbered = spans.iter().zip(1..);
        Spans(numbered.map(|(&(began, ended), serial)| (serial, Span { tag: 0, began, ended })).collect())
    }

    #[test]
    fn fault_94_a_process_without_signs_is_of_the_job_whose_step_ran_when_it_began() {
        let both_rest = spans(&[(10, Some(20)), (30, Some(40))]);
        for (start, suspects) in
            [(5, [false; 2]), (10, [true, false]), (20, [true, false]), (25, [true, false])]
        {
            assert_eq!([1, 2].map(|serial| both_rest.is_only_suspect(serial, start)), suspects, "{start}");
        }
        for (start, suspects) in [(30, [false, true]), (40, [false, true]), (50, [false, false])] {
            assert_eq!([1, 2].map(|serial| both_rest.is_only_suspect(serial, start)), suspects, "{start}");
        }
        let second_runs = spans(&[(10, Some(20)), (30, None)]);
        assert_eq!([1, 2].map(|serial| second_runs.is_only_suspect(serial, 50)), [false, true]);
        // The last one of several gets it.
        let mut both_run = spans(&[(10, None), (10, None)]);
        assert_eq!([1, 2].map(|serial| both_run.is_only_suspect(serial, 50)), [false, false]);
        both_run.forget(1);
        assert!(both_run.is_only_suspect(2, 50));
    }
}
