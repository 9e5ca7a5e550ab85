//! `spec:inputs`: the header of a file, and the values that it gets (ci.md §2, row `spec:inputs`).

use indexmap::IndexMap;
use step_runner_lang::diagnostic::Class;
use step_runner_model::text::quote;

use crate::finding::{Findings, join};
use crate::node::{Entry, Kind, Node, Place, Plain};
use crate::pattern;
use crate::scalar::{Meaning, meaning};

/// Values of a file's inputs; `None` for one that has none, which was reported.
pub(super) type Inputs = IndexMap<String, Option<Node>>;

/// Values that a file is given: by `include:inputs`, or as text by the caller.
pub(super) enum Given<'g> {
    /// A mapping of the configuration.
    Mapping(Option<&'g Node>),
    /// Texts by name, for the main file.
    Texts(&'g IndexMap<String, String>),
}

const INPUT_KEYS: [&str; 6] = ["default", "description", "options", "regex", "rules", "type"];
const TYPES: [&str; 4] = ["string", "number", "boolean", "array"];

/// Reads the header, and gives its inputs their values. `start` is the place of what gives them.
pub(super) fn read(header: &Node, given: &Given<'_>, start: &Place, findings: &mut Findings) -> Inputs {
    let mut inputs = Inputs::new();
    findings.mapping(header, "", &["spec"]);
    let Some(spec) = header.get("spec") else { return inputs };
    let Some(spec) = findings.mapping(spec, "spec", &["inputs", "include", "description", "component"])
    else {
        return inputs;
    };
    for (key, help) in [
        ("include", "write the inputs into this file"),
        ("component", "write the values that the file needs as inputs"),
    ] {
        if let Some(entry) = spec.get(key) {
            let message = format!("\"spec:{key}\" is not supported here");
            findings.error_with_help(&entry.key, "spec", message, help);
        }
    }
    let declared = spec.get("inputs").filter(|entry| !entry.value.is_null());
    let declared = declared.and_then(|entry| findings.any_mapping(&entry.value, "spec.inputs"));
    let none = crate::node::Map::new();
    let declared = declared.unwrap_or(&none);
    for (name, entry) in declared {
        let path = join("spec.inputs", name);
        inputs.insert(name.clone(), input(name, entry, given, start, &path, findings));
    }
    undeclared(declared, given, start, findings);
    inputs
}

/// Reports values for inputs that the header does not have.
pub(super) fn undeclared(
    declared: &crate::node::Map,
    given: &Given<'_>,
    start: &Place,
    findings: &mut Findings,
) {
    let mut report = |name: &str, place: &Place| {
        let message = format!("the file has no input \"{}\"", quote(name));
        let finding = place.error_of(Class::Undeclared, message);
        let help = "declare it in \"spec:inputs\" of the file".to_owned();
        findings.add_with_suggestion(finding, name, declared.keys().map(String::as_str), Some(help));
    };
    match given {
        Given::Mapping(Some(node)) => {
            for (name, entry) in node.as_map().into_iter().flatten() {
                if !declared.contains_key(name) {
                    report(name, &entry.key);
                }
            }
        }
        Given::Mapping(None) => {}
        Given::Texts(texts) => {
            for name in texts.keys().filter(|name| !declared.contains_key(*name)) {
                report(name, start);
            }
        }
    }
}

/// Returns the value of one input, after all checks of its declaration.
fn input(
    name: &str,
    entry: &Entry,
    given: &Given<'_>,
    start: &Place,
    path: &str,
    findings: &mut Findings,
) -> Option<Node> {
    let node = &entry.value;
    if !node.is_null() {
        findings.mapping(node, path, &INPUT_KEYS)?;
    }
    if let Some(rules) = node.get("rules") {
        let message = "\"rules\" of an input are not supported here";
        findings.error_with_help(&rules.place, path, message, "give the value by \"--input\"");
    }
    let of_type = match node.get("type") {
        Some(value) => findings.choice(value, &join(path, "type"), &TYPES)?,
        None => "string".to_owned(),
    };
    let declaration = Declaration { node, of_type: &of_type, path };
    let default = node.get("default").cloned();
    if let Some(default) = &default {
        declaration.check(default, &join(path, "default"), findings);
    }
    let value = match given {
        Given::Mapping(mapping) => mapping.and_then(|mapping| mapping.get(name)).cloned(),
        Given::Texts(texts) => texts.get(name).map(|text| from_text(text, &of_type, start)),
    };
    match (value, default) {
        (Some(value), _) => {
            declaration.check(&value, &join("inputs", name), findings);
            Some(value)
        }
        (None, Some(default)) => Some(default),
        (None, None) => {
            findings.add(
                start
                    .error_of(Class::Missing, format!("the input \"{}\" needs a value", quote(name)))
                    .with_help(
                        "give it by \"include:inputs\", or for the main file by \"--input NAME=VALUE\"",
                    ),
            );
            None
        }
    }
}

/// Reads a value that the caller gives as text.
fn from_text(text: &str, of_type: &str, place: &Place) -> Node {
    let written = text.into();
    let kind = match (of_type, meaning(text)) {
        ("number", Meaning::Number(value)) => Kind::Number(Plain { value: value.into(), written }),
        ("boolean", Meaning::Bool(value)) => Kind::Bool(Plain { value, written }),
        ("array", _) => {
            let items = text.trim().trim_start_matches('[').trim_end_matches(']').split(',');
            let items =
                items.map(|item| item.trim().trim_matches(['"', '\''])).filter(|item| !item.is_empty());
            return Node::list(place.clone(), items.map(|item| Node::text(place.clone(), item)).collect());
        }
        _ => Kind::Text(written),
    };
    Node::new(place.clone(), kind)
}

struct Declaration<'d> {
    node: &'d Node,
    of_type: &'d str,
    path: &'d str,
}

