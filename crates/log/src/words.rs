//! The texts of the daemon's own lines in a job's log (logs.md §2): what writers write, and what readers recognise.
//!
//! Owns the words of these lines. A writer makes a [`DaemonLine`] and takes its text from it. A reader gets one from an
//! entry, and only if the daemon wrote that entry: a step can print the same words.

mod parse;
#[cfg(test)]
mod tests;
mod warning;

pub use warning::Warning;

use std::fmt;

use step_runner_model::EndClass;

use crate::frame::{LogChannel, Stamp, daemon_lines};

/// Beginnings of lines, for the text and for its parser.
const STARTED: &str = "Running step name=";
const SKIPPED: &str = "Skipped step name=";
const RETRYING: &str = "Retrying step name=";
const FETCHED: &str = "Fetched step name=";
const LEFT: &str = "step ";
const SECTION_START: &str = "section_start:";
const SECTION_END: &str = "section_end:";
const WARNING: &str = "warning: ";
const DEBUG: &str = "debug: ";
const LIMIT: &str = "log limit reached: ";
const LINES_LEFT_OUT: &str = "lines of the log are left out: ";
const FAILED: &str = "job failed: ";
const CANCELLED: &str = "job cancelled: ";
const TIMED_OUT: &str = "job ended by time limit: ";
const INTERRUPTED: &str = "job interrupted: ";

/// Other words of lines, for the text and for its parser.
const STREAM: &str = " stream=";
const AFTER_SECTION: &str = "\r\x1b[0K";
const AFTER_LIMIT: &str = " bytes; later output is dropped";
const REAPER_KILLED: &str =
    "the reaper process of this job was killed, so all processes of the job are killed too";
const NOT_KILLED: &str = " processes could not be killed";

