//! Text format of protocol buffers, in which GitLab's first step runner took a function and gave results:
//! `--text-proto-step-file`, `--step-results-format prototext`.

use std::path::Path;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::results;
use crate::error::{Exit, Failure};
use crate::lang::reference::DEFINITION_FILES;
use crate::pb::{DEFINITIONS, v1};

/// Converts `text`, the definition in `file`, to the text of a function.
pub(super) fn read(text: &str, file: &Path) -> Result<String, Failure> {
    let refused = |what: String| Failure::new(Exit::Refused, format!("{}: {what}", file.display()));
    let message = DynamicMessage::parse_text_format(descriptor("Definition")?, text)
        .map_err(|error| refused(format!("it is no text of a definition: {error}")))?;
    let definition: v1::Definition = message.transcode_to().map_err(defect)?;
    let function = function(definition).map_err(refused)?;
    // An interface without inputs, then the definition: JSON is YAML.
    Ok(format!("{{}}\n---\n{function:#}\n"))
}

pub(super) fn show(result: &v1::StepResult) -> Result<String, Failure> {
    let bytes = result.encode_to_vec();
    let message = DynamicMessage::decode(descriptor("StepResult")?, bytes.as_slice()).map_err(defect)?;
    Ok(format!("{message:#}\n"))
}

fn descriptor(message: &str) -> Result<MessageDescriptor, Failure> {
    let name = format!("steprunner.v1.{message}");
    let pool = DescriptorPool::decode(DEFINITIONS).map_err(defect)?;
    pool.get_message_by_name(&name).ok_or_else(|| defect(format!("there is no message {name}")))
}

fn defect(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Defect, error.to_string())
}

