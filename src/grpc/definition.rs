//! Converts a function's document, given as JSON, to the message that shows it in results (service.md §2.1). Parts
//! without a field in the message are left out.

use prost_types::value::Kind as PbKind;
use serde_json::{Map, Value as Json};

use super::value;
use crate::pb::v1;

/// Levels of arrays and objects that are shown as such. A document has few, and it is already deep inside its message.
const LEVELS: usize = 8;

/// Converts a document `{"spec": …, "definition": …}`.
pub(super) fn message(document: &Json) -> v1::SpecDefinition {
    v1::SpecDefinition {
        spec: document.get("spec").map(spec),
        definition: document.get("definition").map(definition),
    }
}

fn spec(document: &Json) -> v1::Spec {
    // The first document of a file has one key, `spec`; its content may be absent.
    let content = document.get("spec").unwrap_or(document);
    let is_delegate = content.get("outputs").and_then(Json::as_str) == Some("delegate");
    let method = if is_delegate { v1::OutputMethod::Delegate } else { v1::OutputMethod::Outputs };
    v1::Spec {
        spec: Some(v1::spec::Content {
            inputs: members(content, "inputs")
                .map(|(name, input)| (name.clone(), declared_input(input)))
                .collect(),
            outputs: members(content, "outputs")
                .map(|(name, output)| (name.clone(), declared_output(output)))
                .collect(),
            output_method: method.into(),
        }),
    }
}

fn members<'a>(of: &'a Json, key: &str) -> impl Iterator<Item = (&'a String, &'a Json)> {
    of.get(key).and_then(Json::as_object).into_iter().flat_map(Map::iter)
}

fn declared_input(input: &Json) -> v1::spec::content::Input {
    let (r#type, default, sensitive) = declaration(input);
    v1::spec::content::Input { r#type, default, sensitive }
}

fn declared_output(output: &Json) -> v1::spec::content::Output {
    let (r#type, default, sensitive) = declaration(output);
    v1::spec::content::Output { r#type, default, sensitive }
}

fn declaration(declared: &Json) -> (i32, Option<prost_types::Value>, bool) {
    let value_type = match declared.get("type").and_then(Json::as_str) {
        Some("string") => v1::ValueType::String,
        Some("number") => v1::ValueType::Number,
        Some("boolean") => v1::ValueType::Bool,
        Some("struct") => v1::ValueType::Struct,
        Some("array") => v1::ValueType::Array,
        _ => v1::ValueType::Unspecified,
    };
    let default = declared
        .get("default")
        .filter(|default| !default.is_null())
        .map(|default| value::of_json(default, LEVELS));
    (value_type.into(), default, declared.get("sensitive") == Some(&Json::Bool(true)))
}

fn definition(definition: &Json) -> v1::Definition {
    let exec = definition.get("exec").map(|exec| v1::definition::Exec {
        command: exec.get("command").and_then(Json::as_array).into_iter().flatten().map(text).collect(),
        work_dir: exec.get("work_dir").map(text).unwrap_or_default(),
    });
    let steps = definition.get("run").and_then(Json::as_array);
    let kind = match (&exec, &steps) {
        (Some(_), _) => v1::DefinitionType::Exec,
        (None, Some(_)) => v1::DefinitionType::Steps,
        (None, None) => v1::DefinitionType::Unspecified,
    };
    v1::Definition {
        r#type: kind.into(),
        exec,
        steps: steps.into_iter().flatten().map(step).collect(),
        outputs: members(definition, "outputs")
            .map(|(name, output)| (name.clone(), value::of_json(output, LEVELS)))
            .collect(),
        env: members(definition, "env").map(|(name, entry)| (name.clone(), text(entry))).collect(),
        delegate: definition.get("delegate").map(text).unwrap_or_default(),
    }
}

fn step(step: &Json) -> v1::Step {
    let reference = ["func", "step"].iter().find_map(|key| step.get(key));
    let mut inputs: std::collections::BTreeMap<String, prost_types::Value> =
        members(step, "inputs").map(|(name, input)| (name.clone(), value::of_json(input, LEVELS))).collect();
    if let Some(script) = step.get("script") {
        inputs.insert("script".into(), prost_types::Value { kind: Some(PbKind::StringValue(text(script))) });
    }
    v1::Step {
        name: step.get("name").map(text).unwrap_or_default(),
        step: Some(v1::step::Reference {
            url: reference.map(text).unwrap_or_default(),
            ..Default::default()
        }),
        env: members(step, "env").map(|(name, entry)| (name.clone(), text(entry))).collect(),
        inputs,
    }
}

/// Returns the text of a string, and the JSON of any other value.
fn text(scalar: &Json) -> String {
    scalar.as_str().map_or_else(|| scalar.to_string(), str::to_owned)
}
