//! One job as the keeper holds it: its record, its log, its sources, what runs now.

use std::path::PathBuf;
use std::time::Instant;

use super::closing::{Closing, Ending};
use super::compile::Blocked;
use super::containment::Containment;
use super::log_file::LogFile;
use super::output::Masking;
use super::protocol::{Closed, HeldJob, HoldJob, KeeperError, Reply, SecretBytes, StepOver};
use super::shared::{Serial, Shared};
use super::step::{Pipe, Step};
use crate::model::{JobKey, Kind};

/// Whether the daemon still knows the job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It does.
    Held,
    /// It has forgotten it; processes of it may live.
    Dropped,
    /// It has forgotten it, and nothing lives.
    Gone,
}

/// A held job.
pub(super) struct Job {
    pub(super) serial: Serial,
    pub(super) key: JobKey,
    record: Vec<Vec<u8>>,
    /// Largest `op` done.
    last_op: u32,
    pub(super) masking: Masking,
    pub(super) log: LogFile,
    pub(super) pipes: Vec<Pipe>,
    /// Number of the next pipe.
    pub(super) next_pipe: u32,
    /// The disk is full: the pipes are not watched.
    parked: bool,
    pub(super) step: Option<Step>,
    pub(super) over: Vec<StepOver>,
    pub(super) containment: Containment,
    /// Somebody wants it to end: Stop, Close or Drop.
    pub(super) ending: Option<Ending>,
    pub(super) closing: Option<Closing>,
    pub(super) closed: Option<Closed>,
    pub(super) presence: Presence,
    pub(super) secret_files: Vec<PathBuf>,
    /// Account is kept of what of its log is on the disk (`durability = power`).
    pub(super) is_synced: bool,
    /// Phrases are being prepared: requests for the job wait.
    pub(super) blocked: Option<Box<Blocked>>,
    /// Length of the log that the daemon was told, or is about to be.
    told_len: u64,
    told_pending: bool,
    /// When its timer rings.
    timer: Option<Instant>,
}

impl Job {
    /// Opens the log of a job that is taken.
    pub(super) fn open(
        serial: Serial,
        hold: &mut HoldJob,
        masking: Masking,
        shared: &mut Shared,
    ) -> Result<Self, KeeperError> {
        let open = || LogFile::new(shared.state.open_job_file(hold.key, "log")?, hold.log_limit);
        let log = open().map_err(|error: std::io::Error| KeeperError::Log {
            errno: error.raw_os_error().unwrap_or_default(),
            message: error.to_string(),
        })?;
        Ok(Self {
            serial,
            key: hold.key,
            record: vec![std::mem::take(&mut hold.record)],
            last_op: 0,
            masking,
            told_len: log.len(),
            log,
            pipes: Vec::new(),
            next_pipe: 0,
            parked: false,
            step: None,
            over: Vec::new(),
            containment: Containment::new(hold.tag, hold.limits),
            ending: None,
            closing: None,
            closed: None,
            presence: Presence::Held,
            secret_files: std::mem::take(&mut hold.secret_files),
            is_synced: shared.state.is_synced(hold.key),
            blocked: None,
            told_pending: false,
            timer: None,
        })
    }

    /// Answer to Hold.
    pub(super) fn held(&self) -> Reply {
        Reply::Held { log_inode: self.log.inode(), log_len: self.log.len() }
    }

    /// Nothing was ever written to its log.
    pub(super) fn is_log_empty(&self) -> bool {
        self.log.len() == 0
    }

    /// Answer to Resume.
    pub(super) fn resumed(&self) -> HeldJob {
        HeldJob {
            tag: self.containment.tag,
            record: SecretBytes(self.record.clone()),
            last_op: self.last_op,
            over: self.over.clone(),
            closed: self.closed.clone(),
            log_inode: self.log.inode(),
            log_len: self.log.len(),
        }
    }

    /// Appends an event to the record, unless it is there.
    pub(super) fn record(&mut self, seq: u32, event: Vec<u8>) {
        if seq as usize == self.record.len() {
            self.record.push(event);
        }
    }

    /// `true` once for each `op`.
    pub(super) const fn is_new(&mut self, op: u32) -> bool {
        let new = op > self.last_op;
        if new {
            self.last_op = op;
        }
        new
    }

    /// What was done last could not be done: a later daemon that asks for it again hears so, too.
    pub(super) const fn take_back_op(&mut self) {
        self.last_op = self.last_op.saturating_sub(1);
    }

    /// Writes a line of the daemon's or the keeper's, masked.
    pub(super) fn line(&mut self, kind: Kind, text: &str, shared: &mut Shared) {
        let masked = self.masking.mask(text);
        self.log.line(kind, &masked, &shared.stamp());
    }

    /// From now on every source searches for the phrases of `masking` too.
    pub(super) fn use_masking(&mut self, masking: Masking, shared: &mut Shared) {
        self.masking = masking;
        let now = shared.stamp();
        for pipe in &mut self.pipes {
            self.log.output(&now, |out| {
                pipe.source.replace_masker(self.masking.masker(), &now, &mut shared.scratch.masked, out);
            });
        }
    }

    /// Does what is due by the clock.
    pub(super) fn tick(&mut self, now: Instant, shared: &mut Shared) {
        let stamp = shared.stamp();
        let waited = self.log.is_waiting();
        self.log.retry(now, &stamp);
        if waited && !self.log.is_waiting() {
            self.drain_anew(now);
            self.close_anew();
        }
        self.step_tick(now, shared);
        self.ending_tick(now, shared);
    }

    /// To be called after anything was done to the job: watches or leaves its pipes as the disk allows, tells of a
    /// longer log, and sets the timer.
    pub(super) fn settle(&mut self, shared: &mut Shared) {
        if self.parked != self.log.is_waiting() {
            self.parked = !self.parked;
            for pipe in &self.pipes {
                if self.parked {
                    shared.readiness.forget(&pipe.fd);
                } else {
                    pipe.watch(self.serial, shared);
                }
            }
        }
        if self.log.len() != self.told_len && !self.told_pending && self.closed.is_none() {
            self.told_pending = true;
            shared.grew(self.serial, self.key);
        }
        let timer =
            [self.log.retry_at(), self.step_deadline(), self.ending_deadline()].into_iter().flatten().min();
        if timer != self.timer {
            shared.move_timer(self.serial, self.timer, timer);
            self.timer = timer;
        }
    }

    /// The daemon is told the log's length now.
    pub(super) const fn tell_len(&mut self) -> u64 {
        self.told_pending = false;
        self.told_len = self.log.len();
        self.told_len
    }

    /// The disk is full: pipes are not read.
    pub(super) const fn is_parked(&self) -> bool {
        self.parked
    }

    /// The daemon has forgotten it.
    pub(super) fn is_dropped(&self) -> bool {
        self.presence != Presence::Held
    }

    /// Nothing more will come of it; it can be forgotten.
    pub(super) fn forget(&mut self, shared: &mut Shared) {
        shared.move_timer(self.serial, self.timer.take(), None);
        self.containment.release(shared);
        shared.marks.tags.remove(&self.containment.tag);
    }
}
