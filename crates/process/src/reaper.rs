//! A reaper: a small process that holds the processes of one job together where no control group can (service.md §6.5).
//!
//! It is the parent of the job's steps and a child subreaper, so every orphan below it becomes its child. A cleared
//! environment, a new session and a double fork do not change that. The kernel tells when nothing is left: the reaper
//! has no child then.
//!
//! The keeper sends orders ([`ReaperHandle`]), `serve` carries them out. Each message is one small packet of a socket.
//! A reaper whose keeper is gone kills everything below it, and ends.

mod serve;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use step_runner_model::{ExitStatus, StepUsage};

use super::host::SoftLimits;
use super::spawn::{Command, Confinement, SpawnError, Stage, output_pipe};
use super::sweep::REAPER_WORDS;
pub use serve::serve;

/// Longest message in bytes. Commands of steps go by descriptor.
const MAX_MESSAGE: usize = 256;

/// Maximum number of descriptors sent with a message: command, two pipes, and the groups of version 1 to join.
const MAX_DESCRIPTORS: usize = 32;

/// A message to a reaper.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Start a step. Its descriptors are the command in a memory file, standard output and error, and files of groups
    /// to join.
    Start,
    /// Send SIGTERM and SIGCONT to the group of the running step: once to each process.
    TerminateStep,
    /// Send SIGTERM and SIGCONT to everything that has not got them yet.
    TerminateRest,
    /// Send SIGKILL to everything, until nothing is left or a step is started.
    Kill,
}

/// A message of a reaper.
#[derive(Debug, Serialize, Deserialize)]
struct ReaperReport {
    event: ReaperEvent,
    /// Ordered starts that were done, successful or not.
    starts: u32,
    /// True if nothing lives below the reaper.
    is_empty: bool,
    /// Processor time of all processes it has reaped.
    used: Duration,
}

/// An event below a reaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReaperEvent {
    /// The ordered step runs; its pidfd comes with the message.
    Started {
        /// Its process, also the id of its group.
        pid: u32,
        /// Its start time in clock ticks since boot; 0 if unknown.
        start_time: u64,
    },
    /// The ordered step was not started.
    NotStarted {
        /// Number of the [`Stage`] that failed.
        stage: u8,
        /// The system's error number.
        errno: i32,
    },
    /// The process of the step has ended, with this usage.
    Exited(ExitStatus, StepUsage),
    /// The last process has ended.
    Deserted,
}

impl ReaperEvent {
    const fn not_started(error: SpawnError) -> Self {
        Self::NotStarted { stage: error.stage.number(), errno: error.errno.raw_os_error() }
    }

    /// Returns the error behind the fields of [`Self::NotStarted`].
    pub fn error(stage: u8, errno: i32) -> SpawnError {
        SpawnError { stage: Stage::of_number(stage), errno: Errno::from_raw_os_error(errno) }
    }
}

/// Command of a step for the reaper. Holds an environment with secrets, so it has no `Debug`.
#[derive(Serialize, Deserialize)]
struct OrderedCommand<'a> {
    program: Cow<'a, [u8]>,
    argv: Cow<'a, [String]>,
    env: Cow<'a, [Vec<u8>]>,
    work_dir: Cow<'a, [u8]>,
    open_files: Option<u64>,
    user_processes: Option<u64>,
}

/// Result of a read from a reaper.
pub enum Received {
    /// An event, and the pidfd of the process if a step was started.
    Event(ReaperEvent, Option<OwnedFd>),
    /// No report yet.
    Nothing,
    /// The reaper reports nothing more, but may still live.
    Ended,
}

/// Read ends of the pipes of an ordered step.
#[derive(Debug)]
pub struct OrderedPipes {
    /// Standard output, non-blocking.
    pub stdout: OwnedFd,
    /// Standard error, non-blocking.
    pub stderr: OwnedFd,
}

/// A keeper's end of a reaper. If it is dropped, the reaper kills everything below it and ends.
#[derive(Debug)]
pub struct ReaperHandle {
    pid: u32,
    pidfd: OwnedFd,
    socket: OwnedFd,
    /// Number of ordered starts.
    ordered: u32,
    /// Number of starts done, by the last report.
    done: u32,
    is_empty: bool,
    used: Duration,
}

