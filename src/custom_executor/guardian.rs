//! Starts a private daemon again that dies while a stage runs (custom-executor.md §8).

use std::time::Duration;

use super::private;
use super::state::AttemptFolder;
use crate::error::{Exit, Failure};
use crate::process::detached::{self, ProcessInfo};

/// Maximum number of restarts of a daemon in one stage.
const MAX_STARTS: u32 = 3;

/// Watches the private daemon of `state` and starts it again when it dies. Returns only when that cannot be done.
pub(super) async fn watch(state: AttemptFolder, start_timeout: Duration) -> Failure {
    let mut starts = 0;
    let mut last: Option<Failure> = None;
    loop {
        let Some(daemon) = state.meta().and_then(|meta| meta.daemon) else {
            return Failure::new(Exit::Lost, "the stage was ended and removed by someone else");
        };
        let process = daemon.process.clone();
        let ended = tokio::task::spawn_blocking(move || detached::wait(&process)).await;
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
        let (state, died) = (state.clone(), daemon.process);
        let started = tokio::task::spawn_blocking(move || bring_back(&state, &died, start_timeout)).await;
        match started {
            Ok(Ok(())) => last = None,
            // The new daemon has died at once, perhaps of the same cause.
            Ok(Err(failure)) if failure.exit() == Exit::Unreachable => last = Some(failure),
            Ok(Err(failure)) => return failure,
            Err(_) => return Failure::new(Exit::Defect, "the thread that starts the private daemon died"),
        }
    }
}

fn bring_back(state: &AttemptFolder, died: &ProcessInfo, start_timeout: Duration) -> Result<(), Failure> {
    // If `cleanup` holds the lock, it has ended the daemon on purpose.
    let lock = state.lock()?;
    let Some(meta) = state.meta() else {
        // The attempt is over, and so the lock has no use.
        lock.remove().ok();
        return Err(Failure::new(Exit::Lost, "the stage was ended and removed by someone else"));
    };
    if meta.daemon.as_ref().is_some_and(|daemon| daemon.process != *died && detached::lives(&daemon.process))
    {
        return Ok(());
    }
    private::start(state, &lock, meta, start_timeout).map(drop)
}
