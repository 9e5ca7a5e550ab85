//! Events of a job. Recorded and replayed in order, they rebuild the machine's state exactly.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use step_runner_lang::output_file::OutputFileError;
use step_runner_lang::value::Value;
pub use step_runner_model::{CallId, ProcessNumber};
use step_runner_model::{CancelCause, ExitStatus, FinishedProcess};

use crate::plan::returned::ProcessOutputs;

/// Number of a timer within its job, counted from 1.
pub type TimerId = u32;

/// The prepared request of a job: variables expanded, directories chosen. It is the first event of every record. It
/// holds secrets; `Debug` shows only the id.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The job's id.
    pub id: String,
    /// Text of `steps`; it has been parsed successfully.
    pub steps: String,
    /// Name of the document in messages; an absolute path is the base of relative references.
    pub file: Option<String>,
    /// Inputs of the root's interface.
    pub inputs: IndexMap<String, Value>,
    /// The `vars` object (language.md §10); masked variables are marked sensitive.
    pub vars: IndexMap<String, Value>,
    /// Layers 1 and 2 of the environment (language.md §13), as bytes, because the daemon's own need not be UTF-8.
    /// Shared by all jobs of a daemon.
    pub base_env: Arc<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Layer 3 of the environment.
    pub env: IndexMap<String, String>,
    /// The job's directory, absolute.
    pub work_dir: String,
    /// Folder for the files of steps, absolute: `jobs/KEY/tmp`.
    pub tmp_dir: String,
    /// The request's `timeout`.
    pub timeout: Option<Duration>,
    /// The request's `cancel_grace`, an upper bound.
    pub cancel_grace: Option<Duration>,
    /// The setting `cancel_grace`.
    pub default_grace: Duration,
    /// Limit of the cleanup after a stop (flow.md §3.1).
    pub cleanup_timeout: Duration,
    /// Members of a group that run at the same time, if it has no `max` (flow.md §5).
    pub members_at_a_time: u8,
    /// True if a failing line ends every script whose step does not say otherwise (language.md §17).
    pub errexit: bool,
    /// True if the log is to have marks around each step of the root (service.md §3.1).
    pub trace_sections: bool,
}

/// One event of a job.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The request was accepted. Always the first event; the machine is built from it.
    Accepted(Box<JobSpec>),
    /// The job has its slot: its first step may start.
    Admitted {
        /// Time in microseconds since the epoch.
        at: i64,
    },
    /// A function was fetched, or the fetch failed.
    Fetched {
        /// Number of the attempt.
        process: ProcessNumber,
        /// The function or the failure.
        result: Result<Fetched, FetchFailure>,
    },
    /// A process is over, or could not be started.
    Exited {
        /// Number of the attempt.
        process: ProcessNumber,
        /// End of the process.
        end: ProcessEnd,
        /// Name of the shell that ran the script, for a script.
        shell: Option<String>,
        /// Content of the output file; `None` if there was none or the process failed.
        outputs: Option<FileContent>,
        /// Content of the export file; `None` as for `outputs`.
        exports: Option<FileContent>,
        /// Measurements of the run by the keeper.
        ran: Option<FinishedProcess>,
    },
    /// A client or a rule asks the job to stop.
    CancelAsked {
        /// Cause of the cancel.
        cause: CancelCause,
        /// Limit of the grace for this cancel: a shutdown leaves at most `shutdown_grace`, a closing call none
        /// (service.md §6.2).
        grace_limit: Option<Duration>,
        /// True if the job ends at once, without grace and cleanup (flow.md §3.1).
        force: bool,
    },
    /// File variables, which the job needs before its first step, could not be made (service.md §3.1).
    Unprepared {
        /// The missing thing and the cause, for people.
        message: String,
    },
    /// The daemon met a defect while it drove this job. The job fails, so that it does not look as if it ran.
    Broken {
        /// Description for people.
        message: String,
    },
    /// Phrases could not be added to the job's masking. Effects after the addition must not happen any more.
    Unmasked {
        /// Number of the effect that failed to add them (keeper protocol, `op`).
        op: u32,
        /// Cause, for people.
        message: String,
    },
    /// A process has succeeded: [`Event::Exited`] with its files read. Records hold this form, because the values can
    /// be much smaller than the files.
    Returned {
        /// Number of the attempt.
        process: ProcessNumber,
        /// Exit status of its process.
        status: ExitStatus,
        /// Name of the shell that ran the script, for a script.
        shell: Option<String>,
        /// The returned values, or the reason why they cannot be used.
        returned: Box<Result<ProcessOutputs, Unusable>>,
        /// Measurements of the run by the keeper.
        ran: Option<FinishedProcess>,
    },
    /// A function whose text is in an earlier event of the record. Occurs only in records.
    FetchedAgain {
        /// Number of the attempt.
        process: ProcessNumber,
        /// Number of the event with the text.
        text_of: u32,
        /// The function with an empty text.
        fetched: Fetched,
    },
    /// The time of [`super::effect::Effect::Wake`] has come.
    Due {
        /// The timer.
        timer: TimerId,
    },
    /// Nothing is left of the attempt of [`super::effect::Effect::Clear`].
    Cleared {
        /// The call that waits for it.
        call: CallId,
    },
    /// A read of a fetch has failed and is tried again.
    FetchRetried {
        /// Number of the attempt.
        process: ProcessNumber,
        /// Reason and time of the next try, without credentials.
        why: String,
    },
}

