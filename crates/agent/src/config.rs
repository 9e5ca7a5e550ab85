//! The configuration of the agent: a TOML file with one table for each entry (agent.md §3).
//!
//! All mistakes come at once, each with its line. Keys that are not known stay in the file and are warned about. The file
//! is changed as a text ([`edit`]), so that comments and order stay.

pub mod edit;
mod entry;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use entry::{Docker, Entry, EntryService, Kubernetes};
use read::{Problems, Table};

use crate::scheduler::{Limits, OnStop};

/// Time after which an idle connection ends, unless `connection_max_age` says another.
pub const CONNECTION_MAX_AGE: Duration = Duration::from_mins(15);

/// The configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Settings for all entries together.
    pub limits: Limits,
    /// Time after which an idle connection ends.
    pub connection_max_age: Duration,
    /// Entries, in the order of the file.
    pub entries: Vec<Entry>,
    /// What the operator should know, each with its line.
    pub warnings: Vec<String>,
}

/// All mistakes in a file, one a line: `FILE:LINE: message`. No value is quoted: it may be a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<String>);

impl ConfigErrors {
    /// Returns the mistakes.
    pub fn messages(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// A mistake that shows only when an entry is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The key, `kubernetes.image` for one of a table of the entry.
    pub key: &'static str,
    /// Description of the mistake. It quotes no value, which may be a token.
    pub message: String,
}

impl Config {
    /// Reads a file. `name` is for messages.
    pub fn read(name: &str, text: &str) -> Result<Self, ConfigErrors> {
        Self::read_checked(name, text, |_| Vec::new())
    }

    /// Reads a file. `check` finds the mistakes of each entry that its use would show.
    pub fn read_checked(
        name: &str,
        text: &str,
        check: impl Fn(&Entry) -> Vec<Mistake>,
    ) -> Result<Self, ConfigErrors> {
        let mut problems = Problems::new(name, text);
        let Some(table) = problems.parse() else { return Err(ConfigErrors(problems.errors())) };
        let mut top = Table::new(&table, "", 0);
        let concurrent = top.number(&mut problems, "concurrent", 1, 1_000_000).unwrap_or(1);
        let limits = Limits {
            concurrent: usize::try_from(concurrent).unwrap_or(usize::MAX),
            check_interval: top.duration(&mut problems, "check_interval").unwrap_or(Duration::from_secs(3)),
            on_stop: top
                .word(&mut problems, "on_stop", &[("detach", OnStop::Detach), ("fail", OnStop::Fail)])
                .unwrap_or_default(),
            shutdown_timeout: top
                .duration(&mut problems, "shutdown_timeout")
                .unwrap_or(Duration::from_secs(30)),
        };
        // A Runner's file has 0 for its default.
        let or =
            |time: Duration, default: u64| if time.is_zero() { Duration::from_secs(default) } else { time };
        let limits = Limits {
            check_interval: or(limits.check_interval, 3),
            shutdown_timeout: or(limits.shutdown_timeout, 30),
            ..limits
        };
        let connection_max_age = top.duration(&mut problems, "connection_max_age").unwrap_or_default();
        let connection_max_age = or(connection_max_age, CONNECTION_MAX_AGE.as_secs());
        let tables = top.tables(&mut problems, "runners");
        top.finish(&mut problems);
        let mut entries = Vec::new();
        for mut table in tables {
            let before = problems.count();
            let Some(entry) = entry::read(&mut table, &mut problems) else { continue };
            // A value that cannot be read is absent in the entry, which would be a mistake of its own.
            let mistakes = if problems.count() == before { check(&entry) } else { Vec::new() };
            for Mistake { key, message } in mistakes {
                problems.error(table.place(key), message);
            }
            entries.push((entry, table.at));
        }
        find_twins(&entries, &mut problems);
        if problems.count() > 0 {
            return Err(ConfigErrors(problems.errors()));
        }
        let entries = entries.into_iter().map(|(entry, _)| entry).collect();
        Ok(Self { limits, connection_max_age, entries, warnings: problems.warnings() })
    }
}

/// Finds entries that are one runner twice: the server would take their requests for those of one.
fn find_twins(entries: &[(Entry, usize)], problems: &mut Problems<'_>) {
    let mut seen = BTreeMap::new();
    let mut names = BTreeMap::new();
    for (entry, at) in entries {
        if let Some(first) = seen.insert((&entry.url, &entry.token), *at) {
            let first = problems.line(first);
            problems.error(
                *at,
                format!("this entry has the `url` and `token` of line {first}: remove one of them"),
            );
        }
        if let Some(first) = names.insert(&entry.name, *at) {
            let first = problems.line(first);
            problems.warn(*at, format!("this entry has the `name` of line {first}: `--name` means both"));
        }
    }
}
