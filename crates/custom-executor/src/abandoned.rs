//! Attempts without a Runner: after a Runner or a `cleanup` that was killed, nobody else ends and removes them
//! (custom-executor.md §9).
//!
//! The watcher of a private daemon does so when its attempt has neither a Runner nor a call for some time. Whatever a
//! watcher cannot do, because it was killed, or because there is no private daemon, the next call of any attempt does.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use super::identity::Identity;
use super::processes::Processes;
use super::state::{AttemptFolder, Owner};
use super::{Driver, processes, removal};
use step_runner_model::error::{Exit, Failure};
use step_runner_process::detached::{self, ProcessInfo};
use step_runner_process::sweep::Process;

/// Longest time between two looks of a watcher at the Runner and its calls. An attempt may stay for so much longer.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Shortest time between two looks, for a short time until an attempt is abandoned.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Time after which a call looks at no further attempt. A daemon that is away costs some seconds each.
const REMOVAL_TIME: Duration = Duration::from_secs(5);

/// Number of looks in the time until an attempt is abandoned, at least.
const LOOKUPS: u32 = 4;

/// True if nobody works for the attempt: its Runner has died, or has removed the private directory, and no call runs.
fn has_nobody(owner: &Owner) -> bool {
    let runner_is_gone = owner.runner.as_ref().is_some_and(|runner| !detached::lives(runner));
    let is_removed = std::fs::symlink_metadata(&owner.private_dir).is_err();
    (runner_is_gone || is_removed) && !processes::has_call(&owner.private_dir)
}

/// Runs the private daemon with `options`, and ends and removes the attempt when it has been without Runner and call for
/// some time. Stays after the daemon's end, because daemon and Runner may be killed together, until a later stage has
/// started another daemon or nothing is left. Returns the exit code of a daemon that has failed.
pub(super) async fn watch(
    driver: &Driver,
    runner: Option<ProcessInfo>,
    options: Vec<OsString>,
) -> Result<u8, Failure> {
    let cannot = |error| Failure::new(Exit::Failure, format!("cannot start the private daemon: {error}"));
    let mut daemon = detached::serve(&options).map_err(cannot)?;
    let Some(process) = Process::read(daemon.id()) else {
        return Err(Failure::new(Exit::Failure, "the private daemon has ended at once"));
    };
    let (daemon_info, owner) = (detached::info(&process), Owner { runner, ..driver.owner()? });
    let identity = driver.identity()?;
    let state = driver.state(&identity)?;
    let limit = driver.options.abandon_after;
    let interval = (limit / LOOKUPS).clamp(MIN_LOOK_INTERVAL, LOOK_INTERVAL);
    let mut ended = None;
    let mut since: Option<Instant> = None;
    loop {
        if ended.is_none() {
            detached::wait(&daemon_info, Some(interval)).map_err(cannot)?;
            ended = daemon.try_wait().map_err(cannot)?;
        } else {
            std::thread::sleep(interval);
        }
        // A start that has failed is told at once.
        if let Some(code) = ended.and_then(|status| status.code()).filter(|code| *code != 0) {
            return Ok(u8::try_from(code).unwrap_or(1));
        }
        if !has_nobody(&owner) {
            since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() >= limit {
            break;
        }
        if ended.is_some() && (is_replaced(&state) || !state.is_left()) {
            return Ok(0);
        }
    }
    let lock = state.lock()?;
    for text in removal::remove(driver, &state, lock, identity.prefix()).await {
        (driver.say)(&text);
    }
    Ok(0)
}

/// True if a later stage has started another daemon, with a watcher of its own.
fn is_replaced(state: &AttemptFolder) -> bool {
    let Some(own) = Process::read(std::process::id()) else { return false };
    let age = |process: &Process| (process.start_time, process.pid);
    Processes::of(state).watchers.iter().any(|other| age(other) > age(&own))
}

/// Removes what other attempts below the root have left that have no Runner any more. What cannot be removed stays for a
/// later call, and is tried again after `--abandon-after`: it is no failure of this one.
pub(super) async fn remove_all(driver: &Driver, own: &AttemptFolder) {
    let start = Instant::now();
    for other in own.others().into_iter().take_while(|_| start.elapsed() < REMOVAL_TIME) {
        let Some(prefix) = abandoned_prefix(driver, &other) else { continue };
        let Ok(Some(lock)) = other.try_lock() else { continue };
        // A call may have taken it in the meantime.
        if abandoned_prefix(driver, &other).is_some() {
            removal::remove(driver, &other, lock, &prefix).await;
        }
    }
}

/// Returns the prefix of the attempt's ids if it has no Runner any more.
fn abandoned_prefix(driver: &Driver, other: &AttemptFolder) -> Option<String> {
    // No job is known of a rest.
    let rest = || Some(format!("ce-0-{}-", other.nonce()));
    if !other.exists() {
        // A lock, or the rest of a removal. A call that works on it holds the lock.
        return rest();
    }
    let Some(meta) = other.meta() else { return if other.is_bare() { rest() } else { None } };
    let is_old = other.unused_for().is_some_and(|time| time >= driver.options.abandon_after);
    let is_its_own = Identity::is_prefix(&meta.prefix, other.nonce());
    (is_old && is_its_own && has_nobody(&meta.owner)).then_some(meta.prefix)
}
