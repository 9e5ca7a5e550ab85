//! What the supervisor needs of the system that it runs on: a keeper, and the end of processes that nobody holds.
//!
//! A daemon has [`Processes`]. A test that plays the keeper in its own process brings its own [`Host`].

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::keeper::launch;
use crate::keeper::link::Wire;
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
    pub wire: Wire,
    /// Its process, if that could be looked at. One that is played has none.
    pub process: Option<Process>,
}

/// See the module's text. Shared by threads that may block.
pub trait Host: Send + Sync {
    /// Whether a keeper lives in the state folder.
    fn has_keeper(&self, state: &StateDir) -> io::Result<bool>;
    /// Connects to the living keeper of the state folder.
    fn connect(&self, state: &StateDir) -> io::Result<Wire>;
    /// Starts a keeper and connects to it.
    fn start_keeper(&self, state: &StateDir, cgroup: CgroupMode) -> io::Result<Started>;
    /// Kills a keeper that [`Self::start_keeper`] started, wherever it is in its start: its pid. Does not wait for its end.
    fn kill_started(&self, _started: &Process) -> Option<u32> {
        None
    }
    /// Kills the keeper that lives in the state folder, if it is known which one that is: its pid. Does not wait for its end.
    fn kill_keeper(&self, state: &StateDir) -> Option<u32>;
    /// Lets that keeper go on if it was stopped: its pid. One that is played is never stopped.
    fn wake_keeper(&self, _state: &StateDir) -> Option<u32> {
        None
    }
    /// Directory below which a keeper can make control groups for jobs.
    fn control_group(&self) -> Result<PathBuf, CgroupError>;
    /// Kills what is left of jobs that nobody holds; the pids that outlive `limit`. Blocks.
    fn kill(&self, remains: &Remains, limit: Duration) -> Vec<u32>;
    /// Limits that a keeper started now could not hold jobs to. A keeper that is played holds them to all.
    fn unenforceable(&self, _cgroup: CgroupMode) -> Vec<Unenforceable> {
        Vec::new()
    }
    /// Control groups of the keeper that the state folder tells of; one that is played has none.
    fn groups(&self, _state: &StateDir) -> Vec<PathBuf> {
        Vec::new()
    }
    /// Removes those of these groups whose keeper is dead, as far as nothing lives in them.
    fn remove_groups(&self, _groups: &[PathBuf]) {}
}

/// Real processes.
pub struct Processes {
    limits: SoftLimits,
}

impl Processes {
    /// `limits` are those that steps are to have.
    pub const fn new(limits: SoftLimits) -> Self {
        Self { limits }
    }
}

impl Host for Processes {
    fn has_keeper(&self, state: &StateDir) -> io::Result<bool> {
        launch::is_alive(state.dir())
    }

    fn connect(&self, state: &StateDir) -> io::Result<Wire> {
        launch::connect(state.dir()).map(Wire::Socket)
    }

    fn start_keeper(&self, state: &StateDir, cgroup: CgroupMode) -> io::Result<Started> {
        let (stream, child) = launch::start(state.path(), cgroup, self.limits)?;
        // Nobody has reaped it yet, so the number is still its own.
        let process = Process::read(child.id());
        launch::reap(child);
        Ok(Started { wire: Wire::Socket(stream), process })
    }

    fn kill_started(&self, started: &Process) -> Option<u32> {
        group::signal_process(started, &[Signal::KILL]).then_some(started.pid)
    }

    fn kill_keeper(&self, state: &StateDir) -> Option<u32> {
        launch::kill(state.dir())
    }

    fn wake_keeper(&self, state: &StateDir) -> Option<u32> {
        launch::wake(state.dir())
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
