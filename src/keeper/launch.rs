//! How a daemon gets its keeper: the living one of the state folder, or a new one.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::process::children;
use crate::process::host::SoftLimits;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Whether a keeper lives in the state folder `directory`: it holds `keeper.lock`.
pub fn is_alive(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = match rustix::fs::openat(directory, "keeper.lock", flags, Mode::empty()) {
        Ok(lock) => lock,
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Connects to the living keeper of the state folder `directory`. The path goes through the folder's descriptor, so its
/// length does not matter (service.md §6.6).
pub fn connect(directory: BorrowedFd<'_>) -> io::Result<std::os::unix::net::UnixStream> {
    std::os::unix::net::UnixStream::connect(format!("/proc/self/fd/{}/keeper.sock", directory.as_raw_fd()))
}

/// Starts a keeper for the state folder at `state_dir` and hands it one end of a socket pair as standard input.
/// `limits` are those that steps are to have.
///
/// It gets an empty environment: what steps need comes with each request, and nothing else may leak into them.
pub fn start(
    state_dir: &Path,
    cgroup: &str,
    limits: SoftLimits,
) -> io::Result<(std::os::unix::net::UnixStream, Child)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("step-runner").args(["keeper", "--connection-fd", "0", "--cgroup", cgroup]);
    for (option, limit) in [("--soft-nofile", limits.nofile), ("--soft-core", limits.core)] {
        if let Some(limit) = limit {
            command.arg(option).arg(limit.to_string());
        }
    }
    command
        .arg("--state-dir")
        .arg(state_dir)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok((ours.into(), children::start(&mut command)?))
}

/// Waits for a keeper that this daemon started, so that it does not stay a zombie. On a thread of its own: a daemon that
/// ends before its keeper must not wait for it, as it does for the threads of its runtime.
pub fn reap(keeper: Child) {
    let pid = keeper.id();
    let wait = || {
        if let Err(error) = children::wait(keeper) {
            tracing::debug!(%error, "cannot wait for the keeper");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("keeper-end".into()).spawn(wait) {
        tracing::debug!(%error, "no thread to wait for the keeper");
        children::leave(pid);
    }
}
