//! What a job's machine wants done. The shell performs effects in the order given.

use std::fmt;
use std::time::Duration;

use crate::lang::ast::Reference;
use crate::model::{ExitStatus, Kind, Outcome, StepResult};

use super::event::CallId;

/// One thing to do. May hold secrets, which `Debug` hides.
#[derive(Clone, PartialEq)]
pub enum Effect {
    /// Find a function and answer with [`super::event::Event::Fetched`].
    Fetch {
        /// The invocation.
        call: CallId,
        /// Resolved reference: never dynamic, all its templates are plain text; a local path is absolute. Without names
        /// of files, a reference to an image: its folder `dir` itself is wanted, or the file of that name, and no text.
        reference: Box<Reference>,
        /// The caller was fetched into this tree: a local path must stay inside, symbolic links resolved
        /// (language.md §7.1).
        inside: Option<String>,
        /// The caller's effective environment, if the function comes over the network: it has credentials, proxies and
        /// certificates (language.md §7.7). Else empty.
        environment: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Make two empty files before anything that follows: an expression of a run function named its own files
    /// (language.md §10). Nobody reads them.
    MakeFiles(StepFiles),
    /// Write a line to the job's log.
    Log {
        /// `00O` or `00E`.
        kind: Kind,
        /// The text, not yet masked.
        text: String,
    },
    /// Add phrases to the job's masking before anything that follows.
    Phrases(Vec<Vec<u8>>),
    /// Start a process and answer with [`super::event::Event::Exited`].
    Spawn(Box<Spawn>),
    /// Stop the running process: SIGTERM, SIGCONT, after `grace` SIGKILL. Its exit is still awaited.
    Stop {
        /// The grace in force (service.md §6.2).
        grace: Duration,
    },
    /// A step of the job's own list has ended: the next message of FollowSteps.
    Emit(Box<StepResult>),
    /// The job is over. Always the last effect.
    Finish {
        /// How.
        outcome: Outcome,
        /// The whole tree.
        root: Box<StepResult>,
        /// Last lines of the log (logs.md §2), not yet masked.
        lines: Vec<(Kind, String)>,
    },
}

/// A process to start. Holds secrets, so it has no `Debug`.
#[derive(Clone, PartialEq)]
pub struct Spawn {
    /// The invocation.
    pub call: CallId,
    /// Name of the step.
    pub name: String,
    /// What runs.
    pub program: Program,
    /// Whole environment but for what the shell adds above all layers (variables.md §7).
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Absolute working directory.
    pub work_dir: String,
    /// Which ends of it are successes.
    pub success: Success,
    /// Output and export files to make before the start and to read after a success; `None` if nothing refers to them.
    pub files: Option<StepFiles>,
}

/// What a process runs.
#[derive(Clone, PartialEq, Eq)]
pub enum Program {
    /// A command line, at least one element, the first not empty (language.md §14.3).
    Command(Vec<String>),
    /// `SHELL -c TEXT`, SHELL being the first of the shells of language.md §17 `script` that is there; none: could not
    /// start.
    Script(String),
    /// The same for a text longer than one argument may be: written to the file, then `SHELL FILE`.
    ScriptFile(ScriptFile),
    /// As `ScriptFile`, with `#!SHELL` in front of the text; the shell is looked for by its name first (language.md §17
    /// `script_legacy`).
    LegacyScript(ScriptFile),
    /// This program itself: `step-runner builtin NAME` (language.md §17).
    Builtin(BuiltinProgram),
}

/// Which ends of a process are successes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// Exit code 0.
    ExitCode,
    /// Exit code 0, and death by SIGHUP, SIGUSR1, SIGUSR2 or SIGPIPE (language.md §17 `script_legacy`).
    ExitCodeOrSignal,
}

impl Success {
    /// Whether `status` is one of them.
    pub const fn includes(self, status: ExitStatus) -> bool {
        const SIGHUP: u8 = 1;
        const SIGUSR1: u8 = 10;
        const SIGUSR2: u8 = 12;
        const SIGPIPE: u8 = 13;
        match (self, status) {
            (Self::ExitCodeOrSignal, ExitStatus::Signal(SIGHUP | SIGUSR1 | SIGUSR2 | SIGPIPE)) => true,
            (_, status) => status.is_success(),
        }
    }
}

/// A builtin that runs as a process of the job. Its inputs may be secrets, so they are never arguments.
#[derive(Clone, PartialEq, Eq)]
pub struct BuiltinProgram {
    /// Its name.
    pub name: String,
    /// Absolute path in `tmp_dir` of the file that its inputs are written to.
    pub path: String,
    /// Its inputs: a JSON object.
    pub inputs: String,
}

/// The two files of an invocation (language.md §12), absolute paths in `tmp_dir`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFiles {
    /// `output_file`.
    pub output: String,
    /// `export_file`.
    pub export: String,
}

/// A script written to a file.
#[derive(Clone, PartialEq, Eq)]
pub struct ScriptFile {
    /// Absolute path in `tmp_dir`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Shows what is to be done but no text or value: they may be secrets.
impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetch { call, .. } => write!(f, "Fetch({call})"),
            Self::MakeFiles(_) => f.write_str("MakeFiles"),
            Self::Log { kind, text } => write!(f, "Log({kind:?}, [{} bytes])", text.len()),
            Self::Phrases(phrases) => write!(f, "Phrases([{}])", phrases.len()),
            Self::Spawn(spawn) => write!(f, "Spawn({}, {})", spawn.call, spawn.name),
            Self::Stop { grace } => write!(f, "Stop({grace:?})"),
            Self::Emit(result) => write!(f, "Emit({:?})", result.status),
            Self::Finish { outcome, .. } => write!(f, "Finish({:?}, {})", outcome.class, outcome.exit_code),
        }
    }
}
