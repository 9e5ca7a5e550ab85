//! The daemon's own process: its identity and its protection (threat-model.md §4.2).

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use step_runner_model::ProcessInfo;

use super::sweep::Process;

/// Returns the identity of this process, unique across boots.
pub fn this_process() -> ProcessInfo {
    let pid = std::process::id();
    ProcessInfo {
        boot_id: boot_id(),
        pid,
        start_time: Process::read(pid).map_or(0, |process| process.start_time),
    }
}

/// Returns the kernel's id of the running boot; empty if it cannot be read.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// Values that the daemon changes for itself and steps must not inherit: soft limits of resources (`None` = unlimited),
/// and the score of the out-of-memory killer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftLimits {
    /// Open files.
    pub nofile: Option<u64>,
    /// Size of core dumps in bytes.
    pub core: Option<u64>,
    /// `oom_score_adj`; `None` if the kernel has none.
    pub oom_score_adj: Option<i32>,
}

impl SoftLimits {
    /// Reads the values of this process.
    pub fn now() -> Self {
        let soft = |resource| rustix::process::getrlimit(resource).current;
        Self { nofile: soft(Resource::Nofile), core: soft(Resource::Core), oom_score_adj: oom_score_adj() }
    }

    /// Returns the options that pass them to another process of this program.
    pub fn options(self) -> Vec<String> {
        let limits = [("--soft-nofile", self.nofile), ("--soft-core", self.core)];
        let limits = limits.into_iter().filter_map(|(name, limit)| Some(format!("{name}={}", limit?)));
        limits.chain(self.oom_score_adj.map(|value| format!("--oom-score-adj={value}"))).collect()
    }

    /// Sets the limits of this process. One above the hard limit becomes that.
    pub fn apply(self) -> io::Result<()> {
        for (resource, soft) in [(Resource::Nofile, self.nofile), (Resource::Core, self.core)] {
            let Rlimit { maximum, .. } = rustix::process::getrlimit(resource);
            let current = [soft, maximum].into_iter().flatten().min();
            rustix::process::setrlimit(resource, Rlimit { current, maximum })?;
        }
        Ok(())
    }
}

/// `oom_score_adj` of the daemon and its keeper, if they may set it (threat-model.md §4.2): a job that takes all memory
/// ends before the processes that report it.
const DAEMON_OOM_SCORE_ADJ: i32 = -500;

fn oom_score_adj() -> Option<i32> {
    std::fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse().ok()
}

/// Gives child `pid` the value that this process was started with. Children inherit the one we set for ourselves.
pub(crate) fn give_oom_score_adj(pid: u32, started_with: Option<i32>) {
    if let Some(value) = started_with {
        // A child that has ended needs none; another user's keeps its own.
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), value.to_string()).ok();
    }
}

/// Forbids core dumps, and hides memory and environment from others of the same user: this process holds secrets.
pub fn hide_memory() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let core = rustix::process::getrlimit(Resource::Core);
    Ok(rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), ..core })?)
}

/// Checks for what every container engine and system mounts. An empty image lacks it, and later errors would mislead.
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

/// Raises the limit on open files as far as this process may.
pub fn take_descriptors() -> io::Result<()> {
    let files = rustix::process::getrlimit(Resource::Nofile);
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files })?)
}

/// Hardens the daemon's process, with [`hide_memory`] and [`take_descriptors`] too. Orphans of a dead keeper come to
/// it. A write beyond the limit on file sizes fails and does not kill it. When memory is short, others end first.
pub fn harden() -> io::Result<()> {
    check_surroundings()?;
    super::ignore_file_size_signal();
    // Lowering the value needs a privilege.
    if oom_score_adj().is_some_and(|now| now > DAEMON_OOM_SCORE_ADJ) {
        std::fs::write("/proc/self/oom_score_adj", DAEMON_OOM_SCORE_ADJ.to_string()).ok();
    }
    hide_memory()?;
    take_descriptors()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}