impl Event {
    /// A process has succeeded that had no files to return values in.
    pub fn returned_nothing(
        process: ProcessNumber,
        status: ExitStatus,
        shell: Option<String>,
        ran: Option<FinishedProcess>,
    ) -> Self {
        Self::Returned { process, status, shell, returned: Box::new(Ok(ProcessOutputs::none())), ran }
    }
}

/// Returned files that cannot be used.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Unusable {
    /// The error.
    pub(crate) error: OutputFileError,
    /// The bad line, if the job's log level is `debug`. It may hold a secret.
    pub(crate) line: Option<Vec<u8>>,
}

/// A function that was found.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Fetched {
    /// Absolute folder of the definition file (`func_dir`).
    pub dir: String,
    /// Absolute path of the file.
    pub path: String,
    /// Its text.
    pub text: String,
    /// Root of the tree that it was fetched into (Git, OCI): its relative references must stay inside (language.md
    /// §7.1). `None` for files of the job's environment.
    pub tree: Option<String>,
    /// Exact version of a function that was fetched just now: a commit's hash or a manifest's digest (threat-model.md
    /// §4.6). `None` for files that existed already.
    pub version: Option<String>,
}

/// Reason why a function could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchFailure {
    /// Class of language.md §18 (`not_found`, `fetch`, `limit`, `schema`).
    pub class: step_runner_lang::diagnostic::Class,
    /// Error and remedy, without credentials.
    pub message: String,
}

/// End of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessEnd {
    /// It ran and exited.
    Exited(ExitStatus),
    /// It could not be started; the text is for people.
    NotStarted(String),
    /// It ran, a resource ran short meanwhile, and it failed.
    Short {
        /// Exit status.
        status: ExitStatus,
        /// The resource that ran short, for people.
        of: String,
    },
}

/// Output or export file after a successful exit.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub enum FileContent {
    /// Its bytes, at most one more than the limit of language.md §6.
    Bytes(Vec<u8>),
    /// It is not a regular file or could not be read; the text is for people.
    Unreadable(String),
}

/// Shows the kind of event but no text or value: they may be secrets.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted(spec) => write!(f, "Accepted({})", spec.id),
            Self::Admitted { at } => write!(f, "Admitted({at})"),
            Self::Fetched { process, result } => {
                write!(f, "Fetched({process}, {})", if result.is_ok() { "found" } else { "failed" })
            }
            Self::Exited { process, end, .. } => write!(f, "Exited({process}, {end:?})"),
            Self::CancelAsked { cause, grace_limit, force } => {
                write!(f, "CancelAsked({cause:?}, {grace_limit:?}{})", if *force { ", force" } else { "" })
            }
            Self::Unprepared { .. } => f.write_str("Unprepared"),
            Self::Broken { .. } => f.write_str("Broken"),
            Self::Unmasked { op, .. } => write!(f, "Unmasked({op})"),
            Self::Returned { process, status, returned, .. } => {
                let what = if returned.is_ok() { "values" } else { "nothing usable" };
                write!(f, "Returned({process}, {status:?}, {what})")
            }
            Self::FetchedAgain { process, text_of, .. } => write!(f, "FetchedAgain({process}, {text_of})"),
            Self::Due { timer } => write!(f, "Due({timer})"),
            Self::Cleared { call } => write!(f, "Cleared({call})"),
            Self::FetchRetried { process, .. } => write!(f, "FetchRetried({process})"),
        }
    }
}

/// Shows only the id.
impl fmt::Debug for JobSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobSpec").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Shows only the length: values returned by steps may be secret.
impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "[{} bytes]", bytes.len()),
            Self::Unreadable(why) => write!(f, "unreadable: {why}"),
        }
    }
}

#[cfg(test)]
mod tests;
