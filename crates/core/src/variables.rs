//! Turns a request into environment, files and phrases (variables.md).
//!
//! Owns the rules and limits of expansion, file variables' paths and the base environment. Pure: callers pass the
//! daemon's environment in as a [`Base`], and `store` writes the files named here.

mod base;
mod expand;
mod prepare;

use std::{collections::HashSet, fmt};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

pub use base::{Base, BaseWarning, EnvBase, RECOVERY_VARIABLE};
pub use prepare::prepare;

use step_runner_log::mask::json_members;
use step_runner_model::Reason;
pub use step_runner_model::escape;

/// Maximum number of variables and environment entries of a request together (service.md §3.7).
pub(crate) const MAX_ENTRIES: usize = 4_096;

/// Maximum number of bytes of all their keys and values together (service.md §3.7).
pub const MAX_TOTAL: usize = 8 << 20;

/// Maximum size in bytes of one environment entry: key, `=` and value. Linux refuses more at exec (service.md §3.7).
pub(crate) const MAX_ENTRY: usize = 131_071;

/// Maximum number of bytes of all expanded values together (variables.md §6).
pub(crate) const MAX_EXPANDED: usize = 16 << 20;

/// Longest key of a file variable in bytes, which is the longest file name (variables.md §6).
pub(crate) const MAX_FILE_KEY: usize = 255;

/// The service whose rules a request follows (variables.md §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The canonical service: variables are expanded and become the environment.
    V1,
    /// The compatible service: variables arrive expanded and go to `vars` only.
    Proto,
}

/// The prepared request (variables.md §1). It holds secrets, so `Debug` shows no values.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Working directory of the job, as sent. `None`: the job's own (service.md §3.1).
    pub work_dir: Option<String>,
    /// Layer 3 of language.md §13.
    pub env: IndexMap<String, String>,
    /// The objects `vars` and `job` of the language.
    pub vars: IndexMap<String, String>,
    /// Files to write when the job starts.
    pub files: Vec<FileVariable>,
    /// Phrases to mask, untrimmed and without duplicates (variables.md §5).
    pub phrases: Vec<Vec<u8>>,
    /// Token prefixes without the default ones, without duplicates.
    pub token_prefixes: Vec<String>,
    /// Names in `vars` whose values the language treats as sensitive (language.md §11.5). Masked file variables are not
    /// among them: their value is a path, which is no secret.
    pub sensitive: Vec<String>,
    /// Layer 2 of language.md §13.
    pub log_level: LogLevel,
}

impl Prepared {
    /// Adds the texts inside of phrases that are JSON texts to the phrases (setting `mask_json_members`; variables.md
    /// §5).
    pub fn add_json_members(&mut self) {
        let mut seen: HashSet<Vec<u8>> = self.phrases.iter().cloned().collect();
        let members = self.phrases.iter().flat_map(|phrase| json_members(phrase)).map(String::into_bytes);
        let fresh: Vec<Vec<u8>> = members.filter(|member| seen.insert(member.clone())).collect();
        self.phrases.extend(fresh);
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared")
            .field("work_dir", &self.work_dir)
            .field("env", &self.env.len())
            .field("vars", &self.vars.len())
            .field("files", &self.files)
            .field("phrases", &self.phrases.len())
            .field("log_level", &self.log_level)
            .finish_non_exhaustive()
    }
}

/// A file to write for a file variable (variables.md §3).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVariable {
    /// Absolute path, `DIRECTORY/NAME`. This is the variable's value.
    pub path: String,
    /// Directory of the file.
    pub directory: String,
    /// Name of the file, which is the variable's key.
    pub name: String,
    /// Content, byte for byte.
    pub content: String,
}

impl fmt::Debug for FileVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileVariable({:?}, [{} bytes])", self.path, self.content.len())
    }
}

/// Value of `CI_STEPS_LOG_LEVEL` (language.md §13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogLevel {
    /// `debug`.
    Debug,
    /// `info`.
    #[default]
    Info,
    /// `warn`.
    Warn,
    /// `error`.
    Error,
}

impl LogLevel {
    /// Name of the variable in the request and in the environment of steps.
    pub const VARIABLE: &'static str = "CI_STEPS_LOG_LEVEL";

    /// Parses a level. Ignores surrounding blanks and letter case.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Debug, Self::Info, Self::Warn, Self::Error]
            .into_iter()
            .find(|level| text.trim().eq_ignore_ascii_case(level.as_str()))
    }

    /// Returns the level as a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// The list of a request that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestList {
    /// `job.variables`.
    Variables,
    /// `env`.
    Env,
}

