//! State and end of a job.

use serde::{Deserialize, Serialize};

use crate::{exit_code, text};

/// Channel of a log entry (logs.md §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LogChannel {
    /// `O`: standard output, information.
    Out,
    /// `E`: standard error, warnings and errors.
    Err,
}

impl LogChannel {
    /// Returns the letter of this channel in an entry's header (logs.md §1).
    pub const fn letter(self) -> u8 {
        match self {
            Self::Out => b'O',
            Self::Err => b'E',
        }
    }
}

/// State of a job as clients see it (service.md §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// Registered and waiting for a slot.
    Queued,
    /// Its steps are running.
    Running,
    /// A cancel was requested. Processes may still be alive.
    Cancelling,
    /// Ended, with the class of its end.
    Ended(EndClass),
}

/// Class of a job's end (service.md §3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndClass {
    /// All steps succeeded: exit code 0.
    Success,
    /// A step failed (1–255, 128+signal), or a failure without an exit code occurred (-1).
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
    /// Exit code (service.md §3.5): 0, 1–255, or one of our negative codes.
    pub exit_code: i32,
    /// Reason for the failure; empty on success. Masked and on one line in the job's stored end, but not before.
    pub message: String,
    /// True if a defect of this program ended the job.
    #[serde(rename = "defect", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_defect: bool,
    /// Reason for which the job was stopped, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_cause: Option<CancelCause>,
}

impl Outcome {
    /// Makes the outcome of a job whose steps all succeeded.
    pub const fn success() -> Self {
        Self {
            class: EndClass::Success,
            exit_code: 0,
            message: String::new(),
            is_defect: false,
            cancel_cause: None,
        }
    }

    /// Makes the outcome of a failure without an exit code.
    pub fn failed(message: impl Into<String>) -> Self {
        Self {
            class: EndClass::Failure,
            exit_code: exit_code::FAILED,
            message: message.into(),
            is_defect: false,
            cancel_cause: None,
        }
    }

    /// Makes the outcome of a failure caused by a defect of this program.
    pub fn defect(message: &str) -> Self {
        Self { is_defect: true, ..Self::failed(format!("internal: {message}")) }
    }

    /// Makes the outcome of a job stopped because of `cause`.
    pub fn stopped(cause: CancelCause) -> Self {
        let class = if cause.is_time_limit() { EndClass::Timeout } else { EndClass::Cancelled };
        let exit_code = if cause.is_time_limit() { exit_code::TIME_LIMIT } else { exit_code::CANCELLED };
        Self {
            class,
            exit_code,
            message: cause.text().to_owned(),
            is_defect: false,
            cancel_cause: Some(cause),
        }
    }

    /// True if the message ends with the exit status that decided (language.md §14.4).
    pub fn tells_exit_status(&self) -> bool {
        self.exit_code > 0 && text::told_exit_status(&self.message) == Some(self.exit_code)
    }

    /// Makes the outcome of a job whose keeper or host died, or to which no daemon came back.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Self {
            class: EndClass::Interrupted,
            exit_code: exit_code::INTERRUPTED,
            message: message.into(),
            is_defect: false,
            cancel_cause: None,
        }
    }
}

/// Reason why a job is stopped before its end. The first one counts (service.md §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelCause {
    /// The Cancel call.
    Cancel,
    /// The Finish call.
    Finish,
    /// The daemon stops.
    Shutdown,
    /// The job waited in the queue longer than `queued_after`.
    QueuedTooLong,
    /// The request's own `timeout`.
    TimeLimit,
    /// The job ran longer than `runaway_after`.
    Runaway,
    /// The job printed nothing for `silent_after`.
    Silent,
}

impl CancelCause {
    /// True for time limits. They end a job as *timeout*, other causes as *cancelled* (service.md §3.5).
    pub const fn is_time_limit(self) -> bool {
        matches!(self, Self::TimeLimit | Self::Runaway | Self::Silent)
    }

    /// Returns the reason for people. It follows `job cancelled: ` or `job ended by time limit: ` (logs.md §2).
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
