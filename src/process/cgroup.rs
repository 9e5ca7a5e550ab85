//! Control groups of version 2: what surely holds every process of a job (service.md §6.5, setting `cgroup`), limits
//! what it uses and counts it, as far as [`controllers`](super::controllers) are handed on to us.
//!
//! The keeper makes one group `step-runner-PID` below its own, and leaves in it: a job takes one at its first step and
//! gives it back when it is empty. Making a leaf for each job would cost more than starting its process.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use super::controllers::{
    Controller, Counts, Version, cpu_time, hand_on, may_make_groups, open_directory, own_group, peak_memory,
    read_counts, read_file, write_limits,
};
use super::sweep::Process;
use crate::model::Limits;

/// Start of the name of a keeper's group; its process id follows.
const GROUP_PREFIX: &str = "step-runner-";

/// Setting `cgroup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupMode {
    /// Where a control group can be made.
    #[default]
    Auto,
    /// Always; else the keeper does not start.
    On,
    /// Never.
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
    /// As in settings and on the command line.
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

/// Why no control group can be made.
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

/// Leaves kept for the next jobs: making one costs more than its job's other preparations. They are kept by name, so that a
/// burst of jobs leaves no descriptor open; each costs the kernel a few KiB.
const MAX_FREE: usize = 256;

/// The keeper's group and the leaves that are not in use.
#[derive(Debug)]
pub struct Pool {
    group: KeeperGroup,
    /// What the leaves can be limited by.
    controllers: Vec<Controller>,
    free: Vec<String>,
    made: u32,
}

/// A keeper's group in one hierarchy. It is removed when dropped, as far as it is empty.
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
    /// End of its path as `/proc/PID/cgroup` shows it.
    suffix: String,
    name: String,
    /// CPU time of the jobs that had it before.
    used_before: Duration,
    /// CPU time of the job in the leaf it had before.
    used_elsewhere: Duration,
    /// It was killed through the kernel, which then kills every process that is cloned into it later: it compares how
    /// often the new group was killed with how often that of the parent was (seen with Linux 6.18).
    spent: AtomicBool,
    /// What it can be limited by.
    controllers: Vec<Controller>,
    /// It has limits.
    is_limited: bool,
    /// What was counted against its limits in the leaf the job had before.
    counted_elsewhere: Counts,
}

/// What a job used, as far as the kernel counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all its processes.
    pub cpu_time: Option<Duration>,
    /// Peak memory in bytes.
    pub peak_memory: Option<u64>,
}

/// Directory of the group below which a keeper that this process starts can make others, as far as can be told without
/// making one.
pub fn writable_group() -> Result<PathBuf, CgroupError> {
    let path = own_group().ok_or(CgroupError::NotMounted)?;
    if may_make_groups(&path) {
        return Ok(path);
    }
    Err(CgroupError::NotWritable { path, source: Errno::ACCESS.into() })
}

impl Pool {
    /// Makes the keeper's group, and removes those of dead keepers beside it.
    pub fn open() -> Result<Self, CgroupError> {
        let own = own_group().ok_or(CgroupError::NotMounted)?;
        // A group with processes, such as ours, hands on no controller: the one above it may, if it is ours to use.
        let above = own.parent().filter(|above| is_delegated(above)).map(Path::to_owned);
        let parent = [Some(own.clone()), above]
            .into_iter()
            .flatten()
            .find(|parent| !hand_on(parent).is_empty())
            .unwrap_or(own);
        remove_stale(&parent);
        let group =
            KeeperGroup::make(&parent).map_err(|source| CgroupError::NotWritable { path: parent, source })?;
        let controllers = hand_on(&group.path);
        Ok(Self { group, controllers, free: Vec::new(), made: 0 })
    }

    /// Directory of the keeper's group.
    pub fn path(&self) -> &Path {
        &self.group.path
    }

    /// What its leaves can be limited by.
    pub fn controllers(&self) -> &[Controller] {
        &self.controllers
    }

    /// A leaf for a job.
    pub fn take(&mut self) -> io::Result<Leaf> {
        if let Some(name) = self.free.pop() {
            let mut leaf = self.open_leaf(name)?;
            leaf.used_before = leaf.cpu_time().unwrap_or_default();
            return Ok(leaf);
        }
        self.made += 1;
        let name = self.made.to_string();
        rustix::fs::mkdirat(&self.group.directory, &name, Mode::from_raw_mode(0o755))?;
        self.open_leaf(name)
    }

    fn open_leaf(&self, name: String) -> io::Result<Leaf> {
        let directory = open_directory(&self.group.directory, Path::new(&name))?;
        let group = self.group.path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Leaf {
            directory,
            suffix: format!("/{group}/{name}"),
            name,
            used_before: Duration::ZERO,
            used_elsewhere: Duration::ZERO,
            spent: AtomicBool::new(false),
            controllers: self.controllers.clone(),
            is_limited: false,
            counted_elsewhere: Counts::default(),
        })
    }

    /// A leaf for a job that goes on after its processes were killed.
    pub fn replace(&mut self, spent: Leaf) -> io::Result<Leaf> {
        let mut leaf = self.take()?;
        leaf.used_elsewhere = spent.usage().cpu_time.unwrap_or_default();
        leaf.counted_elsewhere = spent.counts();
        self.give_back(spent);
        Ok(leaf)
    }

    /// Takes a leaf back. One with processes left, with a peak that cannot be reset, or that is spent is not used again.
    pub fn give_back(&mut self, leaf: Leaf) {
        if leaf.is_populated() {
            return;
        }
        let is_used_up = leaf.counts_peak() || leaf.is_limited || leaf.is_spent();
        if is_used_up || self.free.len() >= MAX_FREE {
            rustix::fs::unlinkat(&self.group.directory, &leaf.name, AtFlags::REMOVEDIR).ok();
        } else {
            self.free.push(leaf.name);
        }
    }
}

