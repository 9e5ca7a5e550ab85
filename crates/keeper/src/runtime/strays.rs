//! Descendants of this process that no job holds: orphans, what killed reapers left, and all of them at the very end.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::shared::KeeperShared;
use crate::core::{FIRST_PAUSE, LAST_PAUSE};
use step_runner_process::freezer::thaw_process;
use step_runner_process::group;
use step_runner_process::sweep::{Process, descendants, own_children};

/// Longest time that one call chases processes that fork faster than it finds them.
const CHASE: Duration = Duration::from_millis(10);

/// Returns our children, zombies included, that are no steps, reapers or members of control groups: they come from
/// killed reapers. Orphans of jobs with control groups come to us as well, and are excluded.
fn stray_children(shared: &KeeperShared) -> Vec<Process> {
    let is_stray = |process: &Process| {
        let pid = process.pid;
        !shared.leaders.contains_key(&pid)
            && !shared.reapers.contains(&pid)
            && !shared.pool.as_ref().is_some_and(|pool| pool.holds(pid))
    };
    own_children().into_iter().filter(is_stray).collect()
}

/// True if there is a stray. A zombie counts until it is reaped: its children became ours after we looked.
pub(super) fn has_strays(shared: &KeeperShared) -> bool {
    !stray_children(shared).is_empty()
}

/// Returns the living strays and all their descendants.
pub(super) fn strays(shared: &KeeperShared) -> Vec<Process> {
    let children = stray_children(shared);
    let below = children.iter().flat_map(|child| descendants(child.pid)).collect::<Vec<_>>();
    children.into_iter().filter(|child| !child.zombie).chain(below).collect()
}

/// Kills strays for a bounded time. One that forks and ends in a loop is caught right after it becomes our child.
pub(super) fn kill_strays(shared: &mut KeeperShared) {
    let until = Instant::now() + CHASE;
    loop {
        for child in stray_children(shared) {
            if child.zombie {
                shared.reap_orphan(child.pid);
            } else {
                group::signal_process(&child, &[Signal::KILL]);
            }
        }
        let found = strays(shared);
        if found.is_empty() || Instant::now() >= until {
            return;
        }
        for process in found {
            group::signal_process(&process, &[Signal::KILL]);
        }
    }
}

/// Reaps all children that have ended, those of steps included. Nobody asks for their status any more.
pub(super) fn reap_all(shared: &mut KeeperShared) {
    while let Some(pid) = step_runner_process::peek_exited_child() {
        shared.leaders.remove(&pid);
        shared.reap_orphan(pid);
    }
}

/// Kills all descendants of this process, as the keeper ends. Chases processes that fork without a pause; gives killed
/// ones `kill_wait` to end.
pub(super) fn kill_all(kill_wait: Duration, shared: &mut KeeperShared) {
    if own_children().is_empty() {
        return;
    }
    for pid in shared.leaders.keys() {
        if let Some(pid) = Pid::from_raw(*pid as i32) {
            group::kill(pid);
        }
    }
    let until = Instant::now() + kill_wait;
    let (mut killed, mut pause) = (HashSet::new(), FIRST_PAUSE);
    while Instant::now() < until {
        let mut is_new = false;
        for process in descendants(std::process::id()) {
            group::signal_process(&process, &[Signal::KILL]);
            if killed.insert((process.pid, process.start_time)) {
                is_new = true;
            } else {
                thaw_process(process.pid);
            }
        }
        reap_all(shared);
        if own_children().is_empty() {
            return;
        }
        if is_new {
            pause = FIRST_PAUSE;
        } else {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}
