//! Control groups of version 2. They reliably hold every process of a job (service.md §6.5, setting `cgroup`). They
//! limit and count its resource use, as far as [`controllers`](super::controllers) are handed on to us.
//!
//! The keeper makes one group `step-runner-PID` below its own group, and in it the leaf groups of jobs. A job takes a
//! leaf at its first step and gives it back when it is empty, because making a leaf for each job would cost more than
//! starting its process. Steps of the keeper's own user can write to all of these groups, so a leaf is reused only if
//! nobody has changed it.

mod changes;
mod pool;
mod step;
mod tree;

use std::cell::{Cell, OnceCell};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use step_runner_model::ResourceLimits;

use super::controllers::{
    CPU_FILE, Controller, LimitCounts, Version, available, cpu_time_of, may_make_groups, open_directory,
    open_file, own_group, peak_memory, read_counts, read_file, read_from_start, write_limits,
};
use super::freezer::ThawCount;
use super::sweep::Process;
pub use pool::Pool;
pub use step::StepGroup;

use changes::LeafWatch;
use tree::remove_tree;

/// Start of the name of a keeper's group; its process id follows.
const GROUP_PREFIX: &str = "step-runner-";

/// Setting `cgroup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupMode {
    /// Use a control group if one can be made.
    #[default]
    Auto,
    /// Require one; else the keeper does not start.
    On,
    /// Use none.
    Off,
}

impl FromStr for CgroupMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(UnknownMode),
        }
    }
}

impl CgroupMode {
    /// Returns its name in settings and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// A text that is no [`CgroupMode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use auto, on or off")]
pub struct UnknownMode;

/// Remedy for [`CgroupError`], and for groups without controllers.
pub const DELEGATE: &str = "delegate a control group to the daemon: with systemd Delegate=yes and \
                            DelegateSubgroup=daemon; in a container a writable /sys/fs/cgroup with the attribute \
                            user.delegate or trusted.delegate = 1, and the daemon in a group below it";

/// Failure to make a control group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup2 file system is mounted.
    #[error("no control groups of version 2 are mounted")]
    NotMounted,
    /// The group we are in does not let us make others.
    #[error("cannot make a control group in {}", .path.display())]
    NotWritable {
        /// Its directory.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

/// Maximum number of names to try for a new leaf. So many in a row are not taken by accident.
pub(super) const MAX_TAKEN: u32 = 100;

/// A keeper's group in one hierarchy. Dropping it removes it, as far as it is empty.
#[derive(Debug)]
pub(super) struct KeeperGroup {
    /// Held open with a lock: a group whose lock is free belonged to a keeper that is dead.
    pub(super) directory: OwnedFd,
    pub(super) path: PathBuf,
}

/// The control group of one job.
#[derive(Debug)]
pub struct Leaf {
    directory: OwnedFd,
    path: PathBuf,
    /// End of its path as `/proc/PID/cgroup` shows it.
    suffix: String,
    name: String,
    /// `None` if nobody can say whether it is unchanged.
    watch: Option<LeafWatch>,
    /// Its file `cgroup.events`.
    events: KeptFile,
    /// Its file `cpu.stat`.
    statistics: KeptFile,
    /// True once it has been kept open between two jobs: then its files stay open, too.
    is_kept_open: bool,
    /// CPU time of all jobs in this leaf, as read last.
    used: Cell<Option<Duration>>,
    /// CPU time of earlier jobs in this leaf.
    used_before: Duration,
    /// CPU time of this job in its earlier leaf.
    used_elsewhere: Duration,
    /// True once it was killed through the kernel, which then kills every process cloned into it. The kernel compares
    /// the kill counts of the new group and of the parent's (seen with Linux 6.18).
    spent: AtomicBool,
    /// Controllers that can limit it.
    controllers: Vec<Controller>,
    is_limited: bool,
    /// Where its thaws are counted.
    thaws: ThawCount,
    /// Counts of hit limits in the job's earlier leaf.
    counted_elsewhere: LimitCounts,
}

/// Usage of a job, as far as the kernel counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all its processes.
    pub cpu_time: Option<Duration>,
    /// Peak memory in bytes.
    pub peak_memory: Option<u64>,
}

/// Returns the directory of the group below which a keeper started by this process can probably make others. Makes none
/// to find out.
pub fn writable_group() -> Result<PathBuf, CgroupError> {
    let path = own_group().ok_or(CgroupError::NotMounted)?;
    if may_make_groups(&path) {
        return Ok(path);
    }
    Err(CgroupError::NotWritable { path, source: Errno::ACCESS.into() })
}

/// Returns the controllers that the groups of jobs would get here.
pub fn available_controllers() -> Vec<Controller> {
    let own = own_group().filter(|own| may_make_groups(own));
    own.and_then(|own| parents(&own).map(available).find(|found| !found.is_empty())).unwrap_or_default()
}

/// Returns the groups that may be the parent of the keeper's: our own, and the one above it if it is ours to use. Our own
/// holds this process, so only a root hands on controllers; the one above may hold none.
fn parents(own: &Path) -> impl Iterator<Item = &Path> {
    [Some(own), own.parent().filter(|above| is_delegated(above))].into_iter().flatten()
}

impl KeeperGroup {
    /// Returns the path of this process's group below `parent`.
    pub(super) fn path_below(parent: &Path) -> PathBuf {
        parent.join(format!("{GROUP_PREFIX}{}", std::process::id()))
    }

