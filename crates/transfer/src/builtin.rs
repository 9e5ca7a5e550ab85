//! The builtins that run as a process of the job, `step-runner builtin NAME`. They build, publish and promote function
//! images (language.md §17), bring the sources of a CI job, and handle its caches and artifacts (ci.md §5).
//!
//! Such a process is a step like any other: it has the step's environment and working directory, its output goes to the
//! job's log, and a signal ends it. Nothing here knows of the daemon. Errors never hold credentials.

mod archive;
mod build;
pub mod ci;
mod contents;
mod error;
mod layer;
mod publish;
mod sources;
mod transfer;
mod version;

use std::fs::File;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

pub use error::BuiltinError;

/// File in the job's directory that `function/oci/build` writes, and that `function/oci/publish` reads by default.
pub(crate) const ARCHIVE: &str = "function-image.tar";

/// Exit codes of the stages of a CI job (ci.md §5).
const FAULT_OF_JOB: u8 = 1;
const DISK: u8 = 74;
const NETWORK: u8 = 75;
const AUTHENTICATION: u8 = 77;
const CONFIGURATION: u8 = 78;

/// Values by name.
pub type BuiltinValues = Map<String, Json>;

/// Environment of a builtin.
pub struct BuiltinEnvironment<'a> {
    /// The job's directory, absolute.
    pub work_dir: PathBuf,
    /// Folder for temporary files, private to the invocation.
    pub scratch: PathBuf,
    /// Looks up an environment variable.
    pub variable: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// Writes a line to the job's log.
    pub say: &'static (dyn Fn(&str) + Sync),
}

/// Unpacks an archive of artifacts below `project`, as a job of a CI file does with one from a server. Returns the number of
/// entries.
///
/// # Errors
/// The archive is refused (ci.md §5), or something cannot be written. The text is for people.
pub fn unpack_artifacts(archive: &File, project: &Path) -> Result<usize, String> {
    ci::unpack_artifacts(archive, project).map_err(|error| error.to_string())
}

/// True if the builtin `name` starts other programs, which its own limits must not hold.
pub fn starts_programs(name: &str) -> bool {
    name == "ci/get_sources"
}

/// Runs the builtin `name` with `inputs`, which its interface has accepted. Returns its outputs.
pub async fn run(
    name: &str,
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    match name {
        "function/oci/build" => build::build_archive(inputs, environment),
        "function/oci/publish" => publish::publish(inputs, environment).await,
        "step/oci/build" => publish::step_build(inputs, environment).await,
        "step/oci/promote" => publish::promote(inputs, environment).await,
        "ci/cache/restore" => ci::restore(inputs, environment),
        "ci/cache/save" => ci::save(inputs, environment),
        "ci/artifacts/download" => on_a_thread(|| ci::download(inputs, environment)),
        "ci/artifacts/upload" => on_a_thread(|| ci::upload(inputs, environment)),
        "ci/prepare" | "ci/cleanup" => sources::prepare(environment),
        "ci/get_sources" => sources::get(inputs, environment),
        _ => Err(BuiltinError::Unknown(name.to_owned())),
    }
}

/// Runs `work` where it may block: a client of its own runtime must not end in another runtime.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// Returns the text input `name`, trimmed; an empty one is an error.
fn text<'i>(inputs: &'i BuiltinValues, name: &'static str) -> Result<&'i str, BuiltinError> {
    match inputs.get(name).and_then(Json::as_str).map(str::trim) {
        Some(text) if !text.is_empty() => Ok(text),
        _ => Err(BuiltinError::input(name, "is empty")),
    }
}

#[cfg(test)]
mod tests;
