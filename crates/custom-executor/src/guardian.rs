//! Starts a private daemon again that dies while a stage runs (custom-executor.md §8).

use super::processes::Processes;
use super::state::AttemptFolder;
use super::{Driver, private};
use step_runner_model::error::{Exit, Failure};
use step_runner_process::detached;

/// Maximum number of restarts of a daemon in one stage.
const MAX_STARTS: u32 = 3;

/// Watches the private daemon of `state` and starts it again when it dies. Returns only when that cannot be done.
pub(super) async fn watch(driver: Driver, state: AttemptFolder) -> Failure {
    let mut starts = 0;
    let mut last: Option<Failure> = None;
    loop {
        if !state.exists() {
            return over();
        }
        let watched = state.clone();
        let wait = move || match Processes::of(&watched).daemon() {
            Some(daemon) => detached::wait(&daemon, None).map(drop),
            None => Ok(()),
        };
        let ended = tokio::task::spawn_blocking(wait).await;
        if let Err(error) = ended.map_err(std::io::Error::other).flatten() {
            return Failure::new(Exit::Failure, format!("cannot watch the private daemon: {error}"));
        }
        if starts == MAX_STARTS {
            let why = last.map(|failure| format!("; at last: {failure}")).unwrap_or_default();
            return Failure::new(
                Exit::Lost,
                format!("the private daemon has died {} times{why}", starts + 1),
            );
        }
        starts += 1;
        let (driver, state) = (driver.clone(), state.clone());
        let started = tokio::task::spawn_blocking(move || bring_back(&driver, &state)).await;
        match started {
            Ok(Ok(())) => last = None,
            // The new daemon has died at once, perhaps of the same cause.
            Ok(Err(failure)) if failure.exit() == Exit::Unreachable => last = Some(failure),
            Ok(Err(failure)) => return failure,
            Err(_) => return Failure::new(Exit::Defect, "the thread that starts the private daemon died"),
        }
    }
}

fn bring_back(driver: &Driver, state: &AttemptFolder) -> Result<(), Failure> {
    // If `cleanup` holds the lock, it has ended the daemon on purpose.
    let lock = state.lock()?;
    if !state.exists() {
        // The attempt is over, and so the lock has no use.
        lock.remove().ok();
        return Err(over());
    }
    if Processes::of(state).daemon().is_some() {
        return Ok(());
    }
    private::start(driver, state, &lock)
}

fn over() -> Failure {
    Failure::new(Exit::Lost, "the stage was ended and removed by someone else")
}
