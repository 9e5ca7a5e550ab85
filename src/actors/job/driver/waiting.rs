//! A job that waits for its slot (docs/spec/queue.md §5). No step of it has run, so it survives its keeper: the next
//! one takes it. Requests to a job that no keeper holds wait here.

use std::time::Duration;

use crate::actors::messages::{CancelAsk, NotRegistered, RegisteredRequest};

/// Limit on keepers that die in a row. So many deaths are no coincidence.
pub(super) const MAX_DIED: u32 = 5;

/// Limit on attempts in a row, which take some ten minutes. If the resources for a keeper are not back by then, they
/// never will be.
pub(super) const MAX_REFUSED: u32 = 24;

/// Pause before the second attempt; each further pause is twice as long …
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// … up to this limit.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Next act of the actor after a keeper did not take the job.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::actors::job) enum NextAttempt {
    /// None: [`Driver::keeper_lost`](super::Driver::keeper_lost) will start the next attempt, or the job ends already.
    Nothing,
    /// Call [`Driver::keeper_lost`](super::Driver::keeper_lost) after this pause. The job stays in the queue (docs/spec/service.md §6.4).
    After(Duration),
    /// End the job without a keeper ([`Driver::collect_results`](super::Driver::collect_results)).
    Interrupt,
}

/// State of a job that waits for its slot.
pub(super) struct Waiting {
    request: RegisteredRequest,
    keeper: Holder,
    /// Keepers in a row that died before they took the job.
    died: u32,
    /// Attempts in a row that found no keeper.
    refused: u32,
}

/// The keeper's hold on a waiting job.
enum Holder {
    /// A keeper holds the job.
    Registered,
    /// The last keeper died, and the next one has not taken the job.
    Lost {
        requests: WaitingRequests,
        /// True while a pause precedes the next attempt.
        is_paused: bool,
    },
}

/// Requests to a job that no keeper holds.
#[derive(Default)]
pub(in crate::actors::job) struct WaitingRequests {
    /// Its slot is free.
    pub(in crate::actors::job) begin: bool,
    /// The last cancel.
    pub(in crate::actors::job) cancel: Option<CancelAsk>,
    /// Message of a defect that ends it.
    pub(in crate::actors::job) defect: Option<String>,
}

impl Waiting {
    pub(super) const fn new(request: RegisteredRequest) -> Self {
        Self { request, keeper: Holder::Registered, died: 0, refused: 0 }
    }

    /// Returns the waiting requests if no keeper holds the job. `is_keeper_gone`: the report of the keeper's death may
    /// still be under way.
    fn requests(&mut self, is_keeper_gone: bool) -> Option<&mut WaitingRequests> {
        if is_keeper_gone && matches!(self.keeper, Holder::Registered) {
            self.keeper = Holder::Lost { requests: WaitingRequests::default(), is_paused: false };
        }
        match &mut self.keeper {
            Holder::Registered => None,
            Holder::Lost { requests, .. } => Some(requests),
        }
    }

    /// Defers the start if no keeper holds the job. False if one does.
    pub(super) fn defer_begin(&mut self, is_keeper_gone: bool) -> bool {
        self.requests(is_keeper_gone).map(|requests| requests.begin = true).is_some()
    }

    /// Defers a cancel if no keeper holds the job: then returns true for the first one.
    pub(super) fn defer_cancel(&mut self, ask: CancelAsk, is_keeper_gone: bool) -> Option<bool> {
        self.requests(is_keeper_gone).map(|requests| requests.cancel.replace(ask).is_none())
    }

    /// Defers the end after a defect if no keeper holds the job. Returns the message if one does.
    pub(super) fn defer_defect(&mut self, message: String, is_keeper_gone: bool) -> Option<String> {
        match self.requests(is_keeper_gone) {
            Some(requests) => {
                requests.defect = Some(message);
                None
            }
            None => Some(message),
        }
    }

    /// Notes the keeper's death, and that the next attempt begins. Returns the request for the next keeper.
    pub(super) fn lose_keeper(&mut self) -> RegisteredRequest {
        self.requests(true);
        if let Holder::Lost { is_paused, .. } = &mut self.keeper {
            *is_paused = false;
        }
        self.request.clone()
    }

    /// Notes that a keeper holds the job again. Returns the requests that have waited for it.
    pub(super) fn registered_again(&mut self) -> WaitingRequests {
        (self.died, self.refused) = (0, 0);
        match std::mem::replace(&mut self.keeper, Holder::Registered) {
            Holder::Registered => WaitingRequests::default(),
            Holder::Lost { requests, .. } => requests,
        }
    }

    pub(super) fn into_requests(self) -> WaitingRequests {
        match self.keeper {
            Holder::Registered => WaitingRequests::default(),
            Holder::Lost { requests, .. } => requests,
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        matches!(self.keeper, Holder::Lost { is_paused: true, .. })
    }

    /// Decides about the next attempt. There is none if the job is to end anyway: that needs no keeper, because no step
    /// has run.
    pub(super) fn next_attempt(&mut self, reason: NotRegistered) -> NextAttempt {
        match reason {
            NotRegistered::Died => {
                self.died += 1;
                if self.died < MAX_DIED { NextAttempt::Nothing } else { NextAttempt::Interrupt }
            }
            NotRegistered::NotNow => {
                let pause = FIRST_PAUSE.saturating_mul(1 << self.refused.min(5)).min(LONGEST_PAUSE);
                self.refused += 1;
                match &mut self.keeper {
                    Holder::Lost { requests, is_paused }
                        if !requests.end_the_job() && self.refused < MAX_REFUSED =>
                    {
                        *is_paused = true;
                        NextAttempt::After(pause)
                    }
                    _ => NextAttempt::Interrupt,
                }
            }
            NotRegistered::Impossible => NextAttempt::Interrupt,
        }
    }
}

impl WaitingRequests {
    const fn end_the_job(&self) -> bool {
        self.cancel.is_some() || self.defect.is_some()
    }
}
