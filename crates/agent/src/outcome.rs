//! The end of a job as the server is told it: state, failure reason and exit code (agent.md §7.1).
//!
//! The result comes from the daemon alone: code and class of the job's end, and the step that decided it.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize};
use step_runner_lang::diagnostic::Class;
use step_runner_model::exit_code;

/// How a job came to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobEnd {
    /// The daemon says so.
    Ended {
        /// Exit code of the daemon's job (service.md §3.5).
        code: i32,
        /// The step of the root list that decided the end.
        failed: Option<FailedStep>,
    },
    /// The daemon ended the job for a cancel. The reason depends on who asked.
    Cancelled(CancelledBy),
    /// The daemon refused the request.
    RunRefused(Refusal),
    /// The daemon did not answer the request in time.
    RunUnanswered,
    /// The job is not there any more: the daemon does not know the id, or the environment is gone.
    Lost,
    /// The environment could not be made.
    Environment(EnvironmentFailure),
    /// The payload was refused before anything started.
    PayloadRefused,
}

/// The step that failed a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedStep {
    /// Its name in the root list.
    pub name: String,
    /// Class of its error (language.md §18), if it is no plain exit code.
    #[serde(deserialize_with = "known_class")]
    pub error_class: Option<Class>,
}

impl FailedStep {
    /// Makes a step of its name and of the word of its class in the daemon's result. A class that only the daemon knows
    /// counts as none.
    pub fn new(name: String, class: &str) -> Self {
        Self { name, error_class: Class::of_word(class) }
    }
}

/// Reads a class. One that another version of the agent has written counts as none, so that the record stays usable.
fn known_class<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Class>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.and_then(|word| Class::of_word(&word)))
}

/// Who asked for the cancel of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelledBy {
    /// The server: somebody cancelled the job there, or the server ended it.
    Server,
    /// This agent, which was stopped with `on_stop = "fail"`, or the daemon, which was stopped.
    Stop,
    /// The daemon, by one of its own rules.
    Daemon,
}

/// A request that the daemon refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The content of the job: steps, a variable, a size.
    Content,
    /// Anything else.
    Other,
}

/// Why an environment could not be made, or ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnvironmentFailure {
    /// A registry or network that cannot be reached or refuses for a time.
    External,
    /// The job or entry asks for what is not there or not allowed, an image above all.
    Image,
    /// An image cannot be pulled, and the cause is not known.
    Pull,
    /// Another mistake of the entry or the job, such as an image without provider.
    Configuration,
    /// The machine, the engine or the cluster.
    System,
}

/// State of a job for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It succeeded.
    Success,
    /// It failed.
    Failed,
}

/// Reasons of a failure, before the server's list is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The job's own fault.
    ScriptFailure,
    /// A time limit of the job.
    JobExecutionTimeout,
    /// A network, registry or server.
    RunnerExternalDependencyFailure,
    /// A setting of the entry or the job.
    RunnerConfigurationError,
    /// The same, of an image.
    ImageConfigurationError,
    /// An image cannot be pulled.
    ImagePullFailure,
    /// The machine or this program.
    RunnerSystemFailure,
    /// The job was cancelled.
    JobCanceled,
    /// The agent or the daemon was stopped.
    RunnerInterrupted,
}

/// What the server is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// State.
    pub state: State,
    /// Reason of a failure, in the words that the server knows.
    pub reason: Option<String>,
    /// Exit code, if the reason is the job's own.
    pub exit_code: Option<i32>,
}

impl Outcome {
    /// Returns what a job's end is for the server. `known` is `features.failure_reasons` of the payload.
    pub fn of(end: &JobEnd, known: &BTreeSet<String>) -> Self {
        match verdict(end) {
            None => Self { state: State::Success, reason: None, exit_code: None },
            Some((reason, exit_code)) => Self {
                state: State::Failed,
                reason: Some(sent(reason, known).to_owned()),
                exit_code: exit_code.filter(|code| *code != 0),
            },
        }
    }
}

/// Stages before any command of a user.
const FIRST_STAGES: [&str; 2] = ["prepare", "get_sources"];

impl JobEnd {
    /// Returns true if the job could not be prepared because of the machine, and false if it could. `None`: its end says
    /// nothing about that.
    pub fn of_preparation(&self) -> Option<bool> {
        match self {
            Self::Ended { code: 0, .. } => Some(false),
            Self::Ended { code, failed } => {
                let is_first = failed.as_ref().is_none_or(|step| FIRST_STAGES.contains(&step.name.as_str()));
                Some(is_first && ended(*code, failed.as_ref()).0 == Reason::RunnerSystemFailure)
            }
            Self::RunRefused(refusal) => Some(*refusal == Refusal::Other),
            Self::RunUnanswered => Some(true),
            Self::Environment(failure) => Some(*failure == EnvironmentFailure::System),
            Self::Cancelled(_) | Self::Lost | Self::PayloadRefused => None,
        }
    }
}

/// Exit codes of the stages' own functions (ci.md §1).
const STAGE_NETWORK: i32 = 75;
const STAGE_CONFIGURATION: i32 = 78;

