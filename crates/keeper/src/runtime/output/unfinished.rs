//! Lines of a step that have no end yet. The daemon is told of them if a follower wants to see them (service.md §3.2).
//!
//! They are never part of the log: a line is written when it ends. So nothing here is recorded, repeated or waited for.

use std::time::{Duration, Instant};

use super::Output;
use crate::core::Job;
use crate::protocol::{FromKeeper, SecretBytes};
use crate::runtime::pipe::Pipe;
use crate::runtime::shared::KeeperShared;

/// Shortest time between two reports of one job, so that a step that writes byte by byte costs little.
pub const UNFINISHED_EVERY: Duration = Duration::from_millis(100);

/// Timer of the reports.
#[derive(Default)]
pub(super) struct UnfinishedReports {
    is_watched: bool,
    /// Time at which the next report is due; `None` if there is nothing to report.
    due: Option<Instant>,
}

impl UnfinishedReports {
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl Output {
    /// Begins the reports with the present lines, because this daemon may be another one than before.
    pub(in crate::runtime) fn watch_unfinished(&mut self) {
        self.unfinished.is_watched = true;
        for pipe in &mut self.pipes {
            pipe.told_unfinished.clear();
        }
    }

    /// Reports lines that have ended, and sets the timer for those that have grown.
    pub(in crate::runtime) fn settle_unfinished(&mut self, job: &Job, shared: &mut KeeperShared) {
        if !self.unfinished.is_watched {
            return;
        }
        let takes_output = self.log.takes_output();
        let mut has_grown = false;
        let mut pipes = std::mem::take(&mut self.pipes);
        for pipe in &mut pipes {
            let line = unfinished(pipe, takes_output);
            has_grown |= !line.is_empty() && line != pipe.told_unfinished;
            if !line.starts_with(&pipe.told_unfinished) {
                self.end_unfinished(pipe, job, shared);
            }
        }
        self.pipes = pipes;
        let due = self.unfinished.due.filter(|_| has_grown);
        self.unfinished.due = due.or_else(|| has_grown.then(|| Instant::now() + UNFINISHED_EVERY));
    }

    /// Reports lines that have grown, if it is time and the daemon reads what it gets.
    pub(in crate::runtime) fn unfinished_tick(&mut self, now: Instant, job: &Job, shared: &mut KeeperShared) {
        if self.unfinished.due.is_none_or(|due| due > now) {
            return;
        }
        self.unfinished.due = None;
        if !shared.may_tell() {
            return;
        }
        let takes_output = self.log.takes_output();
        let mut pipes = std::mem::take(&mut self.pipes);
        for pipe in &mut pipes {
            let line = unfinished(pipe, takes_output);
            if !line.is_empty() && line != pipe.told_unfinished {
                pipe.told_unfinished = line.to_vec();
                self.tell_unfinished(pipe, pipe.told_unfinished.clone(), job, shared);
            }
        }
        self.pipes = pipes;
    }

    /// Reports that the line reported last has ended, if there is one.
    pub(super) fn end_unfinished(&self, pipe: &mut Pipe, job: &Job, shared: &mut KeeperShared) {
        if !std::mem::take(&mut pipe.told_unfinished).is_empty() {
            self.tell_unfinished(pipe, Vec::new(), job, shared);
        }
    }

    fn tell_unfinished(&self, pipe: &Pipe, entry: Vec<u8>, job: &Job, shared: &mut KeeperShared) {
        // The daemon has forgotten a dropped job, and a new job may have its key.
        if !job.is_dropped() {
            let (key, log_len, entry) = (job.key(), self.log.len(), SecretBytes(entry));
            let (slot, channel) = (pipe.slot, pipe.kind);
            shared.tell(&FromKeeper::Unfinished { key, slot, channel, log_len, entry });
        }
    }
}

/// Returns the unfinished line of a pipe, if the log will have it.
fn unfinished(pipe: &Pipe, takes_output: bool) -> &[u8] {
    if pipe.process.is_some() && takes_output { pipe.source.unfinished() } else { &[] }
}
