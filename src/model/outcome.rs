//! State and end of a job.

use serde::{Deserialize, Serialize};

/// Which channel an entry of the log belongs to (logs.md §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// `O`: standard output, information.
    Out,
    /// `E`: standard error, warnings and errors.
    Err,
}

impl Kind {
    /// The letter of this kind in an entry's header (logs.md §1).
    pub const fn letter(self) -> u8 {
        match self {
            Self::Out => b'O',
            Self::Err => b'E',
        }
    }
}

/// Life of a job as clients see it (service.md §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// Registered, waiting for a slot.
    Queued,
    /// Its steps run.
    Running,
    /// A cancel was asked for; processes may still live.
    Cancelling,
    /// Over, and how.
    Ended(EndClass),
}

/// Class of an end (service.md §3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndClass {
    /// All steps succeeded: exit code 0.
    Success,
    /// A step failed (1–255, 128+signal), or something without an exit code did (-1).
    Failure,
    /// Finish, Cancel, shutdown or too long in the queue: -2.
    Cancelled,
    /// A time limit: -3.
    Timeout,
    /// The keeper or the host died, or no daemon came back: -4.
    Interrupted,
}

/// End of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its class.
    pub class: EndClass,
    /// Exit code (service.md §3.5): 0, 1–255, or a negative one of ours.
    pub exit_code: i32,
    /// Why it failed, one line; empty on success. Masked before it leaves the daemon.
    pub message: String,
}

impl Outcome {
    /// All steps succeeded.
    pub const fn success() -> Self {
        Self { class: EndClass::Success, exit_code: 0, message: String::new() }
    }

    /// A failure without an exit code.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { class: EndClass::Failure, exit_code: -1, message: message.into() }
    }

    /// Ended because of `cause`.
    pub fn stopped(cause: CancelCause) -> Self {
        let class = if cause.is_time_limit() { EndClass::Timeout } else { EndClass::Cancelled };
        let exit_code = if cause.is_time_limit() { -3 } else { -2 };
        Self { class, exit_code, message: cause.text().to_owned() }
    }

    /// The job's keeper or host died, or no daemon came back.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Self { class: EndClass::Interrupted, exit_code: -4, message: message.into() }
    }
}

/// Why a job is stopped before its end; the first cause counts (service.md §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelCause {
    /// The Cancel call.
    Cancel,
    /// The Finish call.
    Finish,
    /// The daemon stops.
    Shutdown,
    /// Waited in the queue longer than `queued_after`.
    QueuedTooLong,
    /// The request's own `timeout`.
    TimeLimit,
    /// Ran longer than `runaway_after`.
    Runaway,
    /// No output for `silent_after`.
    Silent,
}

impl CancelCause {
    /// Time limits end a job as *timeout*, everything else as *cancelled* (service.md §3.5).
    pub const fn is_time_limit(self) -> bool {
        matches!(self, Self::TimeLimit | Self::Runaway | Self::Silent)
    }

    /// For people; follows `job cancelled: ` or `job ended by time limit: ` (logs.md §2).
    pub const fn text(self) -> &'static str {
        match self {
            Self::Cancel => "a client asked for it",
            Self::Finish => "a client finished the job before its end",
            Self::Shutdown => "the daemon is stopping",
            Self::QueuedTooLong => "it waited too long for a free slot",
            Self::TimeLimit => "the time limit of the request is over",
            Self::Runaway => "it ran longer than the daemon allows",
            Self::Silent => "it printed nothing for longer than the daemon allows",
        }
    }
}
