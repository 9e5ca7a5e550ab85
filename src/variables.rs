//! From a request to environment, files and phrases (variables.md).
//!
//! Owns the rules of expansion, of file variables' paths, of the base environment, and the limits on all of them.
//! Pure: the daemon's environment is passed in as a [`Base`], files are named here and written by `store`.

mod base;
mod expand;
mod prepare;

use std::fmt;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

pub use base::{Base, BaseWarning, EnvBase, RECOVERY_VARIABLE};
pub use expand::escape;
pub use prepare::prepare;

use crate::model::{Reason, Variable};

/// Most variables and environment entries of a request together (service.md §3.7).
pub const MAX_ENTRIES: usize = 4_096;

/// Most bytes of all their keys and values together (service.md §3.7).
pub const MAX_TOTAL: usize = 8 << 20;

/// Most bytes of one environment entry, key, `=` and value: Linux refuses more at exec (service.md §3.7).
pub const MAX_ENTRY: usize = 131_071;

/// Most bytes that expansion may make of all values together (variables.md §6).
pub const MAX_EXPANDED: usize = 16 << 20;

/// Longest key of a file variable in bytes: the longest file name (variables.md §6).
pub const MAX_FILE_KEY: usize = 255;

/// Which rules a request follows (variables.md §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The canonical service: variables are expanded and become the environment.
    V1,
    /// The compatible service: variables came expanded and go to `vars` only.
    Proto,
}

/// What a request says about its environment. An empty path means *not given*.
#[derive(Clone, Default)]
pub struct Request {
    /// `work_dir`.
    pub work_dir: String,
    /// `env`, taken literally. Errors name an entry by its index in this list.
    pub env: Vec<(String, String)>,
    /// `job`, if the client is a runner.
    pub job: Option<JobPart>,
    /// `masking`.
    pub masking: Masking,
}

/// The part of a request that only a runner sends.
#[derive(Clone, Default)]
pub struct JobPart {
    /// Variables in the order sent.
    pub variables: Vec<Variable>,
    /// The project's directory.
    pub build_dir: String,
    /// Token prefixes of the instance.
    pub token_prefixes: Vec<String>,
}

/// Phrases and prefixes that a request gives directly.
#[derive(Clone, Default)]
pub struct Masking {
    /// Texts to hide.
    pub phrases: Vec<String>,
    /// Prefixes of tokens to hide.
    pub token_prefixes: Vec<String>,
}

/// What the rest of the daemon needs of a request (variables.md §1). Holds secrets: no `Debug` of any value.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Working directory of the job, as sent; `None`: the job's own (service.md §3.1).
    pub work_dir: Option<String>,
    /// Layer 3 of language.md §13.
    pub env: IndexMap<String, String>,
    /// The objects `vars` and `job` of the language.
    pub vars: IndexMap<String, String>,
    /// Files to write when the job starts.
    pub files: Vec<FileVariable>,
    /// Phrases, untrimmed, without duplicates (variables.md §5).
    pub phrases: Vec<Vec<u8>>,
    /// Token prefixes without the default ones, without duplicates.
    pub token_prefixes: Vec<String>,
    /// Names in `vars` whose values are sensitive for the language (language.md §9.6). A masked file variable is not
    /// among them: its value is a path, which is no secret.
    pub sensitive: Vec<String>,
    /// Layer 2 of language.md §13.
    pub log_level: LogLevel,
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
    /// Absolute path, `DIRECTORY/NAME`; the variable's value.
    pub path: String,
    /// Directory it lies in.
    pub directory: String,
    /// Its name there: the variable's key.
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
    /// Name of the variable, in the request and in the environment of steps.
    pub const VARIABLE: &'static str = "CI_STEPS_LOG_LEVEL";

    /// Reads a level; blanks around it and letter case do not count.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Debug, Self::Info, Self::Warn, Self::Error]
            .into_iter()
            .find(|level| text.trim().eq_ignore_ascii_case(level.as_str()))
    }

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Which list of a request an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `job.variables`.
    Variables,
    /// `env`.
    Env,
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Variables => "variable",
            Self::Env => "env entry",
        })
    }
}

/// Why a request is refused. Names the place, never a value (variables.md §6).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// `job` and `env` together.
    #[error("job and env exclude each other: put the entries of env into job.variables")]
    JobAndEnv,
    /// A key that cannot be in an environment.
    #[error("key of {list} {index} is {problem}")]
    Key {
        /// Where.
        list: List,
        /// Position, from 0.
        index: usize,
        /// `empty`, or what it holds.
        problem: &'static str,
    },
    /// NUL in a value that is no file.
    #[error("value of {list} {index} holds a NUL byte: only a file variable may")]
    NulInValue {
        /// Where.
        list: List,
        /// Position, from 0.
        index: usize,
    },
    /// The key of a file variable is no file name.
    #[error(
        "key of file variable {index} is {problem}: it becomes a file name, so use at most {MAX_FILE_KEY} bytes without `/` and `\\`"
    )]
    FileKey {
        /// Position in `job.variables`, from 0.
        index: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// `CI_STEPS_LOG_LEVEL` is no level.
    #[error("CI_STEPS_LOG_LEVEL {} is not one of debug, info, warn, error", place(*.index))]
    LogLevel {
        /// Position in `job.variables`, from 0; `None` = the daemon's own environment.
        index: Option<usize>,
    },
    /// `build_dir` or `work_dir` is no absolute path.
    #[error("{field} is {problem}: give an absolute path")]
    Path {
        /// The field of the request.
        field: &'static str,
        /// What is wrong with it.
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
        /// Where.
        list: List,
        /// Position, from 0.
        index: usize,
        /// Key, `=` and value after expansion.
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
    /// The stable word of service.md §3.6; each of them is `INVALID_ARGUMENT` there.
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
}

fn place(index: Option<usize>) -> String {
    index.map_or_else(|| "of the daemon's environment".to_owned(), |index| format!("(variable {index})"))
}
