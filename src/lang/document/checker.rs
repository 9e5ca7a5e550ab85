//! What all checks of a document share: the source, what was found so far, and the reading of fields.

use std::sync::Arc;

use crate::lang::ast::Template;
use crate::lang::diagnostic::{Class, Diagnostic, Position, Severity};
use crate::lang::name;
use crate::lang::template;
use crate::lang::value::{Data, Value};
use crate::lang::yaml::places::Places;
use crate::lang::yaml::scalar::{Resolved, resolve};
use crate::lang::yaml::{Entry, Key, Node, NodeKind, Source};

/// Collects everything that is wrong with a document, so that one mistake never hides another.
pub(super) struct Checker<'t> {
    pub(super) source: Source<'t>,
    /// What becomes of unknown keys where a run only warns.
    pub(super) unknown: UnknownKey,
    pub(super) diagnostics: Vec<Diagnostic>,
    /// Errors and warnings kept.
    pub(super) kept: [usize; 2],
    /// Bytes of expressions that may still follow.
    pub(super) expressions_left: usize,
}

/// Most errors, and most warnings, that are kept of one document.
const FINDINGS_LIMIT: usize = 1_000;

/// What to do with a key that is not known (language.md §2 "Unknown keys").
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownKey {
    Refuse,
    Warn,
}

impl Checker<'_> {
    pub(super) fn error(&mut self, class: Class, at: Position, path: &str, message: impl Into<String>) {
        self.report(Diagnostic::error(class, &self.source.file, at, message).with_path(path));
    }

    /// Keeps a finding; of a hostile number of them the first.
    fn report(&mut self, finding: Diagnostic) {
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

    /// A key that is not among `known`.
    pub(super) fn unknown_key(&mut self, key: &Key, path: &str, known: &[&str], policy: UnknownKey) {
        let message = format!("unknown key \"{}\"", name::shown(&key.text));
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

    /// A key that other systems have and this language has not; `help` says what there is instead.
    pub(super) fn foreign_key(&mut self, key: &Key, path: &str, help: &str) {
        let message = format!("unknown key \"{}\"", name::shown(&key.text));
        self.error_with_help(Class::Schema, key.at, &join(path, &key.text), &message, help);
    }

    /// Whether an unknown one of `entries` was meant as one of the `wanted` keys, which are missing. It has been reported;
    /// that is the error then, whatever else an unknown key is, and tells more than that the other is missing.
    pub(super) fn is_misspelt(&mut self, entries: &[Entry], known: &[&str], wanted: &[&str]) -> bool {
        let is_slip = |entry: &&Entry| {
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

    /// Entries of a mapping; anything else is an error.
    pub(super) fn mapping<'n>(&mut self, node: &'n Node, path: &str) -> Option<&'n [Entry]> {
        if let NodeKind::Mapping(entries) = &node.kind {
            return Some(entries);
        }
        self.wrong_type(node, path, "a mapping");
        None
    }

    /// Entries of a mapping; null is an empty one.
    pub(super) fn mapping_or_null<'n>(&mut self, node: &'n Node, path: &str) -> &'n [Entry] {
        if node.is_null() { &[] } else { self.mapping(node, path).unwrap_or_default() }
    }

    pub(super) fn wrong_type(&mut self, node: &Node, path: &str, expected: &str) {
        self.error(Class::Schema, node.at, path, format!("expected {expected}, got {}", node.describe()));
    }

    /// Text of a field that must be a string: numbers and booleans as they are written (language.md §2).
    pub(super) fn string<'n>(&mut self, node: &'n Node, path: &str) -> Option<&'n str> {
        if let NodeKind::Scalar(scalar) = &node.kind
            && !node.is_null()
        {
            return Some(&scalar.text);
        }
        self.wrong_type(node, path, "a string");
        None
    }

    pub(super) fn boolean(&mut self, node: &Node, path: &str) -> Option<bool> {
        if let NodeKind::Scalar(scalar) = &node.kind
            && let Resolved::Bool(truth) = resolve(scalar)
        {
            return Some(truth);
        }
        self.wrong_type(node, path, "true or false");
        None
    }

    /// A string field as template.
    pub(super) fn template(&mut self, node: &Node, path: &str) -> Option<Template> {
        self.string(node, path)?;
        self.scalar_template(node, path)
    }

    /// An environment value: as [`Self::template`], but null is the empty text.
    pub(super) fn env_value(&mut self, node: &Node, path: &str) -> Option<Template> {
        if node.is_null() {
            return Some(Template::literal("", &self.source.file, node.at));
        }
        self.template(node, path)
    }

    /// The template in a scalar.
    pub(super) fn scalar_template(&mut self, node: &Node, path: &str) -> Option<Template> {
        let NodeKind::Scalar(scalar) = &node.kind else { return None };
        let source = &self.source;
        let places = || Places::of_scalar(source, &scalar.raw, scalar.style, node.at, &scalar.text);
        let left = &mut self.expressions_left;
        let parsed = template::parse(&scalar.text, &source.file, node.at, places, left);
        self.accept(parsed, path)
    }

    /// A key that may be a template; without expression it must be a valid name.
    pub(super) fn key_template(&mut self, key: &Key, what: &str, path: &str) -> Option<Template> {
        let source = &self.source;
        let places = || Places::of_scalar(source, &key.raw, key.style, key.at, &key.text);
        let left = &mut self.expressions_left;
        let parsed = template::parse(&key.text, &source.file, key.at, places, left);
        let template = self.accept(parsed, path)?;
        match template.as_literal() {
            Some(name) if !name::is_valid(name) => {
                self.error(Class::Name, key.at, path, name::complaint(what, name));
                None
            }
            _ => Some(template),
        }
    }

    /// Whether a key is a valid name.
    pub(super) fn name_key(&mut self, key: &Key, what: &str, path: &str) -> bool {
        let valid = name::is_valid(&key.text);
        if !valid {
            self.error(Class::Name, key.at, path, name::complaint(what, &key.text));
        }
        valid
    }

    /// Keeps an error with its path.
    pub(super) fn accept<T>(&mut self, result: Result<T, Diagnostic>, path: &str) -> Option<T> {
        result.map_err(|error| self.report(error.with_path(path))).ok()
    }

    /// The value of a node, never evaluated.
    pub(super) fn value(&mut self, node: &Node, path: &str) -> Option<Value> {
        let data = match &node.kind {
            NodeKind::Scalar(scalar) => match resolve(scalar) {
                Resolved::Null => Data::Null,
                Resolved::Bool(truth) => Data::Bool(truth),
                Resolved::Number(number) => Data::Number(number),
                Resolved::Text => Data::String(scalar.text.clone()),
                Resolved::OutOfRange => {
                    self.error(Class::Type, node.at, path, "number beyond the range of doubles");
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
                Data::Object(members.into_iter().collect::<Option<_>>()?)
            }
        };
        Some(Value::plain(data))
    }

    /// Name of the document.
    pub(super) fn file(&self) -> &Arc<str> {
        &self.source.file
    }
}

/// Path of a member.
pub(super) fn join(path: &str, key: &str) -> String {
    let key = name::shown(key);
    if path.is_empty() { key.into_owned() } else { format!("{path}.{key}") }
}

/// Path of an element.
pub(super) fn at_index(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}
