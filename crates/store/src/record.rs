//! `job.json`: facts of a job that are known from its registration on. None of them is secret.

use serde::{Deserialize, Serialize};

use step_runner_core::request::RequestOrigin;
use step_runner_model::ResourceLimits;

/// Content of `job.json` (service.md §6.6): one line in the form of a journal, so with a check sum. Times are in
/// microseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The job's id.
    pub id: String,
    /// Time of registration.
    pub registered: i64,
    /// Time of registration since the host's boot: the wall clock may jump (faults.md row 63).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_boot: Option<u64>,
    /// The service through which it came.
    pub origin: RequestOrigin,
    /// Its working directory.
    pub work_dir: String,
    /// Paths of its file variables, in the order in which they are written.
    pub files: Vec<String>,
    /// The directory of file variables, if it was made for this job.
    pub made_directory: Option<MadeDirectory>,
    /// 32 hex digits: `STEP_RUNNER_JOB` of every process of the job (service.md §6.5).
    pub tag: String,
    /// Boot in which the job was registered: in another boot the pids of its journal mean nothing.
    pub boot_id: String,
    /// Keyed digest of the request, 32 hex digits, to recognise a late duplicate (service.md §3.1). The key is not on
    /// the disk, so the digest reveals nothing about the request.
    #[serde(default)]
    pub digest: Option<String>,
    /// Limits of the request; resource limits also of the settings.
    #[serde(default)]
    pub limits: RecordedLimits,
}

/// A directory to remove at the job's end, if it is still the one that was made and is empty (variables.md §3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeDirectory {
    /// Its path.
    pub path: String,
    /// Its device.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
}

/// Limits of a job; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedLimits {
    /// `timeout` of the request, in microseconds.
    pub timeout: Option<u64>,
    /// `cancel_grace` of the request, in microseconds.
    pub cancel_grace: Option<u64>,
    /// Resource limits, by request and settings.
    #[serde(default)]
    pub resources: ResourceLimits,
}
