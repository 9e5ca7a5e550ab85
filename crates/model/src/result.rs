//! Results of steps, in the form that clients get (service.md §2.1, language.md §16).

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::ExitStatus;

/// Result of a started step and everything it called. Has no `Debug`, because it may hold secrets until it is masked.
#[derive(Clone, Default, PartialEq)]
pub struct StepResult {
    /// The invocation; `None` for the root (language.md §16).
    pub step: Option<StepInfo>,
    /// Interface and implementation as read, not evaluated. `None` if the function was never loaded.
    pub definition: Option<Arc<serde_json::Value>>,
    /// Status of the step.
    pub status: StepStatus,
    /// Values returned.
    pub outputs: IndexMap<String, serde_json::Value>,
    /// Environment variables exported by this step itself.
    pub exports: IndexMap<String, String>,
    /// Effective environment at definition level, without the base environment.
    pub env: IndexMap<String, String>,
    /// The process, if it was an exec function.
    pub exec: Option<ExecResult>,
    /// Results of the steps it called, in order.
    pub sub_steps: Vec<StepResult>,
    /// Times, place and resource use of its run.
    pub facts: StepFacts,
    /// How it ended (flow.md §2). Unspecified while it runs.
    pub outcome: StepOutcome,
    /// Reason why it is no success; empty for a success.
    pub reason: String,
    /// Class of its failure (language.md §18).
    pub error_class: Option<&'static str>,
    /// Exit code that decided the outcome, if a process did (flow.md §2).
    pub exit_code: Option<i32>,
    /// The attempts before this one, without the results below them.
    pub attempts: Vec<StepResult>,
}

/// How a step ended (flow.md §2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepOutcome {
    /// It has not ended.
    #[default]
    Unspecified,
    /// It ran and succeeded.
    Success,
    /// It ran and failed, all attempts included.
    Failure,
    /// It failed, and `continue_on_error` applies.
    AllowedFailure,
    /// It did not run.
    Skipped,
    /// It was stopped.
    Cancelled,
}

impl StepOutcome {
    /// Returns the word that expressions and clients see.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unspecified => "",
            Self::Success => "success",
            Self::Failure => "failure",
            Self::AllowedFailure => "allowed_failure",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the status in results, which has no word for some outcomes (flow.md §9).
    pub const fn status(self) -> StepStatus {
        match self {
            Self::Unspecified | Self::Skipped => StepStatus::Unspecified,
            Self::Success => StepStatus::Success,
            Self::Failure | Self::AllowedFailure => StepStatus::Failure,
            Self::Cancelled => StepStatus::Cancelled,
        }
    }
}

/// Times, place and resource use of a step's run. Empty for a job that never started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepFacts {
    /// Start, in microseconds since the epoch. All times of a job derive from one reading of the wall clock.
    pub start: Option<i64>,
    /// End, in the same unit.
    pub end: Option<i64>,
    /// Resources that its processes used; `None` if no process has ended.
    pub usage: Option<StepUsage>,
    /// Place in its list, counted from 1; 0 for the root.
    pub number: u32,
    /// Length of that list; 0 for the root.
    pub total: u32,
    /// Length of its own list; `None` for a function without one.
    pub steps: Option<u32>,
    /// `FILE:LINE` of the step; empty for the root.
    pub place: String,
    /// Length of the log at the start.
    pub log_start: Option<u64>,
    /// Length of the log at the end.
    pub log_end: Option<u64>,
}

/// A finished process, as the keeper saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedProcess {
    /// End in microseconds since the host's boot. A daemon may learn of it much later.
    pub ended: u64,
    /// Length of the log at that time.
    pub log_len: u64,
    /// Resources it used.
    pub usage: Option<StepUsage>,
}

/// Resources that processes used, as far as the kernel counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepUsage {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Peak memory in bytes.
    pub peak_memory: Option<u64>,
    /// Bytes read from disks.
    pub read: Option<u64>,
    /// Bytes written to disks.
    pub written: Option<u64>,
}

impl StepUsage {
    /// Returns the total processor time.
    #[must_use]
    pub fn time(self) -> Duration {
        self.user.saturating_add(self.system)
    }

    /// Adds the usage of a step that ran before or after this one. A sum with an unknown part is unknown.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Self {
            user: self.user.saturating_add(other.user),
            system: self.system.saturating_add(other.system),
            peak_memory: self.peak_memory.max(other.peak_memory),
            read: sum(self.read, other.read),
            written: sum(self.written, other.written),
        }
    }
}

