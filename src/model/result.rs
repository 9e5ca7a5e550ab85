//! Results of steps, in the shape clients get them (service.md §2.1, language.md §16).

use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::ExitStatus;

/// Result of one started step with everything it called. May hold secrets until it has been masked, so it has no `Debug`.
#[derive(Clone, Default, PartialEq)]
pub struct StepResult {
    /// The invocation; `None` for the root (language.md §16).
    pub step: Option<StepInfo>,
    /// Interface and implementation as read, not evaluated; `None` if it was never loaded.
    pub definition: Option<Arc<serde_json::Value>>,
    /// How it ended.
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
}

/// The invocation of a step, as evaluated.
#[derive(Clone, Default, PartialEq)]
pub struct StepInfo {
    /// Name in the `run` list.
    pub name: String,
    /// What it referred to.
    pub reference: ReferenceInfo,
    /// Its `env`.
    pub env: IndexMap<String, String>,
    /// Its `inputs`.
    pub inputs: IndexMap<String, serde_json::Value>,
}

/// Where a function came from (message `Step.Reference`, service.md §2.1).
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
    /// Not known.
    #[default]
    Unspecified,
    /// Its process or steps run.
    Running,
    /// Ended well.
    Success,
    /// Ended badly.
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
    /// Exit code of a result for `status`; `None` = could not start.
    pub const fn code_of(status: Option<ExitStatus>) -> i32 {
        match status {
            Some(ExitStatus::Code(code)) => code as i32,
            Some(ExitStatus::Signal(_)) | None => -1,
        }
    }
}
