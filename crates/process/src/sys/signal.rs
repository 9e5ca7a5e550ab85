//! Signals: `rt_sigaction`, `pthread_sigmask`, `signalfd`.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{io, ptr};

/// Highest signal number.
pub(super) const LAST_SIGNAL: c_int = 64;

/// The kernel's own `struct sigaction`, with room to spare. The handler is its first word; all zeros are the default.
pub(super) type KernelAction = [u64; 8];

/// Makes the system call itself. The C library refuses the two signals that it keeps for itself, which our starter may
/// have left ignored.
///
/// # Safety
/// `old` is null or writable. Async-signal-safe.
pub(super) unsafe fn signal_action(
    signal: c_int,
    new: *const KernelAction,
    old: *mut KernelAction,
) -> libc::c_long {
    const SET_BYTES: usize = 8;
    // SAFETY: as the function's own contract.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, SET_BYTES) }
}

/// Returns the set without signals.
pub(super) fn empty_signal_set() -> libc::sigset_t {
    // SAFETY: an all-zero signal set is a valid value, and the empty set.
    unsafe { std::mem::zeroed() }
}

/// True if this process ignores `signal`, as its starter may have wished.
pub fn is_signal_ignored(signal: rustix::process::Signal) -> bool {
    let mut old: KernelAction = [0; 8];
    // SAFETY: `old` is writable, and nothing is changed.
    let asked = unsafe { signal_action(signal.as_raw(), ptr::null(), &raw mut old) };
    asked == 0 && old.first() == Some(&(libc::SIG_IGN as u64))
}

/// A descriptor that becomes readable when one of its signals is pending.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks SIGCHLD for this thread and all it starts later, and makes a descriptor for it.
    pub fn children() -> io::Result<Self> {
        let mut set = empty_signal_set();
        // SAFETY: `set` is writable and initialised; the new descriptor belongs to nobody else.
        unsafe {
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Self(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// Takes the pending signal.
    pub fn clear(&self) {
        // At most one SIGCHLD is pending, so a second read would find nothing.
        let mut buffer = [0_u8; size_of::<libc::signalfd_siginfo>()];
        rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut buffer)).ok();
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Ignores the signals that a terminal or an impatient script sends: the keeper ends by its own rules.
pub fn ignore_signals() {
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGPIPE,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ] {
        // SAFETY: no handler is installed, so none can run at a bad time.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    ignore_file_size_signal();
}

/// Ignores SIGXFSZ: a write beyond the limit on the size of files fails like one to a full disk, instead of ending the
/// process.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler is installed, so none can run at a bad time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Has the process that `command` starts get `signal` when the thread that starts it ends.
pub(crate) fn signal_at_parents_end(command: &mut Command, signal: rustix::process::Signal) {
    let parent = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the closure makes two async-signal-safe system calls and touches no memory but its own.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal.as_raw()) < 0 {
                return Err(io::Error::last_os_error());
            }
            // It may have ended before.
            if libc::getppid() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        });
    }
}