fn function(definition: v1::Definition) -> Result<Value, String> {
    let v1::Definition { r#type: _, exec, steps, outputs, env, delegate } = definition;
    let mut function = Map::new();
    insert(&mut function, "env", json!(env));
    match exec {
        Some(_) if !steps.is_empty() => return Err("it has both exec and steps".to_owned()),
        Some(v1::definition::Exec { command, work_dir }) => {
            let mut exec = Map::from_iter([("command".to_owned(), json!(command))]);
            insert(&mut exec, "work_dir", json!(work_dir));
            function.insert("exec".to_owned(), exec.into());
        }
        None => {
            let steps: Vec<_> = steps.into_iter().map(step).collect::<Result<_, _>>()?;
            function.insert("run".to_owned(), steps.into());
            insert(&mut function, "outputs", results::values(&outputs));
            insert(&mut function, "delegate", json!(delegate));
        }
    }
    Ok(function.into())
}

fn step(step: v1::Step) -> Result<Value, String> {
    let v1::Step { name, step, env, inputs } = step;
    let reference = reference(step.unwrap_or_default())
        .map_err(|what| format!("the reference of step {name:?} {what}: name the function by its place"))?;
    let mut step = Map::from_iter([("name".to_owned(), json!(name)), ("func".to_owned(), reference)]);
    insert(&mut step, "env", json!(env));
    insert(&mut step, "inputs", results::values(&inputs));
    Ok(step.into())
}

/// Inserts the value unless it is empty.
fn insert(object: &mut Map<String, Value>, key: &str, value: Value) {
    if !matches!(&value, Value::String(text) if text.is_empty())
        && !matches!(&value, Value::Object(fields) if fields.is_empty())
    {
        object.insert(key.to_owned(), value);
    }
}

#[expect(deprecated, reason = "files for the first step runner have the deprecated path")]
fn reference(reference: v1::step::Reference) -> Result<Value, &'static str> {
    use v1::StepReferenceProtocol as Protocol;
    use v1::step::reference::StepPath;
    let protocol = reference.protocol();
    let parts = match reference.step_path {
        Some(StepPath::Paths(v1::PathParts { parts })) => parts,
        Some(StepPath::PathExp(path)) => vec![path],
        None => reference.path,
    };
    let folder = parts.join("/");
    // A usual name is left out, because a loader looks for the usual ones.
    let file = Some(reference.filename).filter(|name| !DEFINITION_FILES.contains(&name.as_str()));
    let file = file.unwrap_or_default();
    match protocol {
        Protocol::Local => {
            let path = if file.is_empty() { folder } else { format!("{folder}/{file}") };
            let is_marked = path.starts_with(['.', '/']);
            Ok(json!(if is_marked { path } else { format!("./{path}") }))
        }
        Protocol::Dynamic => Ok(json!(folder)),
        Protocol::Dist => Ok(json!(format!("dist://{folder}"))),
        Protocol::Git => {
            let mut git = Map::new();
            for (key, text) in
                [("url", reference.url), ("rev", reference.version), ("dir", folder), ("file", file)]
            {
                insert(&mut git, key, json!(text));
            }
            Ok(json!({"git": git}))
        }
        Protocol::Oci => {
            let mut oci = Map::new();
            for (key, text) in [
                ("registry", reference.registry),
                ("repository", reference.repository),
                ("tag", reference.tag),
                ("dir", folder),
                ("file", file),
            ] {
                insert(&mut oci, key, json!(text));
            }
            Ok(json!({"oci": oci}))
        }
        Protocol::SpecDef => Err("holds a function of its own"),
        Protocol::Unspecified | Protocol::Zip => Err("is of no known kind"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(text: &str) -> Result<Value, Failure> {
        let document = read(text, Path::new("f.txtpb"))?;
        Ok(serde_json::from_str(document.strip_prefix("{}\n---\n").unwrap()).unwrap())
    }

    #[test]
    fn a_definition_becomes_a_function() {
        let text = r#"
            # A comment
            type: steps
            env: { key: "A" value: "${{ work_dir }}" }
            steps {
              name: "one"
              step: { protocol: local path: ".." path: "echo" filename: "step.yml" }
              inputs: { key: "n" value: { number_value: 3 } }
              inputs: { key: "l" value: { list_value: { values { string_value: "x" } values { bool_value: true } } } }
            }
            steps {
              name: "two"
              step: { protocol: git url: "https://h/p" version: "v1" paths: { parts: ["a", "b"] } filename: "x.yml" }
            }
            steps { name: "three" step: { protocol: dist paths: { parts: "script" } } }
            steps { name: "four" step: { protocol: oci registry: "r" repository: "p" tag: "1" } }
            steps { name: "five" step: { protocol: local path: "here" filename: "x.yml" } }
            steps { name: "six" step: { protocol: dynamic path_exp: "${{ env.X }}" } }
            outputs: { key: "o" value: { string_value: "${{ steps.one.outputs.n }}" } }
        "#;
        let expected = json!({
            "env": {"A": "${{ work_dir }}"},
            "run": [
                {"name": "one", "func": "../echo", "inputs": {"l": ["x", true], "n": 3}},
                {"name": "two", "func": {"git": {"url": "https://h/p", "rev": "v1", "dir": "a/b", "file": "x.yml"}}},
                {"name": "three", "func": "dist://script"},
                {"name": "four", "func": {"oci": {"registry": "r", "repository": "p", "tag": "1"}}},
                {"name": "five", "func": "./here/x.yml"},
                {"name": "six", "func": "${{ env.X }}"},
            ],
            "outputs": {"o": "${{ steps.one.outputs.n }}"},
        });
        assert_eq!(function_of(text).unwrap(), expected);
        let exec = r#"type: exec exec: { command: "a" command: "b" work_dir: "/w" }"#;
        assert_eq!(function_of(exec).unwrap(), json!({"exec": {"command": ["a", "b"], "work_dir": "/w"}}));
    }

    #[test]
    fn what_is_no_definition_is_refused_by_name() {
        for (text, expected) in [
            ("run: 1", "it is no text of a definition"),
            ("steps {", "it is no text of a definition"),
            ("exec {} steps {}", "it has both exec and steps"),
            (r#"steps { name: "a" }"#, "the reference of step \"a\" is of no known kind"),
            (r#"steps { name: "a" step { protocol: spec_def } }"#, "holds a function of its own"),
        ] {
            let failure = function_of(text).unwrap_err();
            assert_eq!(failure.exit(), Exit::Refused);
            let message = failure.to_string();
            assert!(message.starts_with("f.txtpb: ") && message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_result_that_is_shown_is_read_as_the_same() {
        let mut result =
            v1::StepResult { status: v1::step_result::Status::Success.into(), ..Default::default() };
        result.exports.insert("A".to_owned(), "\"b\"\n".to_owned());
        result.sub_step_results.push(v1::StepResult::default());
        let text = show(&result).unwrap();
        let read = DynamicMessage::parse_text_format(descriptor("StepResult").unwrap(), &text).unwrap();
        assert_eq!(read.transcode_to::<v1::StepResult>().unwrap(), result);
    }
}
