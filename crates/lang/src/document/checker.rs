//! The state shared by all checks of a document: source, findings and the readers of fields.

use std::sync::Arc;

use step_runner_model::text;

use crate::ast::Template;
use crate::diagnostic::{BEYOND_RANGE, Class, Diagnostic, Position, Severity};
use crate::name;
use crate::shell;
use crate::template;
use crate::value::{Data, Value};
use crate::yaml::places::Places;
use crate::yaml::scalar::{Resolved, resolve};
use crate::yaml::{NodeKind, Source, YamlEntry, YamlKey, YamlNode};

/// Collects every mistake in a document, so that one never hides another.
pub(super) struct Checker<'t> {
    pub(super) source: Source<'t>,
    /// Policy for unknown keys that a run only warns about.
    pub(super) unknown: UnknownKey,
    pub(super) diagnostics: Vec<Diagnostic>,
    /// Kept errors and warnings.
    pub(super) kept: [usize; 2],
    /// Bytes of expressions still allowed.
    pub(super) expressions_left: usize,
    /// Deepest nesting of calls of `str` in the expressions so far.
    pub(super) nested_str: u32,
}

/// Maximum number of errors, and of warnings, kept for one text: a hostile text has any number.
const FINDINGS_LIMIT: usize = 1_000;

/// Policy for an unknown key (language.md §2 "Unknown keys").
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownKey {
    Refuse,
    Warn,
}