impl fmt::Display for RequestList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Variables => "variable",
            Self::Env => "env entry",
        })
    }
}

/// Reason for refusing a request. It names the place, never a value (variables.md §6).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// `job` and `env` are in one request.
    #[error("job and env exclude each other: put the entries of env into job.variables")]
    JobAndEnv,
    /// A key cannot be in an environment.
    #[error("key of {list} {index} is {problem}")]
    Key {
        /// List of the entry.
        list: RequestList,
        /// Position, from 0.
        index: usize,
        /// `empty`, or the forbidden content.
        problem: &'static str,
    },
    /// A value holds a NUL byte and is not a file.
    #[error("value of {list} {index} holds a NUL byte: only a file variable may")]
    NulInValue {
        /// List of the entry.
        list: RequestList,
        /// Position, from 0.
        index: usize,
    },
    /// The key of a file variable is not a file name.
    #[error(
        "key of file variable {index} is {problem}: it becomes a file name, so use at most {MAX_FILE_KEY} bytes without `/` and `\\`"
    )]
    FileKey {
        /// Position in `job.variables`, from 0.
        index: usize,
        /// Mistake in the key.
        problem: &'static str,
    },
    /// `CI_STEPS_LOG_LEVEL` is not a level.
    #[error("CI_STEPS_LOG_LEVEL {} is not one of debug, info, warn, error", place(*.index))]
    LogLevel {
        /// Position in `job.variables`, from 0. `None`: it comes from the daemon's own environment.
        index: Option<usize>,
    },
    /// `build_dir` or `work_dir` is not an absolute path.
    #[error("{field} is {problem}: give an absolute path")]
    Path {
        /// The field of the request.
        field: &'static str,
        /// Mistake in the path.
        problem: &'static str,
    },
    /// More than [`MAX_ENTRIES`].
    #[error("{0} variables and environment entries, at most {MAX_ENTRIES} are allowed")]
    TooMany(usize),
    /// More than [`MAX_TOTAL`].
    #[error("variables and environment entries take {0} bytes, at most {MAX_TOTAL} are allowed")]
    TooMuch(usize),
    /// More than [`MAX_ENTRY`].
    #[error(
        "{list} {index} takes {bytes} bytes in the environment, at most {MAX_ENTRY} are possible: use a file variable"
    )]
    EntryTooLarge {
        /// List of the entry.
        list: RequestList,
        /// Position, from 0.
        index: usize,
        /// Length of key, `=` and value after expansion.
        bytes: usize,
    },
    /// More than [`MAX_EXPANDED`].
    #[error("expanded variables take more than {MAX_EXPANDED} bytes, first at variable {index}")]
    ExpansionTooLarge {
        /// Position in `job.variables`, from 0.
        index: usize,
    },
}

impl VariableError {
    /// Returns the stable word of service.md §3.6. All of them are `INVALID_ARGUMENT` there.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::JobAndEnv => Reason::JobAndEnv,
            Self::Key { .. } | Self::NulInValue { .. } | Self::FileKey { .. } | Self::LogLevel { .. } => {
                Reason::InvalidVariable
            }
            Self::Path { .. } => Reason::InvalidPath,
            Self::TooMany(_)
            | Self::TooMuch(_)
            | Self::EntryTooLarge { .. }
            | Self::ExpansionTooLarge { .. } => Reason::TooLarge,
        }
    }

    /// Returns the field of the request as `steprunner.v1` names it; empty if the mistake is outside of the request.
    pub fn field(&self) -> String {
        let entry = |list: RequestList, index: usize| match list {
            RequestList::Variables => format!("job.variables[{index}]"),
            // A map has no positions.
            RequestList::Env => "env".to_owned(),
        };
        match *self {
            Self::JobAndEnv => "env".to_owned(),
            Self::Key { list, index, .. }
            | Self::NulInValue { list, index }
            | Self::EntryTooLarge { list, index, .. } => entry(list, index),
            Self::FileKey { index, .. }
            | Self::LogLevel { index: Some(index) }
            | Self::ExpansionTooLarge { index } => entry(RequestList::Variables, index),
            Self::LogLevel { index: None } => String::new(),
            Self::Path { field: "build_dir", .. } => "job.build_dir".to_owned(),
            Self::Path { field, .. } => field.to_owned(),
            Self::TooMany(_) | Self::TooMuch(_) => "job.variables".to_owned(),
        }
    }
}

fn place(index: Option<usize>) -> String {
    index.map_or_else(|| "of the daemon's environment".to_owned(), |index| format!("(variable {index})"))
}
