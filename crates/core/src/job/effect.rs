//! Effects: actions that a job's machine asks for. The job's actor performs them in the order given.

use std::fmt;
use std::time::Duration;

use step_runner_lang::ast::Reference;
use step_runner_model::{ExitStatus, LogChannel, Outcome, StepResult};

use super::event::CallId;

/// One action to perform. It may hold secrets, which `Debug` hides.
#[derive(Clone, PartialEq)]
pub enum Effect {
    /// Fetch a function. The answer is [`super::event::Event::Fetched`].
    Fetch {
        /// The invocation.
        call: CallId,
        /// Resolved reference: never dynamic, all templates are plain text, a local path is absolute. A reference to an
        /// image without file names asks for its folder `dir` itself, or for the file of that name, and for no text.
        reference: Box<Reference>,
        /// The tree that the caller was fetched into, if any: a local path must stay inside, symbolic links resolved
        /// (language.md §7.1).
        inside: Option<String>,
        /// The caller's effective environment if the function comes over the network, for credentials, proxies and
        /// certificates (language.md §7.7). Else empty.
        environment: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Make two empty files before any later effect, because an expression of a run function named its own files
    /// (language.md §10). Nobody reads them.
    MakeFiles(StepFiles),
    /// Remove the files of an invocation that has ended, once the event that ended it is recorded: they can hold secrets.
    RemoveFiles(CallId),
    /// Write a line to the job's log.
    Log {
        /// `00O` or `00E`.
        kind: LogChannel,
        /// The unmasked text. Masking comes first, then it becomes one line.
        text: String,
    },
    /// Add phrases to the job's masking before any later effect.
    Phrases(Vec<Vec<u8>>),
    /// Start a process. The answer is [`super::event::Event::Exited`].
    Spawn(Box<Spawn>),
    /// Stop the running process: SIGTERM, SIGCONT, and SIGKILL after `grace`. The job still waits for its exit.
    Stop {
        /// The grace in force (service.md §6.2).
        grace: Duration,
    },
    /// A step has started, or a nested step has ended: the next message of FollowSteps for clients that ask for starts.
    /// It is the path of `running` results down to that step.
    News(Box<StepResult>),
    /// A step of the job's own list has ended: the next message of FollowSteps.
    Emit(Box<StepResult>),
    /// The job is over. Always the last effect.
    Finish {
        /// Outcome of the job.
        outcome: Outcome,
        /// The whole tree of results.
        root: Box<StepResult>,
        /// Last lines of the log (logs.md §2), unmasked.
        lines: Vec<(LogChannel, String)>,
    },
}

/// A process to start. Holds secrets, so it has no `Debug`.
#[derive(Clone, PartialEq)]
pub struct Spawn {
    /// The invocation.
    pub call: CallId,
    /// Name of the step.
    pub name: String,
    /// The program to run.
    pub program: Program,
    /// The whole environment, except for the variables that the actor sets above all layers (variables.md §7).
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Absolute working directory.
    pub work_dir: String,
    /// The exits that count as success.
    pub success: Success,
    /// Output and export files, made before the start and read after a success; `None` if nothing refers to them.
    pub files: Option<StepFiles>,
    /// True if exit code 0 of this process ends the job: no step follows, no value is read, no line is written. So
    /// whoever sees that exit may close the log, without a question in between.
    pub ends_job: bool,
}

impl Spawn {
    /// Returns a copy that still identifies the process, without the data that the process is given.
    #[must_use]
    pub fn without_content(&self) -> Self {
        Self {
            call: self.call,
            name: self.name.clone(),
            program: Program::Command(Vec::new()),
            env: Vec::new(),
            work_dir: self.work_dir.clone(),
            success: self.success,
            files: None,
            ends_job: false,
        }
    }
}

/// The program of a process.
#[derive(Clone, PartialEq, Eq)]
pub enum Program {
    /// A command line, at least one element, the first not empty (language.md §14.3).
    Command(Vec<String>),
    /// `SHELL -c -- TEXT`. SHELL is the first existing shell of language.md §17 `script`; without any, the process cannot
    /// start.
    Script(String),
    /// A script that is too long for one argument: written to the file, then run as `SHELL FILE`.
    ScriptFile(ScriptFile),
    /// Like `ScriptFile`, with `#!SHELL` before the text. The shell is first looked up in `PATH` (language.md §17
    /// `script_legacy`).
    LegacyScript(ScriptFile),
    /// This program itself: `step-runner builtin NAME` (language.md §17).
    Builtin(BuiltinProgram),
}

/// The exits of a process that count as success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// Exit code 0.
    ExitCode,
    /// Exit code 0, and death by SIGHUP, SIGUSR1, SIGUSR2 or SIGPIPE (language.md §17 `script_legacy`).
    ExitCodeOrSignal,
}

impl Program {
    /// True if it is written to a file before it starts.
    pub const fn has_file(&self) -> bool {
        match self {
            Self::Command(_) | Self::Script(_) => false,
            Self::ScriptFile(_) | Self::LegacyScript(_) | Self::Builtin(_) => true,
        }
    }
}

impl Success {
    /// True if `status` counts as success.
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

/// Shows the kind of effect but no text or value: they may be secrets.
impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetch { call, .. } => write!(f, "Fetch({call})"),
            Self::MakeFiles(_) => f.write_str("MakeFiles"),
            Self::RemoveFiles(call) => write!(f, "RemoveFiles({call})"),
            Self::Log { kind, text } => write!(f, "Log({kind:?}, [{} bytes])", text.len()),
            Self::Phrases(phrases) => write!(f, "Phrases([{}])", phrases.len()),
            Self::Spawn(spawn) => write!(f, "Spawn({}, {})", spawn.call, spawn.name),
            Self::Stop { grace } => write!(f, "Stop({grace:?})"),
            Self::News(result) => write!(f, "News({})", result.step.as_ref().map_or("", |step| &step.name)),
            Self::Emit(result) => write!(f, "Emit({:?})", result.status),
            Self::Finish { outcome, .. } => write!(f, "Finish({:?}, {})", outcome.class, outcome.exit_code),
        }
    }
}
