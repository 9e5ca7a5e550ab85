//! Signals to what is certainly ours, and the end of our own children.
//!
//! A process id is only a number once its process has been reaped. So signals go through a pidfd, a control group, or
//! to the group of a leader that has not been reaped yet (its number cannot be given away before).

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};

use super::sweep::Process;
use super::sys::{Child, reap_ended};
use crate::model::ExitStatus;

/// Reaps the child behind `pidfd` if it has ended: how, and the processor time of it and of what it had reaped.
pub fn reap(pidfd: BorrowedFd<'_>) -> Option<(ExitStatus, Duration)> {
    reap_ended(Child::Pidfd(pidfd))
}

/// Reaps child `pid`, which [`super::peek_exited_child`] has named; its processor time.
pub fn reap_orphan(pid: u32) -> Option<Duration> {
    reap_ended(Child::Pid(pid)).map(|(_, time)| time)
}

/// SIGTERM and then SIGCONT to the group of `leader`, so that a stopped one can act on it (service.md §6.2).
/// The leader must not have been reaped.
pub fn terminate(leader: Pid) {
    signal_group(leader, Signal::TERM);
    signal_group(leader, Signal::CONT);
}

/// SIGKILL to the group of `leader`, which must not have been reaped.
pub fn kill(leader: Pid) {
    signal_group(leader, Signal::KILL);
}

fn signal_group(leader: Pid, signal: Signal) {
    // A group that is gone or not ours to signal (set-user-id programs) is no error: the sweep that follows tells.
    rustix::process::kill_process_group(leader, signal).ok();
}

/// Sends `signals` to `process` unless another process has its number by now. `true` = they were sent.
pub fn signal_process(process: &Process, signals: &[Signal]) -> bool {
    let Some(pid) = Pid::from_raw(process.pid as i32) else { return false };
    let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // The descriptor holds the number: what is read of it now is read of the process behind the descriptor.
    if !Process::read(process.pid).is_some_and(|now| is_same(process, &now)) {
        return false;
    }
    let mut sent = true;
    for &signal in signals {
        sent &= rustix::process::pidfd_send_signal(&pidfd, signal).is_ok();
    }
    sent
}

/// Whether `now` is the process that was found as `found`. Its start time alone does not tell: it counts 10 ms, in which a
/// small range of process ids can come round. An orphan has come to us or to the first process; with another new parent it
/// is found again by the next sweep.
fn is_same(found: &Process, now: &Process) -> bool {
    let is_reaper = |pid| pid == 1 || pid == std::process::id();
    now.start_time == found.start_time && (now.parent == found.parent || is_reaper(now.parent))
}
