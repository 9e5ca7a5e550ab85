//! The events of a job's `journal` (service.md §6.6): facts needed after the death of its keeper, or after its end.
//! Nothing here is secret. The keeper writes step events, and the end of a job that no daemon came back for. The daemon
//! writes the rest.

use serde::{Deserialize, Serialize};
use step_runner_model::{CancelCause, ExitStatus, Outcome, ProcessNumber, StepUsage};

/// One line of a journal. Times are microseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The job got its slot.
    Started {
        /// Wall-clock time.
        at: i64,
        /// Time since the host's boot: the wall clock may jump (faults.md row 63).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot: Option<u64>,
    },
    /// A file variable is about to get its final name. Written before the rename, so that recovery finds it
    /// (variables.md §3).
    File {
        /// Absolute path.
        path: String,
        /// Device the file lies on.
        device: u64,
        /// Its inode there.
        inode: u64,
    },
    /// A step's process was started.
    StepStarted {
        /// Number of the process within the job. On disk it is `step`.
        #[serde(rename = "step")]
        process: ProcessNumber,
        /// Its process group.
        pgid: u32,
        /// Its pid.
        pid: u32,
        /// Start time of the process as the kernel counts it (clock ticks since boot): a reused pid has another.
        start_time: u64,
    },
    /// A step's process is over.
    StepEnded {
        /// Number of the process. On disk it is `step`.
        #[serde(rename = "step")]
        process: ProcessNumber,
        /// Its exit status; `None` if it could not be started.
        status: Option<ExitStatus>,
    },
    /// The job is being cancelled.
    Cancel {
        /// The cause; the first one counts.
        cause: CancelCause,
    },
    /// The job is over. Its log is complete and its file variables are removed.
    Ended(End),
    /// The removal of the job has begun. Only earlier versions write this: the rename of the folder says it.
    Removing,
}

/// The end of a job, served after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Class, exit code, message.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Wall-clock time of the end.
    pub end_time: i64,
    /// Time of the end since the host's boot, if the job was registered in that boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_boot: Option<u64>,
    /// Final length of the log in bytes.
    pub log_len: u64,
    /// Inode of the log; 0 if the job had none.
    pub log_inode: u64,
    /// Steps of the job's own list that have ended.
    pub steps_done: u32,
    /// Failures that `continue_on_error` has allowed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub allowed_failures: u32,
    /// CPU time of all its processes in microseconds, if the kernel counted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<u64>,
    /// Peak memory in bytes, if the kernel counted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// Use of resources by its steps, if the kernel counted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<StepUsage>,
    /// Set if the storage failed: from this byte on the log may not be what was written (faults.md row 27).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_from: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl End {
    /// Makes the end of a job of which nothing else is known.
    pub const fn new(outcome: Outcome, end_time: i64, log_len: u64, log_inode: u64) -> Self {
        Self {
            outcome,
            end_time,
            end_boot: None,
            log_len,
            log_inode,
            steps_done: 0,
            allowed_failures: 0,
            cpu_time: None,
            peak_memory: None,
            usage: None,
            lost_from: None,
        }
    }
}
