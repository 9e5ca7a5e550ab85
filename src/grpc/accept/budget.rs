//! The frame budget of a client: it pays for frames that request nothing (faults.md row 56).
//!
//! Calls and answers fill the budget; acknowledgements never do. While a client is in debt, the daemon does not read
//! from it. A client that stays in debt is flooding the daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::incoming::{FrameHeader, flag, kind};

/// Initial and normal maximum budget, in frames.
const BURST: i64 = 1_024;
/// Time that earns one frame: 250 frames per second.
const MICROS_PER_FRAME: u64 = 4_000;
/// Frames earned by each call and by each DATA or HEADERS frame sent to the client. grpc-go sends PING and
/// WINDOW_UPDATE with each small call; the C core also sends SETTINGS.
const PER_CALL: i64 = 4;
/// Time in debt after which a client counts as flooding.
const PATIENCE: Duration = Duration::from_secs(1);
/// Budget at which earlier debt is forgotten.
const RECOVERED: i64 = BURST / 4;

/// The state of a budget.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    Within,
    /// The budget is spent: do not read for now.
    InDebt,
    Flood,
}

/// The frame budget of one connection.
#[derive(Debug)]
pub(super) struct FrameBudget {
    left: i64,
    /// Time up to which frames have been credited.
    credited: Instant,
    in_debt_since: Option<Instant>,
    /// Streams of unanswered calls; true if the request is complete.
    unanswered: BTreeMap<u32, bool>,
    newest_stream: u32,
    /// If true, new calls earn nothing and cost a frame.
    is_closed: bool,
}

