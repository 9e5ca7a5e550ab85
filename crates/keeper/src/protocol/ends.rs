//! How a keeper tells the ends of steps and jobs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use step_runner_model::{ExitStatus, FinishedProcess, ProcessNumber, Shortage};
use step_runner_process::cgroup::Usage;
use step_runner_process::spawn::Stage;

/// End of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepEnded {
    /// Its process.
    pub process: ProcessNumber,
    /// Exit of its process, or the failure to start it.
    pub end: StepEnd,
    /// Living processes of the job after the step, those left earlier included.
    pub left: u32,
    /// Resource that ran short while it ran.
    pub shortage: Option<Shortage>,
    /// Usage of the job so far.
    pub usage: Usage,
    /// End and usage of its process.
    pub ran: FinishedProcess,
    /// True if the job is being closed with it ([`SpawnStep::closes`](super::SpawnStep::closes)).
    pub closes: bool,
}

/// End of a step's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepEnd {
    /// The process ran and ended.
    Exited(ExitStatus),
    /// The process could not be started.
    NotStarted {
        /// Failed part of the start.
        part: StartPart,
        /// The system's error number.
        errno: i32,
    },
}

/// Part of a start that failed. A frame has it as a word, so that a keeper of a later release can name more parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum StartPart {
    /// None: an end of the job was requested before. Its word is `cancelled`.
    Cancelled,
    /// A stage of the start. Its word is [`Stage::name`].
    Stage(Stage),
    /// A word that this release does not know.
    Unknown(String),
}

const CANCELLED: &str = "cancelled";

impl From<String> for StartPart {
    fn from(word: String) -> Self {
        match Stage::of_name(&word) {
            Some(stage) => Self::Stage(stage),
            None if word == CANCELLED => Self::Cancelled,
            None => Self::Unknown(word),
        }
    }
}

impl From<StartPart> for String {
    fn from(part: StartPart) -> Self {
        match part {
            StartPart::Cancelled => CANCELLED.to_owned(),
            StartPart::Stage(stage) => stage.name().to_owned(),
            StartPart::Unknown(word) => word,
        }
    }
}

/// Report on the end of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Final length of the log.
    pub log_len: u64,
    /// Processes that could not be killed within `kill_wait`.
    pub unkilled: Vec<u32>,
    /// CPU time of all processes of the job, if the kernel counted it.
    pub cpu_time: Option<Duration>,
    /// Peak memory in bytes, if the kernel counted it.
    pub peak_memory: Option<u64>,
    /// True if the log could not be written to its end; its last state is kept (logs.md §6).
    pub log_damaged: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_start_is_one_word_of_a_frame() {
        for word in [
            "arguments",
            "pipe",
            "fork",
            "cgroup",
            "work_dir",
            "exec",
            "limits",
            "cancelled",
            "of a later release",
        ] {
            let part = StartPart::from(word.to_owned());
            assert_eq!(matches!(part, StartPart::Unknown(_)), word == "of a later release");
            let end = StepEnd::NotStarted { part, errno: 2 };
            let bytes = postcard::to_stdvec(&end).unwrap();
            assert!(bytes.windows(word.len()).any(|part| part == word.as_bytes()), "{bytes:?}");
            assert_eq!(postcard::from_bytes::<StepEnd>(&bytes).unwrap(), end);
        }
    }
}
