//! One entry: its jobs and requests, its ticket, and the times before which it asks for nothing.

use std::time::Duration;

use super::{EntryLimits, Told};
use crate::answer::{Answer, Reply, retry};
use crate::routing::Ticket;
use crate::time::{Doubling, Jitter, Moment};

/// Waits after answers of a server that cannot answer now, and after none.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(3), Duration::from_mins(1));

/// For how long an answer of an environment counts.
const FRESH: Duration = Duration::from_secs(30);

/// Age of an answer at which the environment is asked again, so that requests need not wait for it.
const CHECK_AGAIN: Duration = Duration::from_secs(15);

/// Time from a missing answer of an environment to the next check.
const CHECK_ABSENT: Duration = Duration::from_secs(10);

/// Preparations in a row that fail because of the machine, before the entry stops.
const FAILED_PREPARATIONS: u32 = 3;

/// For how long it stops then.
const UNPREPARED: Duration = Duration::from_mins(5);

/// State of an entry.
pub(super) struct Entry {
    /// `None`: it is not in the configuration any more, but has jobs or requests.
    pub(super) limits: Option<EntryLimits>,
    /// Jobs that hold a slot.
    pub(super) running: usize,
    /// Jobs that have a record.
    pub(super) open: usize,
    requests: usize,
    pub(super) last_asked: Option<Moment>,
    /// Time of the next request, if all is well.
    pub(super) next: Moment,
    /// Time before which it is no candidate: it is refused, or the server is away.
    held_until: Moment,
    ticket: Option<Ticket>,
    pub(super) generation: u32,
    refusals: u32,
    back_off: Doubling,
    failed_preparations: u32,
    environment: Environment,
    /// True if it has asked once, or has found that it cannot.
    pub(super) has_tried: bool,
}

/// What is known of an environment.
struct Environment {
    answered: Option<Moment>,
    is_asked: bool,
    next_check: Moment,
    is_absent: bool,
}

impl Entry {
    /// Makes an entry that is not in the configuration yet.
    pub(super) const fn gone(now: Moment) -> Self {
        Self {
            limits: None,
            running: 0,
            open: 0,
            requests: 0,
            last_asked: None,
            next: now,
            held_until: now,
            ticket: None,
            generation: 0,
            refusals: 0,
            back_off: Doubling::new(BACK_OFF.0, BACK_OFF.1),
            failed_preparations: 0,
            environment: Environment { answered: None, is_asked: false, next_check: now, is_absent: false },
            has_tried: false,
        }
    }

    /// True if nothing is left to remember.
    pub(super) const fn is_over(&self) -> bool {
        self.limits.is_none() && self.open == 0 && self.running == 0 && self.requests == 0
    }

    /// Returns the slots that it holds.
    pub(super) const fn count(&self) -> usize {
        self.running + self.requests
    }

    /// True if it may ask as soon as its interval is over and its environment is there.
    pub(super) fn can_ask(&self, now: Moment) -> bool {
        self.limits.is_some_and(|limits| {
            self.requests < limits.request_concurrency
                && limits.limit.is_none_or(|limit| self.count() < limit)
                && self.held_until <= now
        })
    }

    /// True if its environment answered lately.
    pub(super) fn is_fresh(&self, now: Moment) -> bool {
        self.environment.answered.is_some_and(|answered| now.since(answered) <= FRESH)
    }

    /// True if its environment is to be asked now. Counts as asked then.
    pub(super) fn check(&mut self, now: Moment) -> bool {
        let is_due = !self.environment.is_asked && self.environment.next_check <= now;
        self.environment.is_asked |= is_due;
        is_due
    }

    /// Takes the answer of its environment.
    pub(super) fn environment(&mut self, is_there: bool, now: Moment) -> Option<Told> {
        let was_absent = self.environment.is_absent;
        self.environment.is_absent = !is_there;
        self.environment.is_asked = false;
        if is_there {
            self.environment.answered = Some(now);
            self.environment.next_check = now + CHECK_AGAIN;
            return None;
        }
        self.has_tried = true;
        self.environment.answered = None;
        self.environment.next_check = now + CHECK_ABSENT;
        (!was_absent).then_some(Told::NoEnvironment)
    }

    /// Counts preparations that failed because of the machine.
    pub(super) fn prepared(&mut self, is_system_failure: bool, now: Moment) -> Option<Told> {
        self.failed_preparations = if is_system_failure { self.failed_preparations + 1 } else { 0 };
        (self.failed_preparations >= FAILED_PREPARATIONS).then(|| {
            self.failed_preparations = 0;
            self.held_until = self.held_until.max(now + UNPREPARED);
            Told::CannotPrepare(UNPREPARED)
        })
    }

    /// Counts a request. Returns its ticket.
    pub(super) fn ask(&mut self, now: Moment) -> Option<Ticket> {
        self.requests += 1;
        self.last_asked = Some(now);
        self.has_tried = true;
        self.ticket.clone()
    }

    /// Forgets the old token's ticket. What comes of requests with it does not count against the new one.
    pub(super) fn token_replaced(&mut self) {
        self.generation += 1;
        self.ticket = None;
        self.refusals = 0;
    }

    /// Takes the answer to a request.
    pub(super) fn answered(
        &mut self,
        reply: &Reply,
        has_job: bool,
        generation: u32,
        check_interval: Duration,
        now: Moment,
        jitter: Jitter,
    ) -> Option<Told> {
        self.requests = self.requests.saturating_sub(1);
        let is_current = generation == self.generation;
        if let Ok(answer) = reply
            && is_current
            && let Some(ticket) = answer.last_update.as_deref().and_then(Ticket::new)
        {
            self.ticket = Some(ticket);
        }
        self.next = now + check_interval;
        match reply {
            Ok(Answer { status: 201, .. }) => {
                if has_job {
                    self.running += 1;
                    self.open += 1;
                    let is_strict = self.limits.is_some_and(|limits| limits.strict_check_interval);
                    self.next = if is_strict { self.next } else { now };
                }
                self.healthy()
            }
            Ok(Answer { status: 204 | 409, .. }) => self.healthy(),
            Ok(answer) if answer.status < 500 && !retry::is_temporary(answer.status) => {
                if is_current {
                    self.refused(now)
                } else {
                    None
                }
            }
            Ok(_) | Err(_) => {
                self.held_until = self.held_until.max(now + self.back_off.failed(jitter));
                None
            }
        }
    }

    fn healthy(&mut self) -> Option<Told> {
        self.back_off.reset();
        let was_unhealthy =
            self.limits.is_some_and(|limits| self.refusals >= limits.unhealthy_requests_limit);
        self.refusals = 0;
        was_unhealthy.then_some(Told::Healthy)
    }

    /// Counts a refusal. After an unhealthy interval one is enough to begin the next.
    fn refused(&mut self, now: Moment) -> Option<Told> {
        let limits = self.limits?;
        self.refusals = self.refusals.saturating_add(1);
        (self.refusals >= limits.unhealthy_requests_limit).then(|| {
            self.held_until = self.held_until.max(now + limits.unhealthy_interval);
            Told::Unhealthy(limits.unhealthy_interval)
        })
    }

    /// Returns when something is to be decided about it. `None`: not before something happens.
    pub(super) fn wake(&self, now: Moment) -> Option<Moment> {
        if !self.can_ask(self.held_until.max(now)) {
            return None;
        }
        let check = (!self.environment.is_asked).then_some(self.environment.next_check);
        let ask = self.is_fresh(now.max(self.next)).then_some(self.next);
        check.into_iter().chain(ask).map(|time| time.max(self.held_until)).filter(|time| *time > now).min()
    }
}