impl FrameBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            credited: now,
            in_debt_since: None,
            unanswered: BTreeMap::default(),
            newest_stream: 0,
            is_closed: false,
        }
    }

    /// True if the client has ever made a call.
    pub(super) const fn has_call(&self) -> bool {
        self.newest_stream > 0
    }

    /// Makes new calls earn nothing from now on: the connection is about to end.
    pub(super) const fn close(&mut self) {
        self.is_closed = true;
    }

    /// True if a call with a complete request has no answer yet.
    pub(super) fn has_complete_call(&self) -> bool {
        self.unanswered.values().any(|is_complete| *is_complete)
    }

    /// Accounts for a frame received from the client.
    pub(super) fn received(&mut self, frame: FrameHeader) {
        match frame.kind {
            kind::DATA if frame.has(flag::END_STREAM) => {
                if let Some(is_complete) = self.unanswered.get_mut(&frame.stream) {
                    *is_complete = true;
                }
            }
            kind::DATA if frame.length > 0 => {}
            kind::HEADERS if frame.stream > self.newest_stream && !self.is_closed => {
                self.newest_stream = frame.stream;
                self.unanswered.insert(frame.stream, frame.has(flag::END_STREAM));
                self.earn();
            }
            // A call that the client resets before its answer returns what it has earned.
            kind::RST_STREAM if self.unanswered.remove(&frame.stream).is_some() => self.left -= PER_CALL + 1,
            _ => self.left -= 1,
        }
    }

    /// Accounts for a frame sent to the client.
    pub(super) fn sent(&mut self, frame: FrameHeader) {
        match frame.kind {
            kind::DATA => self.earn(),
            kind::HEADERS => {
                self.unanswered.remove(&frame.stream);
                self.earn();
            }
            // A refused call earns nothing.
            kind::RST_STREAM if self.unanswered.remove(&frame.stream).is_some() => self.left -= PER_CALL,
            _ => {}
        }
    }

    /// Adds what a call or an answer earns. Unanswered calls raise the limit by what their reset would cost.
    fn earn(&mut self) {
        let most = BURST + PER_CALL * self.unanswered.len() as i64;
        self.left = (self.left + PER_CALL).min(most.max(self.left));
    }

    /// Returns the state of the budget. Reads the clock only if the budget is spent.
    pub(super) fn pressure(&mut self, now: impl FnOnce() -> Instant) -> Pressure {
        if self.left >= 0 {
            return Pressure::Within;
        }
        let now = now();
        let earned = (now - self.credited).as_micros() as u64 / MICROS_PER_FRAME;
        self.credited += Duration::from_micros(earned * MICROS_PER_FRAME);
        self.left = self.left.saturating_add_unsigned(earned).min(BURST);
        if self.left >= RECOVERED {
            self.in_debt_since = None;
        }
        if self.left >= 0 {
            return Pressure::Within;
        }
        let since = *self.in_debt_since.get_or_insert(now);
        if now - since < PATIENCE { Pressure::InDebt } else { Pressure::Flood }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: FrameHeader = FrameHeader { length: 8, kind: 6, flags: 0, stream: 0 };
    const DATA: FrameHeader = FrameHeader { length: 5, kind: kind::DATA, flags: 0, stream: 1 };
    const EMPTY: FrameHeader = FrameHeader { length: 0, ..DATA };
    const LAST: FrameHeader = FrameHeader { flags: flag::END_STREAM, ..EMPTY };
    const ACK: FrameHeader = FrameHeader { flags: 1, ..PING };

    fn call(number: u32) -> FrameHeader {
        FrameHeader { kind: kind::HEADERS, stream: number * 2 + 1, ..DATA }
    }

    fn reset(number: u32) -> FrameHeader {
        FrameHeader { kind: kind::RST_STREAM, length: 4, ..call(number) }
    }

    fn budget() -> FrameBudget {
        FrameBudget::new(Instant::now())
    }

    /// Pressure after the client has sent `count` frames, `time` after the last credit.
    fn after(budget: &mut FrameBudget, time: Duration, frame: FrameHeader, count: i64) -> Pressure {
        (0..count).for_each(|_| budget.received(frame));
        let now = budget.credited + time;
        budget.pressure(|| now)
    }

    #[test]
    fn frames_that_carry_data_may_come_without_end() {
        for frame in [DATA, LAST] {
            assert_eq!(after(&mut budget(), Duration::ZERO, frame, 100_000), Pressure::Within);
        }
    }

    #[test]
    fn fault_56_a_burst_passes_and_a_flood_does_not() {
        for frame in [PING, EMPTY] {
            assert_eq!(after(&mut budget(), Duration::ZERO, frame, BURST), Pressure::Within);
            let mut flood = budget();
            assert_eq!(after(&mut flood, Duration::ZERO, frame, 2 * BURST), Pressure::InDebt);
            assert_eq!(after(&mut flood, PATIENCE, frame, 0), Pressure::Flood);
        }
    }

    #[test]
    fn fault_56_frames_one_at_a_time_are_a_flood_too() {
        let mut budget = budget();
        let (begin, mut now) = (budget.credited, budget.credited);
        // The client sends one frame whenever it is read from.
        loop {
            match budget.pressure(|| now) {
                Pressure::Within => budget.received(PING),
                Pressure::InDebt => now += Duration::from_millis(10),
                Pressure::Flood => break,
            }
        }
        assert!(now - begin <= 2 * PATIENCE, "{:?}", now - begin);
    }

    #[test]
    fn fault_89_a_client_in_debt_recovers_in_time() {
        let mut budget = budget();
        for _ in 0..100 {
            assert_eq!(after(&mut budget, Duration::ZERO, PING, BURST + 10), Pressure::InDebt);
            assert_eq!(after(&mut budget, Duration::from_millis(900), PING, 0), Pressure::Within);
            assert_eq!(after(&mut budget, Duration::from_secs(10), PING, BURST), Pressure::Within);
        }
    }

    #[test]
    fn fault_89_calls_pay_for_what_clients_send_with_them() {
        let mut budget = budget();
        for number in 0..100_000 {
            for frame in [call(number), LAST, PING, PING, ACK] {
                budget.received(frame);
            }
            for frame in [ACK, call(number), DATA, call(number)] {
                budget.sent(frame);
            }
            assert_eq!(after(&mut budget, Duration::ZERO, PING, 6), Pressure::Within, "{number}");
        }
    }

    #[test]
    fn fault_89_acknowledgements_pay_for_nothing() {
        let mut budget = budget();
        (0..2 * BURST).for_each(|_| {
            budget.received(PING);
            budget.sent(ACK);
        });
        assert_eq!(after(&mut budget, Duration::ZERO, PING, 0), Pressure::InDebt);
    }

    #[test]
    fn fault_56_calls_that_are_given_up_at_once_are_a_flood() {
        let mut budget = budget();
        for number in 0..2 * BURST as u32 {
            budget.received(call(number));
            budget.received(reset(number));
        }
        assert_eq!(after(&mut budget, Duration::ZERO, PING, 0), Pressure::InDebt);
        assert!(budget.unanswered.is_empty());
    }

    #[test]
    fn fault_89_a_thousand_calls_may_be_given_up_together() {
        for is_answered in [false, true] {
            let mut budget = budget();
            for round in 0..100 {
                let numbers = round * 1_000..(round + 1) * 1_000;
                numbers.clone().for_each(|number| budget.received(call(number)));
                if is_answered {
                    numbers.clone().for_each(|number| budget.sent(call(number)));
                }
                numbers.for_each(|number| budget.received(reset(number)));
                assert_eq!(after(&mut budget, Duration::from_secs(5), PING, 0), Pressure::Within, "{round}");
                // Time is credited to a spent budget only, so the test refills it for the next round.
                budget.left = BURST;
            }
        }
    }
}
