//! The output of a job: its pipes are read, masked and framed into its log (logs.md §2, §3).

mod unfinished;

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;

use super::log_file::LogFile;
use super::masking::Masking;
use super::pipe::Pipe;
use super::shared::KeeperShared;
use crate::core::{Job, Serial};
use step_runner_log::words::DaemonLine;
use step_runner_model::{LogChannel, ProcessNumber, text};
use unfinished::UnfinishedReports;

pub use unfinished::UNFINISHED_EVERY;

/// Reads of one pipe before other descriptors have their turn: enough to make the turn's own cost small.
const READS_PER_TURN: usize = 4;

/// Reads of one pipe at the end of its step: more than a pipe holds, but an endless writer is not followed.
const READS_AT_END: usize = 32;

/// Pipes, masking and log of one job.
pub(super) struct Output {
    pub(super) masking: Masking,
    pub(super) log: LogFile,
    pub(super) pipes: Vec<Pipe>,
    next_pipe: u32,
    /// True while the disk is full: the pipes are not watched.
    is_parked: bool,
    unfinished: UnfinishedReports,
}

/// Result of reading a pipe.
#[derive(PartialEq, Eq)]
enum Reading {
    Nothing,
    Some,
    /// All writers have closed it.
    Ended,
}

/// A pipe of a running step was read.
pub(super) struct StepRead {
    /// Its process.
    pub(super) process: ProcessNumber,
    /// True if bytes came.
    pub(super) came: bool,
    /// True if the step has no open pipe.
    pub(super) is_drained: bool,
}

impl Output {
    pub(super) fn new(masking: Masking, log: LogFile) -> Self {
        Self {
            masking,
            log,
            pipes: Vec::new(),
            next_pipe: 0,
            is_parked: false,
            unfinished: UnfinishedReports::default(),
        }
    }

    /// Masks a line of the keeper and writes it to the log.
    pub(super) fn own_line(&mut self, line: &DaemonLine<'_>, shared: &mut KeeperShared) {
        self.line(line.channel(), &line.to_string(), shared);
    }

    /// Masks a line that was made as a [`DaemonLine`] elsewhere, and writes it to the log.
    pub(super) fn line(&mut self, kind: LogChannel, text: &str, shared: &mut KeeperShared) {
        let masked = self.masking.mask(text);
        self.log.line(kind, &masked, text::told_exit_status(text).is_some(), &shared.stamp());
    }

    /// Makes every source search for the phrases of `masking`, too.
    pub(super) fn use_masking(&mut self, masking: Masking, shared: &mut KeeperShared) {
        self.masking = masking;
        let now = shared.stamp();
        for pipe in &mut self.pipes {
            self.log.output(&now, |out| {
                pipe.source.replace_masker(self.masking.masker(), &now, &mut shared.scratch.masked, out);
            });
        }
    }

    /// Takes the pipes of a step that starts.
    pub(super) fn add_pipes(
        &mut self,
        process: ProcessNumber,
        slot: u8,
        pipes: [(OwnedFd, LogChannel); 2],
        serial: Serial,
        shared: &KeeperShared,
    ) {
        // Most jobs have one step at a time: the memory of a job counts when thousands run.
        self.pipes.reserve_exact(pipes.len());
        for (fd, kind) in pipes {
            self.next_pipe += 1;
            let source = self.masking.source(slot, kind);
            let pipe = Pipe::new(self.next_pipe, process, fd, (slot, kind), source);
            if !self.is_parked {
                pipe.watch(serial, shared);
            }
            self.pipes.push(pipe);
        }
    }

    /// Watches the pipes or stops watching them, as the disk allows.
    pub(super) fn park(&mut self, serial: Serial, shared: &KeeperShared) {
        if self.is_parked == self.log.is_waiting() {
            return;
        }
        self.is_parked = !self.is_parked;
        for pipe in &self.pipes {
            if self.is_parked {
                shared.readiness.forget(&pipe.fd);
            } else {
                pipe.watch(serial, shared);
            }
        }
    }

