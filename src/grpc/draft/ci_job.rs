//! Reads steps and variables of a job in the syntax of CI files (service.md §5). All other keys of a CI job concern the
//! scheduler; they are refused by name.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use crate::lang::diagnostic::{Class, Diagnostic, Position, Severity};
use crate::lang::yaml::scalar::{Resolved, resolve};
use crate::lang::yaml::{self, NodeKind, Scalar, Source, YamlEntry, YamlNode};
use crate::model::{Reason, Refusal, Variable, text};

/// Name of the document in messages.
pub(super) const FILE: &str = "<ci_job>";

/// Maximum number of findings in the details of an answer (service.md §3.1).
const MAX_FINDINGS: usize = 20;

/// Maximum number of findings in the text of an answer, which shares the space for headers with the details.
const MAX_FINDINGS_IN_TEXT: usize = 8;

/// Allowed keys of a job.
const KEYS: [&str; 4] = ["run", "script", "before_script", "variables"];

/// Steps and variables of a job.
pub(super) struct Translated {
    /// Text of the steps.
    pub(super) steps: String,
    /// In the order of the job.
    pub(super) variables: Vec<Variable>,
}

/// Translates a job, or a mapping of one name to a job.
pub(super) fn translate(text: String) -> Result<Translated, Refusal> {
    let file: Arc<str> = FILE.into();
    let mut stream = yaml::read(&Source { file: Arc::clone(&file), text: &text }, 2);
    stream.diagnostics.retain(|finding| finding.severity == Severity::Error);
    let mut reader = Reader { file, findings: std::mem::take(&mut stream.diagnostics) };
    let translated = match stream.documents.as_slice() {
        [Some(job)] => reader.document(job),
        [] => reader.error(stream.end, "the text is empty: expected a mapping with run or script"),
        [None, ..] => None,
        [_, ..] => reader.error(Position::START, "expected one document"),
    };
    match translated {
        // Passing the text on unchanged keeps the positions of later findings right.
        Some(Job { is_plain_run: true, .. }) if reader.findings.is_empty() => {
            Ok(Translated { steps: text, variables: Vec::new() })
        }
        Some(Job { steps, variables, .. }) if reader.findings.is_empty() => {
            Ok(Translated { steps: json!({"run": steps}).to_string(), variables })
        }
        _ => {
            let findings = || reader.findings.iter().take(MAX_FINDINGS);
            let shown = |description: &str| text::for_people(description).into_owned();
            let told: Vec<_> = findings().take(MAX_FINDINGS_IN_TEXT).map(ToString::to_string).collect();
            Err(Refusal {
                violations: findings().map(|finding| finding.violation("ci_job", shown)).collect(),
                ..Refusal::new(Reason::MalformedSteps, told.join("\n")).about("ci_job")
            })
        }
    }
}

struct Job {
    steps: Vec<Json>,
    variables: Vec<Variable>,
    /// True if `run` is the only key of the document.
    is_plain_run: bool,
}

struct Reader {
    file: Arc<str>,
    findings: Vec<Diagnostic>,
}

impl Reader {
    fn error<T>(&mut self, at: Position, message: impl Into<String>) -> Option<T> {
        self.findings.push(Diagnostic::error(Class::Schema, &self.file, at, message));
        None
    }

    fn document(&mut self, node: &YamlNode) -> Option<Job> {
        let entries = self.mapping(node, "a job")?;
        match entries {
            [YamlEntry { key, value }]
                if !KEYS.contains(&key.text.as_str()) && matches!(value.kind, NodeKind::Mapping(_)) =>
            {
                let job = self.mapping(value, "a job")?;
                self.job(job, value.at).map(|job| Job { is_plain_run: false, ..job })
            }
            entries => self.job(entries, node.at),
        }
    }

    fn job(&mut self, entries: &[YamlEntry], at: Position) -> Option<Job> {
        for YamlEntry { key, .. } in entries {
            if !KEYS.contains(&key.text.as_str()) {
                let message = format!("unknown key {:?}: a job here has {}", key.text, KEYS.join(", "));
                self.error::<()>(key.at, message);
            }
        }
        let value =
            |name: &str| entries.iter().find(|entry| entry.key.text == name).map(|entry| &entry.value);
        let before = value("before_script").and_then(|node| self.script(node)).unwrap_or_default();
        let variables = value("variables").and_then(|node| self.variables(node)).unwrap_or_default();
        let steps = match (value("run"), value("script")) {
            (Some(run), None) => {
                let mut steps = self.steps(run)?;
                if !before.is_empty() {
                    steps.insert(0, json!({"name": "before_script", "script": before.join("\n")}));
                }
                steps
            }
            (None, Some(script)) => {
                let lines = [before, self.script(script)?].concat();
                vec![json!({"name": "script", "script": lines.join("\n")})]
            }
            (Some(_), Some(script)) => return self.error(script.at, "run and script exclude each other"),
            (None, None) => return self.error(at, "it has neither run nor script"),
        };
        let is_plain_run = matches!(entries, [only] if only.key.text == "run");
        Some(Job { steps, variables, is_plain_run })
    }

