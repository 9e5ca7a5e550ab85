//! Reads function files and the documents of requests: two YAML documents, checked as far as one file alone allows
//! (language.md §2–§6, service.md §3.1).
//!
//! The stages of the check (YAML, interface, implementation, each step, each template) do not stop each other, so all
//! errors of a text are found at once.

mod checker;
pub(super) mod definition;
mod duration;
pub(super) mod flow;
mod foreign;
pub(super) mod reference;
mod silence;
pub(super) mod spec;
pub(super) mod step;

use std::sync::Arc;

use indexmap::IndexMap;

use super::ast::{Body, Definition, Function, Run, Spec};
use super::diagnostic::{Class, Diagnostic, Position, Severity};
use super::injection;
use super::template::EXPRESSIONS_LIMIT;
use super::value::{Data, Value};
use super::yaml::scalar::{self, Resolved};
use super::yaml::{self, NodeKind, Source, YamlEntry, YamlNode};
use checker::{Checker, UnknownKey};

/// Largest definition file in bytes (language.md §6).
pub(crate) const FILE_LIMIT: usize = 1024 * 1024;
/// Largest text of a request in bytes (language.md §6).
pub const REQUEST_LIMIT: usize = 16 * 1024 * 1024;
/// Maximum number of steps in one list (language.md §6).
pub const STEP_LIMIT: usize = 1_000;
/// Deepest nesting of calls. The steps of the job's own list have depth 1 (language.md §6).
pub const CALL_LIMIT: usize = 64;

/// Name in messages of a document without a name.
const UNNAMED: &str = "<steps>";

/// Result of the check of one text.
#[derive(Debug)]
pub struct Checked {
    /// The function as far as it could be read, without its broken parts. `None` if no implementation could be read.
    pub function: Option<Function>,
    /// All errors and warnings, sorted by place.
    pub diagnostics: Vec<Diagnostic>,
}

