//! One job as the keeper holds it: its record, its steps' processes, its end, and what the daemon was told of it.

mod closing;
mod steps;
mod stopping;

use std::time::{Duration, Instant};

use super::action::{Action, Actions, EmptyCheck, JobAction, Serial};
use super::ending::Ending;
use super::event::{Event, LogView, Moment};
use super::gate::Blocked;
use super::process::{Process, Stage};
use super::record::Record;
use crate::protocol::{
    Closed, FromKeeper, LogStorage, RegisterJob, RegisteredJob, Reply, SecretBytes, SpawnStep, StepEnded,
};
use closing::Closing;
use step_runner_log::journal::event::Event as JournalEvent;
use step_runner_log::words::DaemonLine;
use step_runner_model::{JobKey, ProcessNumber};
use stopping::Clearance;

/// Stage of a job's removal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// The daemon knows it.
    Registered,
    /// The daemon has forgotten it; its processes may live.
    Dropped,
    /// The daemon has forgotten it, and no process is left.
    Gone,
}

/// The events of the job, and the operations done: the daemon may ask for both again.
struct Ledger {
    record: Record,
    /// See [`RegisterJob::brief`].
    brief: Vec<u8>,
    /// Largest `op` done.
    last_op: u32,
    /// Length of the log at each `op` that asked for it.
    places: Vec<(u32, u64)>,
}

/// State that was last reported to the daemon.
struct Told {
    /// State of the log's storage.
    storage: LogStorage,
    /// Length of the log.
    len: u64,
    /// True if a greater length is about to be reported.
    is_pending: bool,
}

/// A registered job.
pub struct Job {
    pub(super) serial: Serial,
    key: JobKey,
    tag: u128,
    ledger: Ledger,
    told: Told,
    /// Steps whose end was not reported yet.
    pub(super) processes: Vec<Process>,
    /// Steps that have ended, in order.
    pub(super) ended: Vec<StepEnded>,
    /// Attempts whose processes were written to the log.
    shown: Vec<ProcessNumber>,
    /// Ends of processes that steps have left.
    clearances: Vec<Clearance>,
    /// The step whose success closes the job, and the grace for what it leaves ([`SpawnStep::closes`]).
    pub(super) last_step: Option<(ProcessNumber, Duration)>,
    /// Set once an end of the job was requested.
    pub(super) ending: Option<Ending>,
    closing: Option<Closing>,
    pub(super) closed: Option<Closed>,
    pub(super) presence: Presence,
    /// Set while phrases are being prepared: requests for the job wait.
    pub(super) gate: Option<Box<Blocked>>,
    /// True if the log was empty when the keeper took the job, so that no dead keeper has written to it.
    pub(super) is_log_new: bool,
    /// Time at which the job's timer is due.
    pub(super) timer: Option<Instant>,
}

impl Job {
    /// Creates a job whose log is in the state `log`.
    pub(super) fn new(serial: Serial, asked: &mut RegisterJob, log: LogView) -> Self {
        let mut record = Record::default();
        record.push(std::mem::take(&mut asked.record));
        Self {
            serial,
            key: asked.key,
            tag: asked.tag,
            ledger: Ledger {
                record,
                brief: std::mem::take(&mut asked.brief),
                last_op: 0,
                places: Vec::new(),
            },
            told: Told { storage: LogStorage::default(), len: log.len, is_pending: false },
            processes: Vec::new(),
            ended: Vec::new(),
            shown: Vec::new(),
            clearances: Vec::new(),
            last_step: None,
            ending: None,
            closing: None,
            closed: None,
            presence: Presence::Registered,
            gate: None,
            is_log_new: log.len == 0,
            timer: None,
        }
    }

    /// Returns the key by which the daemon names the job.
    pub const fn key(&self) -> JobKey {
        self.key
    }

    /// Returns the value of `STEP_RUNNER_JOB` in the job's processes.
    pub const fn tag(&self) -> u128 {
        self.tag
    }

    /// True if the daemon has forgotten the job. The key may then belong to a new job.
    pub fn is_dropped(&self) -> bool {
        self.presence != Presence::Registered
    }