    fn mapping<'n>(&mut self, node: &'n YamlNode, what: &str) -> Option<&'n [YamlEntry]> {
        match &node.kind {
            NodeKind::Mapping(entries) => Some(entries),
            NodeKind::Scalar(_) | NodeKind::Sequence(_) => {
                self.error(node.at, format!("expected a mapping as {what}"))
            }
        }
    }

    fn steps(&mut self, node: &YamlNode) -> Option<Vec<Json>> {
        match &node.kind {
            NodeKind::Sequence(items) => items.iter().map(|item| self.json(item)).collect(),
            NodeKind::Scalar(_) | NodeKind::Mapping(_) => self.error(node.at, "expected a list of steps"),
        }
    }

    /// Reads a text, or a list of texts and of such lists.
    fn script(&mut self, node: &YamlNode) -> Option<Vec<String>> {
        match &node.kind {
            NodeKind::Scalar(scalar) if resolve(scalar) != Resolved::Null => Some(vec![scalar.text.clone()]),
            NodeKind::Sequence(items) => {
                let lines: Option<Vec<_>> = items.iter().map(|item| self.script(item)).collect();
                lines.map(|lines| lines.concat())
            }
            NodeKind::Scalar(_) | NodeKind::Mapping(_) => {
                self.error(node.at, "expected a text or a list of texts; put a line with `: ` into quotes")
            }
        }
    }

    fn variables(&mut self, node: &YamlNode) -> Option<Vec<Variable>> {
        let entries = self.mapping(node, "variables")?;
        entries.iter().map(|YamlEntry { key, value }| self.variable(&key.text, value)).collect()
    }

    fn variable(&mut self, key: &str, node: &YamlNode) -> Option<Variable> {
        let value = match &node.kind {
            NodeKind::Mapping(entries) => {
                entries.iter().find(|e| e.key.text == "value").map(|e| &e.value.kind)
            }
            kind => Some(kind),
        };
        match value {
            Some(NodeKind::Scalar(Scalar { text, .. })) => {
                Some(Variable { key: key.to_owned(), value: text.clone(), file: false, masked: false })
            }
            _ => self.error(node.at, format!("expected a text as value of variable {key:?}")),
        }
    }

    /// Converts a node to JSON. The YAML reader limits the nesting.
    fn json(&mut self, node: &YamlNode) -> Option<Json> {
        Some(match &node.kind {
            NodeKind::Scalar(scalar) => match resolve(scalar) {
                Resolved::Null => Json::Null,
                Resolved::Bool(value) => value.into(),
                Resolved::Number(number) => number.into(),
                Resolved::OutOfRange => return self.error(node.at, "a number out of range"),
                Resolved::Text => scalar.text.as_str().into(),
            },
            NodeKind::Sequence(items) => {
                items.iter().map(|item| self.json(item)).collect::<Option<Vec<_>>>()?.into()
            }
            NodeKind::Mapping(entries) => {
                let members = entries.iter().map(|e| Some((e.key.text.clone(), self.json(&e.value)?)));
                members.collect::<Option<Map<_, _>>>()?.into()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str) -> (Json, Vec<(String, String)>) {
        let Translated { steps, variables } = translate(text.to_owned()).unwrap();
        let variables = variables.into_iter().map(|v| (v.key, v.value)).collect();
        (serde_json::from_str(&steps).unwrap(), variables)
    }

    fn refused(text: &str) -> String {
        let refusal = translate(text.to_owned()).err().unwrap();
        assert_eq!(refusal.reason, Reason::MalformedSteps);
        refusal.text
    }

    #[test]
    fn scripts_are_one_step_with_what_stands_before() {
        let text = "before_script: [a, [b, c]]\nscript:\n- d\n- |\n  e\n  f\n";
        let expected = json!({"run": [{"name": "script", "script": "a\nb\nc\nd\ne\nf\n"}]});
        assert_eq!(translated(text), (expected, vec![]));
        assert_eq!(translated("script: x").0, json!({"run": [{"name": "script", "script": "x"}]}));
    }

    #[test]
    fn a_list_of_steps_stays_as_it_is() {
        let text = "run:\n- {name: a, script: x}\n";
        assert_eq!(translate(text.to_owned()).unwrap().steps, text);
    }

    #[test]
    fn a_job_may_have_a_name_and_variables() {
        let text = "build:\n  variables: {A: 1_0, B: {value: x, description: d}, C: ~}\n  before_script: b\n  \
                    run: [{name: a, func: ./f, inputs: {n: 3, on: true, l: [x, 1.5]}}]\n";
        let steps = json!({"run": [
            {"name": "before_script", "script": "b"},
            {"name": "a", "func": "./f", "inputs": {"n": 3.0, "on": true, "l": ["x", 1.5]}},
        ]});
        let variables = [("A", "1_0"), ("B", "x"), ("C", "~")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(translated(text), (steps, variables.to_vec()));
    }

    #[test]
    fn every_key_that_is_not_understood_is_named_with_its_place() {
        let text = refused("script: x\nimage: y\nrules: []\n");
        assert!(text.contains("<ci_job>:2:1: ") && text.contains("\"image\""), "{text}");
        assert!(text.contains("<ci_job>:3:1: ") && text.contains("\"rules\""), "{text}");
    }

    #[test]
    fn what_is_no_job_is_refused() {
        for text in [
            "",
            "a",
            "[]",
            "{}",
            "run: x",
            "script: {a: b}",
            "script: ~",
            "a: {run: []}\nb: {run: []}",
            "run: []\nscript: x",
            "variables: [a]\nscript: x",
            "variables: {A: [1]}\nscript: x",
            "script: x\n---\nscript: y",
            "run: [",
            "run: [.inf]",
        ] {
            assert!(!refused(text).is_empty(), "{text}");
        }
    }
}
