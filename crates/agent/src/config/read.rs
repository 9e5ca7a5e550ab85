//! Reads values of TOML tables, and collects what is wrong with them.

use std::collections::BTreeSet;
use std::time::Duration;

use step_runner_lang::name;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::answer::text;
use crate::time::{WallTime, date};

/// Longest duration: more is a mistake.
const LONGEST: Duration = Duration::from_hours(24 * 366);

/// Mistakes and warnings about one file.
pub(crate) struct Problems<'t> {
    name: &'t str,
    text: &'t str,
    errors: Vec<(usize, String)>,
    warnings: Vec<(usize, String)>,
}

impl<'t> Problems<'t> {
    pub(crate) const fn new(name: &'t str, text: &'t str) -> Self {
        Self { name, text, errors: Vec::new(), warnings: Vec::new() }
    }

    /// Parses the file.
    pub(crate) fn parse(&mut self) -> Option<DeTable<'t>> {
        match DeTable::parse(self.text) {
            Ok(table) => Some(table.into_inner()),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                self.error(at, format!("not TOML: {}", error.message()));
                None
            }
        }
    }

    /// Returns the line of an offset.
    pub(crate) fn line(&self, offset: usize) -> usize {
        line_of(self.text, offset)
    }

    pub(crate) fn error(&mut self, at: usize, message: impl Into<String>) {
        self.errors.push((at, message.into()));
    }

    pub(crate) fn warn(&mut self, at: usize, message: impl Into<String>) {
        self.warnings.push((at, message.into()));
    }

    /// Returns the number of errors so far.
    pub(crate) const fn count(&self) -> usize {
        self.errors.len()
    }

    pub(crate) fn errors(&self) -> Vec<String> {
        self.shown(&self.errors)
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.shown(&self.warnings)
    }

    fn shown(&self, all: &[(usize, String)]) -> Vec<String> {
        let mut all: Vec<_> = all.iter().collect();
        all.sort_by_key(|(at, _)| *at);
        all.iter().map(|(at, message)| format!("{}:{}: {message}", self.name, self.line(*at))).collect()
    }
}

/// Returns the line of an offset in a text, counted from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// A table that is being read. Keys that nobody asks for are unknown ones.
pub(crate) struct Table<'a, 't> {
    found: &'a DeTable<'t>,
    /// Name for messages, with `.` behind it.
    prefix: &'static str,
    /// Offset of its header.
    pub(crate) at: usize,
    asked: BTreeSet<&'static str>,
}

impl<'a, 't> Table<'a, 't> {
    pub(crate) const fn new(table: &'a DeTable<'t>, prefix: &'static str, at: usize) -> Self {
        Self { found: table, prefix, at, asked: BTreeSet::new() }
    }

    fn value(&mut self, key: &'static str) -> Option<(usize, &'a DeValue<'t>)> {
        self.asked.insert(key);
        let (found, value) = self.found.iter().find(|(name, _)| *name.get_ref() == key)?;
        Some((found.span().start, value.get_ref()))
    }

    /// Returns the offset of a key, `docker.image` for one of a table in it: without the key that of its table.
    pub(crate) fn place(&self, key: &str) -> usize {
        let (mut table, mut at) = (Some(self.found), self.at);
        for part in key.split('.') {
            let found = table.and_then(|table| table.iter().find(|(name, _)| *name.get_ref() == part));
            let Some((name, value)) = found else { return at };
            at = name.span().start;
            table = value.get_ref().as_table();
        }
        at
    }

    fn expected<T>(
        &self,
        problems: &mut Problems<'_>,
        at: usize,
        key: &str,
        wanted: &str,
        value: &DeValue<'_>,
    ) -> Option<T> {
        problems.error(at, format!("{}{key}: expected {wanted}, found {}", self.prefix, kind(value)));
        None
    }

    /// Reads a text.
    pub(crate) fn text(&mut self, problems: &mut Problems<'_>, key: &'static str) -> Option<String> {
        match self.value(key)? {
            (_, DeValue::String(text)) if !text.contains('\0') => Some(text.to_string()),
            (at, value) => self.expected(problems, at, key, "a text", value),
        }
    }

    /// Reads a text that is not empty: an empty one counts as absent.
    pub(crate) fn full_text(&mut self, problems: &mut Problems<'_>, key: &'static str) -> Option<String> {
        self.text(problems, key).filter(|text| !text.is_empty())
    }

    /// Reads a boolean.
    pub(crate) fn boolean(&mut self, problems: &mut Problems<'_>, key: &'static str) -> Option<bool> {
        match self.value(key)? {
            (_, DeValue::Boolean(value)) => Some(*value),
            (at, value) => self.expected(problems, at, key, "true or false", value),
        }
    }

    /// Reads a whole number within bounds.
    pub(crate) fn number(
        &mut self,
        problems: &mut Problems<'_>,
        key: &'static str,
        least: i64,
        most: i64,
    ) -> Option<i64> {
        let (at, value) = self.value(key)?;
        let number = integer(value).filter(|number| (least..=most).contains(number));
        number.or_else(|| {
            self.expected(problems, at, key, &format!("a whole number from {least} to {most}"), value)
        })
    }

