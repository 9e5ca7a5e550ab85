//! The log file of a job: whole entries in order, even if the disk refuses bytes (logs.md §4, §6).
//!
//! Steps of the keeper's own user can write to the file, so it is not opened for appending. Each entry goes where the
//! one before it ended. Bytes behind that come from another process and are cut off.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::protocol::LogStorage;
use step_runner_log::frame::{Stamp, daemon_lines};
use step_runner_log::mask::Masked;
use step_runner_log::pipeline::{Backlog, LogBudget, LogOrigin, RETRY_EVERY, WriterState};
use step_runner_model::LogChannel;
use step_runner_system::{failpoint, files};

/// Longest line of the daemon or of the keeper in bytes. It may show a whole line that a step wrote.
const LONGEST_LINE: usize = 16 << 10;

/// A job's open log.
pub(super) struct LogFile {
    /// `None` once it is closed.
    file: Option<OwnedFd>,
    inode: u64,
    /// Bytes written.
    len: u64,
    /// Offset of the next byte: less than `len` once another process has cut the file.
    at: u64,
    foreign: ForeignChanges,
    /// True once the operator was told of foreign changes.
    is_told: bool,
    backlog: Backlog,
    retry_at: Option<Instant>,
    /// Error number of the last refused write.
    refusal: i32,
    opened: Instant,
}

/// Changes of a log by other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ForeignChanges {
    /// Bytes that they wrote to its end; these were removed.
    pub(super) added: u64,
    /// Bytes of ours that they cut off.
    pub(super) cut: u64,
}

impl ForeignChanges {
    /// Describes the changes to people; `None` if there are none.
    pub(super) fn text(self) -> Option<String> {
        let added = (self.added > 0).then(|| {
            format!(
                "{} bytes that another process wrote to the end of the job's log were removed",
                self.added
            )
        });
        let cut = (self.cut > 0).then(|| format!("another process cut {} bytes off the job's log", self.cut));
        let all: Vec<_> = added.into_iter().chain(cut).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl LogFile {
    /// Takes over a file whose first `len` bytes are the job's.
    pub(super) fn new(file: OwnedFd, len: u64, limit: u64) -> io::Result<Self> {
        let stat = files::stat_of(&file)?;
        let backlog = Backlog::new(LogBudget::new(limit, len));
        files::seek(&file, len)?;
        Ok(Self {
            file: Some(file),
            inode: stat.st_ino,
            len,
            at: len,
            foreign: ForeignChanges::default(),
            is_told: false,
            backlog,
            retry_at: None,
            refusal: 0,
            opened: Instant::now(),
        })
    }

    /// Returns the number of bytes written. The file has as many, unless another process has changed it.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    pub(super) const fn inode(&self) -> u64 {
        self.inode
    }

    /// True while the disk refuses bytes: pipes must not be read.
    pub(super) fn is_waiting(&self) -> bool {
        self.backlog.state() == WriterState::Waiting
    }

    /// True if the output of steps reaches the log: the disk takes it, and the limit is not reached.
    pub(super) fn takes_output(&self) -> bool {
        self.file.is_some() && self.backlog.takes_output()
    }

    /// Returns the state of the disk for this log.
    pub(super) fn storage(&self) -> LogStorage {
        let errno = self.refusal;
        match self.backlog.state() {
            WriterState::Flowing => LogStorage::Fine,
            WriterState::Waiting => LogStorage::Waiting { errno },
            WriterState::Dropping => LogStorage::Dropping { errno },
        }
    }

    /// Returns when to call [`LogFile::retry`].
    pub(super) const fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Appends the entries that `fill` makes of a step's output.
    pub(super) fn output(&mut self, now: &Stamp, fill: impl FnOnce(&mut Vec<u8>)) {
        self.backlog.append(LogOrigin::Step, now, fill);
        self.flush();
    }

    /// Appends a line of the daemon or of the keeper. `tells_exit_status`: see [`Masked::line_of`].
    pub(super) fn line(&mut self, kind: LogChannel, text: &Masked, tells_exit_status: bool, now: &Stamp) {
        let line = text.line_of(LONGEST_LINE, tells_exit_status);
        self.backlog.append(LogOrigin::Daemon, now, |out| daemon_lines(kind, line.as_bytes(), now, out));
        self.flush();
    }

    /// Retries a refused write, if its time has come.
    pub(super) fn retry(&mut self, at: Instant, now: &Stamp) {
        if self.retry_at.is_some_and(|due| due <= at) {
            self.retry_at = None;
            if self.backlog.has_unmarked_hole() {
                self.backlog.append(LogOrigin::Daemon, now, |_| {});
            }
            self.flush();
        }
    }

    /// Appends the final notes about limit and losses.
    pub(super) fn append_final_notes(&mut self, now: &Stamp) {
        self.backlog.close(now);
        self.flush();
    }

    /// Describes changes by other processes, the first time there are some.
    pub(super) fn take_news(&mut self) -> Option<String> {
        if self.is_told {
            return None;
        }
        let text = self.foreign.text();
        self.is_told = text.is_some();
        text
    }

    /// Checks for changes by other processes. Returns all found so far.
    pub(super) fn foreign(&mut self) -> ForeignChanges {
        self.check_end();
        self.foreign
    }

    /// Closes the file. True if part of the log is missing from it.
    pub(super) fn close(&mut self) -> bool {
        self.check_end();
        self.file = None;
        self.retry_at = None;
        !self.backlog.pending().is_empty() || self.backlog.has_unmarked_hole()
    }

    /// Checks that the file ends where we ended it. Cuts off what another process appended. A shorter file goes on at
    /// its end and stays shorter than the log, so that its followers are told of the loss (faults.md row 29).
    fn check_end(&mut self) {
        let Some(file) = &self.file else { return };
        let Ok(stat) = files::stat_of(file) else { return };
        let size = stat.st_size as u64;
        if size > self.at {
            // If it cannot be cut off, our next bytes overwrite it.
            if files::cut(file, self.at).is_ok() {
                self.foreign.added += size - self.at;
            }
        } else if size < self.at && files::seek(file, size).is_ok() {
            self.foreign.cut += self.at - size;
            self.at = size;
        }
    }

    fn flush(&mut self) {
        if !self.backlog.pending().is_empty() {
            self.check_end();
        }
        let Some(file) = &self.file else { return };
        while !self.backlog.pending().is_empty() {
            let pending = self.backlog.pending();
            match failpoint::io("keeper::log::write").and_then(|()| files::write(file, pending)) {
                Ok(written) if written > 0 => {
                    self.len += written as u64;
                    self.at += written as u64;
                    self.backlog.accepted(written);
                }
                refused => {
                    self.refusal = refused.err().and_then(|error| error.raw_os_error()).unwrap_or_default();
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
