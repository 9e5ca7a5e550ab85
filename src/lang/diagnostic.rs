//! Errors and warnings of the language, with their place (language.md §2 "Errors", §18).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A place in a document. Lines and columns count from 1, columns in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Line from the start of the file, both documents counted.
    pub line: u32,
    /// Column of the key or value.
    pub column: u32,
}

impl Position {
    /// The first character of a document.
    pub const START: Self = Self { line: 1, column: 1 };
}

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
    /// A limit of language.md §6.
    Limit,
    /// A file that is there cannot be read.
    Io,
}

/// Error or warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The document cannot be used.
    Error,
    /// It can, but something is odd (shown in the job log).
    Warning,
}

/// One finding: what, where, and what to do. Never quotes a value that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Its class.
    pub class: Class,
    /// Name of the document, `<steps>` if it has none.
    pub file: Arc<str>,
    /// Where.
    pub at: Position,
    /// Path such as `run[2].inputs.tag`; empty for the document.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do, if there is something to say.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error.
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

    /// A warning.
    pub fn warning(class: Class, file: &Arc<str>, at: Position, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(class, file, at, message) }
    }

    /// The same with its path.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// The same with what to do.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl std::error::Error for Diagnostic {}

/// `FILE:LINE:COLUMN: PATH: message`, with `warning: ` before the message of a warning.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.at.line, self.at.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        f.write_str(&self.message)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}
