//! Signals to what is certainly ours, and the end of our own children.
//!
//! A process id is only a number once its process has been reaped. So signals go through a pidfd, a control group, or
//! to the group of a leader that has not been reaped yet (its number cannot be given away before).

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use super::sweep::Process;
use crate::model::ExitStatus;

/// Reaps the child behind `pidfd` if it has ended.
pub fn reap(pidfd: BorrowedFd<'_>) -> Option<ExitStatus> {
    let status = wait(&WaitId::PidFd(pidfd), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
    Some(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::Code(code as u8),
        (None, Some(signal)) => ExitStatus::Signal(signal as u8),
        (None, None) => ExitStatus::Signal(0),
    })
}

/// Reaps child `pid`, which [`super::peek_exited_child`] has named.
pub fn reap_orphan(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        wait(&WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

fn wait(id: &WaitId<'_>, options: WaitIdOptions) -> Option<rustix::process::WaitIdStatus> {
    loop {
        match rustix::process::waitid(id.clone(), options) {
            Err(Errno::INTR) => {}
            Err(_) => return None,
            Ok(status) => return status,
        }
    }
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

/// Sends `signals` to `process` unless another process has its number by now. `true` = it was there.
pub fn signal_process(process: &Process, signals: &[Signal]) -> bool {
    let Some(pid) = Pid::from_raw(process.pid as i32) else { return false };
    let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // The descriptor holds the number: if the start time still matches now, it is the process that was found.
    if Process::read(process.pid).is_none_or(|now| now.start_time != process.start_time) {
        return false;
    }
    for &signal in signals {
        rustix::process::pidfd_send_signal(&pidfd, signal).ok();
    }
    true
}
