//! The command beside the daemon: `serve -- CMD` (connectors.md §2.1). It has the daemon's standard streams and a
//! process group of its own; when it ends, the daemon does.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::{children, host};

/// Blocks until standard input has a byte (`true`) or has ended (`false`). Reads nothing.
pub fn wait_for_input() -> io::Result<bool> {
    let stdin = io::stdin();
    loop {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            // An input that cannot tell its length (/dev/null) has nothing.
            Ok(_) => return Ok(rustix::io::ioctl_fionread(&stdin).is_ok_and(|bytes| bytes > 0)),
        }
    }
}

/// A running command.
pub struct Companion {
    child: Child,
    group: CompanionGroup,
}

/// The process group of a [`Companion`]. `None` once its leader is reaped: the number may be another's then.
#[derive(Clone, Debug)]
pub struct CompanionGroup(Arc<Mutex<Option<Pid>>>);

impl Companion {
    /// Starts `command`, at least one word, in a process group of its own. `environment` sets or removes (`None`)
    /// variables of the daemon's environment. The daemon was started with `oom_score_adj`.
    pub fn start(
        command: &[OsString],
        environment: &[(&str, Option<OsString>)],
        oom_score_adj: Option<i32>,
    ) -> io::Result<Self> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command"))?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", program.display()));
        let child = children::start(&mut command).map_err(named)?;
        host::give_oom_score_adj(child.id(), oom_score_adj);
        let group = CompanionGroup(Arc::new(Mutex::new(Pid::from_raw(child.id() as i32))));
        Ok(Self { child, group })
    }

    /// Returns the process group of the command.
    pub fn group(&self) -> CompanionGroup {
        self.group.clone()
    }

    /// Blocks until it ends. Returns its exit code, or 128 + signal.
    pub fn wait(self) -> io::Result<u8> {
        let leader = *self.group.0.lock();
        if let Some(leader) = leader {
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            rustix::io::retry_on_intr(|| waitid(WaitId::Pid(leader), ended)).ok();
        }
        // No signal may go to the group from here on: once its leader is reaped, the number is free.
        let mut group = self.group.0.lock();
        *group = None;
        let status = children::wait(self.child)?;
        drop(group);
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        Ok(code as u8)
    }
}

impl CompanionGroup {
    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = *self.0.lock() {
            kill_process_group(leader, signal).ok();
        }
    }
}
