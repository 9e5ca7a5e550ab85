//! Control groups of version 2: what surely holds every process of a job (service.md §6.5, setting `cgroup`).
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

use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::sweep::Process;

/// Start of the name of a keeper's group; its process id follows.
const GROUP_PREFIX: &str = "step-runner-";

/// Room for one reading of a group's file; most are shorter.
const READ_BYTES: usize = 1024;

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
    /// Held open with a lock: a group whose lock is free belonged to a keeper that is dead.
    directory: OwnedFd,
    path: PathBuf,
    free: Vec<String>,
    made: u32,
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
    /// The kernel counts the peak of its memory.
    counts_peak: bool,
}

/// What a job used, as far as the kernel counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all its processes.
    pub cpu_time: Option<Duration>,
    /// Peak memory in bytes.
    pub peak_memory: Option<u64>,
}

impl Pool {
    /// Makes the keeper's group, and removes those of dead keepers beside it.
    pub fn open() -> Result<Self, CgroupError> {
        let parent = own_group().ok_or(CgroupError::NotMounted)?;
        remove_stale(&parent);
        Self::make(&parent).map_err(|source| CgroupError::NotWritable { path: parent, source })
    }

    fn make(parent: &Path) -> io::Result<Self> {
        rustix::fs::accessat(
            rustix::fs::CWD,
            parent.join("cgroup.procs"),
            Access::WRITE_OK,
            AtFlags::EACCESS,
        )?;
        let path = parent.join(format!("{GROUP_PREFIX}{}", std::process::id()));
        if let Err(error) = fs::create_dir(&path)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(error);
        }
        let directory = open_directory(rustix::fs::CWD, &path)?;
        rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { directory, path, free: Vec::new(), made: 0 })
    }

    /// Directory of the keeper's group.
    pub fn path(&self) -> &Path {
        &self.path
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
        rustix::fs::mkdirat(&self.directory, &name, Mode::from_raw_mode(0o755))?;
        let mut leaf = self.open_leaf(name)?;
        leaf.counts_peak = leaf.read("memory.peak").is_some();
        Ok(leaf)
    }

    fn open_leaf(&self, name: String) -> io::Result<Leaf> {
        let directory = open_directory(&self.directory, Path::new(&name))?;
        let group = self.path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Leaf {
            directory,
            suffix: format!("/{group}/{name}"),
            name,
            used_before: Duration::ZERO,
            used_elsewhere: Duration::ZERO,
            spent: AtomicBool::new(false),
            counts_peak: false,
        })
    }

    /// A leaf for a job that goes on after its processes were killed.
    pub fn replace(&mut self, spent: Leaf) -> io::Result<Leaf> {
        let mut leaf = self.take()?;
        leaf.used_elsewhere = spent.usage().cpu_time.unwrap_or_default();
        self.give_back(spent);
        Ok(leaf)
    }

    /// Takes a leaf back. One with processes left, with a peak that cannot be reset, or that is spent is not used again.
    pub fn give_back(&mut self, leaf: Leaf) {
        if leaf.is_populated() {
            return;
        }
        if leaf.counts_peak || leaf.is_spent() || self.free.len() >= MAX_FREE {
            rustix::fs::unlinkat(&self.directory, &leaf.name, AtFlags::REMOVEDIR).ok();
        } else {
            self.free.push(leaf.name);
        }
    }
}

impl Drop for Pool {
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
        self.read("cgroup.events").is_none_or(|events| !events.lines().any(|line| line == "populated 0"))
    }

    /// Processes directly in it.
    pub fn processes(&self) -> Vec<u32> {
        let procs = self.read("cgroup.procs").unwrap_or_default();
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

    fn peak_memory(&self) -> Option<u64> {
        if !self.counts_peak {
            return None;
        }
        self.read("memory.peak")?.trim().parse().ok()
    }

    fn cpu_time(&self) -> Option<Duration> {
        let stat = self.read("cpu.stat")?;
        let micros = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?.parse().ok()?;
        Some(Duration::from_micros(micros))
    }

    /// Content of one of its files; `None` if it is not there.
    fn read(&self, name: &str) -> Option<String> {
        let file = rustix::fs::openat(&self.directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .ok()?;
        // The kernel gives a short file whole, so one read is enough nearly always: a generic reader makes five calls.
        let mut text = Vec::with_capacity(READ_BYTES);
        loop {
            text.reserve(READ_BYTES);
            let room = text.capacity() - text.len();
            let read = rustix::io::read(&file, rustix::buffer::spare_capacity(&mut text)).ok()?;
            if read < room {
                return String::from_utf8(text).ok();
            }
        }
    }
}

fn open_directory(base: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(base, path, flags, Mode::empty())?)
}

/// Directory of the version 2 group this process is in.
fn own_group() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    find_group(&mounts, &groups)
}

/// From the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn find_group(mounts: &str, groups: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        if !file_system.starts_with("cgroup2 ") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (unescape(fields.next()?), unescape(fields.next()?));
        // The mount shows the part of the tree below `root`; a group outside it is not to be reached there.
        let below = Path::new(own).strip_prefix(&root).ok()?;
        Some(Path::new(&at).join(below))
    })
}

/// Blanks, tabs, line feeds and backslashes of a path stand as three octal digits in `mountinfo`.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// Removes the groups of dead keepers. One that still holds processes stays: they are found by their tags.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(GROUP_PREFIX) {
            continue;
        }
        let path = entry.path();
        if let Ok(directory) = open_directory(rustix::fs::CWD, &path)
            && rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            remove_tree(&path);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                          35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_group_of_a_hybrid_host_is_found() {
        let groups = "9:name=systemd:/\n4:memory:/x\n0::/\n";
        assert_eq!(find_group(HYBRID, groups), Some("/sys/fs/cgroup/unified".into()));
    }

    #[test]
    fn the_group_below_the_root_of_a_mount_is_found() {
        let mounts = "41 31 0:38 /box /sys/fs/c\\040g rw shared:1 - cgroup2 cgroup rw\n";
        assert_eq!(find_group(mounts, "0::/box/job/1\n"), Some("/sys/fs/c g/job/1".into()));
        assert_eq!(find_group(mounts, "0::/other\n"), None);
    }

    #[test]
    fn hosts_of_version_1_have_none() {
        assert_eq!(find_group(HYBRID, "4:memory:/x\n"), None);
        assert_eq!(find_group("35 31 0:32 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n", "0::/\n"), None);
    }
}