    /// True once the end of the job was asked for.
    pub(super) const fn is_to_end(&self) -> bool {
        self.ending.is_some() || self.closing.is_some() || self.closed.is_some()
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
    pub fn is_draining(&self, number: ProcessNumber) -> bool {
        let draining = |process: &Process| matches!(process.stage, Stage::Draining { .. });
        self.processes.iter().any(|process| process.number == number && draining(process))
    }

    /// Returns the request to start the process of a step. `None` once the process runs.
    pub fn request(&self, number: ProcessNumber) -> Option<&SpawnStep> {
        self.processes.iter().find(|process| process.number == number)?.request()
    }

    /// Handles an event.
    pub(super) fn on(&mut self, event: Event, at: &Moment<'_>, out: &mut Actions) {
        match event {
            Event::Turn(number) => self.turn(number, out),
            Event::Started(number) => self.started(number),
            Event::Ordered(number) => self.ordered(number, at),
            Event::StartFailed(number, failure) => self.start_failed(number, failure, at, out),
            Event::ExitSeen(number) => self.wake(number, at, out),
            Event::Exited { process: number, status, usage, is_drained } => {
                self.exited(number, status, usage, at);
                self.read(number, false, is_drained, at, out);
            }
            Event::Read { process: number, came, is_drained } => self.read(number, came, is_drained, at, out),
            Event::Ended(ended) => self.step_ended(ended, at, out),
            Event::CheckedEmpty(EmptyCheck::Clear(number), is_empty) => {
                self.checked_cleared(number, is_empty, at, out);
            }
            Event::CheckedEmpty(check, is_empty) => self.checked_empty(check, is_empty, at, out),
            Event::CheckedLeftEmpty(reason, is_empty) => self.checked_left_empty(reason, is_empty, at, out),
            Event::Fewer => {
                self.end_anew(at);
                self.clear_anew(at.now);
            }
            Event::ReaperLost(number) => self.reaper_lost(number, out),
            Event::DiskTakes => self.disk_takes(at),
            Event::EndWritten(closed) => self.end_written(closed, at, out),
            Event::LogClosed(closed) => self.log_closed(closed, out),
            Event::StepsDue => {
                self.steps_due(at, out);
                self.clearances_due(at, out);
            }
            Event::EndDue => self.check_end(at, out),
        }
    }

    /// Returns the reply to `Register`.
    pub(super) const fn registered(log: LogView) -> Reply {
        Reply::Registered { log_inode: log.inode, log_len: log.len }
    }

    /// Returns the reply to Resume. Also tells the daemon if the disk refuses the log.
    pub(super) fn resumed(&self, log: LogView, out: &mut Actions) -> Reply {
        if self.told.storage != LogStorage::Fine {
            self.tell_storage(out);
        }
        Reply::Resumed(Box::new(RegisteredJob {
            tag: self.tag,
            brief: SecretBytes(self.ledger.brief.clone()),
            events: self.ledger.record.count(),
            record_len: self.ledger.record.len(),
            last_op: self.ledger.last_op,
            places: self.ledger.places.clone(),
            ended: self.ended.clone(),
            running: self.processes.iter().map(|process| process.number).collect(),
            closed: self.closed.clone(),
            log_inode: log.inode,
            log_len: log.len,
        }))
    }

    /// Appends an event to the record, unless the record holds it already.
    pub(super) fn record(&mut self, seq: u32, event: Vec<u8>) {
        if seq == self.ledger.record.count() {
            self.ledger.record.push(event);
        }
    }

    /// Returns the reply to `ReadRecord`.
    pub(super) fn record_piece(&self, offset: u64) -> Reply {
        Reply::Piece(SecretBytes(self.ledger.record.piece(offset)))
    }

    /// True if `op` is new. The operation counts as done from then on.
    pub(super) const fn is_new(&mut self, op: u32) -> bool {
        let new = op > self.ledger.last_op;
        if new {
            self.ledger.last_op = op;
        }
        new
    }

    /// Returns the reply to `Place`. Earlier requests are performed, so their lines are in the log.
    pub(super) fn place(&mut self, op: u32, log: LogView) -> Reply {
        if self.is_new(op) {
            self.ledger.places.push((op, log.len));
        }
        let kept = self.ledger.places.iter().rev().find(|(kept, _)| *kept == op);
        Reply::Length(kept.map_or(log.len, |(_, len)| *len))
    }

    /// Marks the last `op` as not done: a later daemon that repeats it gets the error too.
    pub(super) const fn take_back_op(&mut self) {
        self.ledger.last_op = self.ledger.last_op.saturating_sub(1);
    }

    /// Reports changes to the daemon. True if the log has grown and its new length must be reported soon.
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

    /// Notes that this length of the log is reported to the daemon, and returns it.
    pub(super) const fn tell_len(&mut self, len: u64) -> u64 {
        self.told.is_pending = false;
        self.told.len = len;
        len
    }

    fn tell_storage(&self, out: &mut Actions) {
        self.tell(FromKeeper::Storage { key: self.key, storage: self.told.storage }, out);
    }

    /// Sends the daemon a message about this job, unless the job is dropped. The daemon has forgotten a dropped job,
    /// and a new job may have its key.
    pub(super) fn tell(&self, message: FromKeeper, out: &mut Actions) {
        if !self.is_dropped() {
            out.push(Action::Tell(message));
        }
    }

    /// Appends an event to the job's journal, unless the job is dropped. The journal of a dropped job is removed, or
    /// belongs to a new job.
    pub(super) fn journal(&self, event: JournalEvent, out: &mut Actions) {
        if !self.is_dropped() {
            out.job(self.serial, JobAction::Journal(event));
        }
    }

    /// Writes a line to the job's log.
    pub(super) fn line(&self, line: &DaemonLine<'_>, out: &mut Actions) {
        let (kind, text) = line.to_parts();
        out.job(self.serial, JobAction::Line(kind, text));
    }

    /// Returns when the job next has something to do.
    pub(super) fn due(&self, log: LogView) -> Option<Instant> {
        let due =
            |process: &Process| process.due(log.is_waiting()).into_iter().chain(process.stop_due()).min();
        let steps = self.processes.iter().filter_map(due).min();
        steps.into_iter().chain(self.clearance_due()).chain(self.end_due()).min()
    }
}
