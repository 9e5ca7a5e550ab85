//! Stages of a CI job (ci.md §5): its caches, in folders of this machine, and its artifacts, there or at the server that
//! an agent works for.

mod artifacts;
mod cache;
mod pack;
mod selection;
mod server;
pub mod store;
mod transfer;

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::{BuiltinEnvironment, BuiltinError, BuiltinValues};

pub(super) use artifacts::{download, upload};
pub(super) use cache::{restore, save};
pub(super) use pack::read as unpack_artifacts;

/// Returns the folder that stands for a server.
fn store(inputs: &BuiltinValues) -> Result<PathBuf, BuiltinError> {
    match inputs.get("store").and_then(Json::as_str) {
        Some(path) if Path::new(path).is_absolute() => Ok(PathBuf::from(path)),
        _ => Err(BuiltinError::input(
            "store",
            "is not the absolute path of a folder, and nothing here reaches a server",
        )),
    }
}

/// Returns a list of the input `name`.
fn list<'i>(inputs: &'i BuiltinValues, name: &str) -> &'i [Json] {
    inputs.get(name).and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Returns a text field; empty if it is not there.
fn field<'i>(value: &'i Json, name: &str) -> &'i str {
    value.get(name).and_then(Json::as_str).unwrap_or_default()
}

/// Returns a list of texts.
fn texts(value: &Json, name: &str) -> Vec<String> {
    let items = value.get(name).and_then(Json::as_array).into_iter().flatten();
    items.filter_map(Json::as_str).map(str::to_owned).collect()
}

/// True if something with this `when` is saved after a job of this state.
fn is_wanted(when: &str, status: &str) -> bool {
    match when {
        "always" => true,
        "on_failure" => status != "success",
        _ => status == "success",
    }
}

/// Returns the globs of an entry, and true if untracked files belong to it.
fn wanted(entry: &Json) -> selection::Wanted {
    selection::Wanted {
        paths: texts(entry, "paths"),
        exclude: texts(entry, "exclude"),
        untracked: entry.get("untracked").and_then(Json::as_bool).unwrap_or_default(),
    }
}

/// Names files in a message: the first of them, and the number of the others.
fn named(paths: &[String]) -> String {
    /// Maximum number of files that a message names.
    const SHOWN: usize = 5;
    let shown: Vec<_> = paths.iter().take(SHOWN).map(|path| format!("\"{}\"", path.escape_debug())).collect();
    match paths.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Counts things in a message.
fn counted(count: usize) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

fn warn(environment: &BuiltinEnvironment<'_>, text: &str) {
    (environment.say)(&format!("WARNING: {text}"));
}

#[cfg(test)]
mod tests;
