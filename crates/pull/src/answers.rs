//! Reads a daemon's answers to calls about a job (agent.md §5).

use step_runner_agent::lifecycle::RunAnswer;
use step_runner_agent::outcome::Refusal;
use step_runner_client::Error;
use step_runner_model::error::Chain;

/// Words of a daemon's refusal that are about the content of a job.
const OF_CONTENT: [&str; 3] = ["malformed_steps", "invalid_variable", "too_large"];

/// True if the daemon has done it, or does not know the job.
pub(super) fn is_answered(result: &Result<(), Error>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => error.is_unknown_job(),
    }
}

/// Returns what a daemon's answer to Run means. `stages` are the names of the job's steps.
pub(super) fn run_answer(result: Result<(), Error>, stages: Vec<String>) -> RunAnswer {
    match result {
        // The id is that of one job of one server: what the daemon has under it is this job.
        Ok(()) | Err(Error::OtherContent { .. }) => RunAnswer::Accepted(stages),
        Err(Error::Refused(message)) => {
            let (word, text) = message.split_once(": ").unwrap_or(("", &message));
            let refusal = if OF_CONTENT.contains(&word) { Refusal::Content } else { Refusal::Other };
            RunAnswer::Refused(refusal, text.to_owned())
        }
        Err(error @ (Error::Lost { .. } | Error::Address(_))) => {
            RunAnswer::Refused(Refusal::Other, error.to_string())
        }
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "the daemon does not take a job now");
            RunAnswer::None
        }
    }
}