/// Exit code of a job that the entry or the payload failed, as GitLab Runner sends it for such failures.
const REFUSED_CODE: i32 = 3;

/// Returns reason and exit code of a failure.
fn verdict(end: &JobEnd) -> Option<(Reason, Option<i32>)> {
    Some(match end {
        JobEnd::Ended { code: 0, .. } => return None,
        JobEnd::Ended { code, failed } => ended(*code, failed.as_ref()),
        JobEnd::Cancelled(CancelledBy::Server) => (Reason::JobCanceled, None),
        JobEnd::Cancelled(CancelledBy::Stop) => (Reason::RunnerInterrupted, None),
        JobEnd::RunRefused(Refusal::Content) => (Reason::ScriptFailure, Some(1)),
        JobEnd::Environment(failure) => (environment(*failure), None),
        JobEnd::PayloadRefused => (Reason::RunnerSystemFailure, Some(REFUSED_CODE)),
        JobEnd::Cancelled(CancelledBy::Daemon)
        | JobEnd::RunRefused(Refusal::Other)
        | JobEnd::RunUnanswered
        | JobEnd::Lost => (Reason::RunnerSystemFailure, None),
    })
}

fn ended(code: i32, failed: Option<&FailedStep>) -> (Reason, Option<i32>) {
    let name = failed.map_or("", |step| step.name.as_str());
    let class = failed.and_then(|step| step.error_class);
    let is_script = name.starts_with("step_") || name == "after_script";
    match code {
        // A limit of the script alone. That of the job is a code of its own.
        _ if is_script && class == Some(Class::Timeout) => (Reason::JobExecutionTimeout, None),
        1.. if is_script => (Reason::ScriptFailure, Some(code)),
        1.. => stage(name, code, class),
        exit_code::FAILED if name == "step_run" => match class {
            Some(Class::Fetch) => (Reason::RunnerExternalDependencyFailure, None),
            Some(Class::Exec | Class::Io) => (Reason::RunnerSystemFailure, None),
            _ => (Reason::ScriptFailure, Some(1)),
        },
        exit_code::TIME_LIMIT => (Reason::JobExecutionTimeout, None),
        _ => (Reason::RunnerSystemFailure, None),
    }
}

/// Returns reason and exit code of a stage of ours that failed.
fn stage(name: &str, code: i32, class: Option<Class>) -> (Reason, Option<i32>) {
    let is_work = ["get_sources", "download_artifacts", "upload_artifacts"].contains(&name);
    match code {
        _ if !is_work || class == Some(Class::Timeout) => (Reason::RunnerSystemFailure, None),
        1 => (Reason::ScriptFailure, Some(1)),
        STAGE_NETWORK => (Reason::RunnerExternalDependencyFailure, None),
        STAGE_CONFIGURATION => (Reason::RunnerConfigurationError, None),
        _ => (Reason::RunnerSystemFailure, None),
    }
}

const fn environment(failure: EnvironmentFailure) -> Reason {
    match failure {
        EnvironmentFailure::External => Reason::RunnerExternalDependencyFailure,
        EnvironmentFailure::Image => Reason::ImageConfigurationError,
        EnvironmentFailure::Pull => Reason::ImagePullFailure,
        EnvironmentFailure::Configuration => Reason::RunnerConfigurationError,
        EnvironmentFailure::System => Reason::RunnerSystemFailure,
    }
}

impl Reason {
    /// Returns the word of GitLab for the reason.
    pub const fn word(self) -> &'static str {
        match self {
            Self::ScriptFailure => "script_failure",
            Self::JobExecutionTimeout => "job_execution_timeout",
            Self::RunnerExternalDependencyFailure => "runner_external_dependency_failure",
            Self::RunnerConfigurationError | Self::ImageConfigurationError => "runner_configuration_error",
            Self::ImagePullFailure => "image_pull_failure",
            Self::RunnerSystemFailure => "runner_system_failure",
            Self::JobCanceled => "job_canceled",
            Self::RunnerInterrupted => "runner_interrupted",
        }
    }
}

/// Returns the word that is sent: the reason's own if the server knows it, else the nearest that every server knows.
fn sent(reason: Reason, known: &BTreeSet<String>) -> &'static str {
    let is_known = |word: &str| known.contains(word);
    match reason {
        Reason::ScriptFailure | Reason::RunnerSystemFailure | Reason::JobExecutionTimeout => reason.word(),
        _ if is_known(reason.word()) => reason.word(),
        Reason::ImageConfigurationError if is_known(Reason::ImagePullFailure.word()) => {
            Reason::ImagePullFailure.word()
        }
        Reason::ImageConfigurationError
        | Reason::ImagePullFailure
        | Reason::RunnerExternalDependencyFailure => Reason::RunnerSystemFailure.word(),
        Reason::RunnerConfigurationError => Reason::ScriptFailure.word(),
        Reason::JobCanceled | Reason::RunnerInterrupted => "unknown_failure",
    }
}
