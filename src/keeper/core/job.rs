//! One job as the keeper holds it: its record, its steps' processes, its end, and what the daemon was told of it.

use std::time::{Duration, Instant};

use super::action::{Action, Actions, JobAction, Look, Serial};
use super::closing::Closing;
use super::ending::Ending;
use super::event::{Event, LogView, Moment};
use super::gate::Blocked;
use super::process::{Process, Stage};
use super::record::Record;
use crate::journal::event::Event as JournalEvent;
use crate::keeper::protocol::{
    Closed, FromKeeper, HeldJob, HoldJob, LogStorage, Reply, SecretBytes, SpawnAfter, SpawnStep, StepOver,
};
use crate::model::{JobKey, LogChannel};

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

/// The events of the job, and the operations done: the daemon may ask for both again.
struct Ledger {
    record: Record,
    /// See [`HoldJob::brief`].
    brief: Vec<u8>,
    /// Largest `op` done.
    last_op: u32,
}

/// Facts that the daemon was told last.
struct Told {
    /// State of the log's storage.
    storage: LogStorage,
    /// Length of the log.
    len: u64,
    /// True if a longer one is about to be told.
    is_pending: bool,
}

/// A held job.
pub struct Job {
    pub(super) serial: Serial,
    key: JobKey,
    tag: u128,
    ledger: Ledger,
    told: Told,
    /// Steps whose end was not reported yet.
    pub(super) processes: Vec<Process>,
    pub(super) over: Vec<StepOver>,
    /// The step whose success closes the job, and the grace for what it leaves ([`SpawnStep::closes`]).
    pub(super) last_step: Option<(u32, Duration)>,
    /// The step to start after the running one.
    pub(super) next_step: Option<Box<SpawnAfter>>,
    /// Set once an end of the job was requested.
    pub(super) ending: Option<Ending>,
    pub(super) closing: Option<Closing>,
    pub(super) closed: Option<Closed>,
    pub(super) presence: Presence,
    /// Set while phrases are being prepared: requests for the job wait.
    pub(super) gate: Option<Box<Blocked>>,
    /// True if nothing of the job is in its log from a dead keeper.
    pub(super) is_log_new: bool,
    /// When the job's timer is due.
    pub(super) timer: Option<Instant>,
}

impl Job {
    /// Takes a job whose log is as in `log`.
    pub(super) fn new(serial: Serial, hold: &mut HoldJob, log: LogView) -> Self {
        let mut record = Record::default();
        record.push(std::mem::take(&mut hold.record));
        Self {
            serial,
            key: hold.key,
            tag: hold.tag,
            ledger: Ledger { record, brief: std::mem::take(&mut hold.brief), last_op: 0 },
            told: Told { storage: LogStorage::default(), len: log.len, is_pending: false },
            processes: Vec::new(),
            over: Vec::new(),
            last_step: None,
            next_step: None,
            ending: None,
            closing: None,
            closed: None,
            presence: Presence::Held,
            gate: None,
            is_log_new: log.len == 0,
            timer: None,
        }
    }

    /// Its key: the daemon's name for it.
    pub const fn key(&self) -> JobKey {
        self.key
    }

    /// Value of `STEP_RUNNER_JOB` in its processes.
    pub const fn tag(&self) -> u128 {
        self.tag
    }

    /// True if the daemon has forgotten the job: its key may be a new job's.
    pub fn is_dropped(&self) -> bool {
        self.presence != Presence::Held
    }

    /// True once its log is closed.
    pub const fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// True while its phrases are being prepared.
    pub const fn is_blocked(&self) -> bool {
        self.gate.is_some()
    }

    /// True if the process of a step has ended, and its pipes are still read.
    pub fn is_draining(&self, step: u32) -> bool {
        let draining = |process: &Process| matches!(process.stage, Stage::Draining { .. });
        self.processes.iter().any(|process| process.step == step && draining(process))
    }

    /// The request to start the process of a step, while it is not started.
    pub fn request(&self, step: u32) -> Option<&SpawnStep> {
        self.processes.iter().find(|process| process.step == step)?.request()
    }

    /// The step to start after this one, if it succeeds. `None` once an end of the job was requested.
    pub fn next_step(&self, step: u32) -> Option<&SpawnAfter> {
        self.next_step.as_deref().filter(|next| self.may_go_on() && next.after == step)
    }

    /// True if no end of the job was requested, and no request waits that may be one.
    pub(super) const fn may_go_on(&self) -> bool {
        self.ending.is_none() && self.closing.is_none() && self.gate.is_none()
    }

