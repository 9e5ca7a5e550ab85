//! A checked job, from whatever describes it (ci.md): a CI file, a runner payload, or a mapping.

mod from_file;
mod mapping;
mod payload;
mod pipeline;
mod standing;

use std::fmt;
use std::time::Duration;

use serde_json::{Map as JsonMap, Value as Json};
use step_runner_model::Variable;

pub use from_file::Circumstances;
pub use mapping::of_mapping;
pub use payload::{PayloadError, Secrets, of_payload, secrets_of_payload};

pub use pipeline::{Pipeline, of_file};
pub use standing::Standing;

use crate::file::Image;
use crate::settings::Settings;

/// A job, ready to be planned.
#[derive(Clone)]
pub struct Job {
    /// Full name.
    pub name: String,
    /// Stage.
    pub stage: String,
    /// Variables of the request (variables.md §1).
    pub variables: Vec<Variable>,
    /// Settings in the variables.
    pub settings: Settings,
    /// Steps of the user, in order.
    pub work: Vec<Work>,
    /// Commands after it.
    pub after_script: Vec<String>,
    /// Sources; `None` if the job runs in the project as it is.
    pub sources: Option<Sources>,
    /// Caches.
    pub caches: Vec<CacheEntry>,
    /// Artifacts.
    pub artifacts: Vec<ArtifactEntry>,
    /// Jobs whose artifacts are wanted.
    pub dependencies: Vec<Dependency>,
    /// Image, with variables filled in.
    pub image: Option<Image>,
    /// Services, with variables filled in.
    pub services: Vec<Image>,
    /// Time limit.
    pub timeout: Option<Duration>,
    /// Token of the job: the credential of sources, artifacts and caches.
    pub token: Option<String>,
    /// Further secrets to mask.
    pub phrases: Vec<String>,
    /// Prefixes of tokens to mask.
    pub token_prefixes: Vec<String>,
    /// True if the server wants marks of sections in the log (service.md §3.1).
    pub trace_sections: bool,
    /// Notes for the user.
    pub messages: Vec<Message>,
}

/// A step of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Name of the step in the plan, such as `step_script`.
    pub name: String,
    /// Its content.
    pub content: Content,
}

/// Content of a step of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Commands for one shell.
    Script(Vec<String>),
    /// A list of steps.
    Steps(Json),
}

/// Where the sources of a job are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// URL without user and password.
    pub url: String,
    /// Other facts for `ci/get_sources`, by the names of the payload.
    pub details: JsonMap<String, Json>,
    /// Commands before the sources come.
    pub before: Vec<String>,
    /// Commands after it.
    pub after: Vec<String>,
}

/// A cache, for `ci/cache/restore` and `ci/cache/save`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// Its key: a text, or what the builtin makes the key of.
    pub key: Json,
    /// Keys that are tried next.
    pub fallback_keys: Vec<String>,
    /// Globs.
    pub paths: Vec<String>,
    /// True if untracked files are saved.
    pub untracked: bool,
    /// `pull-push`, `pull`, `push`.
    pub policy: String,
    /// `on_success`, `on_failure`, `always`.
    pub when: String,
}

/// An artifact, for `ci/artifacts/upload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactEntry {
    /// Name of the archive or file.
    pub name: String,
    /// Globs of what is saved.
    pub paths: Vec<String>,
    /// Globs of what is left out.
    pub exclude: Vec<String>,
    /// True if untracked files are saved.
    pub untracked: bool,
    /// `on_success`, `on_failure`, `always`.
    pub when: String,
    /// `archive`, `dotenv`, `junit` and the like.
    pub kind: String,
    /// `zip`, `gzip`, `raw`.
    pub format: String,
    /// Time until the server removes it, as written.
    pub expire_in: Option<String>,
}

/// A job whose artifacts are wanted, for `ci/artifacts/download`.
#[derive(Clone, PartialEq, Eq)]
pub struct Dependency {
    /// Full name of the job.
    pub name: String,
    /// True if it is an error if they are missing: the job names it.
    pub required: bool,
    /// Facts of the payload, without the token.
    pub details: JsonMap<String, Json>,
    /// Its own token.
    pub token: Option<String>,
}

/// Something that the user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// True for a warning; else it is told at level `info`.
    pub is_warning: bool,
    /// The text. It holds quotations ([`step_runner_model::text::for_people`]).
    pub text: String,
}

impl Message {
    pub(crate) const fn info(text: String) -> Self {
        Self { is_warning: false, text }
    }

    pub(crate) const fn warning(text: String) -> Self {
        Self { is_warning: true, text }
    }
}

/// Hides what may be a secret.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("name", &self.name).field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl fmt::Debug for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dependency").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns the name of the user's step in a plan: `step_` and the name, with `_` for bytes other than letters, digits
/// and `_` (ci.md §1).
pub(crate) fn step_name(name: &str) -> String {
    let plain = name.bytes().map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte) } else { '_' });
    std::iter::once("step_".to_owned()).chain(plain.map(String::from)).collect()
}

#[cfg(test)]
mod tests;
