//! Which texts must be masked because the language says that they are sensitive (language.md §9.6, §11.5).
//!
//! The language has no way to take a text apart: a text derived from a sensitive one holds it as it is, or quoted as
//! JSON, and is masked by it. Such derived texts are left out: a script with one secret in it would otherwise be masked
//! as a whole, and each of its lines wherever it is printed (masking.md §2, "lines").

use std::collections::BTreeSet;

use indexmap::IndexMap;

use crate::lang::ast::{Body, Function, Invocation};
use crate::lang::convert::number_to_text;
use crate::lang::reference;
use crate::lang::value::{Data, Text, Value};

/// Sensitive texts of a job that are known, and those not yet handed to the masking.
#[derive(Default)]
pub struct Secrets {
    known: BTreeSet<String>,
    fresh: Vec<Vec<u8>>,
}

impl Secrets {
    /// Takes note of a value that was declared sensitive: all of its texts and numbers.
    pub fn note_declared(&mut self, value: &Value) {
        for_each_leaf(value, true, &mut |text| self.insert(text));
    }

    /// Takes note of what is sensitive in an evaluated value. `vars` are the job's variables: masked ones are phrases
    /// already.
    pub fn note_derived(&mut self, value: &Value, vars: &IndexMap<String, Value>) {
        if value.is_sensitive() {
            for_each_leaf(value, false, &mut |text| self.insert_unless_covered(text, vars));
        }
    }

    /// The same for a text.
    pub fn note_text(&mut self, text: &Text, vars: &IndexMap<String, Value>) {
        if text.sensitive {
            self.insert_unless_covered(&text.text, vars);
        }
    }

    /// Takes note of the credentials written in the references of a function: results hold its definition, also the
    /// steps that never begin (language.md §16).
    pub fn note_references(&mut self, function: &Function) {
        let Body::Run(run) = &function.definition.body else { return };
        for step in &run.steps {
            if let Invocation::Reference(reference, _) = &step.invokes
                && let Some(secret) = reference::credential(reference)
            {
                self.note_url_part(secret);
            }
        }
    }

    /// Takes note of a part of a URL, which may be percent-encoded.
    pub fn note_url_part(&mut self, part: &str) {
        self.insert(part);
        if let Ok(decoded) = percent_encoding::percent_decode_str(part).decode_utf8() {
            self.insert(&decoded);
        }
    }

    /// What the masking has not been told yet.
    pub fn take_fresh(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.fresh)
    }

    fn insert_unless_covered(&mut self, text: &str, vars: &IndexMap<String, Value>) {
        let masked = vars.values().filter(|value| value.sensitive).filter_map(|value| match &value.data {
            Data::String(secret) => Some(secret.as_str()),
            _ => None,
        });
        let (mut covered, mut quoted) = (false, Vec::new());
        for secret in masked.chain(self.known.iter().map(String::as_str)) {
            if secret.trim().is_empty() {
                continue;
            }
            covered |= text.contains(secret);
            quoted.extend(quoted_otherwise(secret).filter(|quoted| text.contains(quoted)));
        }
        if !covered && quoted.is_empty() {
            self.insert(text);
        }
        // Short secrets have no forms, and the setting `mask_forms` may say that none has (masking.md §2).
        for quoted in &quoted {
            self.insert(quoted);
        }
    }

    fn insert(&mut self, text: &str) {
        if !text.trim().is_empty() && self.known.insert(text.to_owned()) {
            self.fresh.push(text.as_bytes().to_vec());
        }
    }
}

/// Visits the sensitive texts and numbers in `value`; of truth values and null nothing can be hidden.
fn for_each_leaf(value: &Value, all: bool, visit: &mut impl FnMut(&str)) {
    let sensitive = all || value.sensitive;
    match &value.data {
        Data::String(text) if sensitive => visit(text),
        Data::Number(number) if sensitive => visit(&number_to_text(*number)),
        Data::Array(items) => items.iter().for_each(|item| for_each_leaf(item, sensitive, visit)),
        Data::Object(members) => members.values().for_each(|member| for_each_leaf(member, sensitive, visit)),
        Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => {}
    }
}

/// `secret` as it stands inside a JSON string, if that is another text.
fn quoted_otherwise(secret: &str) -> Option<String> {
    if !secret.bytes().any(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        return None;
    }
    let quoted = serde_json::to_string(secret).ok()?;
    Some(quoted.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Value {
        Value { data: Data::String(text.into()), sensitive: true }
    }

    fn taken(secrets: &mut Secrets) -> Vec<String> {
        secrets.take_fresh().into_iter().map(|bytes| String::from_utf8(bytes).unwrap()).collect()
    }

    #[test]
    fn a_part_of_a_url_is_secret_as_written_and_as_meant() {
        let mut secrets = Secrets::default();
        secrets.note_url_part("s%40cret");
        secrets.note_url_part("plain");
        assert_eq!(taken(&mut secrets), ["s%40cret", "s@cret", "plain"]);
    }

    #[test]
    fn declared_values_are_phrases_down_to_their_leaves_once() {
        let mut secrets = Secrets::default();
        let members = [
            ("a".to_owned(), Value::text("one")),
            (
                "b".to_owned(),
                Value::plain(Data::Array(vec![Value::plain(Data::Number(42.0)), Value::text("one")])),
            ),
            ("c".to_owned(), Value::plain(Data::Bool(true))),
            ("d".to_owned(), Value::text(" ")),
        ];
        secrets.note_declared(&Value::plain(Data::Object(members.into_iter().collect())));
        assert_eq!(taken(&mut secrets), ["one", "42"]);
        secrets.note_declared(&Value::text("one"));
        assert!(taken(&mut secrets).is_empty());
    }

    #[test]
    fn texts_that_hold_a_known_secret_are_no_phrases_of_their_own() {
        let vars: IndexMap<_, _> = [("T".to_owned(), secret("to\"ken"))].into_iter().collect();
        let mut secrets = Secrets::default();
        for text in ["curl -H to\"ken x", r#"{"a": "to\"ken"}"#] {
            secrets.note_text(&Text { text: text.into(), sensitive: true }, &vars);
        }
        assert_eq!(taken(&mut secrets), [r#"to\"ken"#], "only what is inside of the quotes");
        secrets.note_derived(&secret("7 of another"), &vars);
        assert_eq!(taken(&mut secrets), ["7 of another"]);
    }

    #[test]
    fn only_marked_leaves_of_a_derived_value_are_phrases() {
        let mut secrets = Secrets::default();
        let value = Value::plain(Data::Array(vec![Value::text("open"), secret("hidden")]));
        secrets.note_derived(&value, &IndexMap::new());
        assert_eq!(taken(&mut secrets), ["hidden"]);
    }
}
