//! The first document: the interface (language.md §3).

use indexmap::IndexMap;
use step_runner_model::text;

use super::checker::{Checker, UnknownKey, join};
use crate::ast::{Declaration, Outputs, Spec};
use crate::diagnostic::Class;
use crate::template::OPEN;
use crate::value::{Data, Value, ValueType};
use crate::yaml::{NodeKind, YamlKey, YamlNode};

pub(crate) const DECLARATION_KEYS: [&str; 4] = ["type", "default", "sensitive", "description"];

impl Checker<'_> {
    /// Reads the first document.
    pub(super) fn spec_document(&mut self, node: &YamlNode) -> Spec {
        let mut spec = Spec::default();
        for entry in self.mapping(node, "").unwrap_or_default() {
            if entry.key.text == "spec" {
                spec = self.spec(&entry.value);
            } else {
                self.unknown_key(&entry.key, "", &["spec"], UnknownKey::Refuse);
            }
        }
        spec
    }

    fn spec(&mut self, node: &YamlNode) -> Spec {
        let mut spec = Spec::default();
        for entry in self.mapping_or_null(node, "spec") {
            match entry.key.text.as_str() {
                "inputs" => spec.inputs = self.declarations(&entry.value, "input", "spec.inputs"),
                "outputs" => spec.outputs = self.declared_outputs(&entry.value),
                "description" => {}
                _ => self.unknown_key(
                    &entry.key,
                    "spec",
                    &["inputs", "outputs", "description"],
                    UnknownKey::Warn,
                ),
            }
        }
        spec
    }

    fn declared_outputs(&mut self, node: &YamlNode) -> Outputs {
        const PATH: &str = "spec.outputs";
        match &node.kind {
            NodeKind::Scalar(scalar) if scalar.text == "delegate" => Outputs::Delegate,
            NodeKind::Mapping(_) => Outputs::Declared(self.declarations(node, "output", PATH)),
            _ if node.is_null() => Outputs::default(),
            _ => {
                self.wrong_type(node, PATH, "a mapping or the word \"delegate\"");
                Outputs::default()
            }
        }
    }

    fn declarations(&mut self, node: &YamlNode, what: &str, path: &str) -> IndexMap<String, Declaration> {
        let mut declarations = IndexMap::new();
        for entry in self.mapping_or_null(node, path) {
            let path = join(path, &entry.key.text);
            let valid = self.name_key(&entry.key, what, &path);
            if let Some(declaration) = self.declaration(&entry.key, &entry.value, what, &path)
                && valid
            {
                declarations.insert(entry.key.text.clone(), declaration);
            }
        }
        declarations
    }

    fn declaration(&mut self, key: &YamlKey, node: &YamlNode, what: &str, path: &str) -> Option<Declaration> {
        let entries = self.mapping(node, path)?;
        let mut value_type = None;
        let mut default = None;
        let mut sensitive = false;
        let mut typed = false;
        for entry in entries {
            let field = join(path, &entry.key.text);
            match entry.key.text.as_str() {
                "type" => {
                    typed = true;
                    value_type = self.value_type(&entry.value, &field);
                }
                "default" => default = self.value(&entry.value, &field).map(|value| (value, &entry.value)),
                "sensitive" => sensitive = self.boolean(&entry.value, &field).unwrap_or_default(),
                "description" => {}
                "additionalProperties" if what == "input" => {}
                _ => self.unknown_key(&entry.key, path, &DECLARATION_KEYS, UnknownKey::Warn),
            }
        }
        if !typed && !self.is_misspelt(entries, &DECLARATION_KEYS, &["type"]) {
            self.error_with_help(
                Class::Schema,
                key.at,
                path,
                "\"type\" is missing",
                "one of string, number, boolean, array, struct",
            );
        }
        let value_type = value_type?;
        let default =
            default.and_then(|(value, node)| self.default(value, node, value_type, what, &key.text, path));
        Some(Declaration { value_type, default, sensitive, at: key.at })
    }

    fn value_type(&mut self, node: &YamlNode, path: &str) -> Option<ValueType> {
        let text = self.string(node, path)?;
        let found =
            [ValueType::String, ValueType::Number, ValueType::Boolean, ValueType::Array, ValueType::Struct]
                .into_iter()
                .find(|value_type| value_type.name() == text);
        if found.is_none() {
            let message = format!("unknown type \"{}\"", text::quote(text));
            let help = match text.to_lowercase().as_str() {
                "step_result" => "use \"outputs: delegate\"",
                "string" | "raw_string" | "str" | "text" => "use string",
                "number" | "int" | "integer" | "float" | "double" => "use number",
                "boolean" | "bool" => "use boolean",
                "array" | "list" | "sequence" => "use array",
                "struct" | "object" | "map" | "dict" | "mapping" | "hash" => "use struct",
                _ => "one of string, number, boolean, array, struct",
            };
            self.error_with_help(Class::Schema, node.at, path, &message, help);
        }
        found
    }

    fn default(
        &mut self,
        value: Value,
        node: &YamlNode,
        expected: ValueType,
        what: &str,
        name: &str,
        path: &str,
    ) -> Option<Value> {
        let path = join(path, "default");
        if value.data == Data::Null {
            let message = format!("null is no default: the {what} \"{name}\" stays required");
            self.warning(Class::Schema, node.at, &path, message);
            return None;
        }
        if value.value_type() != Some(expected) {
            let message =
                format!("default of {what} \"{name}\": expected {expected}, got {}", value.type_name());
            match instead(&value, expected) {
                Some(help) => self.error_with_help(Class::Type, node.at, &path, &message, help),
                None => self.error(Class::Type, node.at, &path, message),
            }
            return None;
        }
        if holds_expression(&value) {
            let message = "defaults are not evaluated: \"${{\" in it is plain text";
            self.warning(Class::Schema, node.at, &path, message);
        }
        Some(value)
    }
}

/// Suggests a correction for a default of the wrong type.
fn instead(value: &Value, expected: ValueType) -> Option<&'static str> {
    match (&value.data, expected) {
        (Data::String(text), ValueType::Boolean) => match text.to_lowercase().as_str() {
            "yes" | "on" | "y" | "true" | "1" => Some("write true"),
            "no" | "off" | "n" | "false" | "0" => Some("write false"),
            _ => None,
        },
        (Data::String(text), ValueType::Number) if text.parse::<f64>().is_ok() => {
            Some("write it without quotes")
        }
        (Data::Number(_) | Data::Bool(_), ValueType::String) => Some("put it in quotes"),
        _ => None,
    }
}

/// True if a text at any depth looks like a template.
fn holds_expression(value: &Value) -> bool {
    match &value.data {
        Data::String(text) => text.contains(OPEN),
        Data::Array(items) => items.iter().any(holds_expression),
        Data::Object(members) => members.values().any(holds_expression),
        Data::Null | Data::Bool(_) | Data::Number(_) => false,
    }
}
