//! Children of the daemon: a few that it starts and waits for, and orphans. Orphans come to it because it is the
//! subreaper of what it starts, or the first process of its namespace; nobody waits for them (faults.md row 7).

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command, ExitStatus};

use parking_lot::Mutex;

use super::group;

/// Process ids of children that somebody waits for.
static WAITED_FOR: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Starts a child that [`wait`] must be called for.
pub fn start(command: &mut Command) -> io::Result<Child> {
    // Held until the number is known: one that ends at once must not be taken for an orphan.
    let mut waited_for = WAITED_FOR.lock();
    let child = command.spawn()?;
    waited_for.insert(child.id());
    Ok(child)
}

/// As [`start`], for a child that `spawn` starts by itself; [`leave`] must be called when it has been reaped.
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

/// Nobody waits for the child any more: it is reaped as an orphan.
pub fn leave(pid: u32) {
    WAITED_FOR.lock().remove(&pid);
}

/// Reaps orphans that have ended. `false`: a child that is waited for has ended and hides those behind it; call again when
/// it has been reaped.
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
