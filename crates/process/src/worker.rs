//! The process that fetches for the daemon, `step-runner fetch`: its start and its confinement.
//!
//! It reads what servers send, so it is kept away from everything else. It has no environment, no descriptor but two
//! pipes, no way to more rights, and limits that end it long before the machine suffers.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, pidfd_send_signal};
use step_runner_model::ExitStatus;

use super::children;

/// Maximum memory of a worker in bytes: twice the largest tree, so that a pack can be held while it is read.
pub(crate) const MAX_MEMORY: u64 = 2 << 30;

/// Most memory in bytes of a process that handles images: the largest window of an archive's compression, 128 MiB, a
/// few manifests, and room. Everything a registry sends but layers is held in memory whole.
pub const MAX_IMAGE_MEMORY: u64 = 512 << 20;

/// Maximum processor time of a worker in seconds. Unpacking what is within the other limits takes a small part of it.
pub const MAX_CPU_SECONDS: u64 = 600;

/// Niceness of a worker: steps get the processor first.
const NICENESS: i32 = 5;

/// Largest file that a worker may write, in bytes: the largest tree in one pack, and as much again for its history.
pub const MAX_FILE: u64 = 2 << 30;

/// Time to end for a worker that has closed its output: the system tears down up to [`MAX_MEMORY`] first.
const END_TIME: Duration = Duration::from_secs(2);

/// Program of a worker.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    argument: OsString,
}

impl Program {
    /// Returns this program, valid after its file was replaced.
    pub fn this() -> Self {
        Self { path: "/proc/self/exe".into(), argument: "fetch".into() }
    }

    /// Returns a shell script that speaks the same protocol, for tests of what starts workers.
    pub fn script(path: PathBuf) -> Self {
        Self { path: "/bin/sh".into(), argument: path.into() }
    }
}

/// A worker that was started and has not been waited for. Dropping it ends it.
#[derive(Debug)]
pub struct Worker {
    /// `None` once it is waited for.
    child: Option<Child>,
    pidfd: OwnedFd,
}

impl Worker {
    /// Starts a worker. Its task goes to the first pipe, its messages come from the second. Call it on a thread that
    /// lives as long as the daemon: the kernel ends a worker with the thread that started it.
    pub fn start(program: &Program) -> io::Result<(Self, ChildStdin, ChildStdout)> {
        let mut command = Command::new(&program.path);
        command
            .arg0("step-runner")
            .arg(&program.argument)
            .env_clear()
            .current_dir("/")
            // A terminal's signals are for the daemon, which ends its workers itself.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = children::start(&mut command)?;
        let pid = Pid::from_raw(child.id() as i32);
        let pidfd = pid.ok_or(rustix::io::Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match (pidfd, child.stdin.take(), child.stdout.take()) {
            (Ok(pidfd), Some(stdin), Some(stdout)) => Ok((Self { child: Some(child), pidfd }, stdin, stdout)),
            (pidfd, ..) => {
                child.kill().ok();
                children::wait(child)?;
                Err(pidfd.err().unwrap_or(rustix::io::Errno::PIPE).into())
            }
        }
    }

    /// Sends SIGKILL. The worker has nothing to tidy up: the daemon removes its files.
    pub fn kill(&self) {
        // A worker that has ended by itself is as good.
        pidfd_send_signal(&self.pidfd, Signal::KILL).ok();
    }

    /// Blocks until the worker ends by itself. Kills it after [`END_TIME`].
    pub fn reap(mut self) -> io::Result<ExitStatus> {
        let end_time = Timespec::try_from(END_TIME).unwrap_or_default();
        if poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&end_time)) != Ok(1) {
            self.kill();
        }
        let child = self.child.take().ok_or(io::ErrorKind::NotFound)?;
        let status = children::wait(child)?;
        Ok(children::exit_status(status))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.kill();
            children::leave(child.id());
        }
    }
}

/// Makes this process a worker. It ends with its daemon, cannot gain rights, leaves no core dump, and makes files for
/// its own user alone. The system ends it if it takes more than a transfer needs.
pub fn confine() -> io::Result<()> {
    end_first();
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::thread::set_no_new_privs(true)?;
    super::host::hide_memory()?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::nice(NICENESS)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Data, MAX_MEMORY)?;
    limit(Resource::Fsize, MAX_FILE)?;
    // The system's signal names the exceeded limit only below the hard limit.
    limit(Resource::Cpu, MAX_CPU_SECONDS + 1)?;
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Cpu);
    let current = Some(current.map_or(MAX_CPU_SECONDS, |current| current.min(MAX_CPU_SECONDS)));
    Ok(rustix::process::setrlimit(Resource::Cpu, Rlimit { current, maximum })?)
}

/// Makes the system end this process before any other when memory is short.
pub fn end_first() {
    // If this fails, limits of memory do.
    std::fs::write("/proc/self/oom_score_adj", "1000").ok();
}

/// Limits the memory that this process takes from now on, in bytes. Beyond it, the process ends.
///
/// Memory that is already mapped is added to the limit, because the allocator of the static program maps 1 GiB at its start
/// and touches little of it.
pub fn limit_memory(bytes: u64) -> io::Result<()> {
    limit(Resource::Data, mapped()?.saturating_add(bytes))
}

/// Returns the size of this process's writable private mappings, in bytes: what the limit of data counts.
fn mapped() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmData:")?.split_whitespace().next()?.parse().ok());
    kib.map(|kib: u64| kib.saturating_mul(1024)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Lowers a limit for good.
fn limit(resource: Resource, limit: u64) -> io::Result<()> {
    let Rlimit { maximum, .. } = rustix::process::getrlimit(resource);
    let limit = Some(maximum.map_or(limit, |maximum| maximum.min(limit)));
    Ok(rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })?)
}
