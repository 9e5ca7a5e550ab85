//! The command beside the daemon: `serve -- CMD` (connectors.md §2.1). It has the daemon's standard streams and a process
//! group of its own; when it ends, the daemon does.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::children;

/// Blocks until standard input has a byte (`true`) or has ended (`false`). Reads nothing.
pub fn wait_for_input() -> io::Result<bool> {
    let stdin = io::stdin();
    loop {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            // What cannot tell how much there is (/dev/null) has nothing.
            Ok(_) => return Ok(rustix::io::ioctl_fionread(&stdin).is_ok_and(|bytes| bytes > 0)),
        }
    }
}

/// A running command.
pub struct Companion {
    child: Child,
}

/// The process group of a [`Companion`].
#[derive(Clone, Copy, Debug)]
pub struct CompanionGroup(Pid);

impl Companion {
    /// Starts `command`, at least one word, in a group of its own.
    pub fn start(command: &[OsString]) -> io::Result<Self> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command"))?;
        let child = children::start(Command::new(program).args(arguments).process_group(0))?;
        Ok(Self { child })
    }

    /// Its group.
    pub fn group(&self) -> Option<CompanionGroup> {
        Pid::from_raw(self.child.id() as i32).map(CompanionGroup)
    }

    /// Blocks until it ends: its exit code, or 128 + signal.
    pub fn wait(self) -> io::Result<u8> {
        let status = children::wait(self.child)?;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        Ok(code as u8)
    }
}

impl CompanionGroup {
    /// SIGTERM.
    pub fn terminate(self) {
        kill_process_group(self.0, Signal::TERM).ok();
    }

    /// SIGKILL.
    pub fn kill(self) {
        kill_process_group(self.0, Signal::KILL).ok();
    }
}