impl Checked {
    /// True if there are no errors, so no part of the function is missing.
    pub fn is_whole(&self) -> bool {
        !self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// True if no part of the function is missing. An output of a wrong type is an error but stays in the function.
    pub fn is_complete(&self) -> bool {
        let is_kept =
            |finding: &Diagnostic| finding.class == Class::Type && finding.path.starts_with("outputs.");
        let mut errors = self.diagnostics.iter().filter(|finding| finding.severity == Severity::Error);
        errors.all(is_kept)
    }
}

/// Reads a definition file, which is two documents. `file` is its name in messages; empty stands for `<steps>`. Returns
/// the function with its warnings, or all errors sorted by place and then the warnings.
pub fn parse_function(text: &str, file: &str) -> Result<Function, Vec<Diagnostic>> {
    usable(read_function(text, file, UnknownKey::Warn))
}

/// Checks what [`parse_function`] reads, more strictly: unknown keys are errors everywhere (language.md §2).
pub fn check_function(text: &str, file: &str) -> Checked {
    read_function(text, file, UnknownKey::Refuse)
}

/// Reads the document of a request: two documents, or one mapping (a definition or a step), or one list (a `run` list),
/// as YAML or JSON (service.md §3.1). `file` and the result are as for [`parse_function`].
pub fn parse_request(text: &str, file: &str) -> Result<Function, Vec<Diagnostic>> {
    usable(read_request(text, file, UnknownKey::Warn))
}

/// Checks what [`parse_request`] reads, more strictly: unknown keys are errors everywhere (language.md §2).
pub fn check_request(text: &str, file: &str) -> Checked {
    read_request(text, file, UnknownKey::Refuse)
}

fn read_function(text: &str, file: &str, unknown: UnknownKey) -> Checked {
    let file = named(file);
    if text.len() > FILE_LIMIT {
        return too_large(&file, "definition file larger than 1 MiB");
    }
    let (mut checker, documents, end) = read(text, &file, unknown);
    let (spec, definition) = match documents.as_slice() {
        [Some(only)] if checker.is_foreign(only) => (Spec::default(), None),
        [Some(only)] if !is_interface(only) => {
            interface_missing(&mut checker, only);
            (Spec::default(), None)
        }
        [] => {
            checker.error(
                Class::Missing,
                end,
                "",
                "the file is empty: expected two documents separated by ---",
            );
            (Spec::default(), None)
        }
        [spec] => {
            // A syntax error in the first document can swallow the second.
            if let Some(spec) = spec {
                checker.spec_document(spec);
                definition_missing(&mut checker, end);
            }
            (Spec::default(), None)
        }
        [spec, definition, ..] => both(&mut checker, spec.as_ref(), definition.as_ref()),
    };
    finish(checker, file, spec, definition)
}

fn read_request(text: &str, file: &str, unknown: UnknownKey) -> Checked {
    let file = named(file);
    if text.len() > REQUEST_LIMIT {
        return too_large(&file, "request larger than 16 MiB");
    }
    let (mut checker, documents, end) = read(text, &file, unknown);
    // A list is a `run` list. The YAML reader does not know that.
    for finding in checker.diagnostics.iter_mut().filter(|finding| finding.path.starts_with('[')) {
        finding.path.insert_str(0, "run");
    }
    let (spec, definition) = match documents.as_slice() {
        [] => {
            checker.error(Class::Missing, end, "", "no steps: the text is empty");
            (Spec::default(), None)
        }
        [only] => (Spec::default(), only.as_ref().and_then(|only| single(&mut checker, only, end))),
        [spec, definition, ..] => both(&mut checker, spec.as_ref(), definition.as_ref()),
    };
    finish(checker, file, spec, definition)
}

/// True if `text` may be much shorter than the document that it stands for: aliases repeat parts of it. May be wrong for a
/// text without them, never for one with.
pub fn may_unfold(text: &str) -> bool {
    // An alias is a word that begins with `*`. Words end at blanks and at the marks of collections.
    let mut before = b' ';
    text.bytes().any(|byte| {
        let begins = before.is_ascii_whitespace() || b"[]{},:-?".contains(&before);
        before = byte;
        byte == b'*' && begins
    })
}

/// Reads one YAML value, such as an input on a command line, without evaluating anything. Empty text is null, and a second
/// document is an error.
pub fn parse_value(text: &str) -> Result<Value, Vec<Diagnostic>> {
    let (mut checker, documents, _) = read(text, &Arc::from(UNNAMED), UnknownKey::Warn);
    let value = match documents.as_slice() {
        [node] => node.as_ref().and_then(|node| checker.value(node, "")),
        [] => Some(Value::plain(Data::Null)),
        _ => None,
    };
    match value {
        Some(value) if !checker.has_errors() => Ok(value),
        _ => Err(checker.diagnostics),
    }
}

/// True if YAML takes a text without quotes for a number, even for one beyond the range of doubles.
pub fn is_number(text: &str) -> bool {
    matches!(scalar::plain(text), Resolved::Number(_) | Resolved::OutOfRange)
}

fn named(file: &str) -> Arc<str> {
    Arc::from(if file.is_empty() { UNNAMED } else { file })
}

fn too_large(file: &Arc<str>, message: &str) -> Checked {
    let diagnostics = vec![Diagnostic::error(Class::Limit, file, Position::START, message)];
    Checked { function: None, diagnostics }
}

fn read<'t>(
    text: &'t str,
    file: &Arc<str>,
    unknown: UnknownKey,
) -> (Checker<'t>, Vec<Option<YamlNode>>, Position) {
    let source = Source { file: Arc::clone(file), text };
    let stream = yaml::read(&source, 2);
    let kept = [stream.diagnostics.len(), 0];
    let mut checker = Checker {
        source,
        unknown,
        diagnostics: stream.diagnostics,
        kept,
        expressions_left: EXPRESSIONS_LIMIT,
        nested_str: 0,
    };
    if let Some(at) = stream.next {
        // A run ignores a third document, which its author may not know (language.md §2).
        let message =
            "a third document is not looked at: a function has two, its interface and its implementation";
        checker.warning(Class::Schema, at, "", message);
    }
    (checker, stream.documents, stream.end)
}

/// Reads interface and implementation. A broken interface does not stop the check of the implementation.
fn both(
    checker: &mut Checker<'_>,
    spec: Option<&YamlNode>,
    definition: Option<&YamlNode>,
) -> (Spec, Option<Definition>) {
    let spec = spec.map(|spec| checker.spec_document(spec)).unwrap_or_default();
    let definition = definition.and_then(|definition| checker.definition(definition, &spec));
    (spec, definition)
}

