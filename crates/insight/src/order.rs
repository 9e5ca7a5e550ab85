//! One order of log and events (docs/spec/service.md §3.3).
//!
//! Log and events come in streams of their own and overtake each other. Each event has its place in the log, and the daemon
//! marks how far the events are complete. So log bytes wait for the mark, and an event waits for the bytes before its place.

use std::collections::VecDeque;

use memchr::memrchr;
use step_runner_proto::v1;

use crate::tree::{Change, ROOT};

/// Next part of a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// Whole lines of the log; at the end of the job perhaps an unfinished one.
    Log(Vec<u8>),
    /// Something has happened to a step.
    Event(Box<v1::StepEvent>),
    /// Result of the step whose end was the part before, with all results below it: a step of the job's own list, or the
    /// root.
    Result(Box<v1::StepResult>),
}

/// A part that came by FollowSteps and is not returned yet.
enum Pending {
    Event(v1::StepEvent),
    Result(v1::StepResult),
}

/// The next thing that is certain to come.
enum Ready {
    /// So many bytes of the log.
    Log(usize),
    /// The first part that is pending.
    Pending,
    Nothing,
}

/// The streams that can still bring something.
enum Coming {
    Both,
    Log,
    Nothing,
}

/// Merges the log and the events of one job.
pub(crate) struct Order {
    log: Vec<u8>,
    /// Bytes at the beginning of `log` that have been returned: removing them each time would copy the rest for each event.
    taken: usize,
    /// End of the whole lines in `log`.
    whole: usize,
    /// Place in the job's log of the first byte that has not been returned.
    position: u64,
    /// In the order in which they came: a result stands directly behind the event of its end.
    pending: VecDeque<Pending>,
    /// True if the part returned last is the end of a step that has a result.
    awaits_result: bool,
    /// Every event up to this place has come.
    mark: u64,
    /// True once an event or a mark has come: the daemon sends them.
    is_told: bool,
    coming: Coming,
}

impl Order {
    /// Starts at byte `offset` of the log.
    pub(crate) const fn new(offset: u64) -> Self {
        Self {
            log: Vec::new(),
            taken: 0,
            whole: 0,
            position: offset,
            pending: VecDeque::new(),
            awaits_result: false,
            mark: 0,
            is_told: false,
            coming: Coming::Both,
        }
    }

    /// Takes bytes of the log.
    pub(crate) fn log(&mut self, bytes: &[u8]) {
        if let Some(end) = memrchr(b'\n', bytes) {
            self.whole = self.log.len() + end + 1;
        }
        self.log.extend_from_slice(bytes);
    }

    /// Takes a message of FollowSteps that was asked for with `events`.
    pub(crate) fn message(&mut self, message: &v1::FollowStepsResponse) {
        let mark = u64::try_from(message.log_bytes).unwrap_or_default();
        if let Some(event) = &message.event {
            self.pending.push_back(Pending::Event(event.clone()));
        }
        match &message.result {
            Some(result) if !self.is_told && message.event.is_none() => self.of_old_daemon(result),
            result => {
                self.is_told = true;
                self.mark = self.mark.max(mark);
                self.pending.extend(result.clone().map(Pending::Result));
            }
        }
    }

    /// A daemon that sends only results tells the ends of the job's own steps. Nothing waits for more.
    fn of_old_daemon(&mut self, result: &v1::StepResult) {
        self.mark = u64::MAX;
        let is_step = result.step.as_ref().is_some_and(|step| !step.name.is_empty());
        // The root ends with the job.
        let log_bytes = if is_step { result.log_end.unwrap_or_default() } else { i64::MAX };
        let call = result.number.unsigned_abs();
        let own = Some(v1::StepResult { sub_step_results: Vec::new(), ..result.clone() });
        let event = v1::StepEvent { call, parent: 0, result: own, log_bytes, stream: 1, member: false };
        self.pending.extend([Pending::Event(event), Pending::Result(result.clone())]);
    }

    /// True if nothing has been heard of events yet.
    pub(crate) const fn is_silent(&self) -> bool {
        !self.is_told && self.mark == 0
    }

    /// Takes note that no more messages come, so the log waits for none.
    pub(crate) const fn events_end(&mut self) {
        self.mark = u64::MAX;
        if matches!(self.coming, Coming::Both) {
            self.coming = Coming::Log;
        }
    }

    /// Takes note that nothing more comes. Nothing waits any longer.
    pub(crate) const fn end(&mut self) {
        self.mark = u64::MAX;
        self.coming = Coming::Nothing;
    }

