//! What `run` and `submit` are pointed at: a file, a folder, a reference, or stdin (cli.md, "How FILE travels").

use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};

use super::excerpt::{self, Lines};
use super::{inputs, terminal};
use crate::error::{Exit, Failure};
use crate::lang::diagnostic::{Diagnostic, Severity};
use crate::lang::document::{REQUEST_LIMIT, parse_function};
use crate::lang::reference::DEFINITION_FILES;
use crate::lang::template;

/// What to name instead of what is not there.
const TARGETS: &str = "name a function file, a folder that holds one, a reference, or - for stdin";

/// The document of a job, and what it is called. It may hold secrets: no `Debug`.
pub(super) struct Document {
    /// `steps` of the request.
    pub(super) text: String,
    /// `file` of the request.
    pub(super) name: String,
    /// Inputs of the request; those of a reference are in its step already.
    pub(super) inputs: Vec<(String, Value)>,
}

/// Reads what `target` names; `absolute` if the daemon sees the same files. `inputs` are `NAME=VALUE` as given.
pub(super) fn read(target: &str, absolute: bool, inputs: &[String]) -> Result<Document, Failure> {
    if target == "-" {
        let text = read_all(std::io::stdin().lock(), "stdin")?;
        return with_inputs(text, "<stdin>".to_owned(), inputs);
    }
    match std::fs::metadata(target) {
        Ok(found) if found.is_dir() => {
            let file =
                DEFINITION_FILES.iter().map(|name| Path::new(target).join(name)).find(|file| file.exists());
            let file = file.ok_or_else(|| {
                refuse(format!("there is neither {} in {target}", DEFINITION_FILES.join(" nor ")))
                    .with_remedy(TARGETS)
            })?;
            from_file(&file, absolute, inputs)
        }
        Ok(_) => from_file(Path::new(target), absolute, inputs),
        Err(_) if is_reference(target) => from_reference(target, inputs),
        Err(error) => Err(refuse(format!("cannot read {target}: {error}")).with_remedy(TARGETS)),
    }
}

fn from_file(file: &Path, absolute: bool, inputs: &[String]) -> Result<Document, Failure> {
    let shown = file.display().to_string();
    let opened =
        std::fs::File::open(file).map_err(|error| refuse(format!("cannot read {shown}: {error}")))?;
    let text = read_all(opened, &shown)?;
    if file.file_name().is_some_and(|name| DEFINITION_FILES.iter().any(|known| name == *known)) {
        // Its name says that it is a function file, which is more than a steps document (language.md §2).
        parse_function(&text, &shown).map_err(|findings| refused(&findings, &text, &shown))?;
    }
    let name = if absolute {
        let path = std::path::absolute(file).map_err(|error| refuse(format!("{shown}: {error}")))?;
        path.display().to_string()
    } else {
        shown
    };
    with_inputs(text, name, inputs)
}

fn read_all(source: impl std::io::Read, name: &str) -> Result<String, Failure> {
    let mut text = String::new();
    source
        .take(REQUEST_LIMIT as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|error| refuse(format!("cannot read {name}: {error}")))?;
    if text.len() > REQUEST_LIMIT {
        return Err(refuse(format!("{name} is longer than {} MiB", REQUEST_LIMIT >> 20)));
    }
    Ok(text)
}

/// What can only be a reference: a scheme, a revision, or a registry (language.md §7).
fn is_reference(target: &str) -> bool {
    let local = target.starts_with(['.', '/']);
    !local
        && (target.contains("://")
            || target.contains('@')
            || (target.contains('/') && target.contains(['.', ':'])))
}

/// A list of one step named `run`, which gets the inputs.
fn from_reference(reference: &str, inputs: &[String]) -> Result<Document, Failure> {
    let mut step = json!({"name": "run", "func": escape(Value::from(reference))});
    let values: serde_json::Map<_, _> = inputs::untyped(inputs)?.into_iter().collect();
    if let (Some(step), false) = (step.as_object_mut(), values.is_empty()) {
        step.insert("inputs".to_owned(), escape(Value::Object(values)));
    }
    Ok(Document { text: json!([step]).to_string(), name: reference.to_owned(), inputs: Vec::new() })
}

/// Whether a document was made of the reference that it is named by: its own places and names mean nothing to people.
pub(super) fn is_of_reference(text: &str, name: &str) -> bool {
    is_reference(name)
        && serde_json::from_str::<Value>(text)
            .is_ok_and(|steps| steps[0]["func"] == escape(Value::from(name)))
}

/// Values in a steps document are templates; ours are not (language.md §8).
fn escape(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(template::quote(&text)),
        Value::Array(items) => items.into_iter().map(escape).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, escape(value))).collect(),
        other => other,
    }
}

fn with_inputs(text: String, name: String, inputs: &[String]) -> Result<Document, Failure> {
    let inputs = inputs::read(&text, &shown(&name), inputs)?;
    Ok(Document { text, name, inputs })
}

/// `NAME=VALUE`. Never quotes the value.
pub(super) fn split_pair<'a>(pair: &'a str, option: &str) -> Result<(&'a str, &'a str), Failure> {
    pair.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("--{option} wants NAME=VALUE, with a name before the `=`"))
    })
}

/// Shows what is wrong with a document as `check` shows it; the failure that says so.
pub(super) fn refused(findings: &[Diagnostic], text: &str, file: &str) -> Failure {
    let lines = Lines::of(text);
    for finding in findings {
        terminal::say(&excerpt::render(finding, Some(&lines), true));
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let errors = if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") };
    refuse(format!("{file} has {errors}"))
}

/// Name of a document for people: from the current folder if it lies below.
pub(super) fn shown(file: &str) -> String {
    let folder = std::env::current_dir().unwrap_or_default();
    let file = Path::new(file);
    file.strip_prefix(folder).unwrap_or(file).display().to_string()
}

fn refuse(message: String) -> Failure {
    Failure::new(Exit::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_a_list_of_one_step_with_literal_inputs() {
        let document = read("builtin://no/such", true, &["x=${{ y }}".to_owned()]).ok().unwrap();
        let steps: Value = serde_json::from_str(&document.text).unwrap();
        assert_eq!(
            steps,
            json!([{"name": "run", "func": "builtin://no/such", "inputs": {"x": "\\${{ y }}"}}])
        );
    }

    #[test]
    fn references_are_told_from_missing_files() {
        for reference in ["builtin://echo", "gitlab.com/g/p@v1", "https://h/p@v1", "reg.example.com/g/echo:1"]
        {
            assert!(is_reference(reference), "{reference}");
        }
        for path in ["./x", "/x/y.yml", "func.yml", "../a@b"] {
            assert!(!is_reference(path), "{path}");
        }
    }
}
