//! The daemon's own process: what it is called, and what protects it (faults.md §2).

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit};

use super::sweep::Process;
use crate::model::ProcessInfo;

/// Who this process is across restarts.
pub fn this_process() -> ProcessInfo {
    let pid = std::process::id();
    ProcessInfo {
        boot_id: boot_id(),
        pid,
        start_time: Process::read(pid).map_or(0, |process| process.start_time),
    }
}

/// The kernel's id of the running boot; empty where it does not tell.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// What the daemon changes for itself and steps shall not inherit: soft limits of resources, `None` = unlimited, and how
/// willingly the kernel ends a process when memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftLimits {
    /// Open files.
    pub nofile: Option<u64>,
    /// Size of core dumps in bytes.
    pub core: Option<u64>,
    /// `oom_score_adj`; `None` where the kernel knows none.
    pub oom_score_adj: Option<i32>,
}

impl SoftLimits {
    /// Those of this process.
    pub fn now() -> Self {
        let soft = |resource| rustix::process::getrlimit(resource).current;
        Self { nofile: soft(Resource::Nofile), core: soft(Resource::Core), oom_score_adj: oom_score_adj() }
    }

    /// Makes the limits this process's own; one above the hard limit becomes that.
    pub fn apply(self) -> io::Result<()> {
        for (resource, soft) in [(Resource::Nofile, self.nofile), (Resource::Core, self.core)] {
            let Rlimit { maximum, .. } = rustix::process::getrlimit(resource);
            let current = [soft, maximum].into_iter().flatten().min();
            rustix::process::setrlimit(resource, Rlimit { current, maximum })?;
        }
        Ok(())
    }
}

/// What the daemon and its keeper set for themselves where they may (faults.md §2): a job that takes all memory ends before
/// those that have to tell of it.
const DAEMON_OOM_SCORE_ADJ: i32 = -500;

fn oom_score_adj() -> Option<i32> {
    std::fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse().ok()
}

/// Gives child `pid` back what this process was started with. Children inherit what we set for ourselves.
pub fn give_oom_score_adj(pid: u32, started_with: Option<i32>) {
    if let Some(value) = started_with {
        // One that has ended needs none; one of another user keeps what it has.
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), value.to_string()).ok();
    }
}

/// No core dumps, and no reading of its memory and environment by others of the same user: this process holds secrets.
pub fn hide_memory() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let core = rustix::process::getrlimit(Resource::Core);
    Ok(rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), ..core })?)
}

/// An empty image lacks what every container engine and system mounts; without it later errors tell of everything else.
fn check_surroundings() -> io::Result<()> {
    let missing = |what: &str, error: io::Error| {
        io::Error::new(error.kind(), format!("{what} ({error}); mount it, as container engines do"))
    };
    std::fs::read_link("/proc/self/exe")
        .map_err(|e| missing("/proc is not mounted, where this program finds itself and its processes", e))?;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|e| missing("/dev/null cannot be opened, which is the standard input of steps", e))?;
    Ok(())
}

/// All the descriptors that this process may have.
pub fn take_descriptors() -> io::Result<()> {
    let files = rustix::process::getrlimit(Resource::Nofile);
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files })?)
}

/// As [`hide_memory`] and [`take_descriptors`]. Orphans of a dead keeper come to it. A limit on the size of files is
/// an error of a write and not its death. When memory is short the kernel shall end others first.
pub fn harden() -> io::Result<()> {
    check_surroundings()?;
    super::ignore_file_size_signal();
    // Only who may do so gets less than it was started with.
    if oom_score_adj().is_some_and(|now| now > DAEMON_OOM_SCORE_ADJ) {
        std::fs::write("/proc/self/oom_score_adj", DAEMON_OOM_SCORE_ADJ.to_string()).ok();
    }
    hide_memory()?;
    take_descriptors()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}