impl Declaration<'_> {
    /// Checks type, options and expression of a value.
    fn check(&self, value: &Node, path: &str, findings: &mut Findings) {
        let is_of_type = matches!(
            (&value.kind, self.of_type),
            (Kind::Text(_), "string")
                | (Kind::Number(_), "number")
                | (Kind::Bool(_), "boolean")
                | (Kind::List(_), "array")
        );
        if !is_of_type {
            let message = format!("the input is of type {}, the value is {}", self.of_type, value.describe());
            findings.add(value.place.error_of(Class::Type, message).with_path(path));
            return;
        }
        if let Some(options) = self.node.get("options") {
            self.check_options(options, value, path, findings);
        }
        if let Some(expression) = self.node.get("regex") {
            self.check_regex(expression, value, path, findings);
        }
    }

    fn check_options(&self, options: &Node, value: &Node, path: &str, findings: &mut Findings) {
        let Kind::List(items) = &options.kind else {
            findings.expected(options, &join(self.path, "options"), "a list");
            return;
        };
        if !items.iter().any(|option| same(option, value)) {
            let shown: Vec<String> = items.iter().take(20).filter_map(scalar_text).collect();
            findings.add(
                (value.place.error_of(Class::Type, "the value is none of the options"))
                    .with_path(path)
                    .with_help(format!("write one of {}", quote(&shown.join(", ")))),
            );
        }
    }

    fn check_regex(&self, expression: &Node, value: &Node, path: &str, findings: &mut Findings) {
        let own = join(self.path, "regex");
        let Some(pattern) = findings.text(expression, &own) else { return };
        if self.of_type != "string" {
            findings.error(&expression.place, &own, "\"regex\" is for inputs of type string only");
            return;
        }
        match pattern::regex(&pattern, "") {
            Err(message) => findings.error(&expression.place, &own, message),
            Ok(regex) => {
                let fits = scalar_text(value).is_some_and(|text| regex.is_match(&text));
                if !fits {
                    let message = format!("the value does not match \"{}\"", quote(&pattern));
                    findings.add(value.place.error_of(Class::Type, message).with_path(path));
                }
            }
        }
    }
}

/// Returns a scalar as text.
pub(super) fn scalar_text(node: &Node) -> Option<String> {
    match &node.kind {
        Kind::Text(text) => Some(text.to_string()),
        Kind::Number(number) => Some(number.value.to_string()),
        Kind::Bool(plain) => Some(plain.value.to_string()),
        _ => None,
    }
}

fn same(a: &Node, b: &Node) -> bool {
    std::mem::discriminant(&a.kind) == std::mem::discriminant(&b.kind)
        && match (&a.kind, &b.kind) {
            (Kind::List(a), Kind::List(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
            }
            _ => scalar_text(a) == scalar_text(b),
        }
}

/// Returns an array as text, in the form of JSON.
pub(super) fn array_text(node: &Node) -> Option<String> {
    let Kind::List(items) = &node.kind else { return None };
    let items: Option<Vec<String>> = items
        .iter()
        .map(|item| match &item.kind {
            Kind::Text(text) => Some(serde_json::Value::from(&**text).to_string()),
            Kind::List(_) => array_text(item),
            _ => scalar_text(item),
        })
        .collect();
    items.map(|items| format!("[{}]", items.join(", ")))
}
