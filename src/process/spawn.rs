//! Starting a step's process (service.md §6.5).

use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::Pid;
use rustix::time::ClockId;

use super::sweep::Process;
use super::sys::{self, ChildPlan, ChildStack, ChildStage, CloneError, Inheritance};

/// What to start. Holds an environment with secrets, so it has no `Debug`.
pub struct Command<'a> {
    /// Path of the executable, relative to `work_dir` unless absolute.
    pub program: &'a Path,
    /// All arguments, the first included.
    pub argv: &'a [String],
    /// The whole environment, `NAME=VALUE` each.
    pub env: &'a [Vec<u8>],
    /// Working directory.
    pub work_dir: &'a Path,
}

/// A process that runs its program.
#[derive(Debug)]
pub struct Spawned {
    /// Its process id, also the id of its group. Valid until the process is reaped.
    pub pid: Pid,
    /// Becomes readable when it ends.
    pub pidfd: OwnedFd,
    /// When it started, in clock ticks since the host did; 0 if it could not be told.
    pub start_time: u64,
    /// Read end of its standard output, non-blocking.
    pub stdout: OwnedFd,
    /// Read end of its standard error, non-blocking.
    pub stderr: OwnedFd,
}

/// What failed at the start of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// An argument or value with a NUL byte.
    Arguments,
    /// Making the pipes or the standard streams.
    Pipe,
    /// Making the process or its group.
    Fork,
    /// Entering the control group.
    Cgroup,
    /// Entering the working directory.
    WorkDir,
    /// Executing the program.
    Exec,
}

impl Stage {
    /// One word for messages between daemon and keeper.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arguments => "arguments",
            Self::Pipe => "pipe",
            Self::Fork => "fork",
            Self::Cgroup => "cgroup",
            Self::WorkDir => "work_dir",
            Self::Exec => "exec",
        }
    }
}

/// A process that could not be started; nothing is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot start the process ({})", .stage.name())]
pub struct SpawnError {
    /// What failed.
    pub stage: Stage,
    /// The system's reason.
    #[source]
    pub errno: Errno,
}

impl SpawnError {
    fn new(stage: Stage, error: &io::Error) -> Self {
        Self { stage, errno: Errno::from_io_error(error).unwrap_or(Errno::INVAL) }
    }

    /// The program's file is open for writing somewhere, which passes: a fork of a writer that has not executed yet.
    pub fn is_busy(&self) -> bool {
        self.stage == Stage::Exec && self.errno == Errno::TXTBSY
    }
}

/// Starts processes. Its thread must live as long as they shall: they die with it (parent-death signal).
pub struct Spawner {
    stack: ChildStack,
    inheritance: Inheritance,
    null: OwnedFd,
}

impl Spawner {
    /// Notes the dispositions and limits that steps are to have: call it before changing one's own limits.
    pub fn new() -> io::Result<Self> {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { stack: ChildStack::new()?, inheritance: Inheritance::read(), null })
    }

    /// Call after changing dispositions of signals, so that steps get the default ones.
    pub fn dispositions_changed(&mut self) {
        self.inheritance.read_signals();
    }

    /// Starts `command`, born in `cgroup` if one is given.
    pub fn spawn(
        &mut self,
        command: &Command<'_>,
        cgroup: Option<BorrowedFd<'_>>,
    ) -> Result<Spawned, SpawnError> {
        let nul = |_| SpawnError { stage: Stage::Arguments, errno: Errno::INVAL };
        let program = CString::new(command.program.as_os_str().as_bytes()).map_err(nul)?;
        let work_dir = CString::new(command.work_dir.as_os_str().as_bytes()).map_err(nul)?;
        let argv = StringArray::new(command.argv.iter().map(String::as_bytes))?;
        let env = StringArray::new(command.env.iter().map(Vec::as_slice))?;
        let (stdout, child_stdout) = output_pipe()?;
        let (stderr, child_stderr) = output_pipe()?;
        let plan = ChildPlan {
            program: &program,
            argv: argv.pointers.as_ptr(),
            envp: env.pointers.as_ptr(),
            work_dir: &work_dir,
            stdin: self.null.as_fd(),
            stdout: child_stdout.as_fd(),
            stderr: child_stderr.as_fd(),
            cgroup,
            inheritance: &self.inheritance,
        };
        let before = ticks();
        let (pid, pidfd) = sys::clone_exec(&plan, &mut self.stack).map_err(|error| match error {
            CloneError::Clone(error) => SpawnError::new(Stage::Fork, &error),
            CloneError::Child(stage, error) => SpawnError::new(stage.into(), &error),
        })?;
        let pid = Pid::from_raw(pid).ok_or(SpawnError { stage: Stage::Fork, errno: Errno::SRCH })?;
        // Between two equal times there is no other one: mostly this spares the kernel the text of `/proc/PID/stat`.
        let start_time = Some(before)
            .filter(|&before| before == ticks())
            .or_else(|| Process::read(pid.as_raw_nonzero().get() as u32).map(|process| process.start_time));
        Ok(Spawned { pid, pidfd, start_time: start_time.unwrap_or(0), stdout, stderr })
    }
}

