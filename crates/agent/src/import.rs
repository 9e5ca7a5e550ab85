//! A GitLab Runner's `config.toml` as a configuration of the agent, and what cannot be taken over (agent.md §3.1).
//!
//! Every key of the file is reported: carried, changed or not supported. The file itself is only read.

mod docker;
mod kubernetes;
mod runner;

use std::fmt;

use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};

use crate::answer::text::clean;
use crate::config::edit::{self, EditError, Value};

/// What becomes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is taken over as it is.
    Carried,
    /// It becomes something else.
    Changed(String),
    /// It cannot be taken over.
    NotSupported(String),
}

/// What is said about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Line of the file.
    pub line: usize,
    /// The key with its tables.
    pub key: String,
    /// What becomes of it.
    pub fate: Fate,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.line, self.key)?;
        match &self.fate {
            Fate::Carried => f.write_str("carried"),
            Fate::Changed(what) => write!(f, "changed: {what}"),
            Fate::NotSupported(why) => write!(f, "not supported: {why}"),
        }
    }
}

/// An entry to write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewEntry {
    /// Keys and values.
    pub values: Vec<(&'static str, Value)>,
    /// Tables below it.
    pub tables: Vec<(&'static str, Vec<(&'static str, Value)>)>,
    /// Template of its Pods: its place is the value of `pod_template`.
    pub pod_template: Option<Json>,
}

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Import {
    /// A line for each key, in the order of the file.
    pub lines: Vec<Line>,
    /// Settings for all entries together.
    pub top: Vec<(&'static str, Value)>,
    /// Entries.
    pub entries: Vec<NewEntry>,
}

/// A file that is no `config.toml`: its line, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: not TOML: {message}")]
pub struct ImportError {
    /// Line.
    pub line: usize,
    /// Words of the parser.
    pub message: String,
}

impl Import {
    /// Reads a Runner's file.
    pub fn read(text: &str) -> Result<Self, ImportError> {
        let mut report = Report { text, lines: Vec::new() };
        let table = DeTable::parse(text).map_err(|error| ImportError {
            line: report.line(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let mut import = Self::default();
        for (key, value, at) in sorted(table.get_ref()) {
            match (key, value) {
                ("runners", DeValue::Array(items)) => {
                    for item in items {
                        if let DeValue::Table(table) = item.get_ref() {
                            import.entries.extend(runner::read(table, item.span().start, &mut report));
                        }
                    }
                }
                ("concurrent" | "check_interval" | "shutdown_timeout" | "connection_max_age", value) => {
                    import.top.extend(
                        report.carry(at, "", key, value).and_then(|value| Some((top_key(key)?, value))),
                    );
                }
                ("log_level" | "log_format", _) => {
                    report.unsupported(at, key.to_owned(), "the agent's log is set by its own options");
                }
                ("session_server", _) => {
                    report.unsupported(at, key.to_owned(), "there are no terminals for jobs");
                }
                (key, value) => report.rest(at, key.to_owned(), value, "the agent has no such setting"),
            }
        }
        report.lines.sort_by_key(|(at, _)| *at);
        import.lines = report.lines.into_iter().map(|(_, line)| line).collect();
        Ok(import)
    }

    /// True if every key is taken over.
    pub fn is_complete(&self) -> bool {
        !self.lines.iter().any(|line| matches!(line.fate, Fate::NotSupported(_)))
    }

    /// Adds the entries to the text of the agent's own file. `template` names the file of an entry's Pod template.
    /// Settings for all entries are written if the file has no entry yet.
    pub fn apply(&self, text: &str, template: &dyn Fn(usize) -> String) -> Result<String, EditError> {
        let mut text = text.to_owned();
        if text.trim().is_empty() {
            let lines = self.top.iter().map(|(key, value)| format!("{key} = {}\n", value.to_toml()));
            text = lines.collect();
        }
        for (index, entry) in self.entries.iter().enumerate() {
            let mut tables = entry.tables.clone();
            if entry.pod_template.is_some()
                && let Some((_, values)) = tables.iter_mut().find(|(key, _)| *key == "kubernetes")
            {
                values.push(("pod_template", Value::Text(template(index))));
            }
            let tables: Vec<edit::SubTable<'_>> = tables.into_iter().collect();
            text = edit::append(&text, &entry.values, &tables)?;
        }
        Ok(text)
    }
}

fn top_key(key: &str) -> Option<&'static str> {
    ["concurrent", "check_interval", "shutdown_timeout", "connection_max_age"]
        .into_iter()
        .find(|known| *known == key)
}

/// Lines about keys, with the place of each.
struct Report<'t> {
    text: &'t str,
    lines: Vec<(usize, Line)>,
}

impl Report<'_> {
    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    fn add(&mut self, at: usize, mut key: String, fate: Fate) {
        // A token may stand where a key belongs.
        key = clean(&key, &[]);
        let line = Line { line: self.line(at), key, fate };
        self.lines.push((at, line));
    }

    fn changed(&mut self, at: usize, key: String, what: impl Into<String>) {
        self.add(at, key, Fate::Changed(what.into()));
    }

    fn unsupported(&mut self, at: usize, key: String, why: impl Into<String>) {
        self.add(at, key, Fate::NotSupported(why.into()));
    }

    /// Reports a key that nothing takes over. An empty value means nothing, so nothing is lost.
    fn rest(&mut self, at: usize, key: String, value: &DeValue<'_>, why: &str) {
        if is_empty(value) {
            self.add(at, key, Fate::Carried);
        } else {
            self.unsupported(at, key, why);
        }
    }

    /// Takes a value over as it is.
    fn carry(&mut self, at: usize, prefix: &str, key: &str, value: &DeValue<'_>) -> Option<Value> {
        let key = format!("{prefix}{key}");
        let found = to_value(value);
        if found.is_some() {
            self.add(at, key, Fate::Carried);
        } else {
            self.unsupported(at, key, "the value has another form than expected");
        }
        found
    }
}

/// Returns keys and values in the order of the file.
fn sorted<'a, 't>(table: &'a DeTable<'t>) -> Vec<(&'a str, &'a DeValue<'t>, usize)> {
    let mut all: Vec<_> =
        table.iter().map(|(key, value)| (&**key.get_ref(), value.get_ref(), key.span().start)).collect();
    all.sort_by_key(|(.., at)| *at);
    all
}

/// True for a value that is the same as none.
fn is_empty(value: &DeValue<'_>) -> bool {
    match value {
        DeValue::String(text) => text.is_empty(),
        DeValue::Integer(number) => number.as_str().trim_start_matches('0').is_empty(),
        DeValue::Boolean(value) => !value,
        DeValue::Array(items) => items.is_empty(),
        DeValue::Table(table) => table.iter().all(|(_, value)| is_empty(value.get_ref())),
        DeValue::Float(_) | DeValue::Datetime(_) => false,
    }
}

fn to_value(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Number(i64::from_str_radix(number.as_str(), number.radix()).ok()?),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(date) => Value::Date(date.to_string()),
        DeValue::Array(_) => Value::Texts(texts(value)?),
        DeValue::Float(_) | DeValue::Table(_) => return None,
    })
}

