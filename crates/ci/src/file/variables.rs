//! `variables` at the top, of jobs and of rules (ci.md §2, row `variables`).

use step_runner_lang::diagnostic::Class;
use step_runner_model::text::quote;

use crate::finding::{Findings, join};
use crate::node::{Kind, Node};
use crate::variables::{Defined, Level};

/// The place of the variables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// The top of the file: `description` and `options`, too.
    Top,
    /// A job or a rule.
    Job,
}

/// Reads a mapping of variables.
pub(crate) fn read(node: &Node, path: &str, of: Of, findings: &mut Findings) -> Level {
    let mut level = Level::new();
    let Some(map) = findings.any_mapping(node, path) else { return level };
    for (name, entry) in map {
        let path = join(path, name);
        if name.is_empty() || name.contains(['=', '\0']) {
            let message = format!("\"{}\" cannot be the name of a variable", quote(name));
            findings.add(entry.key.error_of(Class::Name, message).with_path(path));
            continue;
        }
        if let Some(defined) = variable(&entry.value, &path, of, findings) {
            level.insert(name.clone(), defined);
        }
    }
    level
}

fn variable(node: &Node, path: &str, of: Of, findings: &mut Findings) -> Option<Defined> {
    let Some(_) = node.as_map() else { return value(node, path, findings).map(Defined::expanded) };
    let keys: &[&str] = match of {
        Of::Top => &["value", "description", "options", "expand"],
        Of::Job => &["value", "expand"],
    };
    findings.mapping(node, path, keys)?;
    let expand = node.get("expand").and_then(|expand| findings.boolean(expand, &join(path, "expand")));
    let text = match node.get("value") {
        Some(node) => value(node, &join(path, "value"), findings)?,
        None => String::new(),
    };
    if let Some(options) = node.get("options")
        && let Kind::List(items) = &options.kind
    {
        let fits = items.iter().any(|item| match &item.kind {
            Kind::Text(option) => **option == *text,
            Kind::Number(option) => *option.value == *text,
            Kind::Bool(option) => option.value.to_string() == text,
            _ => false,
        });
        if !fits {
            findings.error(&options.place, path, "the value is none of the options");
        }
    }
    Some(Defined { raw: expand == Some(false), ..Defined::expanded(text) })
}

/// Reads a value. Numbers and booleans are taken as GitLab takes them, with a warning if their text changes. Nothing is an
/// empty text.
fn value(node: &Node, path: &str, findings: &mut Findings) -> Option<String> {
    match &node.kind {
        Kind::Text(text) => {
            if text.contains('\0') {
                findings.error(&node.place, path, "a value cannot hold a NUL byte");
                return None;
            }
            Some(text.to_string())
        }
        Kind::Number(number) => Some(plain(node, path, &number.value, &number.written, findings)),
        Kind::Bool(of) => Some(plain(node, path, &of.value.to_string(), &of.written, findings)),
        Kind::Null => Some(String::new()),
        Kind::List(_) | Kind::Map(_) | Kind::Reference(_) => {
            findings.expected(node, path, "a text");
            None
        }
    }
}

/// Returns a value without quotes, as YAML reads it.
fn plain(node: &Node, path: &str, value: &str, written: &str, findings: &mut Findings) -> String {
    if value != written {
        let message = format!("{} is read as {value}", quote(written));
        findings.add(node.place.warning(message).with_path(path).with_help("quote it to keep it"));
    }
    value.to_owned()
}
