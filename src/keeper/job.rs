//! One job as the keeper holds it: its record, its log, its pipes, its running step.

use std::path::PathBuf;
use std::time::Instant;

use super::closing::{Closing, Ending};
use super::compile::Blocked;
use super::containment::Containment;
use super::leftover::Leftovers;
use super::log_file::LogFile;
use super::output::Masking;
use super::pipe::Pipe;
use super::protocol::{
    Closed, FromKeeper, HeldJob, HoldJob, KeeperError, LogStorage, Reply, SecretBytes, StepOver,
};
use super::record::Record;
use super::shared::{KeeperShared, Serial};
use super::step::Step;
use super::unfinished::UnfinishedReports;
use crate::journal::event::Event;
use crate::model::{JobKey, LogChannel, text};

/// Stage of a job's removal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// The daemon knows it.
    Held,
    /// The daemon has forgotten it; its processes may live.
    Dropped,
    /// The daemon has forgotten it, and no process is left.
    Gone,
}

/// A held job.
pub(super) struct Job {
    pub(super) serial: Serial,
    pub(super) key: JobKey,
    record: Record,
    /// See [`HoldJob::brief`].
    brief: Vec<u8>,
    /// Largest `op` done.
    last_op: u32,
    pub(super) masking: Masking,
    pub(super) log: LogFile,
    pub(super) pipes: Vec<Pipe>,
    pub(super) next_pipe: u32,
    /// True while the disk is full: the pipes are not watched.
    parked: bool,
    /// State of the log's storage that the daemon was told last.
    told_storage: LogStorage,
    pub(super) step: Option<Step>,
    pub(super) over: Vec<StepOver>,
    pub(super) containment: Containment,
    pub(super) leftovers: Leftovers,
    /// Set once an end of the job was requested.
    pub(super) ending: Option<Ending>,
    pub(super) closing: Option<Closing>,
    pub(super) closed: Option<Closed>,
    pub(super) presence: Presence,
    pub(super) secret_files: Vec<PathBuf>,
    /// True if the job tracks what of its log is on the disk (`durability = power`).
    pub(super) is_synced: bool,
    /// Set while phrases are being prepared: requests for the job wait.
    pub(super) blocked: Option<Box<Blocked>>,
    pub(super) unfinished: UnfinishedReports,
    /// Length of the log that the daemon was told last.
    told_len: u64,
    told_pending: bool,
    /// When the job's timer is due.
    timer: Option<Instant>,
}

impl Job {
    /// Takes a job: opens its log.
    pub(super) fn open(
        serial: Serial,
        hold: &mut HoldJob,
        masking: Masking,
        shared: &mut KeeperShared,
    ) -> Result<Self, KeeperError> {
        let open = || LogFile::new(shared.state.open_log(hold.key)?, hold.log_len, hold.log_limit);
        let log = open().map_err(|error: std::io::Error| KeeperError::Log {
            errno: error.raw_os_error().unwrap_or_default(),
            message: error.to_string(),
        })?;
        let mut record = Record::default();
        record.push(std::mem::take(&mut hold.record));
        Ok(Self {
            serial,
            key: hold.key,
            record,
            brief: std::mem::take(&mut hold.brief),
            last_op: 0,
            masking,
            told_len: log.len(),
            log,
            pipes: Vec::new(),
            next_pipe: 0,
            parked: false,
            told_storage: LogStorage::default(),
            step: None,
            over: Vec::new(),
            containment: Containment::new(hold.tag, hold.limits),
            leftovers: Leftovers::default(),
            ending: None,
            closing: None,
            closed: None,
            presence: Presence::Held,
            secret_files: std::mem::take(&mut hold.secret_files),
            is_synced: shared.state.is_synced(hold.key),
            blocked: None,
            unfinished: UnfinishedReports::default(),
            told_pending: false,
            timer: None,
        })
    }

    /// Answer to Hold.
    pub(super) fn held(&self) -> Reply {
        Reply::Held { log_inode: self.log.inode(), log_len: self.log.len() }
    }

    pub(super) fn is_log_empty(&self) -> bool {
        self.log.len() == 0
    }

    /// Answer to Resume.
    pub(super) fn resumed(&self) -> HeldJob {
        HeldJob {
            tag: self.containment.tag,
            brief: SecretBytes(self.brief.clone()),
            events: self.record.count(),
            record_len: self.record.len(),
            last_op: self.last_op,
            over: self.over.clone(),
            closed: self.closed.clone(),
            log_inode: self.log.inode(),
            log_len: self.log.len(),
        }
    }

