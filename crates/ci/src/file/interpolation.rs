//! `$[[ inputs.X | function ]]` in a file with a header (ci.md §2, row `spec:inputs`). Each file is filled in alone,
//! before anything is merged.

use std::borrow::Cow;
use std::sync::Arc;

use step_runner_lang::diagnostic::Class;
use step_runner_model::text::quote;

use super::inputs::{Inputs, array_text, scalar_text};
use crate::finding::{Findings, at_index, join};
use crate::node::{Entry, Kind, Map, Node, Place};
use crate::variables::Resolved;

/// Maximum number of functions in one block, as in GitLab.
const FUNCTIONS_LIMIT: usize = 3;

/// Largest weight of a file after it is filled in (language.md §6): a short file can name a long value many times.
const WEIGHT_LIMIT: usize = 64 * 1024 * 1024;

/// Names that a block can use.
pub(super) struct Scope<'s> {
    pub(super) inputs: &'s Inputs,
    /// Variables for `expand_vars`.
    pub(super) variables: &'s Resolved,
}

/// Fills in a file's content.
pub(super) fn fill_in(content: &Node, scope: &Scope<'_>, findings: &mut Findings) -> Node {
    Filler { scope, findings, left: WEIGHT_LIMIT }.node(content, "")
}

struct Filler<'f> {
    scope: &'f Scope<'f>,
    findings: &'f mut Findings,
    left: usize,
}

impl Filler<'_> {
    /// Walks a tree. Its depth is bounded by the reader.
    fn node(&mut self, node: &Node, path: &str) -> Node {
        let kind = match &node.kind {
            Kind::Text(text) if text.contains("$[[") => return self.value(text, &node.place, path),
            Kind::List(items) => {
                let items = items.iter().enumerate();
                Kind::List(Arc::new(
                    items.map(|(index, item)| self.node(item, &at_index(path, index))).collect(),
                ))
            }
            Kind::Map(map) => {
                let mut filled = Map::new();
                for (name, entry) in map.iter() {
                    let path = join(path, name);
                    let name = self.text(name, &entry.key, &path);
                    let value = self.node(&entry.value, &path);
                    filled.insert(name.into_owned(), Entry { key: entry.key.clone(), value });
                }
                Kind::Map(Arc::new(filled))
            }
            Kind::Reference(names) => {
                let filled = names.iter().map(|name| self.text(name, &node.place, path).into_owned());
                Kind::Reference(Arc::new(filled.collect()))
            }
            other => other.clone(),
        };
        Node::new(node.place.clone(), kind)
    }

    /// Fills in a value. One block and nothing else keeps its type.
    fn value(&mut self, text: &str, place: &Place, path: &str) -> Node {
        let whole = (text.trim().strip_prefix("$[["))
            .and_then(|inner| inner.strip_suffix("]]"))
            .filter(|inner| !inner.contains("]]"));
        if let Some(inner) = whole {
            if let Some(value) = self.block(inner, place, path)
                && self.charge(value.weight(), place)
            {
                return Node::new(place.clone(), value.kind);
            }
            return Node::new(place.clone(), Kind::Null);
        }
        Node::text(place.clone(), self.text(text, place, path).as_ref())
    }

    fn text<'t>(&mut self, text: &'t str, place: &Place, path: &str) -> Cow<'t, str> {
        if !text.contains("$[[") {
            return Cow::Borrowed(text);
        }
        let mut filled = String::new();
        let mut pieces = text.split("$[[");
        filled.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            let Some((inner, behind)) = piece.split_once("]]") else {
                let message = "\"$[[\" without \"]]\" behind it";
                self.findings.error_with_help(place, path, message, "close it");
                return Cow::Borrowed(text);
            };
            if let Some(value) = self.block(inner, place, path) {
                let shown = scalar_text(&value).or_else(|| array_text(&value)).unwrap_or_default();
                if !self.charge(shown.len(), place) {
                    return Cow::Owned(filled);
                }
                filled.push_str(&shown);
            }
            filled.push_str(behind);
        }
        Cow::Owned(filled)
    }

    /// Evaluates what stands between `$[[` and `]]`.
    fn block(&mut self, inner: &str, place: &Place, path: &str) -> Option<Node> {
        let mut parts = inner.split('|').map(str::trim);
        let access = parts.next().unwrap_or_default();
        let mut value = self.access(access, place, path)?;
        for (count, function) in parts.enumerate() {
            if count >= FUNCTIONS_LIMIT {
                let message = format!("more than {FUNCTIONS_LIMIT} functions in one \"$[[ ]]\"");
                self.findings.error(place, path, message);
                return None;
            }
            let Some(text) = scalar_text(&value) else {
                self.findings.error(place, path, format!("\"{}\" needs a text", quote(function)));
                return None;
            };
            value = Node::text(place.clone(), self.function(function, &text, place, path)?);
        }
        Some(value)
    }

    fn access(&mut self, access: &str, place: &Place, path: &str) -> Option<Node> {
        let Some(name) = access.strip_prefix("inputs.") else {
            let message = format!("\"$[[ {} ]]\" is not supported here", quote(access));
            self.findings.error_with_help(place, path, message, "write $[[ inputs.NAME ]]");
            return None;
        };
        if let Some(value) = self.scope.inputs.get(name) {
            return value.clone();
        }
        let finding = (place.error_of(Class::NotFound, format!("there is no input \"{}\"", quote(name))))
            .with_path(path);
        let known = self.scope.inputs.keys().map(String::as_str);
        let help = "declare it in \"spec:inputs\"".to_owned();
        self.findings.add_with_suggestion(finding, name, known, Some(help));
        None
    }

    fn function(&mut self, call: &str, text: &str, place: &Place, path: &str) -> Option<String> {
        let arguments = call.strip_prefix("truncate(").and_then(|rest| rest.strip_suffix(')'));
        if let Some(arguments) = arguments {
            let numbers: Option<Vec<usize>> =
                arguments.split(',').map(|number| number.trim().parse().ok()).collect();
            if let Some([offset, length]) = numbers.as_deref() {
                return Some(text.chars().skip(*offset).take(*length).collect());
            }
        }
        match call {
            "expand_vars" => Some(self.scope.variables.fill_in_known(text)),
            "posix_escape" => Some(posix_escape(text)),
            _ => {
                let message = format!("unknown function \"{}\"", quote(call));
                let help = "write expand_vars, truncate(OFFSET,LENGTH) or posix_escape";
                self.findings.error_with_help(place, path, message, help);
                None
            }
        }
    }

    fn charge(&mut self, weight: usize, place: &Place) -> bool {
        if let Some(left) = self.left.checked_sub(weight) {
            self.left = left;
        } else {
            self.left = 0;
            let message = "the file takes more than 64 MiB after its inputs are filled in";
            self.findings.add(place.error_of(Class::Limit, message));
            return false;
        }
        true
    }
}

/// Escapes a text for a shell: a backslash before each character that has a meaning there.
fn posix_escape(text: &str) -> String {
    if text.is_empty() {
        return "''".to_owned();
    }
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("'\n'"),
            plain if plain.is_ascii_alphanumeric() || "_-.,:+/@".contains(plain) => escaped.push(plain),
            other => escaped.extend(['\\', other]),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_for_a_shell() {
        for (text, escaped) in
            [("", "''"), ("a b", r"a\ b"), ("$(x)", r"\$\(x\)"), ("a\nb", "a'\n'b"), ("a-b/c", "a-b/c")]
        {
            assert_eq!(posix_escape(text), escaped);
        }
    }
}
