//! `cleanup`: removes everything that is left of the attempt, whatever has happened (custom-executor.md §9).

use super::processes::Processes;
use super::{Driver, abandoned, removal};
use step_runner_model::error::Failure;

pub(super) async fn cleanup(driver: &Driver) -> Result<Vec<String>, Failure> {
    if driver.environment.tmpdir.is_none() && !driver.environment.by_hand {
        return Ok(Vec::new());
    }
    let identity = driver.identity()?;
    let state = driver.state(&identity)?;
    // A script may have removed the folder. The processes are there all the same.
    let left = if state.is_left() || !Processes::of(&state).is_empty() {
        let lock = state.lock()?;
        removal::remove(driver, &state, lock, identity.prefix()).await
    } else {
        Vec::new()
    };
    abandoned::remove_all(driver, &state).await;
    Ok(left)
}
