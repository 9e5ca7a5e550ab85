//! Which part of a trace is sent when, and what the answers mean (agent.md §6.3).

use std::time::Duration;

use crate::answer::{Answer, Reply};
use crate::time::Moment;

/// Interval until the server names one.
const INTERVAL: Duration = Duration::from_secs(3);

/// Longest interval that a server can name.
const LONGEST_INTERVAL: Duration = Duration::from_mins(15);

/// Most bytes of one request.
const PIECE: u64 = 1 << 20;

/// Time without a request after which a sign of life is sent. The server gives a job up after an hour.
const SILENCE: Duration = Duration::from_secs(30);

/// Waits after a 403 that does not say what became of the job: a server that lags behind gives some. The next one
/// after them counts.
pub(crate) const FORBIDDEN_WAITS: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(10)];

/// A request to make now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Append these bytes: from the first to before the last.
    Append {
        /// First byte.
        from: u64,
        /// End; the last byte is the one before.
        to: u64,
    },
    /// Say that the job is running.
    SignOfLife,
}

/// What an answer says about the job. The second is the stronger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// Somebody cancels the job.
    Cancel,
    /// The server has ended the job, or takes nothing more of it.
    Abort,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The bytes that the server has now, if that changed. The caller stores it.
    pub sent: Option<u64>,
    /// What the answer says about the job; each at most once.
    pub notice: Option<Notice>,
}

/// The upload of one trace. One request is out at a time.
#[derive(Clone, Debug)]
pub struct Upload {
    sent: u64,
    available: u64,
    interval: Duration,
    /// Time before which nothing is sent.
    next: Moment,
    /// Time of the last request.
    last: Moment,
    out: Option<Request>,
    /// Answers 403 in a row that do not say what became of the job.
    forbidden: usize,
    phase: Phase,
    /// The strongest notice so far.
    noticed: Option<Notice>,
}

/// Phase of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// More can come.
    Growing,
    /// It has its last byte.
    Whole,
    /// The same, and the rest is not sent.
    GivenUp,
}

impl Upload {
    /// Makes the upload of a trace of which the server has `sent` bytes. The first piece of all is sent at once: whoever looks at
    /// the job sees that it runs, and where.
    pub fn new(sent: u64, now: Moment) -> Self {
        let next = if sent == 0 { now } else { now + INTERVAL };
        Self {
            sent,
            available: 0,
            interval: INTERVAL,
            next,
            last: now,
            out: None,
            forbidden: 0,
            phase: Phase::Growing,
            noticed: None,
        }
    }

    /// Learns how many bytes of the trace are safe on disk.
    pub fn grown(&mut self, available: u64) {
        self.available = self.available.max(available);
    }

    /// Learns that the trace has its last byte: the rest is sent in a row, from now on.
    pub fn complete(&mut self, available: u64, now: Moment) {
        self.grown(available);
        if self.phase == Phase::Growing {
            self.phase = Phase::Whole;
            if self.forbidden == 0 {
                self.next = now;
            }
        }
    }

    /// Learns that the job is to be aborted for a reason that came in another answer.
    pub const fn abort(&mut self) {
        self.noticed = Some(Notice::Abort);
    }

    /// Sends the whole trace once more, not before `at`: the server has lost it.
    pub fn again_from_start(&mut self, at: Moment) {
        self.sent = 0;
        self.next = at;
        self.phase = Phase::Whole;
    }

    /// True once the trace is complete and nothing of it is left to send.
    pub const fn is_done(&self) -> bool {
        match self.phase {
            Phase::Growing => false,
            Phase::Whole => self.out.is_none() && !self.has_rest(),
            Phase::GivenUp => self.out.is_none(),
        }
    }

    fn is_aborted(&self) -> bool {
        self.noticed == Some(Notice::Abort)
    }

    /// Drops the rest of a whole trace.
    const fn give_up(&mut self) {
        if !matches!(self.phase, Phase::Growing) {
            self.phase = Phase::GivenUp;
        }
    }

    /// Returns the bytes that the server has.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns when [`request`](Self::request) has something to send, if nothing else happens before.
    pub fn wake(&self) -> Option<Moment> {
        if self.out.is_some() || self.is_done() || self.is_aborted() && self.phase == Phase::Growing {
            return None;
        }
        Some(if self.has_rest() { self.next } else { self.next.max(self.last + SILENCE) })
    }

    /// Returns the request to make now.
    pub fn request(&mut self, now: Moment) -> Option<Request> {
        if self.wake().is_none_or(|wake| wake > now) {
            return None;
        }
        let request = if self.has_rest() {
            Request::Append { from: self.sent, to: self.available.min(self.sent + PIECE) }
        } else {
            Request::SignOfLife
        };
        (self.out, self.last) = (Some(request), now);
        Some(request)
    }

    const fn has_rest(&self) -> bool {
        self.sent < self.available
    }

    /// Takes the answer to the request that is out.
    pub fn answered(&mut self, reply: &Reply, now: Moment) -> Heard {
        let Some(request) = self.out.take() else { return Heard::default() };
        let before = self.sent;
        self.next = now + self.interval;
        let mut notice = None;
        match reply {
            Ok(answer) => notice = self.read(request, answer, now),
            Err(_) if self.is_aborted() => self.give_up(),
            Err(_) => {}
        }
        Heard { sent: (self.sent != before).then_some(self.sent), notice }
    }

    fn read(&mut self, request: Request, answer: &Answer, now: Moment) -> Option<Notice> {
        if (200..300).contains(&answer.status)
            && let Some(interval) = answer.interval(LONGEST_INTERVAL)
        {
            self.interval = interval;
            self.next = now + interval;
        }
        if self.is_aborted() && answer.status != 202 {
            self.give_up();
            return None;
        }
        if answer.is_over() || answer.status == 403 && answer.job_status.is_some() {
            return self.aborted();
        }
        if answer.status == 403 {
            return self.forbidden(now);
        }
        self.forbidden = 0;
        match (request, answer.status) {
            (Request::Append { to, .. }, 202) => {
                self.sent = to;
                if self.phase != Phase::Growing {
                    self.next = now;
                }
            }
            // A number beyond our end waits until the trace has grown past it.
            (Request::Append { .. }, 416) => self.sent = answer.range.unwrap_or(0),
            (Request::Append { .. }, 404) if self.phase != Phase::Growing => self.give_up(),
            (Request::SignOfLife, 404) => return self.aborted(),
            _ => {}
        }
        if answer.is_canceling() && self.noticed.is_none() {
            self.noticed = Some(Notice::Cancel);
            return self.noticed;
        }
        None
    }

    /// Counts a 403 that does not say what became of the job.
    fn forbidden(&mut self, now: Moment) -> Option<Notice> {
        let wait = FORBIDDEN_WAITS.get(self.forbidden);
        self.forbidden += 1;
        match wait {
            Some(wait) => {
                self.next = now + *wait;
                None
            }
            None => self.aborted(),
        }
    }

    fn aborted(&mut self) -> Option<Notice> {
        self.give_up();
        let is_new = !self.is_aborted();
        self.abort();
        is_new.then_some(Notice::Abort)
    }
}