    /// Reads pipe `id`, which has bytes or was closed. Returns the result for the step that the pipe belongs to.
    pub(super) fn on_pipe(&mut self, id: u32, job: &Job, shared: &mut KeeperShared) -> Option<StepRead> {
        let index = self.pipes.iter().position(|pipe| pipe.id == id)?;
        let process = self.pipes.get(index).and_then(|pipe| pipe.process);
        let reading = self.read_pipe(index, READS_PER_TURN, job, shared);
        let process = process?;
        Some(StepRead { process, came: reading == Reading::Some, is_drained: self.is_drained(process) })
    }

    /// Reads the pipes of a step whose process has ended. True if nobody else holds them.
    pub(super) fn read_at_end(
        &mut self,
        process: ProcessNumber,
        job: &Job,
        shared: &mut KeeperShared,
    ) -> bool {
        // In this order standard output comes first, as most programs complain last.
        let mut index = 0;
        while let Some(pipe) = self.pipes.get(index) {
            let has_gone = pipe.process == Some(process)
                && self.read_pipe(index, READS_AT_END, job, shared) == Reading::Ended;
            index += usize::from(!has_gone);
        }
        self.is_drained(process)
    }

    fn is_drained(&self, process: ProcessNumber) -> bool {
        !self.pipes.iter().any(|pipe| pipe.process == Some(process))
    }

    /// Reads a pipe at most `reads` times. A pipe that has ended is removed.
    fn read_pipe(&mut self, index: usize, reads: usize, job: &Job, shared: &mut KeeperShared) -> Reading {
        let mut reading = Reading::Nothing;
        for _ in 0..reads {
            let Some(pipe) = self.pipes.get_mut(index) else { break };
            if self.log.is_waiting() {
                break;
            }
            match rustix::io::read(&pipe.fd, &mut *shared.scratch.read) {
                Ok(0) => return self.pipe_ended(index, job, shared),
                Ok(read) => {
                    reading = Reading::Some;
                    let now = shared.clock.now();
                    let scratch = &mut shared.scratch;
                    scratch.has_read(read);
                    let bytes = scratch.read.get(..read).unwrap_or_default();
                    self.log.output(&now, |out| pipe.source.write(bytes, &now, &mut scratch.masked, out));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return self.pipe_ended(index, job, shared),
            }
        }
        reading
    }

    fn pipe_ended(&mut self, index: usize, job: &Job, shared: &mut KeeperShared) -> Reading {
        let mut pipe = self.pipes.remove(index);
        let now = shared.stamp();
        self.log.output(&now, |out| pipe.source.finish(&now, &mut shared.scratch.masked, out));
        self.end_unfinished(&mut pipe, job, shared);
        Reading::Ended
    }

    /// Ends the output of a step. Further bytes from its pipes come from processes that outlive the step.
    pub(super) fn finish_step(&mut self, process: ProcessNumber, shared: &mut KeeperShared) {
        let now = shared.stamp();
        for pipe in self.pipes.iter_mut().filter(|pipe| pipe.process == Some(process)) {
            self.log.output(&now, |out| pipe.source.finish(&now, &mut shared.scratch.masked, out));
            pipe.become_leftover(self.masking.source(pipe.slot, pipe.kind));
        }
    }

    /// Reads and closes all pipes at the end of the job.
    pub(super) fn close_pipes(&mut self, job: &Job, shared: &mut KeeperShared) {
        while !self.pipes.is_empty() {
            if self.read_pipe(0, READS_AT_END, job, shared) != Reading::Ended {
                self.pipe_ended(0, job, shared);
            }
        }
    }

    /// Retries the bytes that the disk refused, if a retry is due. True if the disk accepts the log again.
    pub(super) fn retry(&mut self, now: Instant, shared: &mut KeeperShared) -> bool {
        let waited = self.log.is_waiting();
        self.log.retry(now, &shared.stamp());
        waited && !self.log.is_waiting()
    }

    /// Returns when the output next has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.log.retry_at().into_iter().chain(self.unfinished.due()).min()
    }
}
