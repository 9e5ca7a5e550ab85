//! This program, started again with other words.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use step_runner_model::ExitStatus;

use super::children;
use super::sys::signal_at_parents_end;

/// A process of this program. It shares the streams and the terminal of this one.
#[derive(Debug)]
pub struct Again(OwnedFd);

impl Again {
    /// Starts it with `words`, of which the first is its name, and without the variable `without`. Returns it and its end. It
    /// gets `at_end` if the calling thread ends before it, whatever ended that; several times, if other threads follow.
    pub fn start(
        words: impl IntoIterator<Item = OsString>,
        without: &OsStr,
        at_end: Signal,
    ) -> io::Result<(Self, End)> {
        let mut words = words.into_iter();
        let mut command = Command::new("/proc/self/exe");
        command.arg0(words.next().unwrap_or_default()).args(words).env_remove(without);
        signal_at_parents_end(&mut command, at_end);
        let mut child = children::start(&mut command)?;
        let pid = Pid::from_raw(child.id() as i32).ok_or(rustix::io::Errno::SRCH);
        let handle = match pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Ok(handle) => handle,
            Err(error) => {
                child.kill().ok();
                children::wait(child)?;
                return Err(error.into());
            }
        };
        Ok((Self(handle), End(child)))
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.0, signal).ok();
    }
}

/// The end of such a process.
#[derive(Debug)]
pub struct End(Child);

impl End {
    /// Blocks until it comes.
    pub fn wait(self) -> io::Result<ExitStatus> {
        let status = children::wait(self.0)?;
        Ok(children::exit_status(status))
    }
}
