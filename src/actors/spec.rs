//! Facts of a registered job besides its machine, and the forms in which the keeper stores them for the next daemon.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::limits::JobLimits;
use super::redact::JobMasking;
use crate::job::event::{Event, JobSpec};
use crate::job::record;
use crate::model::{Reason, Refusal};
use crate::queue;
use crate::request::{RequestOrigin, RunEnvironment};
use crate::store::JobRecord;
use crate::variables::FileVariable;

/// Facts of a job that the actors need besides its machine. The keeper stores them, so that the next daemon has them
/// too. It holds secrets, so it has no `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct JobActorSpec {
    pub(super) id: String,
    pub(super) digest: [u8; 32],
    pub(super) registered: i64,
    pub(super) origin: RequestOrigin,
    pub(super) phrases: Vec<Vec<u8>>,
    pub(super) token_prefixes: Vec<String>,
    pub(super) masking: JobMasking,
    /// Setting `log_limit` at registration, in bytes.
    pub(super) log_limit: u64,
    pub(super) files: Vec<FileVariable>,
    pub(super) timeout: Option<std::time::Duration>,
    /// True if the working directory is a folder of the job's own.
    pub(super) own_work_dir: bool,
    pub(super) work_dir: String,
    pub(super) file_base: Option<String>,
    pub(super) share: Share,
    pub(super) limits: Arc<JobLimits>,
}

/// Facts that decide when a job starts (queue.md §3).
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) key: queue::ShareKey,
    pub(super) number: Option<u64>,
    /// Length of the request, or of its document with aliases unfolded if that is more.
    pub(super) bytes: u64,
}

impl Share {
    pub(super) fn new(environment: &RunEnvironment, ci_job: &str, size: usize) -> Self {
        let variables = environment.variables();
        // If a name occurs several times, the last entry counts.
        let value =
            |key| variables.iter().rev().find(|variable| variable.key == key).map(|v| v.value.as_str());
        let key = queue::ShareKey::new(
            value("CI_SERVER_URL").unwrap_or_default(),
            value("CI_PROJECT_ID").unwrap_or_default(),
        );
        let number = queue::number(value("CI_JOB_ID").unwrap_or(ci_job));
        Self { key, number, bytes: size as u64 }
    }
}

/// First byte of every record and brief. Raise it whenever [`JobActorSpec`], [`Brief`] or the data after them changes
/// shape, together with the protocol's version (see [`record::FORMAT`]).
pub(super) const HEAD_FORMAT: u8 = 3;

/// Encodes the first event of a record: the facts besides the machine, and the event that makes the machine.
pub(super) fn encode_head(spec: &JobActorSpec, job: JobSpec) -> Result<Vec<u8>, Refusal> {
    let accepted = record::encode(&Event::Accepted(Box::new(job)), 0)
        .map_err(|error| Refusal::caused(Reason::Internal, &error))?;
    postcard::to_extend(&(spec, accepted), vec![HEAD_FORMAT])
        .map_err(|error| Refusal::caused(Reason::Internal, &error))
}

/// Decodes the first event of a record; `None` if it cannot be read.
pub(super) fn read_head(head: &[u8]) -> Option<(JobActorSpec, Event)> {
    let (spec, accepted): (JobActorSpec, Vec<u8>) =
        postcard::from_bytes(head.strip_prefix(&[HEAD_FORMAT])?).ok()?;
    let (accepted, _) = record::decode(&accepted).ok()?;
    Some((spec, accepted))
}

/// Facts of a job that a daemon needs before it has read the record. The keeper stores them beside the record.
#[derive(Serialize, Deserialize)]
pub(super) struct Brief {
    /// See [`JobActorSpec`].
    pub(super) digest: [u8; 32],
    pub(super) share: Share,
    pub(super) place: Option<queue::Place>,
    /// Contents of `job.json`.
    record: String,
}

impl Brief {
    /// Makes the brief of a job from its request and its record on disk.
    pub(super) fn new(spec: &JobActorSpec, place: Option<queue::Place>, record: &JobRecord) -> Self {
        let record = serde_json::to_string(record).unwrap_or_default();
        Self { digest: spec.digest, share: spec.share.clone(), place, record }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, Refusal> {
        postcard::to_extend(self, vec![HEAD_FORMAT])
            .map_err(|error| Refusal::caused(Reason::Internal, &error))
    }

    /// Decodes a brief; `None` if it cannot be read.
    pub(super) fn decode(brief: &[u8]) -> Option<Self> {
        postcard::from_bytes(brief.strip_prefix(&[HEAD_FORMAT])?).ok()
    }

    /// Returns the record on disk, the content of `job.json`.
    pub(super) fn record(&self) -> Option<JobRecord> {
        serde_json::from_str(&self.record).ok()
    }
}
