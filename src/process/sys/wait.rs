//! Children that have ended: `waitid`, `waitpid`.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::errno;
use crate::model::ExitStatus;

/// Reaps a child that has exited.
pub(super) fn reap(pid: libc::pid_t) {
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable; `pid` is an exited child that nobody else waits for.
        let reaped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if reaped >= 0 || errno() != libc::EINTR {
            return;
        }
    }
}

/// Process id of a child that has ended and is not reaped; it stays unreaped.
pub fn peek_exited_child() -> Option<u32> {
    // SAFETY: an all-zero siginfo is a valid value; the call writes only to it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let waited = libc::waitid(libc::P_ALL, 0, &raw mut info, options);
        let pid = info.si_pid();
        (waited == 0 && pid > 0).then_some(pid as u32)
    }
}

/// Which child to wait for.
#[derive(Clone, Copy)]
pub(in crate::process) enum Child<'a> {
    /// The one behind this descriptor.
    Pidfd(BorrowedFd<'a>),
    /// The one with this process id.
    Pid(u32),
}

/// Reaps a child if it has ended: its exit code or the signal that ended it, and the processor time that it and the
/// children it had reaped used. The library's call does not tell the time.
pub(in crate::process) fn reap_ended(child: Child<'_>) -> Option<(ExitStatus, Duration)> {
    let (kind, id) = match child {
        Child::Pidfd(fd) => (libc::P_PIDFD, fd.as_raw_fd() as libc::id_t),
        Child::Pid(pid) => (libc::P_PID, pid),
    };
    // SAFETY: all-zero values are valid for both; the call writes only to them.
    let (waited, info, usage) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let mut usage: libc::rusage = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG;
        let waited = loop {
            let waited = libc::syscall(libc::SYS_waitid, kind, id, &raw mut info, options, &raw mut usage);
            if waited == 0 || errno() != libc::EINTR {
                break waited;
            }
        };
        (waited, info, usage)
    };
    // SAFETY: the kernel filled in the fields of a child's end, or left zeros.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if waited != 0 || pid == 0 {
        return None;
    }
    let status = match info.si_code {
        libc::CLD_EXITED => ExitStatus::Code(status as u8),
        _ => ExitStatus::Signal(status as u8),
    };
    Some((status, time_of(usage.ru_utime) + time_of(usage.ru_stime)))
}

fn time_of(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
}
