//! A call that is repeated until it is answered.

use std::time::Duration;

use crate::time::{Doubling, Moment, Now};

/// Wait after the first failure.
const FIRST: Duration = Duration::from_secs(1);

/// State of such a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is not wanted.
    Idle,
    /// It is due at this time.
    Due(Moment),
    /// Its answer is awaited.
    Out,
    /// It has been answered.
    Done,
}

/// The tries of one call.
#[derive(Clone, Debug)]
pub(super) struct Tries {
    state: State,
    back_off: Doubling,
}

impl Tries {
    /// Makes a call that nobody wants yet. Waits between its tries grow to so many seconds.
    pub(super) const fn new(longest: u64) -> Self {
        Self { state: State::Idle, back_off: Doubling::new(FIRST, Duration::from_secs(longest)) }
    }

    /// Makes the call due.
    pub(super) const fn start(&mut self, at: Moment) {
        self.state = State::Due(at);
        self.back_off.reset();
    }

    /// Counts the call as answered, or as needless.
    pub(super) const fn done(&mut self) {
        self.state = State::Done;
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    pub(super) fn is_out(&self) -> bool {
        self.state == State::Out
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// True if at least one try has failed or the call is done.
    pub(super) fn has_been_tried(&self) -> bool {
        self.is_done() || self.back_off.failures() > 0
    }

    /// True if the call is to be made now. It counts as made then.
    pub(super) fn due(&mut self, now: Now) -> bool {
        let is_due = matches!(self.state, State::Due(at) if at <= now.steady);
        if is_due {
            self.state = State::Out;
        }
        is_due
    }

    /// Takes an answer: it is done, or it is tried again.
    pub(super) fn answered(&mut self, is_done: bool, now: Now) {
        self.state =
            if is_done { State::Done } else { State::Due(now.steady + self.back_off.failed(now.jitter)) };
    }

    pub(super) const fn wake(&self) -> Option<Moment> {
        if let State::Due(at) = self.state { Some(at) } else { None }
    }
}
