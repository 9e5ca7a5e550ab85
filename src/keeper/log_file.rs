//! The file of a job's log: whole entries appended in order, whatever the disk says (logs.md §4, §6).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::log::frame::{Stamp, daemon_lines};
use crate::log::pipeline::{Backlog, LogBudget, Origin, RETRY_EVERY, State};
use crate::model::Kind;
use crate::{failpoint, files};

/// A job's open log.
pub(super) struct LogFile {
    /// `None` once it is closed.
    file: Option<OwnedFd>,
    inode: u64,
    len: u64,
    backlog: Backlog,
    retry_at: Option<Instant>,
    opened: Instant,
}

impl LogFile {
    /// Takes over a file opened for appending.
    pub(super) fn new(file: OwnedFd, limit: u64) -> io::Result<Self> {
        let stat = files::stat_of(&file)?;
        let len = stat.st_size as u64;
        let backlog = Backlog::new(LogBudget::new(limit, len));
        Ok(Self {
            file: Some(file),
            inode: stat.st_ino,
            len,
            backlog,
            retry_at: None,
            opened: Instant::now(),
        })
    }

    /// Bytes in the file.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    pub(super) const fn inode(&self) -> u64 {
        self.inode
    }

    /// The disk refuses: pipes are not to be read now.
    pub(super) fn is_waiting(&self) -> bool {
        self.backlog.state() == State::Waiting
    }

    /// When to call [`LogFile::retry`].
    pub(super) const fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Appends the entries of a step's output that `fill` makes.
    pub(super) fn output(&mut self, now: &Stamp, fill: impl FnOnce(&mut Vec<u8>)) {
        self.backlog.append(Origin::Step, now, fill);
        self.flush();
    }

    /// Appends a line of the daemon or of the keeper, already masked.
    pub(super) fn line(&mut self, kind: Kind, text: &[u8], now: &Stamp) {
        self.backlog.append(Origin::Daemon, now, |out| daemon_lines(kind, text, now, out));
        self.flush();
    }

    /// Tries again to write what the disk refused.
    pub(super) fn retry(&mut self, at: Instant, now: &Stamp) {
        if self.retry_at.is_some_and(|due| due <= at) {
            self.retry_at = None;
            if self.backlog.has_unmarked_hole() {
                self.backlog.append(Origin::Daemon, now, |_| {});
            }
            self.flush();
        }
    }

    /// Appends what is to be said about limit and losses at the end of the log.
    pub(super) fn last_words(&mut self, now: &Stamp) {
        self.backlog.close(now);
        self.flush();
    }

    /// Closes the file. `true` = something of the log is not in it.
    pub(super) fn close(&mut self) -> bool {
        self.file = None;
        self.retry_at = None;
        !self.backlog.pending().is_empty() || self.backlog.has_unmarked_hole()
    }

    fn flush(&mut self) {
        let Some(file) = &self.file else { return };
        while !self.backlog.pending().is_empty() {
            let pending = self.backlog.pending();
            match failpoint::io("keeper::log::write").and_then(|()| files::write(file, pending)) {
                Ok(written) if written > 0 => {
                    self.len += written as u64;
                    self.backlog.accepted(written);
                }
                Ok(_) | Err(_) => {
                    let now = self.opened.elapsed() + failpoint::late("keeper::log::clock");
                    self.backlog.refused(now);
                    break;
                }
            }
        }
        let done = self.backlog.pending().is_empty() && !self.backlog.has_unmarked_hole();
        if done {
            self.retry_at = None;
        } else if self.retry_at.is_none() {
            self.retry_at = Some(Instant::now() + RETRY_EVERY);
        }
    }
}
