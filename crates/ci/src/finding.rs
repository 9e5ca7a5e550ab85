//! Collects what is wrong in a configuration, so that one mistake does not hide another (ci.md §2).

use step_runner_lang::diagnostic::{Diagnostic, Severity};
use step_runner_lang::name;
use step_runner_model::text::quote;

use crate::node::{Kind, Map, Node, Place};

/// Maximum number of errors, and of warnings, that are kept: a hostile file has any number.
const FINDINGS_LIMIT: usize = 1_000;

/// Maximum number of searches for a name that was meant. A search compares with up to a thousand names.
const SEARCHES_LIMIT: usize = 50;

/// Maximum number of known keys, and of names of a chain, that a message lists.
const LISTED_LIMIT: usize = 12;

/// A keyword without effect here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Its name, such as `artifacts:expire_in`.
    pub keyword: String,
    /// Place in the file.
    pub place: Place,
}

/// Findings in their order.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    list: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
    searches: usize,
    refused: Vec<Diagnostic>,
    noted: Vec<Noted>,
}

impl Findings {
    /// Keeps a finding. A finding that is there already is not kept twice: two jobs can inherit one mistake.
    pub(crate) fn add(&mut self, finding: Diagnostic) {
        let count = if finding.severity == Severity::Error { &mut self.errors } else { &mut self.warnings };
        if *count >= FINDINGS_LIMIT {
            return;
        }
        let is_known = self.list.iter().any(|known| {
            (known.at, &known.file, &known.message) == (finding.at, &finding.file, &finding.message)
        });
        if !is_known {
            *count += 1;
            self.list.push(finding);
        }
    }

    /// Keeps an error of class `schema`.
    pub(crate) fn error(&mut self, place: &Place, path: &str, message: impl Into<String>) {
        self.add(place.error(message).with_path(path));
    }

    /// Keeps an error of class `schema` with its remedy.
    pub(crate) fn error_with_help(
        &mut self,
        place: &Place,
        path: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(place.error(message).with_path(path).with_help(help));
    }

