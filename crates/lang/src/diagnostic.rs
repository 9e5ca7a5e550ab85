//! Errors and warnings of the language and their places (language.md §2 "Errors", §18).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use step_runner_model::{Violation, text};

/// A place in a document. Lines and columns count from 1; columns count characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Line from the start of the file. Both YAML documents count.
    pub line: u32,
    /// Column of the key or value.
    pub column: u32,
}

impl Position {
    /// The first character of a document.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// Message about a number that no double can hold.
pub(crate) const BEYOND_RANGE: &str = "number beyond the range of doubles";

/// Classes of errors; tests compare these (language.md §18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Syntax, duplicate key.
    Yaml,
    /// Fewer than two documents; required input or output absent.
    Missing,
    /// Unknown key, wrong YAML type or combination.
    Schema,
    /// Invalid name.
    Name,
    /// A value of the wrong type.
    Type,
    /// Unknown input given, unknown output written.
    Undeclared,
    /// Template or expression syntax.
    Parse,
    /// Unknown name, member, function, builtin or definition file; index out of range.
    NotFound,
    /// Division by zero.
    DivZero,
    /// Bad line of an output or export file.
    Malformed,
    /// Fetching failed.
    Fetch,
    /// A process failed.
    Exec,
    /// A step took longer than its `timeout` allows (flow.md §4).
    Timeout,
    /// A key that GitLab's own step runner does not know; found only by a check for it (flow.md).
    Extension,
    /// A script that can succeed although a command in it failed; always a warning.
    Shell,
    /// A value that becomes part of a shell's text; always a warning, found only by a check.
    Injection,
    /// A limit of language.md §6.
    Limit,
    /// A file exists but cannot be read.
    Io,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 18] = [
        Self::Yaml,
        Self::Missing,
        Self::Schema,
        Self::Name,
        Self::Type,
        Self::Undeclared,
        Self::Parse,
        Self::NotFound,
        Self::DivZero,
        Self::Malformed,
        Self::Fetch,
        Self::Exec,
        Self::Timeout,
        Self::Extension,
        Self::Shell,
        Self::Injection,
        Self::Limit,
        Self::Io,
    ];

    /// Returns the class with this [`word`](Self::word). `None`: another version has it.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.word() == word)
    }

    /// Returns the word used in `--output json`, in the details of errors and in the tables of the language.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Yaml => "yaml",
            Self::Missing => "missing",
            Self::Schema => "schema",
            Self::Name => "name",
            Self::Type => "type",
            Self::Undeclared => "undeclared",
            Self::Parse => "parse",
            Self::NotFound => "not_found",
            Self::DivZero => "div_zero",
            Self::Malformed => "malformed",
            Self::Fetch => "fetch",
            Self::Exec => "exec",
            Self::Timeout => "timeout",
            Self::Extension => "extension",
            Self::Shell => "shell",
            Self::Injection => "injection",
            Self::Limit => "limit",
            Self::Io => "io",
        }
    }
}

/// Error or warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The document cannot be used.
    Error,
    /// The document can be used, but something is odd. Warnings appear in the job log.
    Warning,
}

/// A mistake, its place and the remedy. Never quotes a value that may be a secret. Texts hold
/// [quotations](text::quote).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Its class.
    pub class: Class,
    /// Name of the document, `<steps>` if it has none.
    pub file: Arc<str>,
    /// Place of the finding.
    pub at: Position,
    /// Path such as `run[2].inputs.tag`; empty for the whole document.
    pub path: String,
    /// The mistake.
    pub message: String,
    /// The remedy, if there is one to name.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Makes an error.
    pub fn error(class: Class, file: &Arc<str>, at: Position, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            class,
            file: Arc::clone(file),
            at,
            path: String::new(),
            message: message.into(),
            help: None,
        }
    }

    /// Makes a warning.
    pub fn warning(class: Class, file: &Arc<str>, at: Position, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(class, file, at, message) }
    }

    /// Adds the path.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// Returns the text of [`fmt::Display`] with quotations unescaped, to be masked first ([`text::for_people`]).
    pub fn unmasked(&self) -> String {
        format!("{}:{}:{}: {}", self.file, self.at.line, self.at.column, self.description())
    }

    /// Returns the text without the place in the file.
    fn description(&self) -> String {
        let mut shown = String::new();
        if !self.path.is_empty() {
            shown.extend([&self.path, ": "]);
        }
        if self.severity == Severity::Warning {
            shown.push_str("warning: ");
        }
        shown.push_str(&self.message);
        if let Some(help) = &self.help {
            shown.extend([" (", help, ")"]);
        }
        shown
    }

    /// Adds the remedy.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Returns the finding as a mistake in `field` of a request. `show` masks the description, if needed, for people.
    pub fn violation(&self, field: &str, show: impl FnOnce(&str) -> String) -> Violation {
        let Position { line, column } = self.at;
        Violation {
            field: format!("{field}:{line}:{column}"),
            class: self.class.word(),
            description: show(&self.description()),
        }
    }
}

impl std::error::Error for Diagnostic {}

/// Prints `FILE:LINE:COLUMN: PATH: message`, with `warning: ` before the message of a warning.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::for_people(&self.unmasked()))
    }
}
