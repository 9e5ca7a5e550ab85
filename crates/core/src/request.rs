//! The checked request to run a job: what a client asks for, in the daemon's own terms.
//!
//! Every service makes a [`Run`] of its message and checks the shape on the way, so that registration needs no message of
//! any protocol. What the daemon adds to it, such as expanded variables, chosen directories and settings, is in
//! [`JobSpec`](crate::job::event::JobSpec).

use std::time::{Duration, Instant};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use step_runner_lang::value::Value;
use step_runner_model::{JobId, ResourceLimits, Variable};

/// A request to run a job, with its shape checked (service.md §3.1). It holds secrets, so it has no `Debug`.
pub struct Run {
    /// The id.
    pub id: JobId,
    /// Digest of the request's bytes.
    pub digest: [u8; 32],
    /// Length of the request in bytes.
    pub size: usize,
    /// The service through which it came; its rules apply.
    pub origin: RequestOrigin,
    /// Facts for the operator's log.
    pub labels: RequestLabels,
    /// Environment, variables, directories, masking.
    pub environment: RunEnvironment,
    /// Text of the steps.
    pub steps: String,
    /// Name of the document; an absolute path is the base of relative references.
    pub file: Option<String>,
    /// Inputs of the root.
    pub inputs: IndexMap<String, Value>,
    /// Time limit of the job.
    pub timeout: Option<Duration>,
    /// Upper bound of the grace of a cancel.
    pub cancel_grace: Option<Duration>,
    /// Limit of the cleanup after a stop; `None`: the setting.
    pub cleanup_timeout: Option<Duration>,
    /// True if a failing line ends every script whose step does not say otherwise.
    pub errexit: bool,
    /// True if the log is to have marks around each step of the root (service.md §3.1).
    pub trace_sections: bool,
    /// Resource limits of the job.
    pub limits: ResourceLimits,
}

impl Run {
    /// Returns the total size in bytes of the values that it wants masked.
    pub fn phrase_bytes(&self) -> usize {
        let masked = self.environment.variables().iter().filter(|variable| variable.masked);
        let phrases = self.environment.masking.phrases.iter().map(String::len);
        masked.map(|variable| variable.value.len()).chain(phrases).sum()
    }
}

/// The service through which a job came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestOrigin {
    /// `steprunner.v1`.
    V1,
    /// `steprunner.v0`.
    V0,
    /// `proto`, from a client that reads the log with headers.
    Proto,
    /// `proto`, from a client that adds headers itself and so reads the log without them. It is fixed for the life of
    /// the job, because offsets count the bytes that the client receives.
    ProtoPlain,
}

/// Facts about a request for the line `job registered` of the operator's log.
#[derive(Debug, Default)]
pub struct RequestLabels {
    /// `job_id` of the request.
    pub ci_job: String,
    /// `pipeline_id` of the request.
    pub pipeline: String,
    /// The process that sent it, if known.
    pub peer: Option<String>,
    /// Time of its arrival.
    pub received: Option<Instant>,
}

/// The environment-related part of a request. An empty path means *not given*.
#[derive(Clone, Default)]
pub struct RunEnvironment {
    /// `work_dir`.
    pub work_dir: String,
    /// `env`, taken literally. Errors name an entry by its index in this list.
    pub env: Vec<(String, String)>,
    /// `job`, if the client is a runner.
    pub job: Option<JobPart>,
    /// `masking`.
    pub masking: Masking,
}

impl RunEnvironment {
    /// Returns the variables of a runner's job, in the order sent.
    pub fn variables(&self) -> &[Variable] {
        self.job.as_ref().map_or(&[], |job| &job.variables)
    }
}

/// The part of a request that only a runner sends.
#[derive(Clone, Default)]
pub struct JobPart {
    /// Variables in the order sent.
    pub variables: Vec<Variable>,
    /// The project's directory.
    pub build_dir: String,
    /// Token prefixes of the instance.
    pub token_prefixes: Vec<String>,
    /// True if file variables go to a folder of the job's own, whatever its working directory.
    pub private_file_variables: bool,
}

/// Phrases and prefixes that a request contains directly.
#[derive(Clone, Default)]
pub struct Masking {
    /// Texts to hide.
    pub phrases: Vec<String>,
    /// Prefixes of tokens to hide.
    pub token_prefixes: Vec<String>,
}
