//! Holds jobs to their limits (service.md §3.1): says which limits can be enforced here, and makes the groups that do
//! it.
//!
//! Control groups count processes, memory and processors. The job's leaf of version 2 does if it has the controllers,
//! else groups of version 1. Those are made for limited jobs alone, since joining one costs each step a wait for all
//! processors. Open files are limited process by process, and so are processes if no group counts them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use step_runner_model::{LimitName, ResourceLimits, Unenforceable};

use super::cgroup::{CgroupMode, KeeperGroup, MAX_TAKEN, Pool, Usage, remove_stale};
use super::controllers::{
    Controller, Hierarchy, LimitCounts, MIN_CPU_MICROS, Version, cpu_time, open_directory, peak_memory,
    read_counts, write_limits,
};

/// A keeper's means to enforce limits besides the [`Pool`].
#[derive(Debug)]
pub struct Limiter {
    mode: CgroupMode,
    hierarchies: Vec<LegacyHierarchy>,
    made: u32,
    /// Groups that still held processes when their jobs were over.
    left: Vec<PathBuf>,
}

/// A hierarchy of version 1, and the keeper's group there once a job has needed it.
#[derive(Debug)]
struct LegacyHierarchy {
    hierarchy: Hierarchy,
    group: Option<KeeperGroup>,
}

/// The groups of version 1 of one job.
#[derive(Debug, Default)]
pub struct LegacyGroups {
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    path: PathBuf,
    directory: OwnedFd,
    /// Its `cgroup.procs`, for processes that join it.
    procs: OwnedFd,
    controllers: Vec<Controller>,
}

impl Limiter {
    /// Finds the hierarchies of this host, and removes the groups of dead keepers.
    pub fn new(mode: CgroupMode) -> Self {
        let all = if mode == CgroupMode::Off { Vec::new() } else { Hierarchy::writable() };
        for hierarchy in &all {
            remove_stale(&hierarchy.own);
        }
        let hierarchies =
            all.into_iter().map(|hierarchy| LegacyHierarchy { hierarchy, group: None }).collect();
        Self { mode, hierarchies, made: 0, left: Vec::new() }
    }

    /// Returns the directories of the keeper's groups, to be removed by others if this process is killed.
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.hierarchies.iter().map(|legacy| KeeperGroup::path_below(&legacy.hierarchy.own))
    }

    /// Returns the limits that cannot be enforced here, and what would make it possible.
    pub fn unenforceable(&self, pool: Option<&Pool>) -> Vec<Unenforceable> {
        let is_held = |limit| {
            let Some(controller) = Controller::of(limit) else { return true };
            pool.is_some_and(|pool| pool.controllers().contains(&controller))
                || self.hierarchies.iter().any(|legacy| legacy.hierarchy.controllers.contains(&controller))
                || limit == LimitName::Processes && is_bound_by_user_limit()
        };
        let missing = LimitName::ALL.into_iter().filter(|&limit| !is_held(limit));
        missing.map(|limit| Unenforceable { limit, why: self.why(limit) }).collect()
    }

    fn why(&self, limit: LimitName) -> String {
        if self.mode == CgroupMode::Off {
            return "control groups are switched off: set cgroup = auto".to_owned();
        }
        let controller = Controller::of(limit).map_or("", Controller::name);
        format!(
            "no control group with the controller {controller} can be made: delegate it to the daemon (version 2; systemd: \
             Delegate=yes and DelegateSubgroup=daemon) or make its hierarchy writable (version 1)"
        )
    }

    /// Makes groups for those limits of a job that `leaf_controllers` do not enforce.
    pub fn legacy_groups(
        &mut self,
        limits: &ResourceLimits,
        leaf_controllers: Option<&[Controller]>,
    ) -> io::Result<LegacyGroups> {
        let by_leaf = leaf_controllers.unwrap_or_default();
        let mut wanted: Vec<_> =
            limits.names().filter_map(Controller::of).filter(|c| !by_leaf.contains(c)).collect();
        if !wanted.is_empty() && leaf_controllers.is_none() {
            // Nothing else counts the processor time of a job without a leaf.
            wanted.push(Controller::Cpuacct);
        }
        self.made += 1;
        let mut legacy_groups = LegacyGroups::default();
        for legacy in &mut self.hierarchies {
            let controllers: Vec<_> =
                legacy.hierarchy.controllers.iter().copied().filter(|c| wanted.contains(c)).collect();
            if controllers.is_empty() {
                continue;
            }
            let made = legacy.make(self.made, controllers).and_then(|group| {
                let limited = write_limits(&group.directory, Version::One, &group.controllers, limits);
                legacy_groups.groups.push(group);
                limited
            });
            if let Err(error) = made {
                self.give_back(legacy_groups);
                return Err(error);
            }
        }
        Ok(legacy_groups)
    }

    /// Removes the groups of a job that is over. Groups that still hold processes are removed later.
    pub fn give_back(&mut self, legacy_groups: LegacyGroups) {
        self.left.extend(legacy_groups.groups.into_iter().map(|group| group.path));
        self.left
            .retain(|path| fs::remove_dir(path).is_err_and(|error| error.kind() != io::ErrorKind::NotFound));
    }
}

