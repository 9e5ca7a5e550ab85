//! Starts a step's process (service.md §6.5).

use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use rustix::fs::{Mode, OFlags};
use rustix::io::{DupFlags, Errno};
use rustix::pipe::PipeFlags;
use rustix::process::Pid;
use rustix::time::ClockId;

use super::sweep::Process;
use super::sys::{self, ChildPlan, ChildStack, ChildStage, CloneError, Inheritance, ProcessLimit};

/// Command to start. Holds an environment with secrets, so it has no `Debug`.
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

/// Groups and limits of a process.
#[derive(Clone, Debug, Default)]
pub struct Confinement<'a> {
    /// Directory of the control group of version 2 that it is born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// `cgroup.procs` of the groups of version 1 that it joins.
    pub join: Vec<BorrowedFd<'a>>,
    /// Limit on open files.
    pub open_files: Option<u64>,
    /// Limit on processes of its user ([`super::limiter::user_limit`]).
    pub user_processes: Option<u64>,
}

/// A process that runs its program.
#[derive(Debug)]
pub struct Spawned {
    /// Its process id, also the id of its group. Valid until the process is reaped.
    pub pid: Pid,
    /// Becomes readable when it ends.
    pub pidfd: OwnedFd,
    /// Its start time in clock ticks since boot; 0 if unknown.
    pub start_time: u64,
    /// Read end of its standard output, non-blocking.
    pub stdout: OwnedFd,
    /// Read end of its standard error, non-blocking.
    pub stderr: OwnedFd,
}

/// Stage of a start that failed.
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
    /// Holding it to the job's limits.
    Limits,
}

impl Stage {
    const ALL: [Self; 7] =
        [Self::Arguments, Self::Pipe, Self::Fork, Self::Cgroup, Self::WorkDir, Self::Exec, Self::Limits];

    /// Number for messages between keeper and reaper.
    pub(super) const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the stage with this number. An unknown number counts as the fork.
    pub(super) fn of_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|stage| stage.number() == number).unwrap_or(Self::Fork)
    }

    /// Returns the stage with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// One word for messages between daemon and keeper.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arguments => "arguments",
            Self::Pipe => "pipe",
            Self::Fork => "fork",
            Self::Cgroup => "cgroup",
            Self::WorkDir => "work_dir",
            Self::Exec => "exec",
            Self::Limits => "limits",
        }
    }
}

/// Failure to start a process; nothing is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot start the process ({})", .stage.name())]
pub struct SpawnError {
    /// The failed stage.
    pub stage: Stage,
    /// The system's reason.
    #[source]
    pub errno: Errno,
}

impl SpawnError {
    /// Takes the system's reason from `error`.
    pub fn new(stage: Stage, error: &io::Error) -> Self {
        Self { stage, errno: Errno::from_io_error(error).unwrap_or(Errno::INVAL) }
    }

    /// True if the program's file is open for writing. That passes: a fork of the writer has not executed its program
    /// yet.
    pub fn is_busy(&self) -> bool {
        self.stage == Stage::Exec && self.errno == Errno::TXTBSY
    }
}

/// Starts processes. They die with the thread that calls it (parent-death signal), so it must outlive them.
pub struct Spawner {
    stack: ChildStack,
    inheritance: Inheritance,
    null: OwnedFd,
    streams: LowStreams,
    can_leave_table: bool,
    oom_score: Option<OomScore>,
}

impl Spawner {
    /// Notes the dispositions and limits for steps. Call it before changing one's own limits, and before hiding this
    /// process's files in `/proc`. `oom_score_adj` is the value that the daemon was started with.
    pub fn new(oom_score_adj: Option<i32>) -> io::Result<Self> {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let oom_score = OomScore::open(oom_score_adj);
        let streams = LowStreams::new(&null)?;
        Ok(Self {
            stack: ChildStack::new()?,
            inheritance: Inheritance::read(),
            null,
            streams,
            can_leave_table: sys::can_leave_table(),
            oom_score,
        })
    }

    /// Call after changing dispositions of signals, so that steps get the default ones.
    pub fn dispositions_changed(&mut self) {
        self.inheritance.read_signals();
    }

    /// Starts `command`, held in `confinement`, with pipes of its own.
    pub fn spawn(
        &mut self,
        command: &Command<'_>,
        confinement: &Confinement<'_>,
    ) -> Result<Spawned, SpawnError> {
        let (stdout, child_stdout) = output_pipe()?;
        let (stderr, child_stderr) = output_pipe()?;
        let (pid, pidfd, start_time) =
            self.spawn_with(command, confinement, child_stdout.as_fd(), child_stderr.as_fd())?;
        Ok(Spawned { pid, pidfd, start_time, stdout, stderr })
    }