    /// Makes this process's group below `parent`.
    pub(super) fn make(parent: &Path) -> io::Result<Self> {
        if !may_make_groups(parent) {
            return Err(Errno::ACCESS.into());
        }
        let path = Self::path_below(parent);
        loop {
            if let Err(error) = fs::create_dir(&path)
                && error.kind() != io::ErrorKind::AlreadyExists
            {
                return Err(error);
            }
            let directory = match open_directory(rustix::fs::CWD, &path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                // Nobody else has this process's id, so a keeper is checking whether this one is dead.
                Err(Errno::WOULDBLOCK) => {
                    std::thread::yield_now();
                    continue;
                }
                locked => locked?,
            }
            // Before we locked it, another keeper may have removed it as a dead keeper's.
            let inode = rustix::fs::fstat(&directory)?.st_ino;
            if rustix::fs::stat(&path).is_ok_and(|there| there.st_ino == inode) {
                return Ok(Self { directory, path });
            }
        }
    }
}

impl Drop for KeeperGroup {
    fn drop(&mut self) {
        // Groups with processes stay; the next keeper removes them.
        remove_tree(&self.path);
    }
}

impl Leaf {
    /// Returns its directory, for a spawn into it.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Returns the path of its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if it or a group below it holds a living process. True if that cannot be read; false if the leaf was
    /// removed.
    pub fn is_populated(&self) -> bool {
        match self.events.read(&self.directory, "cgroup.events", self.is_kept_open) {
            Some(events) => !events.lines().any(|line| line == "populated 0"),
            None => !self.is_gone(),
        }
    }

    /// Thaws it for a start. False if it was removed.
    pub fn thaw(&self) -> bool {
        // An empty group is frozen from the moment in which it is told to freeze.
        let is_thawed = |events: String| {
            ["populated 0", "frozen 0"].iter().all(|state| events.lines().any(|line| line == *state))
        };
        let events = self.is_kept_open.then(|| self.events.read(&self.directory, "cgroup.events", true));
        events.flatten().is_some_and(is_thawed) || self.thaws.thaw(&self.directory)
    }

    /// Thaws it and the groups below it: frozen processes handle no SIGTERM.
    pub fn thaw_all(&self) {
        self.thaws.thaw_tree(&self.path);
    }

    fn is_gone(&self) -> bool {
        let there = rustix::fs::statat(&self.directory, "cgroup.procs", AtFlags::empty());
        matches!(there, Err(Errno::NOENT | Errno::NODEV))
    }

    /// Returns the living processes in it and in groups below it.
    pub fn members(&self) -> Vec<Process> {
        self.own_members(&[])
    }

    /// True if process `pid` is in it or in a group below it.
    pub fn holds(&self, pid: u32) -> bool {
        step::is_in(pid, &self.suffix)
    }

    /// Kills everything in it and below; process by process if the kernel cannot kill a group.
    pub fn kill(&self) {
        match step::kill_group(&self.directory) {
            Ok(()) => self.spent.store(true, Ordering::Relaxed),
            Err(_) => self.kill_own(&[]),
        }
    }

