//! The trace of a job on its way: bytes in memory, bytes that are safe on disk, bytes that the server has.

use std::time::Duration;

use super::Action;
use crate::final_update::TraceSum;
use crate::record::{Phase, Record};
use crate::sealed::Unusable;
use crate::time::Moment;
use crate::trace::{Checkpoint, Text, Upload, resume};

/// Least time between two checkpoints: each is a rename on disk.
const CHECKPOINTS: Duration = Duration::from_secs(1);

/// Bytes in memory that are stored at once: they bound the memory of a job.
const IN_MEMORY: usize = 1 << 20;

/// What a starting agent finds in the folder of a job, beside the record.
pub struct Disk {
    /// File of the head; empty if it is not there.
    pub head: Vec<u8>,
    /// File of the trace; empty if it is not there.
    pub trace: Vec<u8>,
    /// The checkpoint.
    pub checkpoint: Result<Checkpoint, Unusable>,
    /// File of the tail; empty if it is not there.
    pub tail: Vec<u8>,
    /// How much of the trace the server has, as far as that was stored.
    pub sent: u64,
}

/// The trace of one job.
pub(super) struct TraceFile {
    pub(super) text: Text,
    /// Bytes behind the checkpoint.
    fresh: Vec<u8>,
    /// State of the file at the last checkpoint.
    safe: TraceSum,
    last: Option<Moment>,
    pub(super) upload: Upload,
}

impl TraceFile {
    /// Makes an empty trace.
    pub(super) fn new(record: &Record, now: Moment) -> Self {
        Self::with(Text::new(record.form(), record.output_limit), 0, now)
    }

    fn with(text: Text, sent: u64, now: Moment) -> Self {
        let safe = TraceSum { len: text.len(), crc: text.crc() };
        let mut upload = Upload::new(sent, now);
        upload.grown(safe.len);
        Self { text, fresh: Vec::new(), safe, last: None, upload }
    }

    /// Goes on with what is on disk. Damaged files are made anew, unless the log may be gone.
    pub(super) fn resumed(record: &Record, disk: &Disk, now: Moment, actions: &mut Vec<Action>) -> Self {
        let (form, limit) = (record.form(), record.output_limit);
        let found = disk.checkpoint.as_ref().ok().and_then(|found| resume(found, &disk.trace, form, limit));
        if let Some((text, len)) = found.filter(|_| record.phase >= Phase::Running) {
            actions.push(Action::CutTrace(len));
            return Self::with(text, disk.sent, now).ended(record, disk, now);
        }
        if record.phase >= Phase::Ended {
            actions.push(Action::Tell(
                "the trace of an ended job is damaged on disk: what is left of it is sent".to_owned(),
            ));
            let mut text = Text::new(form, limit);
            text.count(&disk.trace);
            return Self::with(text, disk.sent.min(disk.trace.len() as u64), now).ended(record, disk, now);
        }
        // Nothing of the log is needed before the job runs, and all of it is there until it has ended.
        let mut trace = Self::with(Text::new(form, limit), disk.sent, now);
        let whole = disk.head.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let head = disk.head.get(..whole).unwrap_or_default();
        if whole < disk.head.len() {
            actions.push(Action::CutHead(whole as u64));
        }
        actions.push(Action::CutTrace(0));
        trace.text.head(&String::from_utf8_lossy(head), &mut trace.fresh);
        trace.flush(true, now, actions);
        trace
    }

    /// Counts the tail of a job that has ended.
    fn ended(mut self, record: &Record, disk: &Disk, now: Moment) -> Self {
        if record.phase >= Phase::Ended {
            self.text.count(&disk.tail);
            self.upload.complete(self.text.len(), now);
            if record.wanted.abort {
                self.upload.abort();
            }
        }
        self
    }

    /// Takes bytes of the log.
    pub(super) fn log(&mut self, bytes: &[u8]) {
        self.text.log(bytes, &mut self.fresh);
    }

    /// Takes lines of the head.
    pub(super) fn head(&mut self, lines: &str) {
        self.text.head(lines, &mut self.fresh);
    }

    /// Drops the part of an entry that has come. Returns where the log goes on.
    pub(super) fn back_to_border(&mut self) -> u64 {
        self.text.back_to_border()
    }

    /// Stores what has come, if it is time.
    pub(super) fn flush(&mut self, is_last: bool, now: Moment, actions: &mut Vec<Action>) {
        let is_time =
            self.last.is_none_or(|last| now.since(last) >= CHECKPOINTS) || self.fresh.len() >= IN_MEMORY;
        if self.fresh.is_empty() || !(is_last || is_time) {
            return;
        }
        actions.push(Action::Extend(std::mem::take(&mut self.fresh)));
        actions.push(Action::StoreCheckpoint(self.text.checkpoint()));
        self.safe = TraceSum { len: self.text.len(), crc: self.text.crc() };
        self.last = Some(now);
        self.upload.grown(self.safe.len);
    }

    /// Ends the trace. Returns the tail.
    pub(super) fn end(&mut self, lines: &str, now: Moment, actions: &mut Vec<Action>) -> Vec<u8> {
        self.text.end_of_log(&mut self.fresh);
        self.flush(true, now, actions);
        let mut tail = Vec::new();
        self.text.tail(lines, &mut tail);
        tail
    }

    /// Returns length and checksum of what is safe.
    pub(super) const fn safe(&self) -> TraceSum {
        self.safe
    }

    /// Returns length and checksum of the whole trace, once it has its tail.
    pub(super) fn whole(&self) -> TraceSum {
        TraceSum { len: self.text.len(), crc: self.text.crc() }
    }

    pub(super) fn wake(&self) -> Option<Moment> {
        let flush = self.last.filter(|_| !self.fresh.is_empty()).map(|last| last + CHECKPOINTS);
        flush.into_iter().chain(self.upload.wake()).min()
    }
}