impl LegacyHierarchy {
    /// Makes the group of job number `job`.
    fn make(&mut self, job: u32, controllers: Vec<Controller>) -> io::Result<Group> {
        let keeper = match &mut self.group {
            Some(group) => group,
            none => none.insert(KeeperGroup::make(&self.hierarchy.own)?),
        };
        let mut name = job.to_string();
        let mut taken = 0;
        loop {
            match rustix::fs::mkdirat(&keeper.directory, &name, Mode::from_raw_mode(0o755)) {
                // A step has made it.
                Err(Errno::EXIST) if taken < MAX_TAKEN => taken += 1,
                made => break made?,
            }
            name = format!("{job}-{taken}");
        }
        let open = || {
            let directory = open_directory(&keeper.directory, Path::new(&name))?;
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let procs = rustix::fs::openat(&directory, "cgroup.procs", flags, Mode::empty())?;
            io::Result::Ok((directory, procs))
        };
        match open() {
            Ok((directory, procs)) => {
                Ok(Group { path: keeper.path.join(&name), directory, procs, controllers })
            }
            Err(error) => {
                rustix::fs::unlinkat(&keeper.directory, &name, AtFlags::REMOVEDIR).ok();
                Err(error)
            }
        }
    }
}

impl LegacyGroups {
    /// Returns the files by which processes join it.
    pub fn procs(&self) -> Vec<BorrowedFd<'_>> {
        self.groups.iter().map(|group| group.procs.as_fd()).collect()
    }

    /// True if one of its groups has this controller.
    pub fn holds(&self, controller: Controller) -> bool {
        self.groups.iter().any(|group| group.controllers.contains(&controller))
    }

    /// Returns the counts of the job's hit limits.
    pub fn counts(&self) -> LimitCounts {
        let counts = |group: &Group| read_counts(&group.directory, Version::One, &group.controllers);
        self.groups.iter().map(counts).fold(LimitCounts::default(), LimitCounts::and)
    }

    /// Returns the usage of the job.
    pub fn usage(&self) -> Usage {
        let with = |controller| self.groups.iter().find(move |group| group.controllers.contains(&controller));
        Usage {
            cpu_time: with(Controller::Cpuacct).and_then(|group| cpu_time(&group.directory, Version::One)),
            peak_memory: with(Controller::Memory)
                .and_then(|group| peak_memory(&group.directory, Version::One)),
        }
    }
}

/// True if the kernel counts our processes against RLIMIT_NPROC: it does not count those of root.
fn is_bound_by_user_limit() -> bool {
    !rustix::process::getuid().is_root() && !rustix::process::geteuid().is_root()
}

/// Returns the RLIMIT_NPROC that lets a job without a group have `processes`. The kernel counts all of the user, so the
/// present ones are added. Other jobs of the user share what is left over.
pub fn user_limit(processes: u64) -> u64 {
    let uid = rustix::process::getuid().as_raw();
    let threads = |status: String| {
        let number = |key| {
            status
                .lines()
                .find_map(|line: &str| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok())
        };
        (number("Uid:") == Some(u64::from(uid))).then(|| number("Threads:")).flatten()
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let now: u64 = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(|c: char| c.is_ascii_digit()))
        .filter_map(|entry| threads(fs::read_to_string(entry.path().join("status")).ok()?))
        .sum();
    now.saturating_add(processes)
}

/// Returns why a value of a limit cannot be enforced; `None` if it can.
pub const fn refused_value(limit: LimitName, value: u64) -> Option<&'static str> {
    match limit {
        LimitName::Cpus if value < MIN_CPU_MICROS => {
            Some("the kernel's smallest share of a processor is 0.01")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: ResourceLimits =
        ResourceLimits { memory: Some(1 << 26), processes: None, cpu_micros: None, open_files: None };

    fn limiter(mode: CgroupMode, hierarchies: Vec<Hierarchy>) -> Limiter {
        let hierarchies =
            hierarchies.into_iter().map(|hierarchy| LegacyHierarchy { hierarchy, group: None }).collect();
        Limiter { mode, hierarchies, made: 0, left: Vec::new() }
    }

    fn names(missing: &[Unenforceable]) -> Vec<LimitName> {
        missing.iter().map(|missing| missing.limit).collect()
    }

    #[test]
    fn a_limit_without_its_controller_is_named_with_what_would_make_it_possible() {
        let memory = Hierarchy { own: "/x".into(), controllers: vec![Controller::Memory] };
        let missing = limiter(CgroupMode::Auto, vec![memory]).unenforceable(None);
        let expected: &[LimitName] = if is_bound_by_user_limit() {
            &[LimitName::Cpus]
        } else {
            &[LimitName::Processes, LimitName::Cpus]
        };
        assert_eq!(names(&missing), expected);
        let cpus = missing.last().unwrap();
        assert!(cpus.why.contains("controller cpu ") && cpus.why.contains("Delegate=yes"), "{}", cpus.why);
    }

    #[test]
    fn without_groups_open_files_can_still_be_limited() {
        let missing = limiter(CgroupMode::Off, Vec::new()).unenforceable(None);
        assert!(!names(&missing).contains(&LimitName::OpenFiles));
        assert!(names(&missing).contains(&LimitName::Memory));
        assert!(missing.iter().all(|missing| missing.why.contains("cgroup = auto")), "{missing:?}");
    }

    #[test]
    fn a_job_whose_leaf_holds_its_limits_gets_no_other_group() {
        let nowhere = Hierarchy { own: "/nowhere".into(), controllers: vec![Controller::Memory] };
        let mut limiter = limiter(CgroupMode::Auto, vec![nowhere]);
        let legacy_groups = limiter.legacy_groups(&MEMORY, Some(&[Controller::Memory])).unwrap();
        assert!(legacy_groups.procs().is_empty());
        assert!(limiter.legacy_groups(&MEMORY, Some(&[])).is_err(), "its group cannot be made");
        assert!(limiter.legacy_groups(&ResourceLimits::default(), None).unwrap().groups.is_empty());
    }

    #[test]
    fn the_limit_of_a_user_leaves_room_for_the_processes_there_are() {
        assert!(user_limit(5) > 5, "this process counts");
        assert_eq!(user_limit(u64::MAX), u64::MAX);
    }
}
