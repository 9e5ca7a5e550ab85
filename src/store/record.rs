//! `job.json`: what is known of a job from its registration on. Nothing in it is secret.

use serde::{Deserialize, Serialize};

use crate::model::Limits;

/// Content of `job.json` (service.md §6.6): one line of the form that a journal has, so with a check sum. Times are
/// microseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The job's id.
    pub id: String,
    /// When it was registered.
    pub registered: i64,
    /// The same since the host's boot: the wall clock may jump (faults.md row 63).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_boot: Option<u64>,
    /// Which service it came by.
    pub origin: Origin,
    /// Its directory.
    pub work_dir: String,
    /// Paths of its file variables, in the order in which they are written.
    pub files: Vec<String>,
    /// The directory of file variables, if it was made for this job.
    pub made_directory: Option<MadeDirectory>,
    /// 32 hex digits: `STEP_RUNNER_JOB` of every process of the job (service.md §6.5).
    pub tag: String,
    /// Boot in which the job was registered: pids of its journal mean nothing in another one.
    pub boot_id: String,
    /// Keyed digest of the request, 32 hex digits: a late duplicate is recognised by it (service.md §3.1). The keeper has
    /// the key, so it says nothing about the request.
    #[serde(default)]
    pub digest: Option<String>,
    /// Limits of the request and, of what the job may use, of the settings.
    #[serde(default)]
    pub limits: RecordedLimits,
}

/// A directory that is removed at the job's end if it is still the one made, and empty (variables.md §3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeDirectory {
    /// Its path.
    pub path: String,
    /// Device it lies on.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// The service a job came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// `steprunner.v1`.
    V1,
    /// `steprunner.v0`.
    V0,
    /// `proto`.
    Proto,
}

/// Limits of the job; `None`: not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedLimits {
    /// `timeout` of the request, in microseconds.
    pub timeout: Option<u64>,
    /// `cancel_grace` of the request, in microseconds.
    pub cancel_grace: Option<u64>,
    /// What the job may use, by request and settings.
    #[serde(default)]
    pub resources: Limits,
}
