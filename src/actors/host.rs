//! The supervisor's view of the system that it runs on: it starts and kills keepers and left-over processes.
//!
//! A daemon uses [`Processes`]. A test that plays the keeper in its own process provides its own [`Host`].

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::keeper::launch;
use crate::keeper::link::KeeperWire;
use crate::model::Unenforceable;
use crate::process::cgroup::{self, CgroupError, CgroupMode, Pool};
use crate::process::group;
use crate::process::host::SoftLimits;
use crate::process::limiter::Limiter;
use crate::process::remains::Remains;
use crate::process::sweep::Process;
use crate::store::StateDir;

/// A keeper that was just started.
pub struct Started {
    /// Connection to it.
    pub wire: KeeperWire,
    /// Its process, if that could be examined. A played keeper has none.
    pub process: Option<Process>,
}

/// The system that the supervisor runs on; see the module. It is shared by threads that may block.
pub trait Host: Send + Sync {
    /// True if a keeper lives in the state folder.
    fn has_keeper(&self, state: &StateDir) -> io::Result<bool>;
    /// Connects to the living keeper of the state folder.
    fn connect(&self, state: &StateDir) -> io::Result<KeeperWire>;
    /// Starts a keeper and connects to it.
    fn start_keeper(&self, state: &StateDir, cgroup: CgroupMode) -> io::Result<Started>;
    /// Kills a keeper that [`Self::start_keeper`] started, however far its start has come. Returns its pid. Does not
    /// wait for its end.
    fn kill_started(&self, _started: &Process) -> Option<u32> {
        None
    }
    /// Returns the process of a keeper that has named its pid. A played keeper has none.
    fn process(&self, _pid: u32) -> Option<Process> {
        None
    }
    /// Kills the keeper: the process `known`, or else the one that the state folder names. Returns its pid. Does not wait
    /// for its end.
    fn kill_keeper(&self, state: &StateDir, known: Option<Process>) -> Option<u32>;
    /// Continues the keeper if it was stopped, and thaws it if it was frozen: the process `known`, or else the one that the
    /// state folder names. Returns its pid. A played keeper is never stopped.
    fn wake_keeper(&self, _state: &StateDir, _known: Option<Process>) -> Option<u32> {
        None
    }
    /// Returns the directory below which a keeper can make control groups for jobs.
    fn control_group(&self) -> Result<PathBuf, CgroupError>;
    /// Kills processes left by jobs that no keeper holds. Returns the pids that survive `limit`. Blocks.
    fn kill(&self, remains: &Remains, limit: Duration) -> Vec<u32>;
    /// Limits that a new keeper could not enforce. A played keeper enforces all.
    fn unenforceable(&self, _cgroup: CgroupMode) -> Vec<Unenforceable> {
        Vec::new()
    }
    /// Control groups of the keeper that the state folder names. A played keeper has none.
    fn groups(&self, _state: &StateDir) -> Vec<PathBuf> {
        Vec::new()
    }
    /// Removes groups of dead keepers if no process lives in them.
    fn remove_groups(&self, _groups: &[PathBuf]) {}
}

/// A host with real processes.
pub(crate) struct Processes {
    limits: SoftLimits,
}

impl Processes {
    /// Creates the host. Steps get `limits`.
    pub(crate) const fn new(limits: SoftLimits) -> Self {
        Self { limits }
    }
}

impl Host for Processes {
    fn has_keeper(&self, state: &StateDir) -> io::Result<bool> {
        launch::is_alive(state.dir())
    }

    fn connect(&self, state: &StateDir) -> io::Result<KeeperWire> {
        launch::connect(state.dir()).map(KeeperWire::Socket)
    }

    fn start_keeper(&self, state: &StateDir, cgroup: CgroupMode) -> io::Result<Started> {
        let (stream, child) = launch::start(state.path(), cgroup, self.limits)?;
        // Nobody has reaped it yet, so the number is still its own.
        let process = Process::read(child.id());
        launch::reap(child);
        Ok(Started { wire: KeeperWire::Socket(stream), process })
    }

    fn kill_started(&self, started: &Process) -> Option<u32> {
        group::signal_process(started, &[Signal::KILL]).then_some(started.pid)
    }

    fn process(&self, pid: u32) -> Option<Process> {
        Process::read(pid)
    }

    fn kill_keeper(&self, state: &StateDir, known: Option<Process>) -> Option<u32> {
        launch::signal(state.dir(), known, Signal::KILL)
    }

    fn wake_keeper(&self, state: &StateDir, known: Option<Process>) -> Option<u32> {
        launch::signal(state.dir(), known, Signal::CONT)
    }

    fn control_group(&self) -> Result<PathBuf, CgroupError> {
        cgroup::writable_group()
    }

    fn kill(&self, remains: &Remains, limit: Duration) -> Vec<u32> {
        remains.kill(limit)
    }

    fn unenforceable(&self, cgroup: CgroupMode) -> Vec<Unenforceable> {
        let pool = (cgroup != CgroupMode::Off).then(Pool::open).and_then(Result::ok);
        Limiter::new(cgroup).unenforceable(pool.as_ref())
    }

    fn groups(&self, state: &StateDir) -> Vec<PathBuf> {
        launch::groups(state.dir())
    }

    fn remove_groups(&self, groups: &[PathBuf]) {
        launch::remove_groups(groups);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_started_process_is_killed_and_none_that_has_its_number_later() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::read(child.id()).unwrap();
        let host = Processes::new(SoftLimits::default());
        assert_eq!(host.kill_started(&Process { start_time: process.start_time + 1, ..process }), None);
        assert_eq!(host.kill_started(&process), Some(child.id()));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert_eq!(host.kill_started(&process), None);
    }
}
