//! Why a call is refused: a stable word and a text.

use std::fmt;
use std::time::Duration;

/// Stable words of error messages (service.md §3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Id empty, too long or with other bytes.
    InvalidId,
    /// `steps` cannot be used.
    MalformedSteps,
    /// `job` and `env` in one request.
    JobAndEnv,
    /// Key or value of a variable.
    InvalidVariable,
    /// `work_dir` or `build_dir`.
    InvalidPath,
    /// The message itself.
    MalformedRequest,
    /// A limit on content.
    TooLarge,
    /// Offset below 0.
    OffsetNegative,
    /// Offset beyond the log.
    OffsetPastEnd,
    /// The id is not registered.
    UnknownJob,
    /// A folder or file cannot be made.
    NotWritable,
    /// A limit asked for cannot be enforced.
    LimitUnavailable,
    /// The queue is full.
    QueueFull,
    /// Too many jobs are registered.
    TooManyJobs,
    /// Too many followers of one job.
    TooManyFollowers,
    /// Too little space for state.
    DiskFull,
    /// Nothing can be started for the job: out of processes, memory or descriptors (faults.md row 15).
    KeeperUnavailable,
    /// The daemon stops.
    ShuttingDown,
    /// Not this user.
    Forbidden,
    /// The follower did not drain in time after Finish.
    FollowersDropped,
    /// The job's state on disk is damaged.
    DataLoss,
    /// The deadline of the call was over before its turn came.
    DeadlineExceeded,
    /// A defect of this program.
    Internal,
}

impl Reason {
    /// The same call may succeed later.
    pub const fn may_pass(self) -> bool {
        matches!(
            self,
            Self::QueueFull
                | Self::TooManyJobs
                | Self::TooManyFollowers
                | Self::DiskFull
                | Self::KeeperUnavailable
        )
    }

    /// The word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::InvalidId => "invalid_id",
            Self::MalformedSteps => "malformed_steps",
            Self::JobAndEnv => "job_and_env",
            Self::InvalidVariable => "invalid_variable",
            Self::InvalidPath => "invalid_path",
            Self::MalformedRequest => "malformed_request",
            Self::TooLarge => "too_large",
            Self::OffsetNegative => "offset_negative",
            Self::OffsetPastEnd => "offset_past_end",
            Self::UnknownJob => "unknown_job",
            Self::NotWritable => "not_writable",
            Self::LimitUnavailable => "limit_unavailable",
            Self::QueueFull => "queue_full",
            Self::TooManyJobs => "too_many_jobs",
            Self::TooManyFollowers => "too_many_followers",
            Self::DiskFull => "disk_full",
            Self::KeeperUnavailable => "keeper_unavailable",
            Self::ShuttingDown => "shutting_down",
            Self::Forbidden => "forbidden",
            Self::FollowersDropped => "followers_dropped",
            Self::DataLoss => "data_loss",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Internal => "internal",
        }
    }
}

/// A refused call. The text never quotes `steps`, a value or a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// The word.
    pub reason: Reason,
    /// What is wrong and what to do.
    pub text: String,
    /// When to try again, for what may succeed later.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// A refusal that will not change by itself.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), retry_after: None }
    }

    /// The daemon ends.
    pub fn stopping() -> Self {
        Self::new(Reason::ShuttingDown, "the daemon is stopping; try again when it is back")
    }

    /// A refusal for now.
    pub fn for_now(reason: Reason, text: impl Into<String>, retry_after: Duration) -> Self {
        Self { reason, text: text.into(), retry_after: Some(retry_after) }
    }
}

/// `reason: text`, as clients get it.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.word(), self.text)
    }
}
