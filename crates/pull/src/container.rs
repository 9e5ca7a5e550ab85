//! The container of a job, as an engine and a cluster have it alike: where the daemon in it is, and what a look finds
//! (agent.md §8.5, §8.6).

use std::time::Duration;

/// Folder in the job's container with the program, and with socket and state of its daemon.
pub(super) const FOLDER: &str = "/opt/step-runner";

/// The program there.
pub(super) const PROGRAM: &str = "/opt/step-runner/step-runner";

/// Folder there for socket and state, which every user can write.
pub(super) const RUN: &str = "/opt/step-runner/run";

/// Socket of the daemon there.
pub(super) const SOCKET: &str = "/opt/step-runner/run/s.sock";

/// Time for the daemon in a container to answer. An entrypoint may have work to do before.
pub(super) const ANSWER: Duration = Duration::from_mins(2);

/// Time between two looks at a container.
pub(super) const AGAIN: Duration = Duration::from_secs(2);

/// Lines of a container that are shown if it did not do what it is for.
pub(super) const LINES: &str = "20";

/// Exit code of a container whose first process was killed.
pub(super) const KILLED: i64 = 137;

/// State of a job's container.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It runs, or is paused.
    Running,
    /// It has ended.
    Ended {
        /// How, for people.
        how: String,
        /// True if it did not end by itself.
        is_killed: bool,
    },
    /// It is not there, or is not ours.
    Gone,
}

impl Seen {
    /// Reads how a container has ended.
    pub(super) fn ended(code: i64, is_out_of_memory: bool) -> Self {
        let (how, is_killed) = match code {
            _ if is_out_of_memory => ("ran out of memory and was killed".to_owned(), true),
            KILLED => ("was killed".to_owned(), true),
            code => (format!("ended with exit code {code}"), false),
        };
        Self::Ended { how, is_killed }
    }
}

/// Prospects of a job after a look at its container.
pub(super) enum Fate {
    /// It may run. With a cause its container had ended, and was started for the rest of the log.
    Runs(Option<String>),
    /// It is lost.
    Lost(String),
    /// The engine or cluster does not answer.
    Unknown(String),
}