    /// Returns the number of bytes that wait.
    pub(crate) const fn waiting(&self) -> usize {
        self.log.len() - self.taken
    }

    /// True if nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting() == 0 && self.pending.is_empty()
    }

    /// Returns what is certain to come next.
    fn ready(&self) -> Ready {
        let place = match self.pending.front() {
            Some(Pending::Result(_)) => return Ready::Pending,
            Some(Pending::Event(event)) => Some(u64::try_from(event.log_bytes).unwrap_or_default()),
            // Nothing comes between an end and its result, for any reader.
            None if self.awaits_result && matches!(self.coming, Coming::Both) => return Ready::Nothing,
            None => None,
        };
        let certain = place.unwrap_or(self.mark).saturating_sub(self.position);
        let is_ended = matches!(self.coming, Coming::Nothing);
        let length = if is_ended { self.log.len() } else { self.whole }.saturating_sub(self.taken);
        match usize::try_from(certain).unwrap_or(usize::MAX).min(length) {
            // At the end an event does not wait for bytes that are lost.
            0 if place.is_some() && (certain == 0 || is_ended) => Ready::Pending,
            0 => Ready::Nothing,
            length => Ready::Log(length),
        }
    }

    /// True if the next part is an event.
    pub(crate) fn is_event_next(&self) -> bool {
        matches!(self.pending.front(), Some(Pending::Event(_))) && matches!(self.ready(), Ready::Pending)
    }

    /// Returns the next part, if it is certain.
    pub(crate) fn next_part(&mut self) -> Option<Part> {
        match self.ready() {
            Ready::Nothing => None,
            Ready::Log(length) => {
                let part = self.log.get(self.taken..self.taken + length).unwrap_or_default().to_vec();
                self.taken += length;
                self.position += length as u64;
                if self.taken > self.log.len() / 2 {
                    self.log.drain(..self.taken);
                    self.whole = self.whole.saturating_sub(self.taken);
                    self.taken = 0;
                }
                Some(Part::Log(part))
            }
            Ready::Pending => {
                let next = self.pending.pop_front()?;
                self.awaits_result = matches!(&next, Pending::Event(event) if has_result(event));
                Some(match next {
                    Pending::Event(event) => Part::Event(Box::new(event)),
                    Pending::Result(result) => Part::Result(Box::new(result)),
                })
            }
        }
    }
}