impl Checker<'_> {
    pub(super) fn error(&mut self, class: Class, at: Position, path: &str, message: impl Into<String>) {
        self.report(Diagnostic::error(class, &self.source.file, at, message).with_path(path));
    }

    /// Keeps a finding, up to [`FINDINGS_LIMIT`].
    pub(super) fn report(&mut self, finding: Diagnostic) {
        let [errors, warnings] = &mut self.kept;
        let alike = if finding.severity == Severity::Error { errors } else { warnings };
        if *alike < FINDINGS_LIMIT {
            *alike += 1;
            self.diagnostics.push(finding);
        }
    }

    pub(super) fn error_with_help(
        &mut self,
        class: Class,
        at: Position,
        path: &str,
        message: &str,
        help: &str,
    ) {
        let error = Diagnostic::error(class, &self.source.file, at, message);
        self.report(error.with_path(path).with_help(help));
    }

    pub(super) fn warning(&mut self, class: Class, at: Position, path: &str, message: impl Into<String>) {
        self.report(Diagnostic::warning(class, &self.source.file, at, message).with_path(path));
    }

    pub(super) fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// Reports a key that is not among `known`.
    pub(super) fn unknown_key(&mut self, key: &YamlKey, path: &str, known: &[&str], policy: UnknownKey) {
        let message = format!("unknown key \"{}\"", text::quote(&key.text));
        let finding = if [policy, self.unknown].contains(&UnknownKey::Refuse) {
            Diagnostic::error(Class::Schema, &self.source.file, key.at, message)
        } else {
            Diagnostic::warning(Class::Schema, &self.source.file, key.at, message)
        };
        let mut diagnostic = finding.with_path(join(path, &key.text));
        diagnostic.help = Some(match name::suggest(&key.text, known.iter().copied()) {
            Some(similar) => format!("did you mean \"{similar}\"?"),
            None => format!("known here: {}", known.join(", ")),
        });
        self.report(diagnostic);
    }

    /// Reports a key of another system that this language does not have. `help` names the alternative.
    pub(super) fn foreign_key(&mut self, key: &YamlKey, path: &str, help: &str) {
        let message = format!("unknown key \"{}\"", text::quote(&key.text));
        self.error_with_help(Class::Schema, key.at, &join(path, &key.text), &message, help);
    }

    /// True if an unknown key among `entries` looks like one of the missing `wanted` keys. The finding about it becomes
    /// an error and stands for the missing key, because it says more.
    pub(super) fn is_misspelt(&mut self, entries: &[YamlEntry], known: &[&str], wanted: &[&str]) -> bool {
        let is_slip = |entry: &&YamlEntry| {
            let text = entry.key.text.as_str();
            !known.contains(&text)
                && name::suggest(text, known.iter().copied()).is_some_and(|meant| wanted.contains(&meant))
        };
        let Some(slip) = entries.iter().find(is_slip) else { return false };
        let finding = self.diagnostics.iter_mut().rfind(|finding| finding.at == slip.key.at);
        if let Some(finding) = finding {
            finding.severity = Severity::Error;
            return true;
        }
        false
    }

    /// Returns the entries of a mapping. Any other node is an error.
    pub(super) fn mapping<'n>(&mut self, node: &'n YamlNode, path: &str) -> Option<&'n [YamlEntry]> {
        if let NodeKind::Mapping(entries) = &node.kind {
            return Some(entries);
        }
        self.wrong_type(node, path, "a mapping");
        None
    }

    /// Returns the entries of a mapping. Null counts as an empty one.
    pub(super) fn mapping_or_null<'n>(&mut self, node: &'n YamlNode, path: &str) -> &'n [YamlEntry] {
        if node.is_null() { &[] } else { self.mapping(node, path).unwrap_or_default() }
    }

    pub(super) fn wrong_type(&mut self, node: &YamlNode, path: &str, expected: &str) {
        self.error(Class::Schema, node.at, path, format!("expected {expected}, got {}", node.describe()));
    }

    /// Returns the text of a string field. Numbers and booleans count as written (language.md §2).
    pub(super) fn string<'n>(&mut self, node: &'n YamlNode, path: &str) -> Option<&'n str> {
        if let NodeKind::Scalar(scalar) = &node.kind
            && !node.is_null()
        {
            return Some(&scalar.text);
        }
        self.wrong_type(node, path, "a string");
        None
    }

    pub(super) fn boolean(&mut self, node: &YamlNode, path: &str) -> Option<bool> {
        if let NodeKind::Scalar(scalar) = &node.kind
            && let Resolved::Bool(truth) = resolve(scalar)
        {
            return Some(truth);
        }
        self.wrong_type(node, path, "true or false");
        None
    }

    pub(super) fn template(&mut self, node: &YamlNode, path: &str) -> Option<Template> {
        self.string(node, path)?;
        self.scalar_template(node, path)
    }

    /// Parses an environment value like [`Self::template`], but null is the empty text.
    pub(super) fn env_value(&mut self, node: &YamlNode, path: &str) -> Option<Template> {
        if node.is_null() {
            return Some(Template::literal("", &self.source.file, node.at));
        }
        self.template(node, path)
    }

    pub(super) fn scalar_template(&mut self, node: &YamlNode, path: &str) -> Option<Template> {
        let NodeKind::Scalar(scalar) = &node.kind else { return None };
        let source = &self.source;
        let places = || Places::of_scalar(source, &scalar.raw, scalar.style, node.at, &scalar.text);
        let left = &mut self.expressions_left;
        let parsed = template::parse(&scalar.text, &source.file, node.at, places, left);
        let template = self.accept(parsed, path)?;
        self.nested_str = self.nested_str.max(template.nested_str());
        Some(template)
    }

    /// Parses a key that may be a template. Without an expression it must be a valid name.
    pub(super) fn key_template(&mut self, key: &YamlKey, what: &str, path: &str) -> Option<Template> {
        let source = &self.source;
        let places = || Places::of_scalar(source, &key.raw, key.style, key.at, &key.text);
        let left = &mut self.expressions_left;
        let parsed = template::parse(&key.text, &source.file, key.at, places, left);
        let template = self.accept(parsed, path)?;
        self.nested_str = self.nested_str.max(template.nested_str());
        match template.as_literal() {
            Some(name) if !name::is_valid(name) => {
                self.error(Class::Name, key.at, path, name::complaint(what, name));
                None
            }
            _ => Some(template),
        }
    }

    /// Warns of a script that goes on after a failed command. Only a check warns: a run's function can be of any age.
    pub(super) fn lost_failure(&mut self, node: &YamlNode, path: &str, help: &str) {
        let NodeKind::Scalar(scalar) = &node.kind else { return };
        if self.unknown == UnknownKey::Warn {
            return;
        }
        let Some(offset) = shell::lost_failure(&scalar.text) else { return };
        let places = Places::of_scalar(&self.source, &scalar.raw, scalar.style, node.at, &scalar.text);
        let message = "the script goes on if this line fails, and the step can succeed all the same";
        let finding =
            Diagnostic::warning(Class::Shell, &self.source.file, places.at(&scalar.text, offset), message);
        self.report(finding.with_path(path).with_help(help));
    }

    /// Reports a key that is not a valid name. Returns true if it is valid.
    pub(super) fn name_key(&mut self, key: &YamlKey, what: &str, path: &str) -> bool {
        let valid = name::is_valid(&key.text);
        if !valid {
            self.error(Class::Name, key.at, path, name::complaint(what, &key.text));
        }
        valid
    }

    pub(super) fn accept<T>(&mut self, result: Result<T, Diagnostic>, path: &str) -> Option<T> {
        result.map_err(|error| self.report(error.with_path(path))).ok()
    }

    /// Returns the value of a node without evaluating anything.
    pub(super) fn value(&mut self, node: &YamlNode, path: &str) -> Option<Value> {
        let data = match &node.kind {
            NodeKind::Scalar(scalar) => match resolve(scalar) {
                Resolved::Null => Data::Null,
                Resolved::Bool(truth) => Data::Bool(truth),
                Resolved::Number(number) => Data::Number(number),
                Resolved::Text => Data::String(scalar.text.clone()),
                Resolved::OutOfRange => {
                    let help = "put it in quotes if it is text";
                    self.error_with_help(Class::Type, node.at, path, BEYOND_RANGE, help);
                    return None;
                }
            },
            NodeKind::Sequence(items) => {
                let items: Vec<Option<Value>> = items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| self.value(item, &at_index(path, index)))
                    .collect();
                Data::Array(items.into_iter().collect::<Option<_>>()?)
            }
            NodeKind::Mapping(entries) => {
                let members: Vec<Option<(String, Value)>> = entries
                    .iter()
                    .map(|entry| {
                        let value = self.value(&entry.value, &join(path, &entry.key.text))?;
                        Some((entry.key.text.clone(), value))
                    })
                    .collect();
                Data::Object(Arc::new(members.into_iter().collect::<Option<_>>()?))
            }
        };
        Some(Value::plain(data))
    }

    pub(super) fn file(&self) -> &Arc<str> {
        &self.source.file
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    let key = text::quote(key);
    if path.is_empty() { key.into_owned() } else { format!("{path}.{key}") }
}

pub(super) fn at_index(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}
