//! Numbers of the requests to the keeper and of the step results. A replayed job counts the same way, so that it skips
//! exactly what an earlier daemon has performed (docs/internals/architecture.md, "The way of a job").

use std::collections::{HashMap, HashSet};

use crate::job::event::ProcessNumber;

/// Effects that earlier daemons have performed; none for a new job.
#[derive(Clone, Debug, Default)]
pub(in crate::actors) struct PerformedEffects {
    /// Number of the last request that the keeper has performed (`keeper/protocol.rs`, `op`).
    pub(in crate::actors) last_op: u32,
    /// Places of events that the keeper was asked for, by the number of the request.
    pub(in crate::actors) places: HashMap<u32, u64>,
    /// Number of stored messages of FollowSteps.
    pub(in crate::actors) stored: u32,
    /// Attempts whose fetch has ended. Separate from `exited`, because an attempt's fetch and process have the same
    /// number.
    pub(in crate::actors) fetched: HashSet<ProcessNumber>,
    /// Attempts whose process has ended.
    pub(in crate::actors) exited: HashSet<ProcessNumber>,
    /// Attempts whose process the keeper was asked for.
    pub(in crate::actors) asked: HashSet<ProcessNumber>,
    /// Number of the request whose phrases could not be masked, and the reason.
    pub(in crate::actors) unmasked: Option<(u32, String)>,
}

/// Source of the place of an event in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::actors::job) enum EventPlace {
    /// So many bytes of the log are before it.
    Known(u64),
    /// The keeper tells it in answer to the request with this number.
    Ask(u32),
}

/// The counters of one job.
#[derive(Default)]
pub(super) struct Numbering {
    /// Number of the last request to the keeper.
    op: u32,
    /// Number of messages of FollowSteps so far.
    results: u32,
    performed: PerformedEffects,
}

impl Numbering {
    /// Starts to count a job whose earlier daemons have performed these effects.
    pub(super) fn behind(performed: PerformedEffects) -> Self {
        Self { op: 0, results: 0, performed }
    }

    /// Number of the last request to the keeper.
    pub(super) const fn op(&self) -> u32 {
        self.op
    }

    /// Returns the number of the next request to the keeper, or `None` if an earlier daemon has made it.
    pub(super) fn next_op(&mut self) -> Option<u32> {
        self.op += 1;
        (self.op > self.performed.last_op).then_some(self.op)
    }

    /// Returns where an event gets its place from. The machine may know it.
    pub(super) fn next_place(&mut self, known: Option<u64>) -> EventPlace {
        match known {
            Some(place) => EventPlace::Known(place),
            None => match self.next_op() {
                Some(op) => EventPlace::Ask(op),
                None => EventPlace::Known(self.performed.places.get(&self.op).copied().unwrap_or_default()),
            },
        }
    }

    /// Counts a message of FollowSteps. False if an earlier daemon has stored it.
    pub(super) const fn next_result(&mut self) -> bool {
        self.results += 1;
        self.results > self.performed.stored
    }

    /// True if an earlier daemon has handled the end of this fetch.
    pub(super) fn has_fetched(&self, process: ProcessNumber) -> bool {
        self.performed.fetched.contains(&process)
    }

    /// True if an earlier daemon has handled the end of this process.
    pub(super) fn has_exited(&self, process: ProcessNumber) -> bool {
        self.performed.exited.contains(&process)
    }

    /// True if an earlier daemon has asked the keeper for this process.
    pub(super) fn has_asked(&self, process: ProcessNumber) -> bool {
        self.performed.asked.contains(&process)
    }

    /// Returns why an earlier daemon could not mask the phrases of the last request, once.
    pub(super) fn take_unmasked(&mut self) -> Option<String> {
        let op = self.op;
        self.performed.unmasked.take_if(|(failed, _)| *failed == op).map(|(_, message)| message)
    }
}