    /// Reads a time: a number of seconds, or a text such as `10m` or `1h0m0s`.
    pub(crate) fn duration(&mut self, problems: &mut Problems<'_>, key: &'static str) -> Option<Duration> {
        let (at, value) = self.value(key)?;
        let time = match value {
            DeValue::String(text) if text.trim() == "0" => Some(Duration::ZERO),
            DeValue::String(text) => humantime::parse_duration(text.trim()).ok(),
            other => integer(other).and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs),
        };
        let wanted = "a number of seconds or a time such as `10m`, at most a year";
        time.filter(|time| *time <= LONGEST).or_else(|| self.expected(problems, at, key, wanted, value))
    }

    /// Reads a time limit that can be switched off: not above zero is `None`.
    pub(crate) fn limit(
        &mut self,
        problems: &mut Problems<'_>,
        key: &'static str,
        default: Duration,
    ) -> Option<Duration> {
        if let Some((_, value)) = self.value(key)
            && integer(value).is_some_and(|seconds| seconds <= 0)
        {
            return None;
        }
        Some(self.duration(problems, key).unwrap_or(default))
    }

    /// Reads a date. The year 1 counts as none, as a Runner writes it.
    pub(crate) fn date(&mut self, problems: &mut Problems<'_>, key: &'static str) -> Option<WallTime> {
        let (at, value) = self.value(key)?;
        let text = match value {
            DeValue::Datetime(date) => date.to_string(),
            DeValue::String(text) => text.to_string(),
            other => return self.expected(problems, at, key, "a date such as 2026-11-28T01:02:03Z", other),
        };
        if text.starts_with("0001-") {
            return None;
        }
        let found = date(&text);
        if found.is_none() {
            problems.error(at, format!("{}{key}: expected a date such as 2026-11-28T01:02:03Z", self.prefix));
        }
        found
    }

    /// Reads a list of texts. One text is a list of one.
    pub(crate) fn texts(&mut self, problems: &mut Problems<'_>, key: &'static str) -> Vec<String> {
        let Some((at, value)) = self.value(key) else { return Vec::new() };
        let found: Option<Vec<String>> = match value {
            DeValue::String(text) => Some(vec![text.to_string()]),
            DeValue::Array(items) => items.iter().map(|item| text_of(item.get_ref())).collect(),
            _ => None,
        };
        found.or_else(|| self.expected(problems, at, key, "a list of texts", value)).unwrap_or_default()
    }

    /// Reads a table of texts.
    pub(crate) fn text_map(
        &mut self,
        problems: &mut Problems<'_>,
        key: &'static str,
    ) -> Vec<(String, String)> {
        let Some((at, value)) = self.value(key) else { return Vec::new() };
        let found: Option<Vec<_>> = match value {
            DeValue::Table(table) => {
                let pairs = table
                    .iter()
                    .map(|(key, value)| Some((key.get_ref().to_string(), text_of(value.get_ref())?)));
                pairs.collect()
            }
            _ => None,
        };
        found.or_else(|| self.expected(problems, at, key, "a table of texts", value)).unwrap_or_default()
    }

    /// Reads one of some words.
    pub(crate) fn word<T: Copy>(
        &mut self,
        problems: &mut Problems<'_>,
        key: &'static str,
        words: &[(&str, T)],
    ) -> Option<T> {
        let at = self.place(key);
        let text = self.text(problems, key)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let words: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
            problems.error(at, format!("{}{key}: expected one of {}", self.prefix, words.join(", ")));
        }
        found
    }

    /// Reads a table.
    pub(crate) fn table(
        &mut self,
        problems: &mut Problems<'_>,
        key: &'static str,
        prefix: &'static str,
    ) -> Option<Table<'a, 't>> {
        match self.value(key)? {
            (at, DeValue::Table(table)) => Some(Table::new(table, prefix, at)),
            (at, value) => self.expected(problems, at, key, "a table", value),
        }
    }

    /// Reads a list of tables.
    pub(crate) fn tables(&mut self, problems: &mut Problems<'_>, key: &'static str) -> Vec<Table<'a, 't>> {
        let Some((at, value)) = self.value(key) else { return Vec::new() };
        let found: Option<Vec<_>> = match value {
            DeValue::Array(items) => items.iter().map(sub_table).collect(),
            _ => None,
        };
        let wanted = "tables, each under `[[…]]`";
        found.or_else(|| self.expected(problems, at, key, wanted, value)).unwrap_or_default()
    }

    /// Returns keys and values that nobody has asked for.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (&'a str, usize, &'a DeValue<'t>)> {
        let is_left = |name: &str| !self.asked.contains(name);
        let all =
            self.found.iter().map(|(name, value)| (&**name.get_ref(), name.span().start, value.get_ref()));
        all.filter(move |(name, ..)| is_left(name))
    }

    /// Warns about keys that nobody has asked for. They stay in the file.
    pub(crate) fn finish(&self, problems: &mut Problems<'_>) {
        for (found, at, _) in self.rest() {
            let meant = name::suggest(found, self.asked.iter().copied());
            let meant = meant.map(|meant| format!(", write `{meant}`")).unwrap_or_default();
            // A token may stand where a key belongs.
            let shown: String = text::clean(found, &[]).chars().take(40).collect();
            problems.warn(at, format!("unknown key `{}{shown}`{meant}: it has no effect", self.prefix));
        }
    }
}

fn sub_table<'a, 't>(item: &'a Spanned<DeValue<'t>>) -> Option<Table<'a, 't>> {
    match item.get_ref() {
        DeValue::Table(table) => Some(Table::new(table, "", item.span().start)),
        _ => None,
    }
}

pub(crate) fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) if !text.contains('\0') => Some(text.to_string()),
        _ => None,
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "another text",
        DeValue::Integer(_) => "another number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
