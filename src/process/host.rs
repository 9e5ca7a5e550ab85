//! The daemon's own process: what it is called, and what protects it (faults.md §2).

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit};

use super::sweep::Process;
use crate::store::ProcessInfo;

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
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// Soft limits of resources that the daemon changes for itself and steps shall have as it found them; `None` =
/// unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftLimits {
    /// Open files.
    pub nofile: Option<u64>,
    /// Size of core dumps in bytes.
    pub core: Option<u64>,
}

impl SoftLimits {
    /// Those of this process.
    pub fn now() -> Self {
        let soft = |resource| rustix::process::getrlimit(resource).current;
        Self { nofile: soft(Resource::Nofile), core: soft(Resource::Core) }
    }

    /// Makes them this process's own; one above the hard limit becomes that.
    pub fn apply(self) -> io::Result<()> {
        for (resource, soft) in [(Resource::Nofile, self.nofile), (Resource::Core, self.core)] {
            let Rlimit { maximum, .. } = rustix::process::getrlimit(resource);
            let current = [soft, maximum].into_iter().flatten().min();
            rustix::process::setrlimit(resource, Rlimit { current, maximum })?;
        }
        Ok(())
    }
}

/// No core dumps and no reading of its memory by others of the same user: it holds secrets. All the descriptors it may
/// have. Orphans of a dead keeper come to it.
pub fn harden() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let core = rustix::process::getrlimit(Resource::Core);
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), ..core })?;
    let files = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files })?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}
