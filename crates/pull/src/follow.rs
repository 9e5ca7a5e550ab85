//! Follows log and end of a daemon's job, and tells both as events (agent.md §5).

use std::sync::Arc;

use tokio::sync::mpsc::Sender;

use super::container::AGAIN;
use super::environment::Environment;
use step_runner_agent::lifecycle::{DaemonEnd, Event};
use step_runner_agent::outcome::FailedStep;
use step_runner_client::{Client, Error, Event as LogEvent};
use step_runner_insight::cause::deciding;
use step_runner_model::error::Chain;
use step_runner_model::{CancelCause, JobId, exit_code};
use step_runner_proto::v1;

/// Number of looks at an environment whose daemon was told to stop: a Pod has 30 s to end after that.
const LOOKUPS: usize = 15;

/// Facts about a job that its log does not tell.
pub(super) struct OfJob {
    /// Names of its steps, in order.
    pub(super) stages: Vec<String>,
    /// Its environment, if it has one of its own.
    pub(super) environment: Option<Arc<Environment>>,
    /// Why its processes are gone, if that is known.
    pub(super) cause: Option<String>,
}

/// Follows a job from `offset` of its log. Ends when nobody takes the events any more.
pub(super) async fn follow(client: Client, id: JobId, offset: u64, of_job: OfJob, events: Sender<Event>) {
    let OfJob { stages, environment, cause } = of_job;
    let mut log = client.follow(&id, offset);
    loop {
        let event = match log.next().await {
            Ok(LogEvent::Log(bytes)) => Event::Log(bytes.to_vec()),
            Ok(LogEvent::Unfinished(_)) => continue,
            Ok(LogEvent::End(status)) => {
                let mut end = end(&client, &id, &status, &stages).await;
                if let Some(message) = death(&end, cause, environment.as_deref()).await {
                    end = DaemonEnd { code: exit_code::INTERRUPTED, failed: None, is_stop: false, message };
                }
                if events.send(Event::LogEnded).await.is_ok() {
                    events.send(Event::Ended(end)).await.ok();
                }
                return;
            }
            Err(error) => {
                events.send(broken(&error)).await.ok();
                return;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// Returns why the environment took its job along, if it did. A daemon that was asked to stop before the container ended
/// has cancelled the job; one that was not finds its processes gone.
async fn death(end: &DaemonEnd, known: Option<String>, environment: Option<&Environment>) -> Option<String> {
    if !end.is_stop && end.code != exit_code::INTERRUPTED {
        return None;
    }
    match environment {
        // The container was started again since, for the rest of the log: it shows no more why it ended.
        _ if known.is_some() => known,
        Some(environment) if end.is_stop => {
            why_stopped(environment).await.map(|why| format!("{why} while the job ran"))
        }
        _ => None,
    }
}

/// Returns why a daemon was stopped: what ends a container or a Pod asks its processes first.
async fn why_stopped(environment: &Environment) -> Option<String> {
    for _ in 0..LOOKUPS {
        if let Some(why) = environment.end().await {
            return Some(why);
        }
        tokio::time::sleep(AGAIN).await;
    }
    None
}

/// Returns what a failure means for the job. One that is out of reach is followed again.
fn broken(error: &Error) -> Event {
    if matches!(error, Error::Lost { .. }) {
        return Event::Lost(error.to_string());
    }
    tracing::debug!(error = %Chain(error), "a log cannot be followed now");
    Event::LogBroken
}

async fn end(client: &Client, id: &JobId, status: &v1::Status, stages: &[String]) -> DaemonEnd {
    let failed = if status.exit_code == 0 { None } else { failed_step(client, id, stages).await };
    let message = match (status.message.as_str(), status.exit_code) {
        ("", code @ 1..) => format!("exit code {code}"),
        ("", code) => format!("the job ended without an exit code ({code})"),
        (message, _) => message.to_owned(),
    };
    DaemonEnd { code: status.exit_code, failed, is_stop: is_stop(status), message }
}

/// True if the stop of the daemon ended the job.
fn is_stop(status: &v1::Status) -> bool {
    match status.cancel_cause() {
        // An older daemon ended the job: only its words tell.
        v1::CancelCause::Unspecified => {
            status.exit_code == exit_code::CANCELLED && status.message.contains(CancelCause::Shutdown.text())
        }
        cause => cause == v1::CancelCause::Shutdown,
    }
}

/// Returns the step of the root list that decided how the job ended.
async fn failed_step(client: &Client, id: &JobId, stages: &[String]) -> Option<FailedStep> {
    let mut steps = client.follow_steps(id);
    let mut root = None;
    while let Ok(Some(result)) = steps.next().await {
        root = Some(result);
    }
    deciding_step(&root?, stages)
}

/// Finds the deciding step in the result of a job. The result has an entry for each step of the list, and shows a name that
/// is also a secret's value as `[MASKED]`: the place tells which it is.
fn deciding_step(root: &v1::StepResult, stages: &[String]) -> Option<FailedStep> {
    let failed = *deciding(root).first()?;
    let place = root.sub_step_results.iter().position(|step| std::ptr::eq(step, failed))?;
    let shown = || failed.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
    let name = stages.get(place).cloned().unwrap_or_else(shown);
    Some(FailedStep::new(name, &failed.error_class))
}

#[cfg(test)]
mod tests {
    use super::*;
    use v1::step_result::Outcome;

    fn step(name: &str, outcome: Outcome, end: i64, class: &str) -> v1::StepResult {
        let mut result = v1::StepResult {
            step: Some(v1::Step { name: name.into(), ..v1::Step::default() }),
            outcome: outcome.into(),
            error_class: class.into(),
            ..v1::StepResult::default()
        };
        result.end_time.get_or_insert_default().seconds = end;
        result
    }

    #[test]
    fn the_stop_of_a_daemon_is_told_by_the_cause_and_of_an_older_one_by_its_words() {
        let status = |cause: v1::CancelCause, exit_code, message: &str| v1::Status {
            exit_code,
            message: message.into(),
            cancel_cause: cause.into(),
            ..v1::Status::default()
        };
        let words = CancelCause::Shutdown.text();
        for (status, expected) in [
            (status(v1::CancelCause::Shutdown, exit_code::CANCELLED, "other words"), true),
            (status(v1::CancelCause::Cancel, exit_code::CANCELLED, words), false),
            (status(v1::CancelCause::Unspecified, exit_code::CANCELLED, words), true),
            (status(v1::CancelCause::Unspecified, exit_code::CANCELLED, "other words"), false),
            (status(v1::CancelCause::Unspecified, 1, words), false),
        ] {
            assert_eq!(is_stop(&status), expected, "{status:?}");
        }
    }

    #[test]
    fn the_step_that_decided_is_the_one_that_ended_first_and_not_the_first_in_the_list() {
        use Outcome::{AllowedFailure, Cancelled, Failure, Skipped, Success};
        let stages = ["a", "b", "c"].map(str::to_owned);
        for (steps, expected) in [
            // Members of a group: the second one failed, the first one only while it was stopped.
            (vec![step("", Failure, 9, "exec"), step("", Failure, 5, "timeout")], Some(("b", "timeout"))),
            (vec![step("", Cancelled, 9, ""), step("", Failure, 5, "")], Some(("b", ""))),
            // A stop came first, then a cleanup failed.
            (
                vec![step("", Cancelled, 3, ""), step("", Skipped, 3, ""), step("", Failure, 4, "io")],
                Some(("a", "")),
            ),
            (vec![step("", AllowedFailure, 1, "exec"), step("", Success, 2, "")], None),
            (
                vec![
                    step("", Success, 1, ""),
                    step("", Success, 1, ""),
                    step("", Success, 1, ""),
                    step("d", Failure, 2, "fetch"),
                ],
                Some(("d", "fetch")),
            ),
        ] {
            let root = v1::StepResult { sub_step_results: steps, ..v1::StepResult::default() };
            let expected = expected.map(|(name, class)| FailedStep::new(name.to_owned(), class));
            assert_eq!(deciding_step(&root, &stages), expected);
        }
    }
}