    /// Starts `command`, held in `confinement`, with these output streams. Returns its process id, pidfd, and start
    /// time in clock ticks (0 if unknown).
    pub(super) fn spawn_with(
        &mut self,
        command: &Command<'_>,
        confinement: &Confinement<'_>,
        stdout: BorrowedFd<'_>,
        stderr: BorrowedFd<'_>,
    ) -> Result<(Pid, OwnedFd, u64), SpawnError> {
        let nul = |_| SpawnError { stage: Stage::Arguments, errno: Errno::INVAL };
        let program = CString::new(command.program.as_os_str().as_bytes()).map_err(nul)?;
        let work_dir = CString::new(command.work_dir.as_os_str().as_bytes()).map_err(nul)?;
        let argv = StringArray::new(command.argv.iter().map(String::as_bytes))?;
        let env = StringArray::new(command.env.iter().map(Vec::as_slice))?;
        let Confinement { cgroup, join, open_files, user_processes } = confinement;
        let limits =
            [open_files.map(ProcessLimit::OpenFiles), user_processes.map(ProcessLimit::UserProcesses)];
        let limits: Vec<_> = limits.into_iter().flatten().collect();
        let pipe = |errno| SpawnError { stage: Stage::Pipe, errno };
        let streams = self.streams.hold(stdout, stderr, &self.null).map_err(pipe)?;
        let plan = ChildPlan {
            program: &program,
            argv: argv.as_ptr(),
            envp: env.as_ptr(),
            work_dir: &work_dir,
            stdin: self.null.as_fd(),
            stdout: streams.stdout(),
            stderr: streams.stderr(),
            first_left_out: self.can_leave_table.then(|| streams.first_after(&self.null)),
            cgroup: *cgroup,
            join,
            limits: &limits,
            inheritance: &self.inheritance,
        };
        let before = ticks();
        if let Some(score) = &self.oom_score {
            score.as_a_step();
        }
        let cloned = sys::clone_exec(&plan, &mut self.stack);
        drop(streams);
        if let Some(score) = &self.oom_score {
            score.as_ourselves();
        }
        let (pid, pidfd) = cloned.map_err(|error| match error {
            CloneError::Clone(error) => SpawnError::new(Stage::Fork, &error),
            CloneError::Child(stage, error) => SpawnError::new(stage.into(), &error),
        })?;
        let pid = Pid::from_raw(pid).ok_or(SpawnError { stage: Stage::Fork, errno: Errno::SRCH })?;
        // If both times are equal, it is the start time. Mostly this saves the kernel the text of `/proc/PID/stat`.
        let start_time = Some(before)
            .filter(|&before| before == ticks())
            .or_else(|| Process::read(pid.as_raw_nonzero().get() as u32).map(|process| process.start_time));
        Ok((pid, pidfd, start_time.unwrap_or(0)))
    }
}

/// The smallest descriptor that is no standard stream.
const FIRST_AFTER_STREAMS: RawFd = 3;

/// Two descriptors with small numbers, for the output streams of the process that is started. They were opened before
/// any job, so a table with all descriptors up to theirs is small.
struct LowStreams {
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// The streams of a start under way. Dropping it makes both descriptors name `/dev/null` again.
struct HeldStreams<'a> {
    streams: &'a mut LowStreams,
    null: &'a OwnedFd,
}

impl LowStreams {
    fn new(null: &OwnedFd) -> io::Result<Self> {
        let low = || rustix::io::fcntl_dupfd_cloexec(null, FIRST_AFTER_STREAMS);
        Ok(Self { stdout: low()?, stderr: low()? })
    }

    /// Makes them name `stdout` and `stderr` until the result is dropped.
    fn hold<'a>(
        &'a mut self,
        stdout: BorrowedFd<'_>,
        stderr: BorrowedFd<'_>,
        null: &'a OwnedFd,
    ) -> rustix::io::Result<HeldStreams<'a>> {
        let held = HeldStreams { streams: self, null };
        rustix::io::dup3(stdout, &mut held.streams.stdout, DupFlags::CLOEXEC)?;
        rustix::io::dup3(stderr, &mut held.streams.stderr, DupFlags::CLOEXEC)?;
        Ok(held)
    }
}

impl HeldStreams<'_> {
    fn stdout(&self) -> BorrowedFd<'_> {
        self.streams.stdout.as_fd()
    }

    fn stderr(&self) -> BorrowedFd<'_> {
        self.streams.stderr.as_fd()
    }

    /// Returns the number after both of theirs and that of `stdin`.
    fn first_after(&self, stdin: &OwnedFd) -> RawFd {
        self.stdout().as_raw_fd().max(self.stderr().as_raw_fd()).max(stdin.as_raw_fd()) + 1
    }
}

impl Drop for HeldStreams<'_> {
    fn drop(&mut self) {
        // As long as these descriptors named the pipes, the pipes would not end with the process.
        for stream in [&mut self.streams.stdout, &mut self.streams.stderr] {
            rustix::io::dup3(self.null, stream, DupFlags::CLOEXEC).ok();
        }
    }
}

/// Makes the kernel end steps before us and the daemon when memory is short (faults.md row 12).
///
/// A child inherits its parent's value, so we take a step's value for the time of a start. The child cannot set it:
/// until it executes its program it shares our memory, and only that memory's owner may write the file.
struct OomScore {
    /// `/proc/self/oom_score_adj`
    file: OwnedFd,
    own: String,
    step: String,
}

