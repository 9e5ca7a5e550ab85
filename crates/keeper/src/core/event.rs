//! The events of a job. The runtime passes them to the core, as its own observations or as answers to actions.

use std::time::Instant;

use super::action::{ClearReason, EmptyCheck, StartFailure};
use crate::protocol::{Closed, KeeperSettings, LogStorage, StepEnded};
use step_runner_model::{ExitStatus, ProcessNumber, StepUsage};

/// Something that has happened to a job.
pub enum Event {
    /// It is the process's turn to be started.
    Turn(ProcessNumber),
    /// The process runs.
    Started(ProcessNumber),
    /// The job's reaper was told to start the process.
    Ordered(ProcessNumber),
    /// The process could not be started.
    StartFailed(ProcessNumber, StartFailure),
    /// The process has ended, and its reaper has to say how.
    ExitSeen(ProcessNumber),
    /// The process has ended, and its pipes were read as far as that goes.
    Exited {
        /// Its number.
        process: ProcessNumber,
        /// How it ended.
        status: ExitStatus,
        /// Use of resources, if the process was waited for.
        usage: Option<StepUsage>,
        /// True if no process holds its pipes any more.
        is_drained: bool,
    },
    /// A pipe of a process was read.
    Read {
        /// Number of the process.
        process: ProcessNumber,
        /// True if bytes came.
        came: bool,
        /// True if no process holds its pipes any more.
        is_drained: bool,
    },
    /// Answer to `NotStarted` and `FinishStep`.
    Ended(StepEnded),
    /// Answer to `CheckEmpty`: true if no process of the job is left.
    CheckedEmpty(EmptyCheck, bool),
    /// Processes of the job have ended, so an end that waits for them continues at once.
    Fewer,
    /// Answer to `CheckLeftEmpty`: true if nothing is left that is to be ended for this reason.
    CheckedLeftEmpty(ClearReason, bool),
    /// A reaper of the job is dead, and so is the process that it held, if there was one.
    ReaperLost(Option<ProcessNumber>),
    /// The disk accepts the log again.
    DiskTakes,
    /// Answer to `WriteEnd`.
    EndWritten(Closed),
    /// Answer to `CloseLog`.
    LogClosed(Closed),
    /// Work for a step may be due.
    StepsDue,
    /// Work for the job's end may be due.
    EndDue,
}

/// The job's log as the runtime sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogView {
    /// Inode of the file.
    pub inode: u64,
    /// Bytes written.
    pub len: u64,
    /// State of the disk for this log.
    pub storage: LogStorage,
}

impl LogView {
    /// True while the disk refuses bytes.
    pub const fn is_waiting(&self) -> bool {
        matches!(self.storage, LogStorage::Waiting { .. })
    }
}

/// The facts beside the state and the event on which a decision depends.
pub(super) struct Moment<'a> {
    pub(super) now: Instant,
    pub(super) log: LogView,
    pub(super) settings: &'a KeeperSettings,
}
