//! Interface and implementation of a function as read, for results (language.md §16 `spec_definition`): a JSON value of
//! the form `{"spec": …, "definition": …}` with templates and references as written.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use step_runner_lang::convert::to_json;
use step_runner_lang::document;
use step_runner_lang::value::{Data, Value};
use step_runner_lang::yaml::scalar::{Resolved, resolve};
use step_runner_lang::yaml::{self, NodeKind, Source, YamlEntry, YamlNode};
use step_runner_log::mask::MASK_TEXT;

/// Returns the definition in a definition file that has passed the check.
pub(crate) fn of_file(text: &str) -> Json {
    let mut documents = documents(text).into_iter();
    whole(documents.next(), documents.next())
}

/// Returns the definition in the document of a request, which may be an implementation alone (service.md §3.1).
pub fn of_request(text: &str) -> Json {
    let mut documents = documents(text).into_iter();
    match (documents.next(), documents.next()) {
        (Some(only), None) => {
            let is_step = document::is_step(&only);
            let mut function = whole(None, Some(only));
            if is_step {
                let step = function["definition"].take();
                function["definition"] = json!({"run": [step]});
            }
            function
        }
        (spec, definition) => whole(spec, definition),
    }
}

fn documents(text: &str) -> Vec<YamlNode> {
    let source = Source { file: Arc::from(""), text };
    yaml::read(&source, 2).documents.into_iter().flatten().collect()
}

fn whole(spec: Option<YamlNode>, definition: Option<YamlNode>) -> Json {
    let spec = spec.and_then(|node| match json_of(&node, Part::Interface) {
        Json::Object(mut document) => document.remove("spec"),
        _ => None,
    });
    let definition = match definition.map(|node| json_of(&node, Part::Implementation)) {
        Some(Json::Array(steps)) => Json::Object(Map::from_iter([("run".to_owned(), Json::Array(steps))])),
        Some(definition) => definition,
        None => Json::Null,
    };
    let spec = spec.filter(|spec| !spec.is_null()).unwrap_or_else(|| Json::Object(Map::new()));
    Json::Object(Map::from_iter([("spec".to_owned(), spec), ("definition".to_owned(), definition)]))
}

/// Meaning of scalars in a part of a document.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// Keys of an interface.
    Interface,
    /// Declared inputs or outputs by name.
    Declarations,
    /// One declared input or output.
    Declaration,
    /// Keys of an implementation. Some hold texts.
    Implementation,
    /// Values of any type.
    Values,
    /// Texts, even if they look like other types (language.md §2).
    Texts,
}

fn json_of(node: &YamlNode, part: Part) -> Json {
    match &node.kind {
        NodeKind::Sequence(items) => items.iter().map(|item| json_of(item, part)).collect(),
        NodeKind::Mapping(entries) => entries.iter().map(|entry| member(entry, part)).collect(),
        NodeKind::Scalar(scalar) => match resolve(scalar) {
            Resolved::Null => Json::Null,
            Resolved::Bool(truth) if part != Part::Texts => Json::Bool(truth),
            Resolved::Number(number) if part != Part::Texts => to_json(&Value::plain(Data::Number(number))),
            _ => Json::String(scalar.text.clone()),
        },
    }
}

fn member(entry: &YamlEntry, part: Part) -> (String, Json) {
    let key = &entry.key.text;
    let inside = match (part, key.as_str()) {
        (Part::Interface, "inputs" | "outputs") => Part::Declarations,
        (Part::Declarations, _) => Part::Declaration,
        (Part::Declaration, "default") | (Part::Implementation, "inputs" | "outputs") => Part::Values,
        (
            Part::Implementation,
            "env" | "command" | "work_dir" | "cancel_timeout" | "name" | "func" | "step" | "script"
            | "action" | "delegate",
        )
        | (Part::Interface | Part::Declaration | Part::Implementation, "description") => Part::Texts,
        _ => part,
    };
    let mut value = json_of(&entry.value, inside);
    if inside == Part::Declaration {
        hide_default(&mut value);
    }
    (key.clone(), value)
}

/// Hides the default of a sensitive input or output (language.md §16). Masking does not know it unless it is used.
fn hide_default(declaration: &mut Json) {
    if declaration.get("sensitive") == Some(&Json::Bool(true))
        && let Some(default) = declaration.get_mut("default").filter(|default| !default.is_null())
    {
        *default = Json::from(MASK_TEXT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_as_written_and_values_keep_their_types() {
        let text = "spec:\n  inputs: {env: {type: number, default: 1.50}}\n---\nenv: {A: 1.50, B: true}\nrun:\n- {name: a, func: ./x, env: {C: 010}, inputs: {env: {n: 2}, b: true}}\n";
        assert_eq!(
            of_file(text),
            json!({
                "spec": {"inputs": {"env": {"type": "number", "default": 1.5}}},
                "definition": {
                    "env": {"A": "1.50", "B": "true"},
                    "run": [{"name": "a", "func": "./x", "env": {"C": "010"}, "inputs": {"env": {"n": 2}, "b": true}}],
                },
            })
        );
    }

    #[test]
    fn what_the_language_reads_as_text_is_shown_as_text() {
        let text = "spec:\n  description: 1.0\n  inputs:\n    description: {type: number, default: 1.0, description: 2.0, sensitive: true}\n---\n\
            delegate: true\nrun:\n- {name: true, func: 1e3, description: 010}\n- {name: b, step: {git: {url: h/p, rev: 1.10, dir: 0x10}}}\n\
            - {name: c, action: 1.50, inputs: {func: 1.50, name: true}}\n";
        assert_eq!(
            of_file(text),
            json!({
                "spec": {
                    "description": "1.0",
                    "inputs": {
                        "description": {"type": "number", "default": "[MASKED]", "description": "2.0", "sensitive": true},
                    },
                },
                "definition": {
                    "delegate": "true",
                    "run": [
                        {"name": "true", "func": "1e3", "description": "010"},
                        {"name": "b", "step": {"git": {"url": "h/p", "rev": "1.10", "dir": "0x10"}}},
                        {"name": "c", "action": "1.50", "inputs": {"func": 1.5, "name": true}},
                    ],
                },
            })
        );
    }

    #[test]
    fn a_request_may_be_an_implementation_alone() {
        let expected = json!({"spec": {}, "definition": {"run": [{"name": "a"}]}});
        for text in
            ["[{name: a}]", "run: [{name: a}]", "{}\n---\nrun: [{name: a}]", "spec:\n---\nrun: [{name: a}]"]
        {
            assert_eq!(of_request(text), expected, "{text}");
        }
        let expected = json!({"spec": {}, "definition": {"run": [{"name": "a", "script": "1.50"}]}});
        assert_eq!(of_request("name: a\nscript: 1.50\n"), expected);
    }
}
