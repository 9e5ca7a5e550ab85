//! Controllers of control groups, versions 1 and 2: where their groups can be made, and the files that set limits and
//! tell what was used.
//!
//! Everything here works on directories that are handed in; nothing knows jobs.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::model::{LimitName, Limits};

/// Room for one reading of a group's file; most are shorter.
const READ_BYTES: usize = 1024;

/// Time over which the kernel counts processor time, in microseconds: its default.
const CPU_PERIOD: u64 = 100_000;

/// Smallest limit of processors: the kernel takes no quota under 1 ms.
pub const MIN_CPU_MICROS: u64 = 10_000;

/// The kernel's largest number of processes; a limit from here on is none.
const MAX_PIDS: u64 = 4 << 20;

/// Microseconds in a second, so of one processor.
const SECOND: u64 = 1_000_000;

/// The two kinds of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy for all.
    Two,
}

/// A controller that step-runner has a use for.
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
    /// Those of version 2.
    pub const UNIFIED: [Self; 3] = [Self::Pids, Self::Memory, Self::Cpu];

    /// As the kernel names it.
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

    /// The one that enforces a limit; open files are limited process by process.
    pub const fn of(limit: LimitName) -> Option<Self> {
        match limit {
            LimitName::Processes => Some(Self::Pids),
            LimitName::Memory => Some(Self::Memory),
            LimitName::Cpus => Some(Self::Cpu),
            LimitName::OpenFiles => None,
        }
    }

    /// What to write to which files of a group, in order; `true`: a kernel without the file does without.
    fn settings(self, version: Version, limits: &Limits) -> Vec<(&'static str, String, bool)> {
        match (self, version) {
            (Self::Pids, _) => {
                let max = limits.processes.filter(|&max| max < MAX_PIDS);
                max.map(|max| ("pids.max", max.to_string(), false)).into_iter().collect()
            }
            (Self::Memory, Version::Two) => limits.memory.map_or_else(Vec::new, |bytes| {
                vec![("memory.max", bytes.to_string(), false), ("memory.swap.max", "0".to_owned(), true)]
            }),
            // Of memory and swap together no less can be allowed than of memory alone, so that comes first.
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

/// Microseconds of processor time in [`CPU_PERIOD`]; `None`: more than any host has.
fn quota(cpu_micros: u64) -> Option<u64> {
    const MOST: u64 = 1 << 40;
    let quota = cpu_micros.max(MIN_CPU_MICROS) / (SECOND / CPU_PERIOD);
    (quota < MOST).then_some(quota)
}

/// What the kernel counted against the limits of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Processes killed for want of memory.
    pub oom_kills: u64,
    /// Processes and threads refused.
    pub refused: u64,
}

impl Counts {
    /// Of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { oom_kills: self.oom_kills + other.oom_kills, refused: self.refused + other.refused }
    }
}

/// Limits the group behind `directory` as far as `controllers` can.
pub fn write_limits(
    directory: impl AsFd,
    version: Version,
    controllers: &[Controller],
    limits: &Limits,
) -> io::Result<()> {
    for (name, value, is_optional) in controllers.iter().flat_map(|c| c.settings(version, limits)) {
        match write_file(&directory, name, &value) {
            Err(Errno::NOENT) if is_optional => {}
            written => written?,
        }
    }
    Ok(())
}

/// What the group behind `directory` counted; 0 for what it does not count.
pub fn read_counts(directory: impl AsFd, version: Version, controllers: &[Controller]) -> Counts {
    let memory_file = match version {
        Version::One => "memory.oom_control",
        Version::Two => "memory.events",
    };
    let count = |controller, file, key| {
        controllers.contains(&controller).then(|| keyed(&read_file(&directory, file)?, key)).flatten()
    };
    Counts {
        oom_kills: count(Controller::Memory, memory_file, "oom_kill").unwrap_or(0),
        refused: count(Controller::Pids, "pids.events", "max").unwrap_or(0),
    }
}

/// Peak of the memory of a group, in bytes.
pub fn peak_memory(directory: impl AsFd, version: Version) -> Option<u64> {
    let file = match version {
        Version::One => "memory.max_usage_in_bytes",
        Version::Two => "memory.peak",
    };
    read_file(directory, file)?.trim().parse().ok()
}

/// CPU time of the processes of a group.
pub fn cpu_time(directory: impl AsFd, version: Version) -> Option<Duration> {
    match version {
        Version::One => {
            Some(Duration::from_nanos(read_file(directory, "cpuacct.usage")?.trim().parse().ok()?))
        }
        Version::Two => keyed(&read_file(directory, "cpu.stat")?, "usage_usec").map(Duration::from_micros),
    }
}