impl KeeperGroup {
    /// Where this process's group is below `parent`.
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
                // Nobody else has this process's id: it is a keeper that looks whether this one is dead.
                Err(Errno::WOULDBLOCK) => {
                    std::thread::yield_now();
                    continue;
                }
                locked => locked?,
            }
            // Before it was locked, another keeper may have taken it for one of a dead one and removed it.
            let inode = rustix::fs::fstat(&directory)?.st_ino;
            if rustix::fs::stat(&path).is_ok_and(|there| there.st_ino == inode) {
                return Ok(Self { directory, path });
            }
        }
    }
}

impl Drop for KeeperGroup {
    fn drop(&mut self) {
        // What still holds processes stays; the next keeper removes it.
        remove_tree(&self.path);
    }
}

impl Leaf {
    /// For the spawn of a process in it.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// It or a group below it holds a living process. A file that cannot be read counts as yes.
    pub fn is_populated(&self) -> bool {
        read_file(&self.directory, "cgroup.events")
            .is_none_or(|events| !events.lines().any(|line| line == "populated 0"))
    }

    /// Processes directly in it.
    pub fn processes(&self) -> Vec<u32> {
        let procs = read_file(&self.directory, "cgroup.procs").unwrap_or_default();
        procs.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Kills everything in it and below; where the kernel cannot do that in one, process by process.
    pub fn kill(&self) {
        let kill = || {
            let file = rustix::fs::openat(
                &self.directory,
                "cgroup.kill",
                OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            rustix::io::write(&file, b"1")
        };
        match kill() {
            Ok(_) => self.spent.store(true, Ordering::Relaxed),
            Err(_) => self.signal(&[Signal::KILL], None),
        }
    }

    /// No process can be started in it any more.
    pub fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// Sends `signals` to each process in it that is not in process group `spared`.
    pub fn signal(&self, signals: &[Signal], spared: Option<u32>) {
        let is_spared = |pid| spared.is_some() && Process::read(pid).map(|process| process.group) == spared;
        for pid in self.processes() {
            if !is_spared(pid) {
                self.signal_member(pid, signals);
            }
        }
    }

    fn signal_member(&self, pid: u32, signals: &[Signal]) {
        let Some(handle) = Pid::from_raw(pid as i32) else { return };
        let Ok(pidfd) = rustix::process::pidfd_open(handle, PidfdFlags::empty()) else { return };
        // With the descriptor held, the number still is what it was: asked now, the membership is that process's.
        let member = fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| {
            groups.lines().any(|line| line.starts_with("0::") && line.ends_with(&self.suffix))
        });
        if member {
            for &signal in signals {
                rustix::process::pidfd_send_signal(&pidfd, signal).ok();
            }
        }
    }

    /// What was used since the leaf was taken.
    pub fn usage(&self) -> Usage {
        Usage {
            cpu_time: self
                .cpu_time()
                .map(|used| used.saturating_sub(self.used_before).saturating_add(self.used_elsewhere)),
            peak_memory: self.peak_memory(),
        }
    }

    /// Limits it, as far as its controllers can.
    pub fn limit(&mut self, limits: &Limits) -> io::Result<()> {
        self.is_limited = true;
        write_limits(&self.directory, Version::Two, &self.controllers, limits)
    }

    /// What was counted against the job's limits.
    pub fn counts(&self) -> Counts {
        read_counts(&self.directory, Version::Two, &self.controllers).and(self.counted_elsewhere)
    }

    fn counts_peak(&self) -> bool {
        self.controllers.contains(&Controller::Memory)
    }

    fn peak_memory(&self) -> Option<u64> {
        if self.counts_peak() { peak_memory(&self.directory, Version::Two) } else { None }
    }

    fn cpu_time(&self) -> Option<Duration> {
        cpu_time(&self.directory, Version::Two)
    }
}

/// Whether groups may be made below a group that this process is not in: who manages the groups of the host says so by an
/// attribute (systemd, `Delegate=`). To be able to is not enough: jobs would outlive the service they belong to.
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

/// Removes the groups of dead keepers. One that still holds processes stays: they are found by their tags.
pub(super) fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        // Others may have names that begin so.
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(GROUP_PREFIX));
        if pid.is_none_or(|pid| pid.parse::<u32>().is_err()) {
            continue;
        }
        remove_dead(&entry.path());
    }
}

/// Removes the group of a keeper and what is below it, if that keeper is dead and as far as they are empty.
pub fn remove_dead(path: &Path) {
    if let Ok(directory) = open_directory(rustix::fs::CWD, path)
        && rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
    {
        remove_tree(path);
    }
}

/// Removes a group and those below it, as far as they are empty. Its files cannot be removed, only its directories.
fn remove_tree(path: &Path) {
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            remove_tree(&entry.path());
        }
    }
    fs::remove_dir(path).ok();
}
