//! The masking gate of a job: while its phrases are being prepared, requests about it wait, so nothing that they
//! could show is written before it can be masked (masking.md §7).

use std::collections::VecDeque;

use super::action::ReplyTo;
use crate::protocol::Request;

/// A job whose phrases are being prepared.
pub(super) struct Blocked {
    /// Receiver of the reply.
    pub(super) asker: ReplyTo,
    /// True for a new job, which is dropped if its phrases cannot be used.
    pub(super) is_new: bool,
    /// Later requests for the job, in order.
    pub(super) requests: VecDeque<(ReplyTo, Request)>,
}

impl Blocked {
    pub(super) const fn new(asker: ReplyTo, is_new: bool) -> Self {
        Self { asker, is_new, requests: VecDeque::new() }
    }

    /// True if a request passes the closed gate: neither an end nor the record waits for phrases, but the stop of a step
    /// whose start or tree waits.
    pub(super) fn lets_pass(&self, request: &Request) -> bool {
        let is_before_stop = |waits: &Request, process| match waits {
            Request::Spawn(spawn) => spawn.process == process,
            Request::ShowProcesses { processes, .. } => processes.contains(&process),
            _ => false,
        };
        match request {
            Request::Stop { process, .. } => {
                !self.requests.iter().any(|(_, waits)| is_before_stop(waits, *process))
            }
            request => matches!(request, Request::Drop { .. } | Request::ReadRecord { .. }),
        }
    }
}
