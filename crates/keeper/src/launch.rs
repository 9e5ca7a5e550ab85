//! Connects a daemon to its keeper: to the living one of the state folder, or to a new one.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::runtime::setup::{IDENTITY, KeeperIdentity};
use step_runner_model::error::Chain;
use step_runner_process::cgroup::CgroupMode;
use step_runner_process::host::{self, SoftLimits};
use step_runner_process::sweep::Process;
use step_runner_process::{cgroup, children, freezer, group};
use step_runner_system::{failpoint, files};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;

/// Maximum number of bytes of `keeper.json` that are read.
const MAX_IDENTITY: u64 = 64 << 10;

/// True if a keeper lives in the state folder `directory`: it holds `keeper.lock`.
pub fn is_alive(directory: BorrowedFd<'_>) -> io::Result<bool> {
    match files::open_read(directory, "keeper.lock") {
        Ok((lock, _)) => files::is_locked(lock),
        // Nothing is there, or a foreign file, which the next keeper moves away.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
            Ok(false)
        }
        Err(error) if files::is_foreign(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn identity(directory: BorrowedFd<'_>) -> Option<KeeperIdentity> {
    let json = files::read_file(directory, IDENTITY, MAX_IDENTITY).ok()?;
    serde_json::from_slice(&json).ok()
}

/// Sends a signal to a keeper: to the process `known`, or to the one that `keeper.json` of the state folder `directory`
/// names, if it still matches. Thaws it first, because a frozen process takes no signal. Returns its pid.
pub fn signal(directory: BorrowedFd<'_>, known: Option<Process>, signal: Signal) -> Option<u32> {
    // The parent of a keeper changes when the daemon that started it ends.
    let living =
        |known: Process| Process::read(known.pid).filter(|found| found.start_time == known.start_time);
    let process = known.and_then(living).or_else(|| named(directory))?;
    freezer::thaw_process(process.pid);
    group::signal_process(&process, &[signal]).then_some(process.pid)
}

/// Returns the process that `keeper.json` names.
fn named(directory: BorrowedFd<'_>) -> Option<Process> {
    let named = identity(directory)?.process;
    if named.boot_id != host::boot_id() {
        return None;
    }
    Process::read(named.pid).filter(|found| found.start_time == named.start_time)
}

/// Connects to the living keeper of the state folder `directory`. The path goes through the folder's descriptor, so its
/// length does not matter (service.md §6.6).
pub fn connect(directory: BorrowedFd<'_>) -> io::Result<std::os::unix::net::UnixStream> {
    std::os::unix::net::UnixStream::connect(format!("/proc/self/fd/{}/keeper.sock", directory.as_raw_fd()))
}

/// Starts a keeper for the state folder at `state_dir` and hands it one end of a socket pair as standard input.
/// `limits` are for the steps.
///
/// Its environment is empty: each request brings what its step needs, and nothing else may leak into steps.
pub fn start(
    state_dir: &Path,
    cgroup: CgroupMode,
    limits: SoftLimits,
) -> io::Result<(std::os::unix::net::UnixStream, Child)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("step-runner").args(["keeper", "--connection-fd", "0", "--cgroup", cgroup.name()]);
    command
        .args(limits.options())
        .arg("--state-dir")
        .arg(state_dir)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(failpoints) = failpoint::of_keeper() {
        command.env("FAILPOINTS", failpoints);
    }
    Ok((ours.into(), children::start(&mut command)?))
}

/// Returns the directories of the control groups listed in `keeper.json` of the state folder `directory`.
pub fn groups(directory: BorrowedFd<'_>) -> Vec<PathBuf> {
    identity(directory).map(|identity| identity.cgroups).unwrap_or_default()
}

/// Kills what is in those groups whose keeper is dead, and removes them.
pub fn remove_groups(groups: &[PathBuf]) {
    for group in groups {
        cgroup::end_dead(group);
    }
}

/// Reaps a keeper that this daemon started once it ends, so that it does not stay a zombie. Uses a thread outside of
/// the runtime: a daemon that ends waits for the runtime's threads, but must not wait for its keeper.
pub fn reap(keeper: Child) {
    let pid = keeper.id();
    let wait = || {
        if let Err(error) = children::wait(keeper) {
            tracing::debug!(error = %Chain(&error), "cannot wait for the keeper");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("keeper-end".into()).spawn(wait) {
        tracing::debug!(error = %Chain(&error), "no thread to wait for the keeper");
        children::leave(pid);
    }
}
