//! Controllers of control groups, versions 1 and 2: where their groups can be made, and their files for limits and
//! usage.
//!
//! Everything here works on directories of the caller; nothing knows jobs.

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use step_runner_model::{LimitName, ResourceLimits};

use super::access;

/// Room for one read of a group's file; most are shorter.
const READ_BYTES: usize = 1024;

/// Period of the kernel's limit on processor time, in microseconds: its default.
const CPU_PERIOD: u64 = 100_000;

/// Smallest limit of processors: the kernel takes no quota under 1 ms.
pub(crate) const MIN_CPU_MICROS: u64 = 10_000;

/// The kernel's largest number of processes. A limit of this size or more is no limit.
const MAX_PIDS: u64 = 4 << 20;

/// Microseconds in a second, so of one processor.
const SECOND: u64 = 1_000_000;

/// The versions of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// One hierarchy for each controller.
    One,
    /// One hierarchy for all.
    Two,
}

/// A controller that step-runner uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Number of processes and threads.
    Pids,
    /// Memory, with its peak.
    Memory,
    /// Share of the processors.
    Cpu,
    /// CPU time used; version 2 counts it without a controller.
    Cpuacct,
}

impl Controller {
    /// The controllers of version 2.
    pub(crate) const UNIFIED: [Self; 3] = [Self::Pids, Self::Memory, Self::Cpu];

    /// Returns the kernel's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pids => "pids",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::Pids, Self::Memory, Self::Cpu, Self::Cpuacct].into_iter().find(|known| known.name() == name)
    }

    /// Returns the controller that enforces a limit. Open files are limited process by process.
    pub const fn of(limit: LimitName) -> Option<Self> {
        match limit {
            LimitName::Processes => Some(Self::Pids),
            LimitName::Memory => Some(Self::Memory),
            LimitName::Cpus => Some(Self::Cpu),
            LimitName::OpenFiles => None,
        }
    }

    /// Returns the files of a group to write, with their values, in order. `true`: the kernel may lack the file.
    fn settings(self, version: Version, limits: &ResourceLimits) -> Vec<(&'static str, String, bool)> {
        match (self, version) {
            (Self::Pids, _) => {
                let max = limits.processes.filter(|&max| max < MAX_PIDS);
                max.map(|max| ("pids.max", max.to_string(), false)).into_iter().collect()
            }
            (Self::Memory, Version::Two) => limits.memory.map_or_else(Vec::new, |bytes| {
                vec![("memory.max", bytes.to_string(), false), ("memory.swap.max", "0".to_owned(), true)]
            }),
            // Memory and swap together cannot be limited below memory alone, so that comes first.
            (Self::Memory, Version::One) => limits.memory.map_or_else(Vec::new, |bytes| {
                vec![
                    ("memory.limit_in_bytes", bytes.to_string(), false),
                    ("memory.memsw.limit_in_bytes", bytes.to_string(), true),
                ]
            }),
            (Self::Cpu, version) => match (limits.cpu_micros.and_then(quota), version) {
                (None, _) => Vec::new(),
                (Some(quota), Version::Two) => vec![("cpu.max", format!("{quota} {CPU_PERIOD}"), false)],
                (Some(quota), Version::One) => vec![
                    ("cpu.cfs_period_us", CPU_PERIOD.to_string(), false),
                    ("cpu.cfs_quota_us", quota.to_string(), false),
                ],
            },
            (Self::Cpuacct, _) => Vec::new(),
        }
    }
}

/// Converts to microseconds of processor time per [`CPU_PERIOD`]; `None` if no host has as many.
fn quota(cpu_micros: u64) -> Option<u64> {
    const MOST: u64 = 1 << 40;
    let quota = cpu_micros.max(MIN_CPU_MICROS) / (SECOND / CPU_PERIOD);
    (quota < MOST).then_some(quota)
}

/// Counts of hit limits of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounts {
    /// Processes killed because memory ran short.
    pub oom_kills: u64,
    /// Processes and threads refused.
    pub refused: u64,
}

impl LimitCounts {
    /// Adds both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { oom_kills: self.oom_kills + other.oom_kills, refused: self.refused + other.refused }
    }
}

