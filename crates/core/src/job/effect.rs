//! Effects: actions that a job's machine asks for. The job's actor performs them in the order given.

use std::fmt;
use std::time::Duration;

use step_runner_lang::ast::Reference;
use step_runner_model::{ExitStatus, LogChannel, Outcome, StepResult};

use super::event::{CallId, ProcessNumber, TimerId};

/// One action to perform. It may hold secrets, which `Debug` hides.
#[derive(Clone, PartialEq)]
pub enum Effect {
    /// Fetch a function. The answer is [`super::event::Event::Fetched`].
    Fetch {
        /// Number of the attempt.
        process: ProcessNumber,
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
    /// Remove the files of an attempt that has ended, once the event that ended it is recorded: they can hold secrets.
    RemoveFiles(ProcessNumber),
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
    /// Stop a running process: SIGTERM, SIGCONT, and SIGKILL after `grace`. The step still waits for its exit. A further
    /// one for the same process shortens the grace, without another SIGTERM.
    Stop {
        /// Its number.
        process: ProcessNumber,
        /// The grace in force (service.md §6.2).
        grace: Duration,
    },
    /// Give up a fetch. No answer is awaited any more.
    StopFetch(ProcessNumber),
    /// Write processes to the log, as a tree (flow.md §4).
    ShowProcesses {
        /// The call whose limit has passed.
        call: CallId,
        /// Number of the attempt. The limit of an attempt passes once.
        attempt: ProcessNumber,
        /// The processes that run below it. What they have started is shown too.
        processes: Vec<ProcessNumber>,
    },
    /// End the processes that an attempt, which has ended, has left (flow.md §4). The answer is
    /// [`super::event::Event::Cleared`].
    Clear {
        /// The call that waits.
        call: CallId,
        /// The processes of its last attempt.
        processes: Vec<ProcessNumber>,
    },
    /// Tell the machine when the time has come. The answer is [`super::event::Event::Due`].
    Wake {
        /// The timer.
        timer: TimerId,
        /// The time, in microseconds since the host's boot.
        at: u64,
    },
    /// A step has started, is tried again, has ended or is skipped: the next event of FollowSteps.
    Note(Box<StepNote>),
    /// The job is over. Always the last effect.
    Finish {
        /// Outcome of the job.
        outcome: Outcome,
        /// The result of the root, without those of its steps.
        root: Box<StepResult>,
        /// Last lines of the log (logs.md §2), unmasked.
        lines: Vec<(LogChannel, String)>,
        /// Number of failures that `continue_on_error` allowed.
        allowed_failures: u32,
    },
}

/// Something that happened to a step.
#[derive(Clone, PartialEq)]
pub struct StepNote {
    /// Number of the step within its job. All attempts of a step have one number; the root's is 0.
    pub call: CallId,
    /// Number of the function, group or matrix that it belongs to.
    pub parent: CallId,
    /// True if it is a member of a group.
    pub is_member: bool,
    /// Number of the stream that its processes write.
    pub slot: u8,
    /// Its place: the length of the log then. `None` if only the keeper knows it, because lines were written or time has passed
    /// since the last end of a process.
    pub place: Option<u64>,
    /// Its result so far, without the results of its own steps.
    pub result: StepResult,
}

/// A process to start. Holds secrets, so it has no `Debug`.
#[derive(Clone, PartialEq)]
pub struct Spawn {
    /// Its number.
    pub process: ProcessNumber,
    /// Name of the step.
    pub name: String,
    /// Number of the stream that it writes, 1 to 14 (flow.md §5).
    pub slot: u8,
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
            process: self.process,
            name: self.name.clone(),
            slot: self.slot,
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

/// The two files of an attempt (language.md §12), absolute paths in `tmp_dir`.
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
            Self::Fetch { process, .. } => write!(f, "Fetch({process})"),
            Self::MakeFiles(_) => f.write_str("MakeFiles"),
            Self::RemoveFiles(process) => write!(f, "RemoveFiles({process})"),
            Self::Log { kind, text } => write!(f, "Log({kind:?}, [{} bytes])", text.len()),
            Self::Phrases(phrases) => write!(f, "Phrases([{}])", phrases.len()),
            Self::Spawn(spawn) => write!(f, "Spawn({}, {})", spawn.process, spawn.name),
            Self::Stop { grace, .. } => write!(f, "Stop({grace:?})"),
            Self::StopFetch(process) => write!(f, "StopFetch({process})"),
            Self::ShowProcesses { call, processes, .. } => write!(f, "ShowProcesses({call}, {processes:?})"),
            Self::Clear { call, processes } => write!(f, "Clear({call}, {processes:?})"),
            Self::Wake { timer, at } => write!(f, "Wake({timer}, {at})"),
            Self::Note(note) => write!(f, "Note({}, {}, {:?})", note.call, note.parent, note.result.outcome),
            Self::Finish { outcome, .. } => write!(f, "Finish({:?}, {})", outcome.class, outcome.exit_code),
        }
    }
}
