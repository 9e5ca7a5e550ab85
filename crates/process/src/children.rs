//! Children of the daemon: a few that it starts and waits for, and orphans. Orphans come to it because it is the
//! subreaper of what it starts, or the first process of its namespace; nobody waits for them (faults.md row 7).

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

use parking_lot::Mutex;

use super::group;

/// Process ids of children that somebody waits for.
static WAITED_FOR: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Starts a child. The caller must call [`wait`] for it.
pub fn start(command: &mut Command) -> io::Result<Child> {
    // Held until the number is known: a child that ends at once must not be taken for an orphan.
    let mut waited_for = WAITED_FOR.lock();
    let child = command.spawn()?;
    waited_for.insert(child.id());
    Ok(child)
}

/// Like [`start`], but `spawn` starts the child. Call [`leave`] when it has been reaped.
pub(super) fn start_with<T, E>(spawn: impl FnOnce() -> Result<(i32, T), E>) -> Result<(i32, T), E> {
    let mut waited_for = WAITED_FOR.lock();
    let (pid, handle) = spawn()?;
    waited_for.insert(pid as u32);
    Ok((pid, handle))
}

/// Blocks until the child ends.
pub fn wait(mut child: Child) -> io::Result<ExitStatus> {
    let status = child.wait();
    WAITED_FOR.lock().remove(&child.id());
    status
}

/// Returns the status of a child that has ended.
pub(super) fn exit_status(status: ExitStatus) -> step_runner_model::ExitStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => step_runner_model::ExitStatus::Code(code as u8),
        (None, signal) => step_runner_model::ExitStatus::Signal(signal.unwrap_or(0) as u8),
    }
}

/// Gives up waiting for the child: it is reaped as an orphan.
pub fn leave(pid: u32) {
    WAITED_FOR.lock().remove(&pid);
}

/// Reaps ended orphans. False if an ended child that is waited for hides those behind it: call again when it has been
/// reaped.
pub fn reap_orphans() -> bool {
    let waited_for = WAITED_FOR.lock();
    while let Some(pid) = super::peek_exited_child() {
        if waited_for.contains(&pid) {
            return false;
        }
        group::reap_orphan(pid);
    }
    true
}
