//! Children that have ended: `waitid`, `waitpid`.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use step_runner_model::{ExitStatus, StepUsage};

use super::errno;

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

/// State of the children of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// This child has ended; it stays unreaped.
    Ended(u32),
    /// There are children, and none has ended.
    Living,
    /// There is no child.
    None,
}

/// Looks for an ended child, whatever signal its end sends.
pub(crate) fn look_at_children() -> Children {
    // SAFETY: an all-zero siginfo is a valid value; the call writes only to it.
    let (waited, pid) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        let waited = libc::waitid(libc::P_ALL, 0, &raw mut info, options);
        (waited, info.si_pid())
    };
    match waited {
        0 if pid > 0 => Children::Ended(pid as u32),
        -1 if errno() == libc::ECHILD => Children::None,
        _ => Children::Living,
    }
}

/// Returns the id of a child that has ended. It stays unreaped.
pub fn peek_exited_child() -> Option<u32> {
    match look_at_children() {
        Children::Ended(pid) => Some(pid),
        Children::Living | Children::None => None,
    }
}

/// The child to wait for.
#[derive(Clone, Copy)]
pub(crate) enum Child<'a> {
    /// The child behind this descriptor.
    Pidfd(BorrowedFd<'a>),
    /// The child with this process id.
    Pid(u32),
}

/// Reaps a child if it has ended. Returns its exit code or the signal that ended it. Unlike the library's call, it also
/// returns the usage of the child and the children it had reaped.
pub(crate) fn reap_ended(child: Child<'_>) -> Option<(ExitStatus, StepUsage)> {
    let (kind, id) = match child {
        Child::Pidfd(fd) => (libc::P_PIDFD, fd.as_raw_fd() as libc::id_t),
        Child::Pid(pid) => (libc::P_PID, pid),
    };
    // SAFETY: all-zero values are valid for both; the call writes only to them.
    let (waited, info, usage) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let mut usage: libc::rusage = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
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
    Some((status, used(&usage)))
}

fn used(usage: &libc::rusage) -> StepUsage {
    /// Bytes of a block of `ru_inblock`.
    const BLOCK: u64 = 512;
    let bytes = |blocks: libc::c_long| IS_IO_COUNTED.then(|| (blocks as u64).saturating_mul(BLOCK));
    StepUsage {
        user: time_of(usage.ru_utime),
        system: time_of(usage.ru_stime),
        peak_memory: own_peak(usage.ru_maxrss as u64),
        read: bytes(usage.ru_inblock),
        written: bytes(usage.ru_oublock),
    }
}

/// True if the kernel counts the bytes of processes; else it reports zeros.
static IS_IO_COUNTED: LazyLock<bool> = LazyLock::new(|| std::path::Path::new("/proc/self/io").exists());

/// Largest memory of this process in KiB, when we last asked.
static OUR_PEAK: AtomicU64 = AtomicU64::new(0);

/// Returns the peak of a child in bytes, from what `wait` reports in KiB. A child of this process begins with our own
/// peak, because it uses our memory until it runs its program: a value not above ours says nothing about it.
fn own_peak(told: u64) -> Option<u64> {
    if told <= OUR_PEAK.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: all-zero is a valid value; the call writes only to it.
    let ours = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_maxrss as u64
    };
    OUR_PEAK.fetch_max(ours, Ordering::Relaxed);
    (told > ours).then(|| told.saturating_mul(1024))
}

fn time_of(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
}
