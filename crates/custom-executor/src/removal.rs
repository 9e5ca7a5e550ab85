//! Ends and removes an attempt: its jobs, its daemon, its folder (custom-executor.md §9).

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::processes::{self, Processes};
use super::state::{AttemptFolder, Lock};
use super::{Driver, private, result};
use step_runner_client::{Address, Client, Options};
use step_runner_model::JobId;

/// Time to reach a shared daemon and to list its jobs, each. It may be far away.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Time to reach a private daemon and to list its jobs. It is near and has one client, so a daemon that needs longer is
/// stopped or stuck, and is killed.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Time for the jobs of a shared daemon to end, which covers the usual grace of a stage.
const FINISH_TIME: Duration = Duration::from_secs(30);

/// Time for the jobs of a private daemon to end. Nobody wants their results any more, and then they are killed.
const PRIVATE_FINISH_TIME: Duration = Duration::from_secs(10);

/// Time for a daemon that is told to end, and the part of it before its jobs lose their grace.
const END_TIME: Duration = Duration::from_secs(5);
const END_GRACE: Duration = Duration::from_secs(1);

/// Time in which a killed process must be gone.
const KILL_TIME: Duration = Duration::from_secs(3);

/// Longest time for which the attempt of a daemon that does not answer is kept: no job lives longer (custom-executor.md
/// §7.2).
const KEPT_TIME: Duration = Duration::from_hours(32 * 24);

/// Ends and removes an attempt whose ids have `prefix`. Returns a text for each thing that is left. If that is a job of a
/// shared daemon, the attempt's folder stays for a later call.
pub(super) async fn remove(driver: &Driver, state: &AttemptFolder, lock: Lock, prefix: &str) -> Vec<String> {
    let mut left = Vec::new();
    let mut has_jobs = false;
    // A script may have removed the marker. A daemon or keeper that has the folder in its command line is as good.
    let is_proved = Processes::of(state).has_own();
    match state.exists().then(|| state.check()).transpose() {
        // Nothing in a folder that is not ours is used, but our processes are known without it.
        Err(refusal) if !is_proved => {
            left.extend(processes::kill_all(state, KILL_TIME));
            left.push(refusal.to_string());
            return left;
        }
        folder => {
            if matches!(folder, Ok(Some(()))) {
                // Without the note a stage may be admitted after we have asked for its jobs. It is no reason to leave them.
                // No stage knows a bare folder, which may lack the mark that a folder with files needs.
                if !state.is_bare() {
                    state.close().ok();
                }
                (left, has_jobs) = finish_shared(driver, state, prefix).await;
                has_jobs &= state.age().is_some_and(|age| age < KEPT_TIME);
            }
            left.extend(end_private(driver, state, &lock, prefix).await);
        }
    }
    let removed = match (driver.options.keep, is_proved) {
        (true, _) => state.forget_owner(),
        (false, _) if has_jobs => Ok(()),
        (false, true) => state.remove_proved(),
        (false, false) => state.remove(),
    };
    if let Err(error) = removed {
        left.push(format!("cannot remove {}: {error}", state.path().display()));
    }
    if let Err(error) = lock.remove() {
        left.push(format!("cannot remove the lock of {}: {error}", state.path().display()));
    }
    left
}

/// Finishes the jobs of an attempt on the daemon that was named. Returns a text for each thing that is left, and true if
/// a job may be.
async fn finish_shared(driver: &Driver, state: &AttemptFolder, prefix: &str) -> (Vec<String>, bool) {
    let address = match driver.named_address() {
        Ok(Some(address)) => address,
        Ok(None) => return (Vec::new(), false),
        Err(failure) => return (vec![failure.to_string()], false),
    };
    let limits = Limits { answer: CONNECT_TIME, finish: FINISH_TIME };
    let (answers, left) = finish_jobs(driver, state, prefix, address, limits).await;
    if answers {
        let has_jobs = !left.is_empty();
        return (left, has_jobs);
    }
    let jobs: Vec<_> = state.jobs().into_iter().collect();
    if jobs.is_empty() {
        return (left, false);
    }
    let why = left.join(", ");
    (vec![format!("{} may be left there, so call cleanup again: {why}", jobs.join(", "))], true)
}

/// Ends the private daemon of an attempt, if there is or was one, with its jobs: gently, then by force.
async fn end_private(driver: &Driver, state: &AttemptFolder, lock: &Lock, prefix: &str) -> Vec<String> {
    let mut unknown = None;
    // Tried twice: a daemon that does not answer is killed, and another one asks its keeper.
    for _ in 0..2 {
        let found = Processes::of(state);
        found.resume();
        if found.daemons.is_empty() {
            if !state.daemon_state().exists() {
                break;
            }
            // Only a daemon knows all processes that its jobs have left.
            if let Err(failure) = private::start(driver, state, lock) {
                unknown = Some(format!("jobs of a dead daemon may be left: {failure}"));
                break;
            }
        }
        let limits = Limits { answer: ANSWER_TIME, finish: PRIVATE_FINISH_TIME };
        let Ok(address) = private::address(state) else { break };
        // Texts do not matter here: what does not end is killed, and told if it still lives.
        if finish_jobs(driver, state, prefix, address, limits).await.0 {
            break;
        }
        processes::kill_daemons(state, KILL_TIME);
    }
    let mut left = end_by_force(state);
    left.extend(unknown);
    left
}

/// Ends all processes of an attempt whose jobs nobody has asked for yet. Returns a text for each one that is left.
pub(super) fn end_by_force(state: &AttemptFolder) -> Vec<String> {
    processes::end_gently(state, END_GRACE, END_TIME);
    processes::kill_all(state, KILL_TIME)
}

/// Time limits of a daemon.
#[derive(Clone, Copy)]
struct Limits {
    answer: Duration,
    finish: Duration,
}

/// Finishes all jobs under the prefix. Returns true if the daemon has answered, and the reasons why some jobs are left.
async fn finish_jobs(
    driver: &Driver,
    state: &AttemptFolder,
    prefix: &str,
    address: Address,
    limits: Limits,
) -> (bool, Vec<String>) {
    let limit = limits.answer.min(driver.options.connect_timeout);
    let until = Instant::now() + limits.answer;
    let options = Options { connect_timeout: limit, reconnect_timeout: limit };
    let client = match Client::connect_with(address, options).await {
        Ok(client) => client,
        Err(error) => return (false, vec![result::chain(&error)]),
    };
    let mut left = Vec::new();
    let mut ids = state.jobs();
    let answers = match timeout_at(until, client.jobs()).await {
        Ok(Ok(jobs)) => {
            ids.extend(jobs.into_iter().map(|job| job.id));
            true
        }
        Ok(Err(error)) => {
            left.push(format!("the daemon does not list its jobs: {}", result::chain(&error)));
            false
        }
        Err(_) => {
            left.push("the daemon does not list its jobs".to_owned());
            false
        }
    };
    let until = Instant::now() + limits.finish;
    let mut calls = JoinSet::new();
    // A daemon that does not answer is not asked for more.
    for id in ids.iter().filter(|id| answers && id.starts_with(prefix)).filter_map(|id| JobId::parse(id).ok())
    {
        let client = client.clone();
        calls.spawn(async move {
            let finished = timeout_at(until, client.finish(&id)).await;
            match finished {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(format!("job {id} is left: {}", result::chain(&error))),
                Err(_) => Some(format!("job {id} has not ended within {:?}", limits.finish)),
            }
        });
    }
    left.extend(calls.join_all().await.into_iter().flatten());
    (answers, left)
}