/// Limits the group behind `directory` as far as `controllers` can.
pub(crate) fn write_limits(
    directory: impl AsFd,
    version: Version,
    controllers: &[Controller],
    limits: &ResourceLimits,
) -> io::Result<()> {
    for (name, value, is_optional) in controllers.iter().flat_map(|c| c.settings(version, limits)) {
        match write_file(&directory, name, &value) {
            Err(Errno::NOENT) if is_optional => {}
            written => written?,
        }
    }
    Ok(())
}

/// Reads the counts of the group behind `directory`; 0 for what it does not count.
pub(crate) fn read_counts(directory: impl AsFd, version: Version, controllers: &[Controller]) -> LimitCounts {
    let memory_file = match version {
        Version::One => "memory.oom_control",
        Version::Two => "memory.events",
    };
    let count = |controller, file, key| {
        controllers.contains(&controller).then(|| keyed(&read_file(&directory, file)?, key)).flatten()
    };
    LimitCounts {
        oom_kills: count(Controller::Memory, memory_file, "oom_kill").unwrap_or(0),
        refused: count(Controller::Pids, "pids.events", "max").unwrap_or(0),
    }
}

/// Returns the peak of the memory of a group, in bytes.
pub(crate) fn peak_memory(directory: impl AsFd, version: Version) -> Option<u64> {
    let file = match version {
        Version::One => "memory.max_usage_in_bytes",
        Version::Two => "memory.peak",
    };
    read_file(directory, file)?.trim().parse().ok()
}

/// Returns the CPU time of the processes of a group.
pub(crate) fn cpu_time(directory: impl AsFd, version: Version) -> Option<Duration> {
    match version {
        Version::One => {
            Some(Duration::from_nanos(read_file(directory, "cpuacct.usage")?.trim().parse().ok()?))
        }
        Version::Two => cpu_time_of(&read_file(directory, CPU_FILE)?),
    }
}

/// File of a group of version 2 that has the CPU time of its processes.
pub(super) const CPU_FILE: &str = "cpu.stat";

/// Returns the CPU time in the text of [`CPU_FILE`].
pub(super) fn cpu_time_of(statistics: &str) -> Option<Duration> {
    keyed(statistics, "usage_usec").map(Duration::from_micros)
}

/// Returns the value of `key` in lines of `KEY VALUE`.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
}

/// A hierarchy of version 1 that has some of our controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Directory of the group this process is in.
    pub(crate) own: PathBuf,
    /// Its controllers.
    pub controllers: Vec<Controller>,
}

impl Hierarchy {
    /// Returns the hierarchies of this process in which it may make groups.
    pub fn writable() -> Vec<Self> {
        let (mounts, groups) = own_texts();
        let mut all = find_hierarchies(&mounts, &groups);
        all.retain(|hierarchy| may_make_groups(&hierarchy.own));
        all
    }
}

/// True if this process may make groups below `directory` and put processes into them.
pub(crate) fn may_make_groups(directory: &Path) -> bool {
    let writable = |path: &Path, wanted| access::check(path, wanted).is_ok();
    writable(directory, Access::WRITE_OK | Access::EXEC_OK)
        && writable(&directory.join("cgroup.procs"), Access::WRITE_OK)
}

/// Returns the directory of the version 2 group that holds this process.
pub(crate) fn own_group() -> Option<PathBuf> {
    let (mounts, groups) = own_texts();
    find_group(&mounts, &groups)
}

/// `/proc/self/mountinfo` and `/proc/self/cgroup`.
pub(super) fn own_texts() -> (String, String) {
    let read = |name| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    (read("mountinfo"), read("cgroup"))
}

fn find_group(mounts: &str, groups: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        file_system.starts_with("cgroup2 ").then(|| seen_at(mount, own)).flatten()
    })
}

fn find_hierarchies(mounts: &str, groups: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mounts.lines() {
        let Some((mount, file_system)) = line.split_once(" - ") else { continue };
        let Some(options) = file_system.strip_prefix("cgroup ").and_then(|rest| rest.split(' ').nth(1))
        else {
            continue;
        };
        let controllers: Vec<_> = options.split(',').filter_map(Controller::parse).collect();
        let Some(first) = controllers.first() else { continue };
        // A hierarchy may be mounted twice.
        if found.iter().any(|known| known.controllers.contains(first)) {
            continue;
        }
        let own = group_of(groups, first.name());
        if let Some(own) = own.and_then(|own| seen_at(mount, own)) {
            found.push(Hierarchy { own, controllers });
        }
    }
    found
}