    /// Adds the known name that was meant as the remedy, else `help`.
    pub(crate) fn add_with_suggestion<'a>(
        &mut self,
        finding: Diagnostic,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
        help: Option<String>,
    ) {
        let is_searched = self.searches < SEARCHES_LIMIT;
        self.searches += usize::from(is_searched);
        let meant = if is_searched { name::suggest(name, known) } else { None };
        let help = meant.map(|meant| format!("did you mean \"{}\"?", quote(meant))).or(help);
        self.add(match help {
            Some(help) => finding.with_help(help),
            None => finding,
        });
    }

    /// Keeps a reason why the job that is being read cannot run here. Other jobs of the file can.
    pub(crate) fn refuse(&mut self, reason: Diagnostic) {
        self.refused.push(reason);
    }

    /// Returns the reasons since the last call.
    pub(crate) fn take_refused(&mut self) -> Vec<Diagnostic> {
        std::mem::take(&mut self.refused)
    }

    /// Notes a keyword without effect.
    pub(crate) fn note(&mut self, keyword: impl Into<String>, place: &Place) {
        self.noted.push(Noted { keyword: keyword.into(), place: place.clone() });
    }

    /// Returns the noted keywords since the last call.
    pub(crate) fn take_noted(&mut self) -> Vec<Noted> {
        std::mem::take(&mut self.noted)
    }

    /// True if there is an error.
    pub(crate) const fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Returns errors and warnings.
    pub(crate) fn into_list(self) -> Vec<Diagnostic> {
        self.list
    }

    /// Reports a key that is not among `known`, with the one that was meant.
    pub(crate) fn unknown_key(&mut self, key: &Place, name: &str, path: &str, known: &[&str]) {
        let finding = key.error(format!("unknown key \"{}\"", quote(name))).with_path(path);
        let help = (known.len() <= LISTED_LIMIT).then(|| format!("known: {}", known.join(", ")));
        self.add_with_suggestion(finding, name, known.iter().copied(), help);
    }

    /// Returns the entries of a mapping, after a check of its keys. Another value is reported.
    pub(crate) fn mapping<'n>(&mut self, node: &'n Node, path: &str, known: &[&str]) -> Option<&'n Map> {
        let map = self.any_mapping(node, path)?;
        for (name, entry) in map {
            if !known.contains(&name.as_str()) {
                self.unknown_key(&entry.key, name, path, known);
            }
        }
        Some(map)
    }

    /// Returns the entries of a mapping with any keys. Another value is reported.
    pub(crate) fn any_mapping<'n>(&mut self, node: &'n Node, path: &str) -> Option<&'n Map> {
        let map = node.as_map();
        if map.is_none() {
            self.expected(node, path, "a mapping");
        }
        map
    }

    /// Reports a value of a wrong kind. A reference that leads nowhere was reported.
    pub(crate) fn expected(&mut self, node: &Node, path: &str, wanted: &str) {
        if matches!(node.kind, Kind::Reference(_)) {
            return;
        }
        let finding = node.place.error(format!("expected {wanted}, this is {}", node.describe()));
        let finding = finding.with_path(path);
        self.add(match node.kind {
            Kind::List(_) if wanted.starts_with("a mapping") => {
                finding.with_help("write KEY: VALUE, without \"- \" before it")
            }
            Kind::Map(_) if wanted.starts_with("a list") => {
                finding.with_help("write \"- \" before each entry")
            }
            _ => finding,
        });
    }

    /// Returns a text. Numbers and booleans without quotes are reported: GitLab would change or refuse them.
    pub(crate) fn text(&mut self, node: &Node, path: &str) -> Option<String> {
        match &node.kind {
            Kind::Text(text) => Some(text.to_string()),
            Kind::Bool(_) | Kind::Number(_) => {
                let message = format!("expected a text, this is {}", node.describe());
                self.error_with_help(&node.place, path, message, "quote it");
                None
            }
            _ => {
                self.expected(node, path, "a text");
                None
            }
        }
    }

    /// Returns a text of numbers and booleans, too.
    pub(crate) fn scalar(&mut self, node: &Node, path: &str) -> Option<String> {
        match &node.kind {
            Kind::Number(number) => Some(number.value.to_string()),
            Kind::Bool(plain) => Some(plain.value.to_string()),
            _ => self.text(node, path),
        }
    }

    /// Returns a boolean.
    pub(crate) fn boolean(&mut self, node: &Node, path: &str) -> Option<bool> {
        if let Kind::Bool(plain) = &node.kind {
            return Some(plain.value);
        }
        self.expected(node, path, "true or false");
        None
    }

    /// Returns a text that is one of `known`.
    pub(crate) fn choice(&mut self, node: &Node, path: &str, known: &[&str]) -> Option<String> {
        let text = self.text(node, path)?;
        if known.contains(&text.as_str()) {
            return Some(text);
        }
        let message = format!("\"{}\" is not possible here", quote(&text));
        let finding = node.place.error(message).with_path(path);
        let help = format!("write one of {}", known.join(", "));
        self.add_with_suggestion(finding, &text, known.iter().copied(), Some(help));
        None
    }

    /// Returns the items of a list of texts, or one text as a list.
    pub(crate) fn texts(&mut self, node: &Node, path: &str) -> Option<Vec<String>> {
        let placed = self.placed_texts(node, path)?;
        Some(placed.into_iter().map(|(text, _)| text).collect())
    }

    /// Returns the items of a list of texts. A text alone is reported, as GitLab refuses it.
    pub(crate) fn list_of_texts(&mut self, node: &Node, path: &str) -> Option<Vec<String>> {
        if let Kind::Text(_) = node.kind {
            let help = "put it into a list: [\"…\"]";
            self.error_with_help(&node.place, path, "expected a list of texts, this is a text", help);
            return None;
        }
        self.texts(node, path)
    }

    /// Returns the items of a list of texts, or one text as a list, each with its place.
    pub(crate) fn placed_texts(&mut self, node: &Node, path: &str) -> Option<Vec<(String, Place)>> {
        match &node.kind {
            Kind::List(items) => {
                let texts: Vec<_> = (items.iter().enumerate())
                    .map(|(index, item)| {
                        let text = self.text(item, &at_index(path, index))?;
                        Some((text, item.place.clone()))
                    })
                    .collect();
                texts.into_iter().collect()
            }
            Kind::Text(text) => Some(vec![(text.to_string(), node.place.clone())]),
            _ => {
                self.expected(node, path, "a text or a list of texts");
                None
            }
        }
    }

    /// Returns a whole number within bounds.
    pub(crate) fn whole(&mut self, node: &Node, path: &str, from: u32, to: u32) -> Option<u32> {
        if let Kind::Number(number) = &node.kind
            && let Ok(number) = number.value.parse::<u32>()
            && (from..=to).contains(&number)
        {
            return Some(number);
        }
        if let Kind::Number(number) = &node.kind {
            let message =
                format!("expected a whole number from {from} to {to}, this is {}", quote(&number.value));
            self.error(&node.place, path, message);
        } else {
            self.expected(node, path, &format!("a whole number from {from} to {to}"));
        }
        None
    }
}

/// Returns the path of a key below `path`.
pub(crate) fn join(path: &str, key: &str) -> String {
    let key = quote(key);
    if path.is_empty() { key.into_owned() } else { format!("{path}.{key}") }
}

/// Returns the path of an item.
pub(crate) fn at_index(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

/// Returns names as a chain. The end of a long one is left out.
pub(crate) fn chain<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let mut shown: Vec<_> = names.take(LISTED_LIMIT + 1).map(quote).collect();
    if shown.len() > LISTED_LIMIT {
        shown.truncate(LISTED_LIMIT);
        shown.push("…".into());
    }
    shown.join(" → ")
}
