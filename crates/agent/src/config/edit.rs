//! Changes of the file as a text: what is not changed stays byte for byte.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::read::line_of;

/// A change that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The file is no TOML.
    #[error("the file cannot be read as TOML: line {line}: {reason}")]
    NotToml {
        /// Line of the mistake, counted from 1.
        line: usize,
        /// The mistake, without the line's text: it may hold a token.
        reason: String,
    },
    /// The entries are no tables under `[[runners]]`.
    #[error("entries are not written under `[[runners]]`: write them so")]
    Form,
    /// There is no such entry.
    #[error("the file has no such entry any more")]
    NoEntry,
}

/// A value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// A boolean.
    Boolean(bool),
    /// A date, in the form of TOML.
    Date(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// A list of tables with texts.
    Tables(Vec<Vec<(&'static str, String)>>),
}

impl Value {
    /// Returns the value as TOML.
    pub fn to_toml(&self) -> String {
        let text = |text: &String| toml::Value::String(text.clone()).to_string();
        match self {
            Self::Text(value) => text(value),
            Self::Number(value) => value.to_string(),
            Self::Boolean(value) => value.to_string(),
            Self::Date(value) => value.clone(),
            Self::Texts(values) => format!("[{}]", values.iter().map(text).collect::<Vec<_>>().join(", ")),
            Self::Tables(tables) => {
                let pair = |(key, value): &(&str, String)| format!("{key} = {}", text(value));
                let table = |pairs: &Vec<(&str, String)>| {
                    format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(", "))
                };
                format!("[{}]", tables.iter().map(table).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// A table to write below an entry: its key, and its own keys and values.
pub type SubTable<'k> = (&'k str, Vec<(&'k str, Value)>);

/// Appends an entry.
pub fn append(text: &str, values: &[(&str, Value)], tables: &[SubTable<'_>]) -> Result<String, EditError> {
    headers(text)?;
    let mut text = text.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str("[[runners]]\n");
    text.push_str(&lines("  ", values));
    for (key, values) in tables {
        text.extend(["  [runners.", key, "]\n"]);
        text.push_str(&lines("    ", values));
    }
    Ok(text)
}

/// Returns keys and values, one a line.
fn lines(indent: &str, values: &[(&str, Value)]) -> String {
    let lines: Vec<String> =
        values.iter().map(|(key, value)| format!("{indent}{key} = {}\n", value.to_toml())).collect();
    lines.concat()
}

/// Removes an entry, with the comments in it. Comments right above the next one stay with that.
pub fn remove(text: &str, entry: usize) -> Result<String, EditError> {
    let region = regions(text)?.get(entry).cloned().ok_or(EditError::NoEntry)?;
    let (before, behind) =
        (text.get(..region.start).unwrap_or_default(), text.get(region.end..).unwrap_or_default());
    Ok(format!("{before}{behind}"))
}

/// Sets a key of an entry.
pub fn set(text: &str, entry: usize, key: &str, value: &Value) -> Result<String, EditError> {
    let table = parse(text)?;
    let region = regions(text)?.get(entry).cloned().ok_or(EditError::NoEntry)?;
    let found = match entries(&table).and_then(|entries| entries.into_iter().nth(entry)) {
        Some((_, table)) => {
            table.iter().find(|(name, _)| *name.get_ref() == key).map(|(_, value)| value.span())
        }
        None => return Err(EditError::NoEntry),
    };
    let literal = value.to_toml();
    let (range, new) = if let Some(range) = found {
        (range, literal)
    } else {
        let line = text.get(region.start..).unwrap_or_default().find('\n');
        let end = line.map_or(text.len(), |end| region.start + end);
        (end..end, format!("\n  {key} = {literal}"))
    };
    let (before, behind) =
        (text.get(..range.start).unwrap_or_default(), text.get(range.end..).unwrap_or_default());
    Ok(format!("{before}{new}{behind}"))
}

fn parse(text: &str) -> Result<DeTable<'_>, EditError> {
    DeTable::parse(text).map(toml::Spanned::into_inner).map_err(|error| EditError::NotToml {
        line: line_of(text, error.span().map_or(0, |span| span.start)),
        reason: error.message().to_owned(),
    })
}

/// Returns the places of the entries' headers and their tables. `None`: there is something else of that name.
fn entries<'a, 't>(table: &'a DeTable<'t>) -> Option<Vec<(Range<usize>, &'a DeTable<'t>)>> {
    let Some((_, value)) = table.iter().find(|(name, _)| *name.get_ref() == "runners") else {
        return Some(Vec::new());
    };
    let DeValue::Array(items) = value.get_ref() else { return None };
    let entry = |item: &'a toml::Spanned<DeValue<'t>>| match item.get_ref() {
        DeValue::Table(table) => Some((item.span(), table)),
        _ => None,
    };
    items.iter().map(entry).collect()
}

/// Returns the places of the entries' headers, in their order.
fn headers(text: &str) -> Result<Vec<Range<usize>>, EditError> {
    let table = parse(text)?;
    let found = entries(&table).ok_or(EditError::Form)?;
    let is_header = |range: &Range<usize>| text.get(range.clone()).is_some_and(|text| text.starts_with("[["));
    let ranges: Vec<_> = found.into_iter().map(|(range, _)| range).collect();
    if ranges.iter().all(is_header) { Ok(ranges) } else { Err(EditError::Form) }
}

/// Returns the part of the text that belongs to each entry.
fn regions(text: &str) -> Result<Vec<Range<usize>>, EditError> {
    let table = parse(text)?;
    let headers = headers(text)?;
    let mut starts: Vec<usize> = headers.iter().map(|range| range.start).collect();
    for (name, value) in &table {
        match value.get_ref() {
            _ if *name.get_ref() == "runners" => {}
            DeValue::Table(_) => starts.push(value.span().start),
            DeValue::Array(items) => starts.extend(items.iter().map(|item| item.span().start)),
            _ => {}
        }
    }
    let end = |from: usize| starts.iter().copied().filter(|start| *start > from).min();
    Ok(headers
        .iter()
        .map(|range| range.start..without_comments(text, range.start, end(range.start)))
        .collect())
}

/// Returns the end of a region, without comments and blank lines before what follows.
fn without_comments(text: &str, start: usize, next: Option<usize>) -> usize {
    let Some(next) = next else { return text.len() };
    let region = text.get(start..next).unwrap_or_default();
    let mut end = region.len();
    for line in region.split_inclusive('\n').rev() {
        let trimmed = line.trim();
        if !line.ends_with('\n') || !(trimmed.is_empty() || trimmed.starts_with('#')) {
            break;
        }
        // A blank line ends the comments of the next table; it belongs to this one.
        if trimmed.is_empty() {
            break;
        }
        end -= line.len();
    }
    start + end
}