    /// Appends an event to the record, unless it is there.
    pub(super) fn record(&mut self, seq: u32, event: Vec<u8>) {
        if seq == self.record.count() {
            self.record.push(event);
        }
    }

    /// Answer to `ReadRecord`.
    pub(super) fn record_piece(&self, offset: u64) -> Reply {
        Reply::Piece(SecretBytes(self.record.piece(offset)))
    }

    /// `true` once for each `op`.
    pub(super) const fn is_new(&mut self, op: u32) -> bool {
        let new = op > self.last_op;
        if new {
            self.last_op = op;
        }
        new
    }

    /// Marks the last `op` as not done: a later daemon that repeats it gets the error too.
    pub(super) const fn take_back_op(&mut self) {
        self.last_op = self.last_op.saturating_sub(1);
    }

    /// Writes a masked line of the daemon or the keeper to the log.
    pub(super) fn line(&mut self, kind: LogChannel, text: &str, shared: &mut KeeperShared) {
        let masked = self.masking.mask(text);
        self.log.line(kind, &masked, text::tells_exit_status(text), &shared.stamp());
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

    /// Runs the job's timers: log, step, end.
    pub(super) fn tick(&mut self, now: Instant, shared: &mut KeeperShared) {
        let stamp = shared.stamp();
        let waited = self.log.is_waiting();
        self.log.retry(now, &stamp);
        if waited && !self.log.is_waiting() {
            self.drain_anew(now);
            self.close_anew();
        }
        self.step_tick(now, shared);
        self.ending_tick(now, shared);
        self.unfinished_tick(now, shared);
    }

    /// Call it after any change to the job. Watches the pipes or stops watching them as the disk allows, reports a
    /// longer log, and sets the timer.
    pub(super) fn settle(&mut self, shared: &mut KeeperShared) {
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
        self.report_foreign(shared);
        let storage = self.log.storage();
        if storage != self.told_storage && self.closed.is_none() {
            self.told_storage = storage;
            self.tell_storage(shared);
        }
        if self.log.len() != self.told_len && !self.told_pending && self.closed.is_none() {
            self.told_pending = true;
            shared.grew(self.serial, self.key);
        }
        self.settle_unfinished(shared);
        let timers =
            [self.log.retry_at(), self.step_deadline(), self.ending_deadline(), self.unfinished.due()];
        let timer = timers.into_iter().flatten().min();
        if timer != self.timer {
            shared.move_timer(self.serial, self.timer, timer);
            self.timer = timer;
        }
    }

    /// Tells the operator, once, that another process has changed the log.
    fn report_foreign(&mut self, shared: &mut KeeperShared) {
        if let Some(text) = self.log.take_news() {
            shared.notice(format!("job {}: {text}", self.key));
        }
    }

    /// Tells the daemon if the disk refuses the log.
    pub(super) fn tell_refusal(&self, shared: &mut KeeperShared) {
        if self.told_storage != LogStorage::Fine {
            self.tell_storage(shared);
        }
    }

    fn tell_storage(&self, shared: &mut KeeperShared) {
        self.tell(&FromKeeper::Storage { key: self.key, storage: self.told_storage }, shared);
    }

    /// Tells the daemon something of this job. A dropped one is forgotten there: a new job may have its key.
    pub(super) fn tell(&self, message: &FromKeeper, shared: &mut KeeperShared) {
        if !self.is_dropped() {
            shared.tell(message);
        }
    }

    /// Appends an event to the job's journal, unless the job is dropped: its journal is removed, or a new job's.
    pub(super) fn journal(&self, event: &Event, shared: &mut KeeperShared) {
        if !self.is_dropped() {
            shared.journal(self.key, event);
        }
    }

    /// Returns the log's length, for a report to the daemon.
    pub(super) const fn tell_len(&mut self) -> u64 {
        self.told_pending = false;
        self.told_len = self.log.len();
        self.told_len
    }

    pub(super) const fn is_parked(&self) -> bool {
        self.parked
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.presence != Presence::Held
    }

    /// Releases the timer and the containment of a job that is removed.
    pub(super) fn forget(&mut self, shared: &mut KeeperShared) {
        shared.move_timer(self.serial, self.timer.take(), None);
        self.containment.release(shared);
    }
}
