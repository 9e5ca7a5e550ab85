//! `cleanup`: removes everything that is left of the attempt, whatever has happened (custom-executor.md §9).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::state::{AttemptFolder, Lock, Meta};
use super::{Driver, private, result};
use crate::client::{Client, Options};
use crate::error::Failure;
use crate::model::JobId;
use crate::process::detached;

/// Time to reach the daemon.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Time to find a daemon that should not be there.
const LOOK_TIME: Duration = Duration::from_millis(500);

/// Time limit for finishing all jobs.
const FINISH_TIME: Duration = Duration::from_secs(30);

pub(super) async fn cleanup(driver: &Driver) -> Result<Vec<String>, Failure> {
    if driver.environment.tmpdir.is_none() && !driver.environment.by_hand {
        return Ok(Vec::new());
    }
    let identity = driver.identity()?;
    let state = driver.state(&identity)?;
    if !state.is_left() {
        return Ok(Vec::new());
    }
    let lock = state.lock()?;
    let mut left = Vec::new();
    if state.exists() {
        state.check()?;
        left = end(driver, &state, &lock, identity.prefix()).await;
    }
    if !driver.options.keep
        && let Err(error) = state.remove()
    {
        left.push(format!("cannot remove {}: {error}", state.path().display()));
    }
    if let Err(error) = lock.remove() {
        left.push(format!("cannot remove the lock of {}: {error}", state.path().display()));
    }
    Ok(left)
}

/// Ends jobs and daemon of the attempt. Returns a text for each thing that is left.
async fn end(driver: &Driver, state: &AttemptFolder, lock: &Lock, prefix: &str) -> Vec<String> {
    let private = state.meta().as_ref().is_some_and(|meta| meta.daemon.is_some());
    let (mut left, mut unfinished) = (Vec::new(), Vec::new());
    // Tried twice: a killed daemon may die only when it is called, and is then started again.
    for _ in 0..2 {
        left =
            state.meta().filter(|_| private).map_or_else(Vec::new, |meta| revive(driver, state, lock, meta));
        // A daemon that has never come up, or cannot be started again, may still be there, unknown to us.
        let known = !private || (left.is_empty() && lives(state));
        let limit = if known { CONNECT_TIME } else { LOOK_TIME };
        unfinished = finish_jobs(driver, state, prefix, limit).await;
        if unfinished.is_empty() || !known || !private {
            break;
        }
    }
    // Read again, because the daemon may be a new one.
    if let Some(meta) = state.meta().filter(|_| private) {
        let alive = private::end(state, &meta);
        if !alive.is_empty() {
            // If the daemon has ended, its jobs have ended with it.
            left.extend(unfinished);
        }
        left.extend(alive);
    } else {
        left.extend(unfinished);
    }
    left
}

/// True if the private daemon that is known lives.
fn lives(state: &AttemptFolder) -> bool {
    state.meta().and_then(|meta| meta.daemon).is_some_and(|daemon| detached::lives(&daemon.process))
}

/// Starts a dead daemon again, because only a daemon knows which processes its jobs have left.
fn revive(driver: &Driver, state: &AttemptFolder, lock: &Lock, meta: Meta) -> Vec<String> {
    let dead = meta.daemon.as_ref().is_some_and(|daemon| !detached::lives(&daemon.process));
    if !dead || !state.daemon_state().exists() {
        return Vec::new();
    }
    match private::start(state, lock, meta, driver.options.start_timeout) {
        Ok(_) => Vec::new(),
        Err(failure) => vec![format!("jobs of a dead daemon may be left: {failure}")],
    }
}

/// Finishes all jobs under the prefix. Returns the reasons why some are left.
async fn finish_jobs(driver: &Driver, state: &AttemptFolder, prefix: &str, limit: Duration) -> Vec<String> {
    let limit = limit.min(driver.options.connect_timeout);
    let Ok(daemon) = driver.daemon(state) else { return Vec::new() };
    let limits = Options { connect_timeout: limit, reconnect_timeout: limit };
    let client = match Client::connect_with(daemon.address, limits).await {
        Ok(client) => client,
        Err(error) => return vec![result::chain(&error)],
    };
    let mut left = Vec::new();
    let mut ids: BTreeSet<String> = state.jobs().into_iter().collect();
    match timeout(CONNECT_TIME, client.jobs()).await {
        Ok(Ok(jobs)) => ids.extend(jobs.into_iter().map(|job| job.id)),
        Ok(Err(error)) => left.push(format!("the daemon does not list its jobs: {}", result::chain(&error))),
        Err(_) => left.push("the daemon does not list its jobs".to_owned()),
    }
    let until = Instant::now() + FINISH_TIME;
    let mut calls = JoinSet::new();
    for id in ids.iter().filter(|id| id.starts_with(prefix)).filter_map(|id| JobId::parse(id).ok()) {
        let client = client.clone();
        calls.spawn(async move {
            let finished = timeout_at(until, client.finish(&id)).await;
            match finished {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(format!("job {id} is left: {}", result::chain(&error))),
                Err(_) => Some(format!("job {id} has not ended within {FINISH_TIME:?}")),
            }
        });
    }
    left.extend(calls.join_all().await.into_iter().flatten());
    left
}