    /// True if no process can be started in it any more.
    pub fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// Returns the job's usage, that in its earlier leaf included.
    pub fn usage(&self) -> Usage {
        Usage {
            cpu_time: self
                .cpu_time()
                .map(|used| used.saturating_sub(self.used_before).saturating_add(self.used_elsewhere)),
            peak_memory: self.peak_memory(),
        }
    }

    /// Limits it, as far as its controllers can.
    pub fn limit(&mut self, limits: &ResourceLimits) -> io::Result<()> {
        self.is_limited = true;
        write_limits(&self.directory, Version::Two, &self.controllers, limits)
    }

    /// Returns the counts of the job's hit limits.
    pub fn counts(&self) -> LimitCounts {
        read_counts(&self.directory, Version::Two, &self.controllers).and(self.counted_elsewhere)
    }

    fn counts_peak(&self) -> bool {
        self.controllers.contains(&Controller::Memory)
    }

    fn peak_memory(&self) -> Option<u64> {
        if self.counts_peak() { peak_memory(&self.directory, Version::Two) } else { None }
    }

    fn cpu_time(&self) -> Option<Duration> {
        let statistics = self.statistics.read(&self.directory, CPU_FILE, self.is_kept_open)?;
        self.used.set(cpu_time_of(&statistics));
        self.used.get()
    }

    /// True if no other job may use it: it has had limits, has a peak that cannot be reset, or is spent.
    fn is_used_up(&self) -> bool {
        self.counts_peak() || self.is_limited || self.is_spent()
    }
}

/// A file of a leaf that may stay open.
#[derive(Debug, Default)]
struct KeptFile(OnceCell<OwnedFd>);

impl KeptFile {
    /// Reads the file `name` of the group behind `directory`; `None` if it is not there. Keeps it open if `keep`.
    fn read(&self, directory: impl AsFd, name: &str, keep: bool) -> Option<String> {
        if !keep {
            return read_file(directory, name);
        }
        if self.0.get().is_none() {
            drop(self.0.set(open_file(directory, name)?));
        }
        read_from_start(self.0.get()?)
    }
}

/// True if we may make groups below a group that does not hold this process: its manager says so by an attribute
/// (systemd, `Delegate=`). Write permission is not enough: jobs would outlive the service they belong to.
fn is_delegated(directory: &Path) -> bool {
    if !may_make_groups(directory) {
        return false;
    }
    let says_so = |name| {
        let mut value = [0; 1];
        rustix::fs::getxattr(directory, name, &mut value).is_ok_and(|length| length == 1) && value == *b"1"
    };
    says_so("user.delegate") || says_so("trusted.delegate")
}

/// Removes the groups of dead keepers. A group with processes stays: its own daemon ends them ([`end_dead`]).
pub(super) fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        // Foreign groups may have names that begin so.
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(GROUP_PREFIX));
        if pid.is_none_or(|pid| pid.parse::<u32>().is_err()) {
            continue;
        }
        remove_dead(&entry.path());
    }
}

/// Removes the group of a keeper and those below it, if the keeper is dead and as far as they are empty.
fn remove_dead(path: &Path) {
    if lock_dead(path).is_some() {
        remove_tree(path);
    }
}

/// Kills what is in the group of a keeper and in those below it, if the keeper is dead, and removes those that are empty: its
/// jobs are interrupted, and a process there may have no other sign of its job. A group whose processes have not ended yet is
/// removed by a later keeper.
pub fn end_dead(path: &Path) {
    let Some(directory) = lock_dead(path) else { return };
    if step::kill_group(&directory).is_err() {
        let groups = tree::groups_below(path);
        let members = || step::processes_in(&directory, groups.iter().map(PathBuf::as_path));
        step::kill_each(&members(), |pid| members().contains(&pid));
    }
    remove_tree(path);
}

/// Returns the locked directory of a keeper's group if the keeper is dead: a living one holds the lock.
fn lock_dead(path: &Path) -> Option<OwnedFd> {
    let directory = open_directory(rustix::fs::CWD, path).ok()?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(directory)
}
