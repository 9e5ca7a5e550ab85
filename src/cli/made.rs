//! Documents that nobody wrote: made of a reference, or of a job of a CI file. How people are told of a document.

use std::path::Path;

use serde_json::Value;

use crate::lang::template;

/// Name of the document that was made of a job of a CI file.
pub(super) const PLANNED: &str = "<job>";

/// Documents that nobody wrote: their lines mean nothing to people.
const MADE: [&str; 2] = [PLANNED, "<run>"];

/// True if `target` can only be a reference, by its scheme, revision, or registry (language.md §7).
pub(super) fn is_reference(target: &str) -> bool {
    let local = target.starts_with(['.', '/']);
    !local
        && (target.contains("://")
            || target.contains('@')
            || target
                .split_once('/')
                .is_some_and(|(registry, _)| registry == "localhost" || registry.contains(['.', ':'])))
}

/// Returns the beginning of the list of one step that calls `reference`.
pub(super) fn beginning_of(reference: &str) -> String {
    format!("[{{\"name\": \"run\", \"func\": {}", escape(Value::from(reference)))
}

/// True if the document was made from the reference that is its name. Places and names inside it then mean nothing to
/// people.
pub(super) fn is_of_reference(text: &str, name: &str) -> bool {
    is_reference(name) && text.starts_with(&beginning_of(name))
}

/// Escapes a literal value: values in a steps document are templates (language.md §8).
pub(super) fn escape(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(template::quote(&text)),
        Value::Array(items) => items.into_iter().map(escape).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, escape(value))).collect(),
        other => other,
    }
}

/// True if the document was made by this program, so that its lines mean nothing to people.
pub(super) fn is_made(file: &str) -> bool {
    MADE.contains(&file)
}

/// Returns the name of a document for people: relative to the current folder if it lies below.
pub(super) fn shown(file: &str) -> String {
    let folder = std::env::current_dir().unwrap_or_default();
    let file = Path::new(file);
    file.strip_prefix(folder).unwrap_or(file).display().to_string()
}