    /// Takes an event.
    pub(super) fn on(&mut self, event: Event, at: &Moment<'_>, out: &mut Actions) {
        match event {
            Event::Turn(step) => self.turn(step, out),
            Event::Started(step) => self.started(step),
            Event::Ordered(step) => self.ordered(step, at),
            Event::StartFailed(step, failure) => self.start_failed(step, failure, at, out),
            Event::ExitSeen(step) => self.wake(step, at, out),
            Event::Exited { step, status, usage, is_drained } => {
                self.exited(step, status, usage, at);
                self.read(step, false, is_drained, at, out);
            }
            Event::Read { step, came, is_drained } => self.read(step, came, is_drained, at, out),
            Event::Over(over) => self.step_over(over, at, out),
            Event::Looked(Look::Clear(step), is_empty) => self.looked_at_left(step, is_empty, at, out),
            Event::Looked(look, is_empty) => self.looked(look, is_empty, at, out),
            Event::Fewer => self.end_anew(at),
            Event::ReaperLost => self.reaper_lost(out),
            Event::DiskTakes => self.disk_takes(at),
            Event::EndWritten(closed) => self.end_written(closed, at, out),
            Event::LogClosed(closed) => self.log_closed(closed, out),
            Event::StepsDue => self.steps_due(at, out),
            Event::EndDue => self.check_end(at, out),
        }
    }

    /// Answer to Hold.
    pub(super) const fn held(log: LogView) -> Reply {
        Reply::Held { log_inode: log.inode, log_len: log.len }
    }

    /// Answer to Resume. Tells the daemon as well if the disk refuses the log.
    pub(super) fn resumed(&self, log: LogView, out: &mut Actions) -> Reply {
        if self.told.storage != LogStorage::Fine {
            self.tell_storage(out);
        }
        Reply::Resumed(Box::new(HeldJob {
            tag: self.tag,
            brief: SecretBytes(self.ledger.brief.clone()),
            events: self.ledger.record.count(),
            record_len: self.ledger.record.len(),
            last_op: self.ledger.last_op,
            over: self.over.clone(),
            closed: self.closed.clone(),
            log_inode: log.inode,
            log_len: log.len,
        }))
    }

    /// Appends an event to the record, unless it is there.
    pub(super) fn record(&mut self, seq: u32, event: Vec<u8>) {
        if seq == self.ledger.record.count() {
            self.ledger.record.push(event);
        }
    }

    /// Answer to `ReadRecord`.
    pub(super) fn record_piece(&self, offset: u64) -> Reply {
        Reply::Piece(SecretBytes(self.ledger.record.piece(offset)))
    }

    /// `true` once for each `op`.
    pub(super) const fn is_new(&mut self, op: u32) -> bool {
        let new = op > self.ledger.last_op;
        if new {
            self.ledger.last_op = op;
        }
        new
    }

    /// Marks the last `op` as not done: a later daemon that repeats it gets the error too.
    pub(super) const fn take_back_op(&mut self) {
        self.ledger.last_op = self.ledger.last_op.saturating_sub(1);
    }

    /// Tells what has changed for the daemon. True if the log has grown and its length is to be told soon.
    pub(super) fn settle(&mut self, log: LogView, out: &mut Actions) -> bool {
        if self.closed.is_some() {
            return false;
        }
        if log.storage != self.told.storage {
            self.told.storage = log.storage;
            self.tell_storage(out);
        }
        let has_grown = log.len != self.told.len && !self.told.is_pending;
        self.told.is_pending |= has_grown;
        has_grown
    }

    /// Notes that the daemon is told this length of the log.
    pub(super) const fn tell_len(&mut self, len: u64) -> u64 {
        self.told.is_pending = false;
        self.told.len = len;
        len
    }

    fn tell_storage(&self, out: &mut Actions) {
        self.tell(FromKeeper::Storage { key: self.key, storage: self.told.storage }, out);
    }

    /// Tells the daemon something of this job. A dropped one is forgotten there: a new job may have its key.
    pub(super) fn tell(&self, message: FromKeeper, out: &mut Actions) {
        if !self.is_dropped() {
            out.push(Action::Tell(message));
        }
    }

    /// Appends an event to the job's journal, unless the job is dropped: its journal is removed, or a new job's.
    pub(super) fn journal(&self, event: JournalEvent, out: &mut Actions) {
        if !self.is_dropped() {
            out.job(self.serial, JobAction::Journal(event));
        }
    }

    pub(super) fn line(&self, kind: LogChannel, text: String, out: &mut Actions) {
        out.job(self.serial, JobAction::Line(kind, text));
    }

    /// When the job has something to do.
    pub(super) fn due(&self, log: LogView) -> Option<Instant> {
        let steps = self.processes.iter().filter_map(|process| process.due(log.is_waiting())).min();
        steps.into_iter().chain(self.end_due()).min()
    }
}