/// Now, as the kernel shows start times of processes: in ticks of 10 ms on all processors that we are built for.
fn ticks() -> u64 {
    const TICK: u64 = 10_000_000;
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    (now.tv_sec as u64) * (1_000_000_000 / TICK) + (now.tv_nsec as u64) / TICK
}

impl From<ChildStage> for Stage {
    fn from(stage: ChildStage) -> Self {
        match stage {
            ChildStage::Prepare => Self::Fork,
            ChildStage::Cgroup => Self::Cgroup,
            ChildStage::Pipe => Self::Pipe,
            ChildStage::WorkDir => Self::WorkDir,
            ChildStage::Exec => Self::Exec,
        }
    }
}

/// Read end (non-blocking) and write end (blocking, as programs expect their output to be).
fn output_pipe() -> Result<(OwnedFd, OwnedFd), SpawnError> {
    let make = || {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok((read, write))
    };
    make().map_err(|errno| SpawnError { stage: Stage::Pipe, errno })
}

/// Strings as `execve` takes them: one block of memory, and pointers into it.
struct StringArray {
    /// Held for the pointers.
    _bytes: Vec<u8>,
    pointers: Vec<*const c_char>,
}

impl StringArray {
    fn new<'a>(strings: impl Iterator<Item = &'a [u8]> + Clone) -> Result<Self, SpawnError> {
        let size = strings.clone().map(|string| string.len() + 1).sum();
        let mut bytes: Vec<u8> = Vec::with_capacity(size);
        let mut starts = Vec::new();
        for string in strings {
            if memchr::memchr(0, string).is_some() {
                return Err(SpawnError { stage: Stage::Arguments, errno: Errno::INVAL });
            }
            starts.push(bytes.len());
            bytes.extend_from_slice(string);
            bytes.push(0);
        }
        let base = bytes.as_ptr();
        let pointers =
            starts.into_iter().map(|start| base.wrapping_add(start).cast()).chain([ptr::null()]).collect();
        Ok(Self { _bytes: bytes, pointers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_what_the_kernel_shows() {
        let mut spawner = Spawner::new().unwrap();
        let argv = ["sleep", "30"].map(str::to_owned);
        let command =
            Command { program: Path::new("/bin/sleep"), argv: &argv, env: &[], work_dir: Path::new("/") };
        for _ in 0..20 {
            let spawned = spawner.spawn(&command, None).unwrap();
            let shown = Process::read(spawned.pid.as_raw_nonzero().get() as u32).unwrap();
            assert_eq!(spawned.start_time, shown.start_time);
            rustix::process::pidfd_send_signal(&spawned.pidfd, rustix::process::Signal::KILL).unwrap();
            rustix::process::waitpid(Some(spawned.pid), rustix::process::WaitOptions::empty()).unwrap();
        }
    }
}
