//! A job as it is followed: its log and its events in one order, and the tree of its steps so far.

use step_runner_proto::v1;

use crate::order::{self, Order};
use crate::tree::{Change, Tree};

/// Next part of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Whole lines of the log; at the end of the job perhaps an unfinished one.
    Log(Vec<u8>),
    /// Something has happened to a step. The tree knows it already.
    Step {
        /// The event.
        event: Box<v1::StepEvent>,
        /// Its kind.
        change: Change,
    },
    /// Result of the step whose end was the part before, with all results below it: a step of the job's own list, or the
    /// root.
    Result(Box<v1::StepResult>),
}

/// A job that is followed.
pub struct Run {
    order: Order,
    tree: Tree,
}

impl Run {
    /// Starts at byte `offset` of the log.
    pub fn new(offset: u64) -> Self {
        Self { order: Order::new(offset), tree: Tree::default() }
    }

    /// Takes bytes of the log.
    pub fn log(&mut self, bytes: &[u8]) {
        self.order.log(bytes);
    }

    /// Takes a message of FollowSteps that was asked for with `events`.
    pub fn message(&mut self, message: &v1::FollowStepsResponse) {
        self.order.message(message);
    }

    /// Takes note that no more messages come, so the log waits for none.
    pub const fn events_end(&mut self) {
        self.order.events_end();
    }

    /// Takes note that nothing more comes. Nothing waits any longer.
    pub const fn end(&mut self) {
        self.order.end();
    }

    /// True if nothing has been heard of events yet.
    pub const fn is_silent(&self) -> bool {
        self.order.is_silent()
    }

    /// Returns the number of bytes that wait.
    pub const fn waiting(&self) -> usize {
        self.order.waiting()
    }

    /// True if nothing waits.
    pub fn is_idle(&self) -> bool {
        self.order.is_idle()
    }

    /// True if the next part is of a step: then the lines before it are complete, and the tree is still as they were
    /// written.
    pub fn is_step_next(&self) -> bool {
        self.order.is_event_next()
    }

    /// Returns the next part, if it is certain, and brings the tree up to it.
    pub fn next_part(&mut self) -> Option<Part> {
        Some(match self.order.next_part()? {
            order::Part::Log(bytes) => Part::Log(bytes),
            order::Part::Event(event) => Part::Step { change: self.tree.take(&event), event },
            order::Part::Result(result) => Part::Result(result),
        })
    }

    /// Returns the tree of the steps, as far as parts were returned.
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }
}

#[cfg(test)]
mod tests;