/// Returns the group of version 1 with this controller, from a text like `/proc/PID/cgroup`.
pub(super) fn group_of<'t>(groups: &'t str, controller: &str) -> Option<&'t str> {
    groups.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        names.split(',').any(|name| name == controller).then_some(path)
    })
}

/// Returns the directory of group `own` below a mount; `mount` is the first half of a line of `mountinfo`.
pub(super) fn seen_at(mount: &str, own: &str) -> Option<PathBuf> {
    let mut fields = mount.split(' ').skip(3);
    let (root, at) = (unescape(fields.next()?), unescape(fields.next()?));
    // The mount shows the tree below `root`; a group outside it cannot be reached there.
    let below = Path::new(own).strip_prefix(&root).ok()?;
    Some(Path::new(&at).join(below))
}

/// Decodes blanks, tabs, line feeds and backslashes of a path, which `mountinfo` shows as three octal digits.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// True if the group at `directory` of version 2 can hand on controllers and still have groups with processes below it.
///
/// A group with processes cannot, unless it is the root. The kernel refuses it `memory`; with `pids` or `cpu` it makes the
/// group the root of a threaded tree, and groups below it take no processes.
fn may_hand_on(directory: &Path) -> bool {
    let is_root = !directory.join("cgroup.type").exists();
    is_root || fs::read_to_string(directory.join("cgroup.procs")).is_ok_and(|processes| processes.is_empty())
}

/// Returns the controllers that the group at `directory` can hand on to groups below it.
pub(crate) fn available(directory: &Path) -> Vec<Controller> {
    if may_hand_on(directory) { listed(&directory.join("cgroup.controllers")) } else { Vec::new() }
}

fn listed(file: &Path) -> Vec<Controller> {
    let text = fs::read_to_string(file).unwrap_or_default();
    Controller::UNIFIED.into_iter().filter(|c| text.split_whitespace().any(|name| name == c.name())).collect()
}

/// Hands on all controllers that the group at `directory` may, and returns those that groups below it have. A group
/// that holds processes hands on none, unless it is the root.
pub(crate) fn hand_on(directory: &Path) -> Vec<Controller> {
    if !may_hand_on(directory) {
        return Vec::new();
    }
    let file = directory.join("cgroup.subtree_control");
    for controller in Controller::UNIFIED {
        // One by one: if one of them is refused, all of the same write are.
        fs::OpenOptions::new()
            .append(true)
            .open(&file)
            .and_then(|mut file| {
                io::Write::write_all(&mut file, format!("+{}", controller.name()).as_bytes())
            })
            .ok();
    }
    listed(&file)
}

pub(super) fn open_directory(base: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(base, path, flags, Mode::empty())?)
}

/// Writes `value` to a file of a group with one call, as the kernel wants it.
pub(super) fn write_file(directory: impl AsFd, name: &str, value: &str) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::io::write(&file, value.as_bytes())).map(drop)
}

/// Reads a file of a group; `None` if it is not there.
pub(super) fn read_file(directory: impl AsFd, name: &str) -> Option<String> {
    read_from_start(open_file(directory, name)?)
}

/// Opens a file of a group for reading; `None` if it is not there.
pub(super) fn open_file(directory: impl AsFd, name: &str) -> Option<OwnedFd> {
    rustix::fs::openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Reads a file of a group as it is now; `None` if the group is gone.
pub(super) fn read_from_start(file: impl AsFd) -> Option<String> {
    // The kernel returns a short file whole, so mostly one read is enough; a generic reader makes five calls.
    let mut text = Vec::with_capacity(READ_BYTES);
    loop {
        text.reserve(READ_BYTES);
        let room = text.capacity() - text.len();
        let offset = text.len() as u64;
        let read = rustix::io::pread(&file, rustix::buffer::spare_capacity(&mut text), offset).ok()?;
        if read < room {
            return String::from_utf8(text).ok();
        }
    }
}