/// Value of `key` in lines of `KEY VALUE`.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
}

/// A hierarchy of version 1 that has some of our controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Directory of the group this process is in.
    pub own: PathBuf,
    /// Its controllers.
    pub controllers: Vec<Controller>,
}

impl Hierarchy {
    /// Those of this process in which it may make groups.
    pub fn writable() -> Vec<Self> {
        let (mounts, groups) = own_texts();
        let mut all = find_hierarchies(&mounts, &groups);
        all.retain(|hierarchy| may_make_groups(&hierarchy.own));
        all
    }
}

/// Whether this process may make groups below `directory` and put processes into them.
pub fn may_make_groups(directory: &Path) -> bool {
    let writable =
        |path: &Path, access| rustix::fs::accessat(rustix::fs::CWD, path, access, AtFlags::EACCESS).is_ok();
    writable(directory, Access::WRITE_OK | Access::EXEC_OK)
        && writable(&directory.join("cgroup.procs"), Access::WRITE_OK)
}

/// Directory of the version 2 group this process is in.
pub fn own_group() -> Option<PathBuf> {
    let (mounts, groups) = own_texts();
    find_group(&mounts, &groups)
}

/// `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn own_texts() -> (String, String) {
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
        let own = groups.lines().find_map(|line| {
            let (names, path) = line.split_once(':')?.1.split_once(':')?;
            names.split(',').any(|name| name == first.name()).then_some(path)
        });
        if let Some(own) = own.and_then(|own| seen_at(mount, own)) {
            found.push(Hierarchy { own, controllers });
        }
    }
    found
}

/// Directory of group `own` below the mount that the first half of a line of `mountinfo` describes.
fn seen_at(mount: &str, own: &str) -> Option<PathBuf> {
    let mut fields = mount.split(' ').skip(3);
    let (root, at) = (unescape(fields.next()?), unescape(fields.next()?));
    // The mount shows the part of the tree below `root`; a group outside it is not to be reached there.
    let below = Path::new(own).strip_prefix(&root).ok()?;
    Some(Path::new(&at).join(below))
}

/// Blanks, tabs, line feeds and backslashes of a path stand as three octal digits in `mountinfo`.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// Controllers of version 2 that groups below `directory` have, after asking for all that it may hand on. One that holds
/// processes itself hands on none, unless it is the root.
pub fn hand_on(directory: &Path) -> Vec<Controller> {
    let file = directory.join("cgroup.subtree_control");
    for controller in Controller::UNIFIED {
        // One by one: what is refused for one of them would be refused for all.
        fs::OpenOptions::new()
            .append(true)
            .open(&file)
            .and_then(|mut file| {
                io::Write::write_all(&mut file, format!("+{}", controller.name()).as_bytes())
            })
            .ok();
    }
    let handed_on = fs::read_to_string(&file).unwrap_or_default();
    Controller::UNIFIED.into_iter().filter(|c| handed_on.split_whitespace().any(|n| n == c.name())).collect()
}

/// Opens a directory.
pub(super) fn open_directory(base: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(base, path, flags, Mode::empty())?)
}

/// Writes `value` to a file of a group with one call, as the kernel wants it.
fn write_file(directory: impl AsFd, name: &str, value: &str) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::io::write(&file, value.as_bytes())).map(drop)
}

