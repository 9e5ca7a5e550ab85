//! What happens to a job. Recorded in order and replayed, these rebuild the machine's state exactly.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::lang::value::Value;
use crate::model::{CancelCause, ExitStatus};

/// Number of an invocation within its job, counted from 1 in the order in which they are made.
pub type CallId = u32;

/// All that a job was asked for, prepared: variables expanded, directories chosen. First event of every record.
/// Holds secrets; `Debug` shows the id only.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The job's id.
    pub id: String,
    /// Text of `steps`, already known to parse.
    pub steps: String,
    /// Name of the document in messages; an absolute path is the base of relative references.
    pub file: Option<String>,
    /// Inputs of the root's interface.
    pub inputs: IndexMap<String, Value>,
    /// The `vars` object (language.md §10); masked ones are marked sensitive.
    pub vars: IndexMap<String, Value>,
    /// Layer 1 and 2 of the environment (language.md §13): bytes, because the daemon's own may hold any.
    /// Shared by all jobs of a daemon.
    pub base_env: Arc<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Layer 3.
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
}

/// What happened.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The request was accepted. Always the first event; the machine is made from it.
    Accepted(Box<JobSpec>),
    /// The job has its slot: its first step may start. Microseconds since the epoch.
    Admitted {
        /// When.
        at: i64,
    },
    /// A function was fetched, or could not be.
    Fetched {
        /// The invocation.
        call: CallId,
        /// What came of it.
        result: Result<Fetched, FetchFailure>,
    },
    /// A process was started and is over, or could not be started.
    Exited {
        /// The invocation.
        call: CallId,
        /// How it ended.
        end: ProcessEnd,
        /// Name of the shell that was given the text, if it was a script's: which one there was.
        shell: Option<String>,
        /// Content of the output file; `None` if there was none, or the process failed.
        outputs: Option<FileContent>,
        /// Content of the export file, likewise.
        exports: Option<FileContent>,
    },
    /// Somebody or something wants the job to stop.
    CancelAsked {
        /// Why.
        cause: CancelCause,
        /// A bound of this ask alone: a shutdown leaves at most `shutdown_grace`, a closing call none (service.md §6.2).
        grace_limit: Option<Duration>,
    },
    /// What the job needs before its first step could not be made: its file variables (service.md §3.1).
    Unprepared {
        /// What is missing and why, for people.
        message: String,
    },
    /// A defect of the daemon met while it drove this job: the job fails instead of staying as if it were running.
    Broken {
        /// What happened, for people.
        message: String,
    },
    /// Phrases could not be added to the job's masking: what would have come after them must not come any more.
    Unmasked {
        /// Number of the effect that was to add them (keeper protocol, `op`).
        op: u32,
        /// Why, for people.
        message: String,
    },
}

/// A function's file as found.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Fetched {
    /// Absolute folder of the definition file (`func_dir`).
    pub dir: String,
    /// Absolute path of the file.
    pub path: String,
    /// Its text.
    pub text: String,
    /// Root of the tree it was fetched into (Git, OCI): its relative references must stay inside (language.md §7.1).
    /// `None` for files of the job's environment.
    pub tree: Option<String>,
    /// What was fetched just now, exactly: a commit's hash, or a manifest's digest (faults.md, "Fetch"). `None` for files
    /// that were there.
    pub version: Option<String>,
}

/// Why a function could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchFailure {
    /// Class of language.md §18 (`not_found`, `fetch`, `limit`, `schema`).
    pub class: crate::lang::diagnostic::Class,
    /// What went wrong and what to do, without credentials.
    pub message: String,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessEnd {
    /// It ran and ended.
    Exited(ExitStatus),
    /// It could not be started; text for people.
    NotStarted(String),
    /// It ran, something ran short meanwhile, and it ended badly.
    Short {
        /// How it ended.
        status: ExitStatus,
        /// What ran short, for people.
        of: String,
    },
}

/// An output or export file after a successful exit.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub enum FileContent {
    /// Its bytes, at most the limit of language.md §6 and one more.
    Bytes(Vec<u8>),
    /// It is no regular file, or could not be read; text for people.
    Unreadable(String),
}

/// Shows what happened but no text or value: they may be secrets.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted(spec) => write!(f, "Accepted({})", spec.id),
            Self::Admitted { at } => write!(f, "Admitted({at})"),
            Self::Fetched { call, result } => {
                write!(f, "Fetched({call}, {})", if result.is_ok() { "found" } else { "failed" })
            }
            Self::Exited { call, end, .. } => write!(f, "Exited({call}, {end:?})"),
            Self::CancelAsked { cause, grace_limit } => write!(f, "CancelAsked({cause:?}, {grace_limit:?})"),
            Self::Unprepared { .. } => f.write_str("Unprepared"),
            Self::Broken { .. } => f.write_str("Broken"),
            Self::Unmasked { op, .. } => write!(f, "Unmasked({op})"),
        }
    }
}

/// Shows the id only.
impl fmt::Debug for JobSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobSpec").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Shows the length only: what steps return may be secret.
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