/// Returns a list of texts; one text is a list of one.
fn texts(value: &DeValue<'_>) -> Option<Vec<String>> {
    match value {
        DeValue::String(text) => Some(vec![text.to_string()]),
        DeValue::Array(items) => items.iter().map(|item| text(item.get_ref())).collect(),
        _ => None,
    }
}

/// Returns a text, or a number or boolean as one.
fn text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// Takes services of an entry over: tables with `name` and `alias`, or names alone, as old versions have them.
fn services(
    prefix: &str,
    value: &DeValue<'_>,
    at: usize,
    report: &mut Report<'_>,
) -> Option<(&'static str, Value)> {
    let key = format!("{prefix}services");
    let DeValue::Array(items) = value else {
        report.unsupported(at, key, "the value has another form than expected");
        return None;
    };
    let mut tables = Vec::new();
    for item in items {
        match item.get_ref() {
            DeValue::Table(table) => {
                let known = ["name", "alias"].into_iter();
                tables.push(known.filter_map(|key| Some((key, get_text(table, key)?))).collect());
                for (other, value, at) in
                    sorted(table).into_iter().filter(|(key, ..)| !["name", "alias"].contains(key))
                {
                    report.rest(
                        at,
                        format!("{key}.{other}"),
                        value,
                        "services of an entry have a name and aliases",
                    );
                }
            }
            other => tables.extend(text(other).map(|name| vec![("name", name)])),
        }
    }
    report.add(at, key, Fate::Carried);
    Some(("services", Value::Tables(tables)))
}

/// Returns the value of a key.
fn get<'a, 't>(table: &'a DeTable<'t>, key: &str) -> Option<&'a DeValue<'t>> {
    table.iter().find(|(name, _)| *name.get_ref() == key).map(|(_, value)| value.get_ref())
}

/// Returns the text of a key, if it is not empty.
fn get_text(table: &DeTable<'_>, key: &str) -> Option<String> {
    get(table, key).and_then(text).filter(|text| !text.is_empty())
}
