//! Crashes, restarts, stops and the reaper (service.md §6.3, §6.4).

mod daemon;
mod keeper;
mod reaper;
mod records;
mod stop;

use step_runner::pb::v1::{State, Status};

fn end(status: &Status) -> (State, i32) {
    (status.state(), status.exit_code)
}

/// Returns a shell loop that ends when `file` exists.
fn wait_until_exists(file: &std::path::Path) -> String {
    format!("until [ -e {} ]; do sleep 0.02; done", file.display())
}

/// Stops a process with SIGSTOP and waits until it is stopped.
fn freeze(pid: i32) {
    crate::support::kill(pid, rustix::process::Signal::STOP);
    crate::support::wait_for("the process to stop", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" T").then_some(())
    });
}