/// Cost of visiting one text or value, in addition to its bytes.
const ENTRY: usize = 64;

impl StepResult {
    /// Subtracts the size of the result from `left` bytes. Stops at the first byte too many and returns `None`.
    pub fn take_from(&self, left: usize) -> Option<usize> {
        let Self { step, definition, status: _, outputs, exports, env, exec, sub_steps, facts, .. } = self;
        let Self { outcome: _, reason, error_class: _, exit_code: _, attempts, .. } = self;
        let mut left = left.checked_sub(ENTRY + facts.place.len() + reason.len())?;
        if let Some(StepInfo { name, reference: _, env, inputs }) = step {
            left = values(inputs, texts(env, left.checked_sub(name.len())?)?)?;
        }
        if let Some(definition) = definition {
            left = value(definition, left)?;
        }
        left = texts(env, left)?;
        left = returned(outputs, exports, exec.as_ref(), left)?;
        sub_steps.iter().chain(attempts).try_fold(left, |left, sub| sub.take_from(left))
    }

    /// Subtracts only the size of the returned values and of the command, without sub-steps and environment.
    pub fn take_returned_from(&self, left: usize) -> Option<usize> {
        returned(&self.outputs, &self.exports, self.exec.as_ref(), left)
    }
}

fn returned(
    outputs: &IndexMap<String, Json>,
    exports: &IndexMap<String, String>,
    exec: Option<&ExecResult>,
    left: usize,
) -> Option<usize> {
    let left = texts(exports, values(outputs, left)?)?;
    let words = exec.into_iter().flat_map(|exec| &exec.command);
    words.map(|word| word.len() + ENTRY).try_fold(left, usize::checked_sub)
}

fn texts(texts: &IndexMap<String, String>, left: usize) -> Option<usize> {
    texts.iter().try_fold(left, |left, (key, text)| left.checked_sub(key.len() + text.len() + ENTRY))
}

fn values(values: &IndexMap<String, Json>, left: usize) -> Option<usize> {
    values.iter().try_fold(left, |left, (key, member)| value(member, left.checked_sub(key.len())?))
}

fn value(json: &Json, left: usize) -> Option<usize> {
    let left = left.checked_sub(ENTRY)?;
    match json {
        Json::Null | Json::Bool(_) | Json::Number(_) => Some(left),
        Json::String(text) => left.checked_sub(text.len()),
        Json::Array(items) => items.iter().try_fold(left, |left, item| value(item, left)),
        Json::Object(members) => {
            members.iter().try_fold(left, |left, (key, member)| value(member, left.checked_sub(key.len())?))
        }
    }
}

/// The invocation of a step, as evaluated.
#[derive(Clone, Default, PartialEq)]
pub struct StepInfo {
    /// Name in the `run` list.
    pub name: String,
    /// Function it referred to.
    pub reference: ReferenceInfo,
    /// Its `env`.
    pub env: IndexMap<String, String>,
    /// Its `inputs`.
    pub inputs: IndexMap<String, serde_json::Value>,
}

/// Source of a function (message `Step.Reference`, service.md §2.1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceInfo {
    /// `local`, `git`, `oci`, `dist` (builtins) or `dynamic`.
    pub protocol: String,
    /// Repository URL, registry/repository, or path.
    pub url: String,
    /// Folder parts.
    pub path: Vec<String>,
    /// `func.yml`, `step.yml` or the file named.
    pub filename: String,
    /// Revision, tag or digest.
    pub version: String,
}

/// Status of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepStatus {
    /// Unknown.
    #[default]
    Unspecified,
    /// Its process or steps are running.
    Running,
    /// Succeeded.
    Success,
    /// Failed.
    Failure,
    /// Stopped by a cancel or time limit.
    Cancelled,
}

/// The process of an exec function.
#[derive(Clone, Default, PartialEq)]
pub struct ExecResult {
    /// Command line as evaluated.
    pub command: Vec<String>,
    /// Working directory.
    pub work_dir: String,
    /// Exit code; -1 for death by signal or a process that could not start (language.md §16).
    pub exit_code: i32,
}

impl ExecResult {
    /// Returns the exit code in a result for `status`. `None` means that the process could not start.
    pub const fn code_of(status: Option<ExitStatus>) -> i32 {
        match status {
            Some(ExitStatus::Code(code)) => code as i32,
            Some(ExitStatus::Signal(_)) | None => -1,
        }
    }
}
