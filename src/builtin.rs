//! The builtins that run as a process of the job, `step-runner builtin NAME`: they build function images, publish and
//! promote them (language.md §17).
//!
//! Such a process is a step like any other: it gets the step's environment and working directory, what it prints goes to
//! the job's log, a signal ends it. Nothing here knows of the daemon. Errors never hold credentials.

mod archive;
mod build;
mod contents;
mod error;
mod layer;
mod publish;
mod transfer;
mod version;

use std::path::PathBuf;

use serde_json::{Map, Value as Json};

pub use error::BuiltinError;

/// File that `function/oci/build` writes in the job's directory, and `function/oci/publish` reads unless told otherwise.
pub const ARCHIVE: &str = "function-image.tar";

/// Values by name.
pub type Values = Map<String, Json>;

/// What a builtin has around it.
pub struct Around<'a> {
    /// The job's directory, absolute.
    pub work_dir: PathBuf,
    /// Folder for temporary files, private to the invocation.
    pub scratch: PathBuf,
    /// Variables of its environment.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Takes lines for the job's log.
    pub say: &'a dyn Fn(&str),
}

/// Runs the builtin `name` with `inputs`, which its interface has let through: its outputs.
pub async fn run(name: &str, inputs: &Values, around: &Around<'_>) -> Result<Values, BuiltinError> {
    match name {
        "function/oci/build" => build::build_archive(inputs, around),
        "function/oci/publish" => publish::publish(inputs, around).await,
        "step/oci/build" => publish::step_build(inputs, around).await,
        "step/oci/promote" => publish::promote(inputs, around).await,
        _ => Err(BuiltinError::Unknown(name.to_owned())),
    }
}

/// The text input `name`, without white space around it.
fn text<'i>(inputs: &'i Values, name: &'static str) -> Result<&'i str, BuiltinError> {
    match inputs.get(name).and_then(Json::as_str).map(str::trim) {
        Some(text) if !text.is_empty() => Ok(text),
        _ => Err(BuiltinError::input(name, "is empty")),
    }
}

#[cfg(test)]
mod tests;
