//! Run, Status, Cancel and Finish as clients see them (service.md §3, §6).

mod cancel;
mod ends;
mod flow;
mod limits;
mod repeated;
mod wire;

use std::time::Duration;

use step_runner::pb::v1::{State, Status};

fn seconds(seconds: f64) -> prost_types::Duration {
    Duration::from_secs_f64(seconds).try_into().unwrap()
}

/// Returns state and exit code.
fn end(status: &Status) -> (State, i32) {
    (status.state(), status.exit_code)
}
