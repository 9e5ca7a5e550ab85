//! Sends signals to processes that are certainly ours, and reaps our own children.
//!
//! The number of a process can be reused once it has been reaped. So signals go through a pidfd, a control group, or to
//! the group of a leader that has not been reaped yet.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};
use step_runner_model::{ExitStatus, StepUsage};

use super::sweep::Process;
use super::sys::{Child, reap_ended};

/// Reaps the child behind `pidfd` if it has ended. Returns its status, and the usage of it and the children it had
/// reaped.
pub fn reap(pidfd: BorrowedFd<'_>) -> Option<(ExitStatus, StepUsage)> {
    reap_ended(Child::Pidfd(pidfd))
}

/// Reaps child `pid`, which [`super::peek_exited_child`] has named. Returns its processor time.
pub fn reap_orphan(pid: u32) -> Option<Duration> {
    reap_ended(Child::Pid(pid)).map(|(_, usage)| usage.time())
}

/// Sends SIGTERM and then SIGCONT to the group of `leader`, so that a stopped process can act on it (service.md §6.2).
/// The leader must not have been reaped.
pub fn terminate(leader: Pid) {
    signal_group(leader, Signal::TERM);
    signal_group(leader, Signal::CONT);
}

/// Sends SIGKILL to the group of `leader`, which must not have been reaped.
pub fn kill(leader: Pid) {
    signal_group(leader, Signal::KILL);
}

fn signal_group(leader: Pid, signal: Signal) {
    // No error if the group is gone or not ours to signal (set-user-id programs): the sweep that follows finds its
    // processes.
    rustix::process::kill_process_group(leader, signal).ok();
}

/// Sends `signals` to `process`, unless its number was reused. True if all were sent.
pub fn signal_process(process: &Process, signals: &[Signal]) -> bool {
    let Some(pid) = Pid::from_raw(process.pid as i32) else { return false };
    let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // The descriptor keeps the number from being reused: what we read now is read of the process behind it.
    if !Process::read(process.pid).is_some_and(|now| is_same(process, &now)) {
        return false;
    }
    let mut sent = true;
    for &signal in signals {
        sent &= rustix::process::pidfd_send_signal(&pidfd, signal).is_ok();
    }
    sent
}

/// True if `now` is the process found as `found`. The start time alone is not enough: it counts 10 ms, in which a small
/// range of process ids can be used up. So the parent must match too, or be where orphans go. With another new parent,
/// the next sweep finds the process again.
fn is_same(found: &Process, now: &Process) -> bool {
    let is_reaper = |pid| pid == 1 || pid == std::process::id();
    now.start_time == found.start_time && (now.parent == found.parent || is_reaper(now.parent))
}