/// Content of a file of a group; `None` if it is not there.
pub(super) fn read_file(directory: impl AsFd, name: &str) -> Option<String> {
    let file = rustix::fs::openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                          35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
                          37 31 0:34 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
                          41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    const ALL: Limits = Limits {
        processes: Some(64),
        memory: Some(1 << 26),
        cpu_micros: Some(1_500_000),
        open_files: Some(9),
    };

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

    #[test]
    fn hierarchies_of_version_1_are_found_with_the_group_we_are_in() {
        let groups = "9:name=systemd:/\n4:memory:/a/b\n3:cpu,cpuacct:/\n2:pids:/p\n0::/\n";
        let found = find_hierarchies(HYBRID, groups);
        let hierarchy = |own: &str, controllers| Hierarchy { own: own.into(), controllers };
        assert_eq!(
            found,
            [
                hierarchy("/sys/fs/cgroup/memory/a/b", vec![Controller::Memory]),
                hierarchy("/sys/fs/cgroup/cpu,cpuacct/", vec![Controller::Cpu, Controller::Cpuacct]),
            ]
        );
        assert_eq!(find_hierarchies(HYBRID, "0::/\n"), []);
    }

    /// A folder with files as a group has them.
    fn group(files: &[(&str, &str)]) -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let directory = open_directory(rustix::fs::CWD, folder.path()).unwrap();
        (folder, directory)
    }

    #[test]
    fn limits_of_version_2_are_written_as_the_kernel_reads_them() {
        let (folder, directory) =
            group(&[("pids.max", "max"), ("memory.max", "max"), ("memory.swap.max", "max"), ("cpu.max", "")]);
        write_limits(&directory, Version::Two, &Controller::UNIFIED, &ALL).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("pids.max"), "64");
        assert_eq!(read("memory.max"), "67108864");
        assert_eq!(read("memory.swap.max"), "0");
        assert_eq!(read("cpu.max"), "150000 100000");
    }

    #[test]
    fn a_kernel_without_swap_accounting_is_no_failure_and_one_without_the_limit_is() {
        let (folder, directory) = group(&[("memory.max", "max")]);
        write_limits(&directory, Version::Two, &[Controller::Memory], &ALL).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("memory.max")).unwrap(), "67108864");
        assert!(write_limits(&directory, Version::Two, &[Controller::Pids], &ALL).is_err());
        // What is not asked for is not touched.
        write_limits(&directory, Version::Two, &Controller::UNIFIED, &Limits::default()).unwrap();
    }

    #[test]
    fn limits_of_version_1_are_written_as_the_kernel_reads_them() {
        let (folder, directory) = group(&[
            ("memory.limit_in_bytes", ""),
            ("memory.memsw.limit_in_bytes", ""),
            ("cpu.cfs_period_us", ""),
            ("cpu.cfs_quota_us", ""),
        ]);
        let controllers = [Controller::Memory, Controller::Cpu, Controller::Cpuacct];
        write_limits(&directory, Version::One, &controllers, &ALL).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            (read("memory.limit_in_bytes"), read("memory.memsw.limit_in_bytes")),
            ("67108864".into(), "67108864".into())
        );
        assert_eq!((read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")), ("150000".into(), "100000".into()));
    }

    #[test]
    fn values_beyond_the_kernels_own_bounds_are_taken_to_them() {
        assert_eq!(quota(1), Some(1_000), "the smallest quota");
        assert_eq!(quota(u64::MAX), None);
        let huge = Limits { processes: Some(u64::MAX), cpu_micros: Some(u64::MAX), ..Limits::default() };
        assert_eq!(Controller::Pids.settings(Version::Two, &huge), []);
        assert_eq!(Controller::Cpu.settings(Version::One, &huge), []);
    }

    #[test]
    fn counts_and_usage_are_read_from_both_versions() {
        let (_two, directory) = group(&[
            ("memory.events", "low 0\nmax 31\noom 2\noom_kill 3\noom_group_kill 0\n"),
            ("pids.events", "max 7\n"),
            ("memory.peak", "4096\n"),
            ("cpu.stat", "usage_usec 1500\nuser_usec 1000\n"),
        ]);
        let both = Counts { oom_kills: 3, refused: 7 };
        assert_eq!(read_counts(&directory, Version::Two, &Controller::UNIFIED), both);
        assert_eq!(read_counts(&directory, Version::Two, &[]), Counts::default());
        assert_eq!(peak_memory(&directory, Version::Two), Some(4096));
        assert_eq!(cpu_time(&directory, Version::Two), Some(Duration::from_micros(1500)));
        let (_one, directory) = group(&[
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            ("pids.events", "max 7\n"),
            ("memory.max_usage_in_bytes", "8192\n"),
            ("cpuacct.usage", "1500000\n"),
        ]);
        assert_eq!(read_counts(&directory, Version::One, &Controller::UNIFIED), both);
        assert_eq!(peak_memory(&directory, Version::One), Some(8192));
        assert_eq!(cpu_time(&directory, Version::One), Some(Duration::from_micros(1500)));
    }

    #[test]
    fn what_a_group_hands_on_is_asked_for_and_read_back() {
        let (folder, _directory) = group(&[("cgroup.subtree_control", "cpuset memory pids\n")]);
        assert_eq!(hand_on(folder.path()), [Controller::Pids, Controller::Memory]);
        let asked = fs::read_to_string(folder.path().join("cgroup.subtree_control")).unwrap();
        assert_eq!(asked, "cpuset memory pids\n+pids+memory+cpu");
        assert_eq!(hand_on(&folder.path().join("none")), []);
    }
}