/// Reads the only document of a request: a `run` list, one step, or a definition.
fn single(checker: &mut Checker<'_>, node: &YamlNode, end: Position) -> Option<Definition> {
    let list = |steps| Definition {
        env: IndexMap::new(),
        body: Body::Run(Run { steps, outputs: IndexMap::new(), delegate: None }),
    };
    match &node.kind {
        NodeKind::Sequence(_) => checker.steps(node).map(list),
        NodeKind::Mapping(_) if is_step(node) => Some(list(checker.lone_step(node))),
        NodeKind::Mapping(entries) if entries.iter().all(|entry| entry.key.text == "spec") => {
            checker.spec_document(node);
            definition_missing(checker, end);
            None
        }
        NodeKind::Scalar(_) => {
            let message = format!("expected a list of steps or a mapping, got {}", node.describe());
            let help = "write a list of steps, such as `- {name: hello, script: echo hello}`";
            checker.error_with_help(Class::Schema, node.at, "", &message, help);
            None
        }
        NodeKind::Mapping(_) => checker.definition(node, &Spec::default()),
    }
}

/// True if the only document of a request is a step: it names what is called, and has no key of a definition alone.
pub fn is_step(node: &YamlNode) -> bool {
    let NodeKind::Mapping(entries) = &node.kind else { return false };
    let has = |known: &[&str]| entries.iter().any(|entry| known.contains(&entry.key.text.as_str()));
    has(&step::INVOCATIONS) && !has(&["spec", "exec", "run", "steps", "outputs", "delegate"])
}

/// True if the only document of a definition file looks like an interface.
fn is_interface(node: &YamlNode) -> bool {
    let is_of = |known: &[&str], entry: &YamlEntry| known.contains(&entry.key.text.as_str());
    match &node.kind {
        NodeKind::Sequence(_) => false,
        NodeKind::Mapping(entries) => {
            entries.iter().any(|entry| is_of(&["spec"], entry))
                || !entries.iter().any(|entry| is_of(&definition::KEYS, entry))
        }
        NodeKind::Scalar(_) => true,
    }
}

/// Reports a steps document in place of a definition file.
fn interface_missing(checker: &mut Checker<'_>, node: &YamlNode) {
    let message = "the interface is missing: begin with \"spec:\" and \"---\"";
    if matches!(node.kind, NodeKind::Sequence(_)) {
        checker.error_with_help(Class::Schema, node.at, "", message, "and put the list below \"run:\"");
    } else {
        checker.error(Class::Schema, node.at, "", message);
    }
}

fn definition_missing(checker: &mut Checker<'_>, end: Position) {
    checker.error(Class::Missing, end, "", "definition missing: expected a second document after ---");
}

fn finish(mut checker: Checker<'_>, file: Arc<str>, spec: Spec, definition: Option<Definition>) -> Checked {
    let expressions = EXPRESSIONS_LIMIT.saturating_sub(checker.expressions_left);
    let (warnings, nested_str) = (Vec::new(), checker.nested_str);
    let function =
        definition.map(|definition| Function { file, spec, definition, warnings, expressions, nested_str });
    // Only a check warns: the function of a run can be of any age.
    if let (Some(function), UnknownKey::Refuse) = (&function, checker.unknown) {
        for finding in injection::findings(function) {
            checker.report(finding);
        }
    }
    let mut diagnostics = checker.diagnostics;
    silence::filter(checker.source.text, &mut diagnostics);
    diagnostics.sort_by(|a, b| (a.at, &a.path).cmp(&(b.at, &b.path)));
    // A mistake repeated by an alias is reported once.
    diagnostics.dedup_by(|a, b| a.at == b.at && a.class == b.class && a.message == b.message);
    Checked { function, diagnostics }
}

/// Returns a function that can run, with its warnings, or else the errors and then the warnings.
fn usable(mut checked: Checked) -> Result<Function, Vec<Diagnostic>> {
    let whole = checked.is_whole();
    match checked.function.take() {
        Some(function) if whole => Ok(Function { warnings: checked.diagnostics, ..function }),
        _ => {
            checked.diagnostics.sort_by_key(|diagnostic| diagnostic.severity == Severity::Warning);
            Err(checked.diagnostics)
        }
    }
}

#[cfg(test)]
mod tests;
