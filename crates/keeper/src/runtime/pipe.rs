//! Pipes of a job's processes: the read end, and the source it feeds.

use std::os::fd::OwnedFd;

use super::shared::{KeeperShared, Token};
use crate::core::Serial;
use step_runner_log::pipeline::Pipeline;
use step_runner_model::{LogChannel, ProcessNumber};

/// The read end of a pipe, and the source it feeds.
pub(super) struct Pipe {
    pub(super) id: u32,
    pub(super) fd: OwnedFd,
    /// Number of the stream.
    pub(super) slot: u8,
    pub(super) kind: LogChannel,
    pub(super) source: Pipeline,
    /// The process of the running step that the pipe belongs to. `None` once the step is over and a process that outlives
    /// it holds the pipe.
    pub(super) process: Option<ProcessNumber>,
    /// The unfinished line that the daemon was told last; empty if it has ended.
    pub(super) told_unfinished: Vec<u8>,
}

impl Pipe {
    /// Creates the pipe of a step that starts.
    pub(super) const fn new(
        id: u32,
        process: ProcessNumber,
        fd: OwnedFd,
        (slot, kind): (u8, LogChannel),
        source: Pipeline,
    ) -> Self {
        Self { id, fd, slot, kind, source, process: Some(process), told_unfinished: Vec::new() }
    }

    pub(super) fn watch(&self, serial: Serial, shared: &KeeperShared) {
        // Without memory for the registration the pipe is read at the end of its step.
        shared.readiness.watch(&self.fd, Token::Pipe(serial, self.id), false).ok();
    }

    /// Leaves the pipe to a process that outlives the step, after the step is over and its source has ended. Further
    /// bytes go to `source`.
    pub(super) fn become_leftover(&mut self, source: Pipeline) {
        self.source = source;
        self.process = None;
    }
}
