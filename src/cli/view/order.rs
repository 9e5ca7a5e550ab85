//! Puts step starts and ends at their places in the log. Log and step events come in streams of their own and overtake
//! each other.

use std::collections::VecDeque;

use memchr::{memmem, memrchr};

use super::step::StepEvent;
use crate::cli::output::STEP_START;
use crate::log::line::Entry;

/// Longest time that the log waits for the start of a step that it announces, in microseconds.
const PATIENCE: i64 = 500_000;

/// Name under which the log announces a function that is the whole job.
pub(super) const ROOT: &[u8] = b"root";

/// Next part of a job, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// Whole lines of the log.
    Log(Vec<u8>),
    /// The daemon's line that announces the process of a step with this name.
    Announced(Vec<u8>),
    Step(StepEvent),
}

/// Knowledge about step starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Starts {
    /// No step event has come yet, and no wait for one was in vain. A viewer that joins late gets the log first.
    Unknown,
    /// The daemon sends starts.
    Sent,
    /// The daemon sends no starts, or no more.
    NotSent,
}

impl Starts {
    /// Concludes that the daemon sends no starts, unless one came before an end or within a wait.
    fn informed(&mut self) {
        if *self == Self::Unknown {
            *self = Self::NotSent;
        }
    }
}

/// Merges the log and the events of steps.
pub(super) struct Order {
    log: Vec<u8>,
    /// Length of the whole lines in `log`.
    complete: usize,
    /// Offset of `log` in the job's log.
    position: u64,
    events: VecDeque<StepEvent>,
    /// Name of the step that started last, until it is announced.
    awaited: Option<String>,
    starts: Starts,
    /// Time when the wait for a start began.
    held_since: Option<i64>,
    /// True if a step was announced since the last end without a place.
    is_open: bool,
    is_ended: bool,
}

impl Order {
    /// Starts at `offset` of the log.
    pub(super) const fn new(offset: u64) -> Self {
        Self {
            log: Vec::new(),
            complete: 0,
            position: offset,
            events: VecDeque::new(),
            awaited: None,
            starts: Starts::Unknown,
            held_since: None,
            is_open: false,
            is_ended: false,
        }
    }

    pub(super) fn push_log(&mut self, bytes: &[u8]) {
        if let Some(end) = memrchr(b'\n', bytes) {
            self.complete = self.log.len() + end + 1;
        }
        self.log.extend_from_slice(bytes);
    }

    pub(super) fn push_step(&mut self, event: StepEvent) {
        if event.is_start() {
            self.starts = Starts::Sent;
        } else {
            self.starts.informed();
        }
        self.events.push_back(event);
    }

    /// Takes note that no more step events come, so the log waits for none.
    pub(super) const fn steps_end(&mut self) {
        self.starts = Starts::NotSent;
    }

    /// Takes note that nothing more comes. Nothing waits any longer.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
    }

    /// Returns the bytes of whole lines that wait.
    pub(super) const fn waiting(&self) -> usize {
        self.complete
    }

    /// True if nothing waits.
    pub(super) fn is_idle(&self) -> bool {
        self.log.is_empty() && self.events.is_empty()
    }

    /// True if the next event is an end without a place in the log, which waits for the log to be idle.
    pub(super) fn has_unplaced(&self) -> bool {
        self.complete == 0 && self.events.front().is_some_and(|event| event.log_at().is_none())
    }

    /// Returns the next item if it is due at `now`, in microseconds. `rests` is true if the log has been idle for a
    /// while.
    pub(super) fn next(&mut self, now: i64, rests: bool) -> Option<Item> {
        let ahead = match self.events.front().map(StepEvent::log_at) {
            Some(Some(at)) if at <= self.position => return self.step(),
            Some(Some(at)) => usize::try_from(at - self.position).unwrap_or(usize::MAX),
            Some(None) if self.complete == 0 && (rests || self.is_ended) => return self.step(),
            Some(None) | None => usize::MAX,
        };
        let lines = self.log.get(..self.complete.min(ahead)).unwrap_or_default();
        if lines.is_empty() {
            return if self.is_ended { self.step() } else { None };
        }
        let (at, name) = find_announcement(lines);
        let Some(name) = name else { return Some(Item::Log(self.take(at))) };
        if at > 0 {
            return Some(Item::Log(self.take(at)));
        }
        // An end without a place belongs before the next step.
        if self.is_open
            && self.events.front().is_some_and(|event| event.log_at().is_none() && !event.is_start())
        {
            return self.step();
        }
        let is_known = self
            .awaited
            .as_deref()
            .is_some_and(|awaited| awaited.as_bytes() == name || awaited.is_empty() && name == ROOT);
        let first = *self.held_since.get_or_insert(now);
        let awaits = self.starts != Starts::NotSent;
        if !is_known && awaits && !self.is_ended && now - first < PATIENCE {
            return None;
        }
        self.starts.informed();
        let name = name.to_vec();
        self.held_since = None;
        self.awaited = None;
        self.is_open = true;
        let end = memchr::memchr(b'\n', lines).map_or(lines.len(), |end| end + 1);
        self.take(end);
        Some(Item::Announced(name))
    }

    fn step(&mut self) -> Option<Item> {
        let event = self.events.pop_front()?;
        self.is_open = self.is_open && event.log_at().is_some();
        self.awaited = event.is_start().then(|| event.path().last().cloned().unwrap_or_default());
        Some(Item::Step(event))
    }

    /// Removes and returns the first `count` bytes of the whole lines.
    fn take(&mut self, count: usize) -> Vec<u8> {
        let rest = self.log.split_off(count);
        self.complete -= count;
        self.position += count as u64;
        std::mem::replace(&mut self.log, rest)
    }
}

