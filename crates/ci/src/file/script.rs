//! `before_script`, `script`, `after_script` and `run` (ci.md §2).

use serde_json::{Map as JsonMap, Value as Json};
use step_runner_lang::diagnostic::Class;
use step_runner_lang::document::parse_request;

use crate::finding::{Findings, at_index, join};
use crate::node::{Kind, Node};

/// Maximum depth of lists in lists, as in GitLab.
const NESTING_LIMIT: usize = 10;

/// Reads a script: a text, or a list of texts and of such lists.
pub(crate) fn lines(node: &Node, path: &str, findings: &mut Findings) -> Option<Vec<String>> {
    let mut all = Vec::new();
    append(node, path, 0, &mut all, findings).then_some(all)
}

fn append(node: &Node, path: &str, depth: usize, all: &mut Vec<String>, findings: &mut Findings) -> bool {
    match &node.kind {
        Kind::Text(text) if text.contains('\0') => {
            findings.error(&node.place, path, "a command cannot hold a NUL byte");
            false
        }
        Kind::Text(text) => {
            all.push(text.to_string());
            true
        }
        Kind::List(items) if depth < NESTING_LIMIT => {
            let mut good = true;
            for (index, item) in items.iter().enumerate() {
                good &= append(item, &at_index(path, index), depth + 1, all, findings);
            }
            good
        }
        Kind::List(_) => {
            let message = format!("more than {NESTING_LIMIT} lists inside each other");
            findings.add(node.place.error_of(Class::Limit, message).with_path(path));
            false
        }
        Kind::Map(_) => {
            let help = "put a line with \": \" into quotes";
            findings.error_with_help(&node.place, path, "expected a command, this is a mapping", help);
            false
        }
        Kind::Bool(_) | Kind::Number(_) => findings.text(node, path).is_some(),
        Kind::Reference(_) => false,
        Kind::Null => {
            findings.error_with_help(&node.place, path, "expected a command, this is nothing", "remove it");
            false
        }
    }
}

/// Reads a list of steps as JSON. Steps are checked when the document is read.
pub(crate) fn steps(node: &Node, path: &str, findings: &mut Findings) -> Option<Json> {
    if !matches!(&node.kind, Kind::List(items) if !items.is_empty()) {
        findings.expected(node, path, "a list of at least one step");
        return None;
    }
    let steps = json(node, path, findings)?;
    check_steps(node, path, &steps, findings);
    Some(steps)
}

/// Reports what is wrong in steps at the step that has it. Their own positions are those of another text.
fn check_steps(node: &Node, path: &str, steps: &Json, findings: &mut Findings) {
    let Err(wrong) = parse_request(&steps.to_string(), path) else { return };
    for finding in wrong {
        let inner = finding.path.strip_prefix("run").unwrap_or_default();
        let index = inner.strip_prefix('[').and_then(|rest| rest.split(']').next()?.parse().ok());
        let step = match &node.kind {
            Kind::List(items) => index.and_then(|index: usize| items.get(index)),
            _ => None,
        };
        let place = &step.unwrap_or(node).place;
        let at_step = place.error_of(finding.class, finding.message).with_path(format!("{path}{inner}"));
        findings.add(match finding.help {
            Some(help) => at_step.with_help(help),
            None => at_step,
        });
    }
}

/// Converts a value to JSON. Its depth is bounded by the reader.
pub(crate) fn json(node: &Node, path: &str, findings: &mut Findings) -> Option<Json> {
    Some(match &node.kind {
        Kind::Null | Kind::Reference(_) => Json::Null,
        Kind::Bool(plain) => plain.value.into(),
        Kind::Number(number) => {
            if let Ok(Json::Number(number)) = serde_json::from_str(&number.value) {
                Json::Number(number)
            } else {
                findings.error(&node.place, path, "a number out of range");
                return None;
            }
        }
        Kind::Text(text) => (**text).into(),
        Kind::List(items) => {
            let items = items.iter().enumerate();
            let items = items.map(|(index, item)| json(item, &at_index(path, index), findings));
            items.collect::<Option<Vec<_>>>()?.into()
        }
        Kind::Map(map) => {
            let members = map
                .iter()
                .map(|(name, entry)| Some((name.clone(), json(&entry.value, &join(path, name), findings)?)));
            members.collect::<Option<JsonMap<_, _>>>()?.into()
        }
    })
}
