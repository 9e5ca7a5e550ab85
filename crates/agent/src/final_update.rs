//! The last message about a job: its state, repeated until the server has taken it (agent.md §7.2).

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde_json::{Map as JsonMap, Value as Json, json};

use crate::answer::{Answer, Reply};
use crate::outcome::{Outcome, State};
use crate::time::{Doubling, Jitter, Moment};
use crate::tokens::Token;
use crate::trace::{FORBIDDEN_WAITS, checksum};

/// Time after a job's end for which its state is repeated. GitLab keeps no job waiting for longer.
pub const REPEATED_FOR: Duration = Duration::from_hours(24);

/// Wait after a 202 or 412 that names no interval.
const INTERVAL: Duration = Duration::from_secs(3);

/// Longest interval that a server can name here.
const LONGEST_INTERVAL: Duration = Duration::from_secs(64);

/// Waits after failures.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// Length and checksum of a whole trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSum {
    /// Bytes.
    pub len: u64,
    /// CRC-32.
    pub crc: u32,
}

/// Returns the body of `PUT /jobs/ID`. Without an outcome it says that the job is running; with one, each repetition
/// is byte for byte the same.
pub fn body(token: &Token, info: &Json, outcome: Option<&Outcome>, trace: Option<TraceSum>) -> Json {
    let mut body = JsonMap::new();
    body.insert("token".to_owned(), token.expose().into());
    body.insert("info".to_owned(), info.clone());
    let state = match outcome.map(|outcome| outcome.state) {
        None => "running",
        Some(State::Success) => "success",
        Some(State::Failed) => "failed",
    };
    body.insert("state".to_owned(), state.into());
    if let Some(reason) = outcome.and_then(|outcome| outcome.reason.as_deref()) {
        body.insert("failure_reason".to_owned(), reason.into());
    }
    if let Some(code) = outcome.and_then(|outcome| outcome.exit_code) {
        body.insert("exit_code".to_owned(), code.into());
    }
    if let Some(trace) = trace {
        let sum = checksum(trace.crc);
        body.insert("checksum".to_owned(), sum.clone().into());
        body.insert("output".to_owned(), json!({"checksum": sum, "bytesize": trace.len}));
    }
    Json::Object(body)
}

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The job is over for the server. Nothing more is sent.
    Done(How),
    /// The same update once more, at this time.
    Again(Moment),
    /// The whole trace from its first byte, not before this time, and then the same update.
    TraceAgain(Moment),
}

/// How the update ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The server took it.
    Taken,
    /// The server does not know the job, has ended it, or refuses its token.
    NotWanted,
    /// No answer ended it in time: the operator is told.
    GivenUp,
}

/// The final update of one job.
#[derive(Clone, Debug)]
pub struct FinalUpdate {
    give_up_at: Moment,
    /// True if any answer ends it: the server has said before that it wants nothing more.
    is_aborted: bool,
    failures: Doubling,
    forbidden: usize,
}

impl FinalUpdate {
    /// Makes the update of a job that ended `since_end` ago.
    pub fn new(now: Moment, since_end: Duration, is_aborted: bool) -> Self {
        Self {
            give_up_at: now + REPEATED_FOR.saturating_sub(since_end),
            is_aborted,
            failures: Doubling::new(BACK_OFF.0, BACK_OFF.1),
            forbidden: 0,
        }
    }

    /// True if the time for repetitions is over.
    pub fn is_too_late(&self, now: Moment) -> bool {
        now >= self.give_up_at
    }

    /// Returns when it is over.
    pub const fn too_late_at(&self) -> Moment {
        self.give_up_at
    }

    /// Takes the answer to an update.
    pub fn answered(&mut self, reply: &Reply, now: Moment, jitter: Jitter) -> Next {
        let next = match reply {
            Ok(answer) => self.read(answer, now, jitter),
            Err(_) => Next::Again(now + self.failures.failed(jitter)),
        };
        match next {
            Next::Again(at) | Next::TraceAgain(at) if at >= self.give_up_at => Next::Done(How::GivenUp),
            next => next,
        }
    }

    fn read(&mut self, answer: &Answer, now: Moment, jitter: Jitter) -> Next {
        if answer.status == 200 {
            return Next::Done(How::Taken);
        }
        let is_refused = answer.status == 403 && answer.job_status.is_some();
        if answer.status == 404 || answer.is_over() || is_refused || self.is_aborted {
            return Next::Done(How::NotWanted);
        }
        if answer.status != 403 {
            self.forbidden = 0;
        }
        let interval = || answer.interval(LONGEST_INTERVAL).unwrap_or(INTERVAL);
        match answer.status {
            202 => self.alive(Next::Again(now + interval())),
            412 => self.alive(Next::TraceAgain(now + interval())),
            403 => {
                let wait = FORBIDDEN_WAITS.get(self.forbidden);
                self.forbidden += 1;
                wait.map_or(Next::Done(How::NotWanted), |wait| Next::Again(now + *wait))
            }
            _ => Next::Again(now + self.failures.failed(jitter)),
        }
    }

    /// Forgets failures: the server is at work.
    const fn alive(&mut self, next: Next) -> Next {
        self.failures.reset();
        next
    }
}