/// Finds the first line that announces a step. Returns its offset and the step's name, or the length of `lines` and
/// `None`.
fn find_announcement(lines: &[u8]) -> (usize, Option<&[u8]>) {
    let mut from = 0;
    while let Some(found) = memmem::find(lines.get(from..).unwrap_or_default(), STEP_START) {
        let at = from + found;
        let start = memrchr(b'\n', lines.get(..at).unwrap_or_default()).map_or(0, |end| end + 1);
        let line = lines.get(start..).unwrap_or_default();
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let entry = Entry::parse(line).filter(|entry| entry.key().is_daemon());
        if let Some(name) = entry.and_then(|entry| entry.body.strip_prefix(STEP_START)) {
            return (start, Some(name));
        }
        from = at + STEP_START.len();
    }
    (lines.len(), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::view::step::tests::{ended, started};

    fn entry(source: &str, body: &str) -> String {
        format!("2026-11-20T10:00:00.123456Z {source} {body}\n")
    }

    fn items(order: &mut Order, now: i64) -> Vec<String> {
        std::iter::from_fn(|| order.next(now, false))
            .map(|item| match item {
                Item::Log(bytes) => format!("log {}", String::from_utf8(bytes).unwrap().lines().count()),
                Item::Announced(name) => format!("announced {}", String::from_utf8(name).unwrap()),
                Item::Step(event) if event.is_start() => format!("start {}", event.path().join("/")),
                Item::Step(event) => format!("end {}", event.path().join("/")),
            })
            .collect()
    }

    #[test]
    fn a_step_ends_behind_its_output_however_early_its_end_is_known() {
        let log = [entry("00O", "Running step name=a"), entry("01O", "x"), entry("01O", "y")].concat();
        let mut order = Order::new(0);
        order.push_step(started(&["a"], 0));
        order.push_step(ended(&["a"], log.len() as u64));
        assert_eq!(items(&mut order, 0), ["start a"]);
        let (first, second) = log.split_at(100);
        order.push_log(first.as_bytes());
        assert_eq!(items(&mut order, 0), ["announced a", "log 1"]);
        order.push_log(second.as_bytes());
        order.push_log(entry("00O", "Running step name=b").as_bytes());
        assert_eq!(items(&mut order, 0), ["log 1", "end a"]);
    }

    #[test]
    fn whoever_joins_late_has_the_log_before_the_starts_and_waits_for_them() {
        let log = [entry("00O", "Running step name=a"), entry("01O", "x")].concat();
        let mut order = Order::new(0);
        order.push_log(log.as_bytes());
        order.push_log(entry("00O", "Running step name=b").as_bytes());
        assert_eq!(items(&mut order, 0), [""; 0]);
        let length = log.len() as u64;
        for event in [started(&["a"], 0), ended(&["a"], length), started(&["b"], length)] {
            order.push_step(event);
        }
        assert_eq!(
            items(&mut order, 1),
            ["start a", "announced a", "log 1", "end a", "start b", "announced b"]
        );
    }

    #[test]
    fn an_announcement_waits_a_bounded_time_for_the_start_it_belongs_to() {
        let mut order = Order::new(0);
        order.push_step(started(&["a"], 0));
        let first = entry("00O", "Running step name=a");
        order.push_log(first.as_bytes());
        assert_eq!(items(&mut order, 0), ["start a", "announced a"]);
        order.push_log(entry("00O", "Running step name=b").as_bytes());
        assert_eq!(items(&mut order, 1), [""; 0]);
        order.push_step(ended(&["a"], first.len() as u64));
        assert_eq!(items(&mut order, PATIENCE), ["end a"]);
        order.push_step(started(&["b"], first.len() as u64));
        assert_eq!(items(&mut order, PATIENCE), ["start b", "announced b"]);
        order.push_log(entry("00O", "Running step name=c").as_bytes());
        assert_eq!(items(&mut order, PATIENCE), [""; 0]);
        assert_eq!(items(&mut order, 2 * PATIENCE), ["announced c"]);
    }

    #[test]
    fn without_places_an_end_stands_in_front_of_the_next_step_or_waits_for_a_rest() {
        let mut order = Order::new(0);
        let log = [entry("00O", "Running step name=a"), entry("01O", "x")].concat();
        order.push_log(log.as_bytes());
        order.push_step(StepEvent::unplaced_end(&["a"]));
        assert_eq!(items(&mut order, 0), ["announced a", "log 1"]);
        order.push_log(entry("00O", "Running step name=b").as_bytes());
        assert_eq!(items(&mut order, 0), ["end a", "announced b"]);
        order.push_step(StepEvent::unplaced_end(&["b"]));
        assert!(order.has_unplaced() && order.next(0, false).is_none());
        assert!(matches!(order.next(0, true), Some(Item::Step(_))));
    }

    #[test]
    fn output_of_a_step_announces_nothing() {
        let line = entry("01O", "Running step name=fake");
        assert_eq!(find_announcement(line.as_bytes()), (line.len(), None));
        let both = [line.clone(), entry("00O", "Running step name=true")].concat();
        assert_eq!(find_announcement(both.as_bytes()), (line.len(), Some(&b"true"[..])));
    }
}