impl ReaperHandle {
    /// Starts a reaper for the job with this tag. Its steps get `limits`. The caller reaps it like any child.
    pub fn start(tag: u128, limits: SoftLimits) -> io::Result<Self> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let child = std::process::Command::new("/proc/self/exe")
            .arg0("step-runner")
            .args(REAPER_WORDS)
            .arg(format!("{tag:032x}"))
            .args(limits.options())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = child.id();
        let handle = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(handle, PidfdFlags::empty())?;
        Ok(Self { pid, pidfd, socket: ours, ordered: 0, done: 0, is_empty: true, used: Duration::ZERO })
    }

    /// Its process id. Valid until the caller reaps it.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Becomes readable when there is something to [`receive`](Self::receive).
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Becomes readable when the reaper has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Orders the start of a step; a [`ReaperEvent`] reports the result.
    pub fn order(
        &mut self,
        command: &Command<'_>,
        confinement: &Confinement<'_>,
    ) -> Result<OrderedPipes, SpawnError> {
        let (stdout, child_stdout) = output_pipe()?;
        let (stderr, child_stderr) = output_pipe()?;
        let ordered = OrderedCommand {
            program: command.program.as_os_str().as_bytes().into(),
            argv: command.argv.into(),
            env: command.env.into(),
            work_dir: command.work_dir.as_os_str().as_bytes().into(),
            open_files: confinement.open_files,
            user_processes: confinement.user_processes,
        };
        let fork = |error: &io::Error| SpawnError::new(Stage::Fork, error);
        let body = in_memory(&ordered).map_err(|error| fork(&error))?;
        let mut descriptors = vec![body.as_fd(), child_stdout.as_fd(), child_stderr.as_fd()];
        descriptors.extend(&confinement.join);
        self.send(&Order::Start, &descriptors).map_err(|error| fork(&error))?;
        self.ordered += 1;
        Ok(OrderedPipes { stdout, stderr })
    }

    /// Orders SIGTERM and SIGCONT for the group of the running step.
    pub fn terminate_step(&self) {
        self.try_send(&Order::TerminateStep);
    }

    /// Orders SIGTERM and SIGCONT for everything that has not got them yet.
    pub fn terminate_rest(&self) {
        self.try_send(&Order::TerminateRest);
    }

    /// Orders SIGKILL for everything, again and again until nothing is left.
    pub fn kill(&self) {
        self.try_send(&Order::Kill);
    }

    /// Continues the reaper, in case a process of the job has stopped it.
    pub fn wake(&self) {
        pidfd_send_signal(&self.pidfd, Signal::CONT).ok();
    }

    /// Reads the next report.
    pub fn receive(&mut self) -> Received {
        match receive::<ReaperReport>(self.socket.as_fd()) {
            Ok(Some((report, handles))) => {
                self.done = report.starts;
                self.is_empty = report.is_empty;
                self.used = report.used;
                Received::Event(report.event, handles.into_iter().next())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Received::Nothing,
            Ok(None) | Err(_) => Received::Ended,
        }
    }

    /// True if the reaper is dead, and its descendants have gone to the next subreaper.
    pub fn is_gone(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    /// True if nothing lives below it, and every ordered start is done.
    pub const fn is_empty(&self) -> bool {
        self.is_empty && self.done == self.ordered
    }

    /// Returns the processor time of the processes it has reaped.
    pub const fn used(&self) -> Duration {
        self.used
    }

    /// Sends an order that may be lost: the caller repeats it, or sees the reaper's end.
    fn try_send(&self, order: &Order) {
        self.send(order, &[]).ok();
    }

    fn send(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.socket.as_fd(), order, descriptors)?;
        self.wake();
        Ok(())
    }
}

fn in_memory(content: &impl Serialize) -> io::Result<OwnedFd> {
    let bytes = postcard::to_stdvec(content).map_err(io::Error::other)?;
    let mut file = File::from(rustix::fs::memfd_create("step", MemfdFlags::CLOEXEC)?);
    file.write_all(&bytes)?;
    Ok(file.into())
}

fn send(socket: BorrowedFd<'_>, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG.into());
    }
    let send = || sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL);
    rustix::io::retry_on_intr(send)?;
    Ok(())
}

/// Reads the next message and its descriptors; `None` if the other end is closed.
fn receive<T: serde::de::DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = [0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let descriptors = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let message = postcard::from_bytes(bytes.get(..received.bytes).unwrap_or_default());
    Ok(Some((message.map_err(io::Error::other)?, descriptors)))
}
