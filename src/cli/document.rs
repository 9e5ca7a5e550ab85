//! What `run` and `submit` are pointed at: a file, a folder, a reference, or stdin (cli.md, "How FILE travels").

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Exit, Failure};
use crate::lang;
use crate::lang::value::ValueType;
use crate::lang::yaml::scalar::{Resolved, resolve};
use crate::lang::yaml::{self, Node, NodeKind, Source};

/// Files that make a folder a function (language.md §7).
const FUNCTION_FILES: [&str; 2] = ["func.yml", "step.yml"];

/// Longest document: the daemon takes no longer one (service.md §3.7).
const MAX_DOCUMENT: u64 = 16 << 20;

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
                FUNCTION_FILES.iter().map(|name| Path::new(target).join(name)).find(|file| file.exists());
            let file = file.ok_or_else(|| {
                refuse(format!("there is neither {} in {target}", FUNCTION_FILES.join(" nor ")))
            })?;
            from_file(&file, absolute, inputs)
        }
        Ok(_) => from_file(Path::new(target), absolute, inputs),
        Err(_) if is_reference(target) => from_reference(target, inputs),
        Err(error) => Err(refuse(format!("cannot read {target}: {error}"))
            .with_remedy("name a function file, a folder that holds one, a reference, or - for stdin")),
    }
}

fn from_file(file: &Path, absolute: bool, inputs: &[String]) -> Result<Document, Failure> {
    let shown = file.display().to_string();
    let opened =
        std::fs::File::open(file).map_err(|error| refuse(format!("cannot read {shown}: {error}")))?;
    let text = read_all(opened, &shown)?;
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
        .take(MAX_DOCUMENT + 1)
        .read_to_string(&mut text)
        .map_err(|error| refuse(format!("cannot read {name}: {error}")))?;
    if text.len() as u64 > MAX_DOCUMENT {
        return Err(refuse(format!("{name} is longer than {} MiB", MAX_DOCUMENT >> 20)));
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
    let values = inputs.iter().map(|input| parse_input(input, &BTreeSet::new()));
    let values = values.collect::<Result<serde_json::Map<_, _>, _>>()?;
    if let (Some(step), false) = (step.as_object_mut(), values.is_empty()) {
        step.insert("inputs".to_owned(), escape(Value::Object(values)));
    }
    Ok(Document { text: json!([step]).to_string(), name: reference.to_owned(), inputs: Vec::new() })
}

/// Values in a steps document are templates; ours are not (language.md §8).
fn escape(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace("${{", "\\${{")),
        Value::Array(items) => items.into_iter().map(escape).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, escape(value))).collect(),
        other => other,
    }
}

fn with_inputs(text: String, name: String, inputs: &[String]) -> Result<Document, Failure> {
    let declared = if inputs.is_empty() { BTreeSet::new() } else { declared_strings(&text) };
    let inputs = inputs.iter().map(|input| parse_input(input, &declared)).collect::<Result<_, _>>()?;
    Ok(Document { text, name, inputs })
}

/// `NAME=VALUE`; VALUE is YAML, but text for an input that is declared a `string`. Never quotes the value.
fn parse_input(input: &str, declared: &BTreeSet<String>) -> Result<(String, Value), Failure> {
    let (name, value) = split_pair(input, "input")?;
    let is_text = declared.contains(name);
    let value = if is_text {
        Value::from(value)
    } else {
        parse_value(value)
            .ok_or_else(|| Failure::new(Exit::Usage, format!("the value of --input {name} is not YAML")))?
    };
    Ok((name.to_owned(), value))
}

/// `NAME=VALUE`. Never quotes the value.
pub(super) fn split_pair<'a>(pair: &'a str, option: &str) -> Result<(&'a str, &'a str), Failure> {
    pair.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("--{option} wants NAME=VALUE, with a name before the `=`"))
    })
}

/// Names of the inputs that the document declares as strings. What cannot be read here is for the daemon to refuse.
fn declared_strings(text: &str) -> BTreeSet<String> {
    let declared =
        lang::document::parse_request(text, "").map(|function| function.spec.inputs).unwrap_or_default();
    let strings = declared.into_iter().filter(|(_, input)| input.value_type == ValueType::String);
    strings.map(|(name, _)| name).collect()
}

/// A value in the YAML of function files.
fn parse_value(text: &str) -> Option<Value> {
    let stream = yaml::read(&Source { file: "--input".into(), text }, 2);
    match stream.documents.as_slice() {
        _ if !stream.diagnostics.is_empty() => None,
        [] => Some(Value::Null),
        [Some(node)] => from_yaml(node),
        _ => None,
    }
}

/// `None` for a number that JSON cannot hold. Readers of YAML bound the depth.
fn from_yaml(node: &Node) -> Option<Value> {
    match &node.kind {
        NodeKind::Scalar(scalar) => Some(match resolve(scalar) {
            Resolved::Null => Value::Null,
            Resolved::Bool(truth) => Value::from(truth),
            Resolved::Number(number) => Value::from(number),
            Resolved::Text => Value::from(scalar.text.as_str()),
            Resolved::OutOfRange => return None,
        }),
        NodeKind::Sequence(items) => items.iter().map(from_yaml).collect(),
        NodeKind::Mapping(entries) => {
            let pairs = entries.iter().map(|entry| Some((entry.key.text.clone(), from_yaml(&entry.value)?)));
            pairs.collect::<Option<serde_json::Map<_, _>>>().map(Value::Object)
        }
    }
}

fn refuse(message: String) -> Failure {
    Failure::new(Exit::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(text: &str, given: &[&str]) -> Vec<(String, Value)> {
        let given: Vec<_> = given.iter().map(ToString::to_string).collect();
        with_inputs(text.to_owned(), String::new(), &given).ok().unwrap().inputs
    }

    #[test]
    fn values_are_yaml_unless_declared_a_string() {
        let text =
            "spec: {inputs: {s: {type: string}, n: {type: number}}}\n---\nrun: [{name: a, script: b}]\n";
        let values = inputs(text, &["s=3", "n=3", "o=[1, true]", "t=a=b"]);
        let expected = [("s", json!("3")), ("n", json!(3.0)), ("o", json!([1.0, true])), ("t", json!("a=b"))];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
    }

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

    #[test]
    fn errors_never_quote_a_value() {
        for input in ["=hidden", "hidden", "n=[hidden"] {
            let error = parse_input(input, &BTreeSet::new()).unwrap_err();
            assert!(!error.to_string().contains("hidden"), "{error}");
            assert_eq!(error.exit(), Exit::Usage);
        }
    }
}