/// One of the daemon's own lines (logs.md §2). `Display` writes its text; [`of`](Self::of) and [`parse`](Self::parse) read it.
///
/// The texts in it are borrowed. They are not masked yet when a line is written, and are masked when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonLine<'a> {
    /// An exec function or a builtin starts, at each attempt.
    Started {
        /// Name of the step; `root` for a function that is the whole job.
        name: &'a str,
        /// Number of the stream that it writes from now on, inside of a group.
        stream: Option<u8>,
    },
    /// A step does not run.
    Skipped {
        /// Name of the step.
        name: &'a str,
        /// Reason, as in its result.
        reason: &'a str,
    },
    /// A step has failed and is tried again.
    Retrying {
        /// Name of the step.
        name: &'a str,
        /// Number of the next attempt, from 2.
        attempt: u32,
        /// Maximum number of attempts.
        of: u32,
        /// Time until the next attempt, such as `1m30s`.
        delay: &'a str,
        /// Failure of the last attempt.
        error: &'a str,
    },
    /// A function was fetched.
    Fetched {
        /// Name of the step that calls it.
        name: &'a str,
        /// Where it came from, without credentials.
        origin: &'a str,
        /// Version that was fetched.
        version: FetchedVersion<'a>,
    },
    /// A step left processes behind, in a job that goes on.
    LeftRunning {
        /// Name of the step.
        name: &'a str,
        /// Number of its processes.
        count: usize,
        /// The first of them: pids, with commands in parentheses.
        processes: &'a str,
    },
    /// The mark before the output of a step that log viewers can fold (service.md §3.1).
    SectionStart {
        /// Start of the step in seconds since the epoch.
        time: i64,
        /// Name of the step.
        name: &'a str,
        /// Heading, for people.
        heading: &'a str,
    },
    /// The mark behind that output.
    SectionEnd {
        /// End of the step in seconds since the epoch.
        time: i64,
        /// Name of the step.
        name: &'a str,
    },
    /// A warning.
    Warning(Warning<'a>),
    /// A process of a step whose `timeout` has passed (flow.md §4).
    Process {
        /// Number of its ancestors among the processes listed.
        depth: usize,
        /// Its id.
        pid: u32,
        /// Id of its parent.
        parent: u32,
        /// State as in `/proc`, `?` if unknown.
        state: char,
        /// Its command, `?` if unknown.
        command: &'a str,
    },
    /// The last of these lines, if there are too many processes to list them.
    MoreProcesses {
        /// Number of the processes that are not listed.
        count: usize,
    },
    /// The death of the job's reaper ends all its processes.
    ReaperKilled,
    /// A bad line of an output file, for a job whose log level is `debug` (language.md §12).
    Debug(&'a str),
    /// The first output of a step that exceeds the log limit (logs.md §6).
    LimitReached {
        /// The limit in bytes.
        limit: u64,
    },
    /// Lines could not be sent to the keeper.
    LinesLeftOut {
        /// Channel of these lines.
        channel: LogChannel,
        /// Reason.
        cause: &'a str,
    },
    /// The job failed.
    JobFailed {
        /// First finding. Each further one is a line of its own: [`Other`](Self::Other).
        message: &'a str,
    },
    /// A client, a stop of the daemon or a rule cancelled the job.
    JobCancelled {
        /// Reason.
        cause: &'a str,
    },
    /// A time limit ended the job.
    JobTimedOut {
        /// Reason.
        cause: &'a str,
    },
    /// The job lost its keeper, its host or its daemon.
    JobInterrupted {
        /// Reason.
        cause: &'a str,
    },
    /// Processes of the job live on after its end.
    NotKilled {
        /// Number of these processes.
        count: usize,
    },
    /// Any other line: a further finding of a failure, or a line of another version of the daemon.
    Other {
        /// Channel of the line.
        channel: LogChannel,
        /// Its text.
        text: &'a str,
    },
}

/// Version of a fetched function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchedVersion<'a> {
    /// Hash of a Git commit.
    Commit(&'a str),
    /// Digest of an image.
    Digest(&'a str),
}

impl DaemonLine<'_> {
    /// Returns the channel that the line is written to.
    pub const fn channel(&self) -> LogChannel {
        match self {
            Self::Started { .. }
            | Self::Skipped { .. }
            | Self::Retrying { .. }
            | Self::Fetched { .. }
            | Self::LeftRunning { .. }
            | Self::SectionStart { .. }
            | Self::SectionEnd { .. } => LogChannel::Out,
            Self::Warning(_)
            | Self::Process { .. }
            | Self::MoreProcesses { .. }
            | Self::ReaperKilled
            | Self::Debug(_)
            | Self::LimitReached { .. }
            | Self::JobFailed { .. }
            | Self::JobCancelled { .. }
            | Self::JobTimedOut { .. }
            | Self::JobInterrupted { .. }
            | Self::NotKilled { .. } => LogChannel::Err,
            Self::LinesLeftOut { channel, .. } | Self::Other { channel, .. } => *channel,
        }
    }

    /// Returns channel and text, for a line that is written later or by another process.
    pub fn to_parts(&self) -> (LogChannel, String) {
        (self.channel(), self.to_string())
    }

    /// Appends the entry of this line to `out`. The texts in the line must be masked.
    pub fn append_to(&self, now: &Stamp, out: &mut Vec<u8>) {
        daemon_lines(self.channel(), self.to_string().as_bytes(), now, out);
    }

    /// Returns the class of the job's end if this line tells why the job did not succeed.
    pub const fn job_end(&self) -> Option<EndClass> {
        match self {
            Self::JobFailed { .. } => Some(EndClass::Failure),
            Self::JobCancelled { .. } => Some(EndClass::Cancelled),
            Self::JobTimedOut { .. } => Some(EndClass::Timeout),
            Self::JobInterrupted { .. } => Some(EndClass::Interrupted),
            _ => None,
        }
    }
}

impl fmt::Display for DaemonLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Started { name, stream: None } => write!(f, "{STARTED}{name}"),
            Self::Started { name, stream: Some(stream) } => write!(f, "{STARTED}{name}{STREAM}{stream:02x}"),
            Self::Skipped { name, reason } => write!(f, "{SKIPPED}{name}: {reason}"),
            Self::Retrying { name, attempt, of, delay, error } => {
                write!(f, "{RETRYING}{name} (attempt {attempt} of {of}) in {delay}: {error}")
            }
            Self::Fetched { name, origin, version } => {
                write!(f, "{FETCHED}{name} from {origin}: {version}")
            }
            Self::LeftRunning { name, count, processes } => {
                let noun = if count == 1 { "process" } else { "processes" };
                write!(f, "{LEFT}{name} left {count} {noun} running: {processes}")
            }
            Self::SectionStart { time, name, heading } => {
                write!(f, "{SECTION_START}{time}:{name}{AFTER_SECTION}{heading}")
            }
            Self::SectionEnd { time, name } => write!(f, "{SECTION_END}{time}:{name}{AFTER_SECTION}"),
            Self::Warning(warning) => write!(f, "{WARNING}{warning}"),
            Self::Process { depth, pid, parent, state, command } => {
                write!(f, "{:1$}{pid} (parent {parent}, state {state}) {command}", "", 2 * depth)
            }
            Self::MoreProcesses { count } => write!(f, "and {count} more processes"),
            Self::ReaperKilled => f.write_str(REAPER_KILLED),
            Self::Debug(text) => write!(f, "{DEBUG}{text}"),
            Self::LimitReached { limit } => write!(f, "{LIMIT}{limit}{AFTER_LIMIT}"),
            Self::LinesLeftOut { cause, .. } => write!(f, "{LINES_LEFT_OUT}{cause}"),
            Self::JobFailed { message } => write!(f, "{FAILED}{message}"),
            Self::JobCancelled { cause } => write!(f, "{CANCELLED}{cause}"),
            Self::JobTimedOut { cause } => write!(f, "{TIMED_OUT}{cause}"),
            Self::JobInterrupted { cause } => write!(f, "{INTERRUPTED}{cause}"),
            Self::NotKilled { count } => write!(f, "{count}{NOT_KILLED}"),
            Self::Other { text, .. } => f.write_str(text),
        }
    }
}

impl fmt::Display for FetchedVersion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit(hash) => write!(f, "commit {hash}"),
            Self::Digest(digest) => write!(f, "digest {digest}"),
        }
    }
}