/// True for the end of a step of which FollowSteps sends a result, directly behind it. Of steps that were interrupted there is
/// none: another event is behind their end then.
fn has_result(event: &v1::StepEvent) -> bool {
    event.parent == ROOT && event.result.as_ref().is_some_and(|result| Change::of(result).is_end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use step_runner_proto::v1::step_result::{Outcome, Status};

    use super::*;

    /// A start.
    fn event(call: u32, log_bytes: i64) -> v1::StepEvent {
        let result = v1::StepResult { status: Status::Running.into(), ..v1::StepResult::default() };
        v1::StepEvent { call, log_bytes, result: Some(result), ..v1::StepEvent::default() }
    }

    /// The end of a step of the job's own list, without its result.
    fn end_of_own(call: u32, log_bytes: i64) -> v1::FollowStepsResponse {
        let outcome = Outcome::Success.into();
        let result = v1::StepResult { outcome, number: call as i32, ..v1::StepResult::default() };
        told(v1::StepEvent { call, log_bytes, result: Some(result), ..v1::StepEvent::default() })
    }

    fn result(number: i32) -> v1::FollowStepsResponse {
        let result = Some(v1::StepResult { number, ..v1::StepResult::default() });
        v1::FollowStepsResponse { result, ..v1::FollowStepsResponse::default() }
    }

    fn told(event: v1::StepEvent) -> v1::FollowStepsResponse {
        let log_bytes = event.log_bytes;
        v1::FollowStepsResponse { event: Some(event), log_bytes, result: None }
    }

    fn mark(log_bytes: i64) -> v1::FollowStepsResponse {
        v1::FollowStepsResponse { log_bytes, ..v1::FollowStepsResponse::default() }
    }

    fn parts(order: &mut Order) -> Vec<String> {
        std::iter::from_fn(|| order.next_part())
            .map(|part| match part {
                Part::Log(bytes) => String::from_utf8(bytes).unwrap().replace('\n', "."),
                Part::Event(event) => format!("event {}", event.call),
                Part::Result(result) => format!("result {}", result.number),
            })
            .collect()
    }

    #[test]
    fn log_waits_for_the_mark_and_an_event_for_the_log_before_it() {
        let mut order = Order::new(0);
        order.log(b"a\nb\n");
        assert!(order.is_silent() && parts(&mut order).is_empty());
        order.message(&told(event(1, 0)));
        order.message(&told(event(2, 6)));
        assert_eq!(parts(&mut order), ["event 1", "a.b."]);
        order.log(b"c\nd\n");
        assert_eq!(parts(&mut order), ["c.", "event 2"]);
        order.message(&mark(8));
        assert_eq!(parts(&mut order), ["d."]);
    }

    #[test]
    fn a_reader_that_begins_late_in_the_log_gets_earlier_events_first() {
        let mut order = Order::new(100);
        order.log(b"x\n");
        order.message(&told(event(1, 10)));
        order.message(&told(event(2, 90)));
        order.message(&mark(102));
        assert_eq!(parts(&mut order), ["event 1", "event 2", "x."]);
    }

    #[test]
    fn a_daemon_that_sends_only_results_holds_nothing_back() {
        let mut order = Order::new(0);
        order.log(b"a\nb\n");
        let step = Some(v1::Step { name: "a".into(), ..v1::Step::default() });
        let result = v1::StepResult { step, number: 1, log_end: Some(2), ..v1::StepResult::default() };
        order
            .message(&v1::FollowStepsResponse { result: Some(result), ..v1::FollowStepsResponse::default() });
        assert_eq!(parts(&mut order), ["a.", "event 1", "result 1", "b."]);
    }

    #[test]
    fn a_result_comes_directly_behind_the_end_of_its_step() {
        let mut order = Order::new(0);
        order.log(b"a\nb\n");
        order.message(&end_of_own(1, 2));
        order.message(&mark(4));
        assert_eq!(parts(&mut order), ["a.", "event 1"]);
        order.message(&result(1));
        assert_eq!(parts(&mut order), ["result 1", "b."]);
    }

    #[test]
    fn an_end_without_a_result_takes_none_of_another_step() {
        let mut order = Order::new(0);
        order.log(b"a\nb\n");
        order.message(&end_of_own(2, 2));
        order.message(&end_of_own(0, 4));
        order.message(&result(0));
        assert_eq!(parts(&mut order), ["a.", "event 2", "b.", "event 0", "result 0"]);
        let mut lost = Order::new(0);
        lost.message(&end_of_own(1, 0));
        lost.log(b"a\n");
        assert_eq!(parts(&mut lost), ["event 1"]);
        lost.events_end();
        assert_eq!(parts(&mut lost), ["a."]);
    }

    #[test]
    fn at_the_end_nothing_waits_for_what_is_lost() {
        let mut order = Order::new(0);
        order.message(&told(event(1, 50)));
        order.log(b"a\nb");
        assert_eq!(parts(&mut order), ["a."]);
        order.end();
        assert_eq!(parts(&mut order), ["b", "event 1"]);
        assert!(order.is_idle());
    }

    proptest! {
        /// However the two streams are cut and interleaved, the order is the same.
        #[test]
        fn every_cut_gives_the_same_order(
            lines in prop::collection::vec("[a-c]{0,3}", 0..12),
            places in prop::collection::vec(0_usize..12, 0..8),
            cuts in prop::collection::vec((any::<bool>(), 1_usize..9), 0..60),
        ) {
            let log: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            let ends: Vec<usize> = std::iter::once(0)
                .chain(lines.iter().scan(0, |end, line| { *end += line.len() + 1; Some(*end) }))
                .collect();
            let mut places: Vec<i64> =
                places.into_iter().map(|place| ends[place.min(lines.len())] as i64).collect();
            places.sort_unstable();
            let events: Vec<_> = places.iter().zip(1..).map(|(at, call)| told(event(call, *at))).collect();
            let flat = |order: &mut Order| parts(order).concat();
            let whole = {
                let mut order = Order::new(0);
                order.log(&log);
                for message in &events {
                    order.message(message);
                }
                order.end();
                flat(&mut order)
            };
            let (mut order, mut sent, mut told_so_far, mut seen) = (Order::new(0), 0, 0, String::new());
            for (is_log, count) in cuts {
                if is_log {
                    let end = (sent + count).min(log.len());
                    order.log(&log[sent..end]);
                    sent = end;
                } else if let Some(message) = events.get(told_so_far) {
                    order.message(message);
                    told_so_far += 1;
                }
                seen += &flat(&mut order);
            }
            order.log(&log[sent..]);
            for message in events.iter().skip(told_so_far) {
                order.message(message);
            }
            seen += &flat(&mut order);
            order.end();
            seen += &flat(&mut order);
            prop_assert_eq!(seen, whole);
        }
    }
}
