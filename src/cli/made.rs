//! Documents that nobody wrote: made of a reference, or of a job of a CI file. How people are told of a document.

use std::path::Path;

use serde_json::Value;

use crate::lang::reference::passwords_in;
use crate::lang::template;

/// Name of the document that was made of a job of a CI file.
pub(super) const PLANNED: &str = "<job>";

/// Documents that nobody wrote: their lines mean nothing to people.
const MADE: [&str; 2] = [PLANNED, "<run>"];

/// True if `target` can only be a reference, by its scheme, revision, registry or tag (language.md §7).
pub(super) fn is_reference(target: &str) -> bool {
    let local = target.starts_with(['.', '/']);
    !local
        && (target.contains("://")
            || target.contains('@')
            || target.split_once('/').is_some_and(|(registry, image)| {
                registry == "localhost" || registry.contains(['.', ':']) || image.contains(':')
            }))
}

/// Beginning of a list of one step that calls a reference.
const BEGINNING: &str = "[{\"name\": \"run\", \"func\": ";

/// Returns the beginning of the list of one step that calls `reference`.
pub(super) fn beginning_of(reference: &str) -> String {
    format!("{BEGINNING}{}", escape(Value::from(reference)))
}

/// Returns the name of the document that is made from a reference: the reference without the login before its host. A
/// password or a token in it is a secret, and messages name the document (language.md §7).
pub(super) fn name_of(reference: &str) -> String {
    let start = reference.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = reference.split_at_checked(start).unwrap_or(("", reference));
    // A user alone ends before the host. A password may hold what else ends the host.
    let host = rest.split('/').next().unwrap_or_default();
    let user = host.rfind('@').filter(|end| host.get(..*end).is_some_and(|user| !user.contains(':')));
    let password = || passwords_in(reference).first().and_then(|range| range.end.checked_sub(start));
    let end = user.or_else(password);
    match end.and_then(|end| rest.get(end..)?.split_once('@')) {
        Some((_, host)) => format!("{scheme}{host}"),
        None => reference.to_owned(),
    }
}

/// True if the document was made from the reference that gave it its name. Places and names inside it then mean nothing to
/// people.
pub(super) fn is_of_reference(text: &str, name: &str) -> bool {
    let reference = text
        .strip_prefix(BEGINNING)
        .and_then(|rest| serde_json::Deserializer::from_str(rest).into_iter::<String>().next()?.ok());
    is_reference(name) && reference.is_some_and(|reference| name_of(&reference) == template::quote(name))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_named_by_its_reference_without_the_login() {
        for (reference, name) in [
            ("https://user:pa/ss@h/g/r.git@v1", "https://h/g/r.git@v1"),
            ("https://user:pw@h:8080/g@v1", "https://h:8080/g@v1"),
            ("https://token@h/g@v1", "https://h/g@v1"),
            ("https://token@127.0.0.1:1/g/r.git@v1", "https://127.0.0.1:1/g/r.git@v1"),
            ("user:pw@h/g@v1", "h/g@v1"),
            ("gitlab.com/g/p@v1", "gitlab.com/g/p@v1"),
            ("reg.example.com/g/echo:1", "reg.example.com/g/echo:1"),
            ("builtin://echo", "builtin://echo"),
        ] {
            assert_eq!(name_of(reference), name);
            assert!(is_of_reference(&format!("{}}}]", beginning_of(reference)), name), "{reference}");
        }
    }
}