/// Added to the daemon's value for steps.
const STEPS_FIRST: i32 = 500;

/// The kernel's largest value.
const MAX_OOM_SCORE_ADJ: i32 = 1000;

impl OomScore {
    /// Opens the file. `None` if the kernel or our rights do not allow it.
    fn open(started_with: Option<i32>) -> Option<Self> {
        let file =
            rustix::fs::open("/proc/self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
                .ok()?;
        let mut text = [0; 16];
        let len = rustix::io::read(&file, &mut text).ok()?;
        let own: i32 = std::str::from_utf8(text.get(..len)?).ok()?.trim().parse().ok()?;
        let step = step_score(own, started_with);
        Some(Self { file, own: own.to_string(), step: step.to_string() })
    }

    fn as_a_step(&self) {
        self.set(&self.step);
    }

    fn as_ourselves(&self) {
        self.set(&self.own);
    }

    fn set(&self, value: &str) {
        // A value that cannot be set stays: memory is then short for all alike.
        rustix::io::pwrite(&self.file, value.as_bytes(), 0).ok();
    }
}

/// Returns a step's value: well above the daemon's, which is ours too, and never below what the daemon was started
/// with.
fn step_score(own: i32, started_with: Option<i32>) -> i32 {
    (own + STEPS_FIRST).max(started_with.unwrap_or(own)).min(MAX_OOM_SCORE_ADJ)
}

/// Returns the time since boot in ticks of 10 ms: the unit of start times on all processors that we are built for.
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
            ChildStage::Limits => Self::Limits,
        }
    }
}

/// Makes a pipe: the read end does not block, the write end does, as programs expect of their output.
pub(super) fn output_pipe() -> Result<(OwnedFd, OwnedFd), SpawnError> {
    let make = || {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok((read, write))
    };
    make().map_err(|errno| SpawnError { stage: Stage::Pipe, errno })
}

/// Strings as `execve` takes them: one block of memory, and pointers into it.
pub(super) struct StringArray {
    /// Owns the memory that `pointers` point to.
    _bytes: Vec<u8>,
    pointers: Vec<*const c_char>,
}

impl StringArray {
    pub(super) fn new<'a>(strings: impl Iterator<Item = &'a [u8]> + Clone) -> Result<Self, SpawnError> {
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

    /// Returns the array, valid as long as this lives.
    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_what_the_kernel_shows() {
        let mut spawner = Spawner::new(None).unwrap();
        let argv = ["sleep", "30"].map(str::to_owned);
        let command =
            Command { program: Path::new("/bin/sleep"), argv: &argv, env: &[], work_dir: Path::new("/") };
        for _ in 0..20 {
            let spawned = spawner.spawn(&command, &Confinement::default()).unwrap();
            let shown = Process::read(spawned.pid.as_raw_nonzero().get() as u32).unwrap();
            assert_eq!(spawned.start_time, shown.start_time);
            rustix::process::pidfd_send_signal(&spawned.pidfd, rustix::process::Signal::KILL).unwrap();
            rustix::process::waitpid(Some(spawned.pid), rustix::process::WaitOptions::empty()).unwrap();
        }
    }

    #[test]
    fn the_streams_of_a_process_are_its_own_however_many_files_we_have_open_and_end_with_it() {
        let mut spawner = Spawner::new(None).unwrap();
        let _many: Vec<_> = (0..200).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let script = "readlink /proc/$$/fd/0; echo error >&2";
        let argv = ["sh", "-c", script].map(str::to_owned);
        let env = [b"PATH=/usr/bin:/bin".to_vec()];
        let command =
            Command { program: Path::new("/bin/sh"), argv: &argv, env: &env, work_dir: Path::new("/") };
        for can_leave_table in [spawner.can_leave_table, false] {
            spawner.can_leave_table = can_leave_table;
            let spawned = spawner.spawn(&command, &Confinement::default()).unwrap();
            assert_eq!(read_to_end(spawned.stdout), "/dev/null\n");
            assert_eq!(read_to_end(spawned.stderr), "error\n");
            rustix::process::waitpid(Some(spawned.pid), rustix::process::WaitOptions::empty()).unwrap();
        }
    }

    /// Reads a pipe until nobody has its other end.
    fn read_to_end(pipe: OwnedFd) -> String {
        rustix::io::ioctl_fionbio(&pipe, false).unwrap();
        std::io::read_to_string(std::fs::File::from(pipe)).unwrap()
    }

    #[test]
    fn steps_are_ended_before_the_daemon_and_not_later_than_what_started_it() {
        assert_eq!(step_score(-500, Some(0)), 0, "a daemon that may lower its own");
        assert_eq!(step_score(0, Some(0)), 500, "one that may not");
        assert_eq!(step_score(-500, Some(300)), 300, "in a container that is to end early");
        assert_eq!(step_score(900, Some(900)), 1000);
        assert_eq!(step_score(-900, Some(-900)), -400);
    }
}
