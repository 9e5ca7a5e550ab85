//! Refusals of calls: a stable word and a text.

use std::fmt;
use std::time::Duration;

use crate::error::Chain;

/// Stable words of error messages (service.md §3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The id is empty, too long or has bytes that are not allowed.
    InvalidId,
    /// `steps` is not usable.
    MalformedSteps,
    /// `job` and `env` are in one request.
    JobAndEnv,
    /// The key or value of a variable is not usable.
    InvalidVariable,
    /// `work_dir` or `build_dir` is not usable.
    InvalidPath,
    /// The message itself is not usable.
    MalformedRequest,
    /// The content exceeds a limit.
    TooLarge,
    /// The offset is below 0.
    OffsetNegative,
    /// The offset is beyond the log.
    OffsetPastEnd,
    /// The id is not registered.
    UnknownJob,
    /// A folder or file cannot be created.
    NotWritable,
    /// A job cannot be removed for good: its state folder refuses it, or a secret would stay.
    NotRemoved,
    /// A requested limit cannot be enforced.
    LimitUnavailable,
    /// The queue is full.
    QueueFull,
    /// Too many jobs are registered.
    TooManyJobs,
    /// One job has too many followers.
    TooManyFollowers,
    /// Too little disk space is left for state.
    DiskFull,
    /// Nothing can be started for the job: processes, memory or descriptors are exhausted (faults.md row 15).
    KeeperUnavailable,
    /// The daemon is stopping.
    ShuttingDown,
    /// This user may not call.
    Forbidden,
    /// The followers did not read to the end in time after Finish.
    FollowersDropped,
    /// The job's state on disk is damaged.
    DataLoss,
    /// The deadline of the call passed before its turn came.
    DeadlineExceeded,
    /// This program has a defect.
    Internal,
}

impl Reason {
    /// True if the same call can succeed later.
    pub const fn may_pass(self) -> bool {
        matches!(
            self,
            Self::QueueFull
                | Self::TooManyJobs
                | Self::TooManyFollowers
                | Self::DiskFull
                | Self::KeeperUnavailable
                | Self::NotRemoved
        )
    }

    /// Returns the stable word.
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
            Self::NotRemoved => "not_removed",
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

/// A refused call. Its texts never quote `steps`, a value or a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// The reason, as a stable word.
    pub reason: Reason,
    /// The mistake and the remedy.
    pub text: String,
    /// Time until a retry, if the call can succeed later.
    pub retry_after: Option<Duration>,
    /// Values for programs, under the keys that docs/integrate/protocol.md lists.
    pub facts: Vec<(&'static str, String)>,
    /// Every mistake found in the request, if there can be several.
    pub violations: Vec<Violation>,
}

/// One mistake in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Place in the request, such as `steps:3:7`.
    pub field: String,
    /// Stable word for the class of the mistake.
    pub class: &'static str,
    /// The mistake and the remedy.
    pub description: String,
}

impl Refusal {
    /// Makes a refusal that does not change with time.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), retry_after: None, facts: Vec::new(), violations: Vec::new() }
    }

    /// Makes a refusal because of `error`: the text names each cause down to the first.
    ///
    /// The causes are text, not a [`source`](std::error::Error::source): a refusal is masked before it leaves the
    /// daemon, and an error behind it would pass that by.
    pub fn caused(reason: Reason, error: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(reason, Chain(error).to_string())
    }

    /// Makes the refusal of a daemon that is stopping.
    pub fn stopping() -> Self {
        Self::new(Reason::ShuttingDown, "the daemon is stopping; try again when it is back")
    }

    /// Makes a refusal that can change with time.
    pub fn for_now(reason: Reason, text: impl Into<String>, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(reason, text) }
    }

    /// Adds the field of the request that it is about, unless the name is empty.
    #[must_use]
    pub fn about(self, field: impl Into<String>) -> Self {
        let field = field.into();
        if field.is_empty() { self } else { self.with_fact("field", field) }
    }

    /// Adds a value for programs.
    #[must_use]
    pub fn with_fact(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.facts.push((key, value.into()));
        self
    }
}

/// Prints `reason: text`, as clients get it.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.word(), self.text)
    }
}
