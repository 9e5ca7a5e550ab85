//! Holds jobs to their limits (service.md §3.1): says which limits can be held here, and makes for a job what holds them.
//!
//! Processes, memory and processors are counted by control groups: by the job's leaf of version 2 where it has the
//! controllers, else by groups of version 1 that are made for limited jobs alone, since joining one costs each step a wait
//! for all processors. Open files are limited process by process, and so are processes where no group counts them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

use super::cgroup::{CgroupMode, KeeperGroup, Pool, Usage, remove_stale};
use super::controllers::{
    Controller, Counts, Hierarchy, MIN_CPU_MICROS, Version, cpu_time, open_directory, peak_memory,
    read_counts, write_limits,
};
use crate::model::{LimitName, Limits, Unenforceable};

/// A keeper's means besides the [`Pool`].
#[derive(Debug)]
pub struct Limiter {
    mode: CgroupMode,
    hierarchies: Vec<Home>,
    made: u32,
    /// Groups that still held processes when their jobs were over.
    left: Vec<PathBuf>,
}

/// A hierarchy of version 1, and the keeper's group there once a job has needed it.
#[derive(Debug)]
struct Home {
    hierarchy: Hierarchy,
    group: Option<KeeperGroup>,
}

/// The groups of version 1 of one job.
#[derive(Debug, Default)]
pub struct Cage {
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
    /// What there is on this host. Removes the groups of dead keepers.
    pub fn new(mode: CgroupMode) -> Self {
        let all = if mode == CgroupMode::Off { Vec::new() } else { Hierarchy::writable() };
        for hierarchy in &all {
            remove_stale(&hierarchy.own);
        }
        let hierarchies = all.into_iter().map(|hierarchy| Home { hierarchy, group: None }).collect();
        Self { mode, hierarchies, made: 0, left: Vec::new() }
    }

    /// Directories of the groups that it makes, for whoever removes them if this process is killed.
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.hierarchies.iter().map(|home| KeeperGroup::path_below(&home.hierarchy.own))
    }

    /// Limits that cannot be held here, and what would make it possible.
    pub fn unenforceable(&self, pool: Option<&Pool>) -> Vec<Unenforceable> {
        let is_held = |limit| {
            let Some(controller) = Controller::of(limit) else { return true };
            pool.is_some_and(|pool| pool.controllers().contains(&controller))
                || self.hierarchies.iter().any(|home| home.hierarchy.controllers.contains(&controller))
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

    /// Makes the groups that hold a job to those of its limits that `leaf_controllers` do not hold.
    pub fn cage(&mut self, limits: &Limits, leaf_controllers: Option<&[Controller]>) -> io::Result<Cage> {
        let by_leaf = leaf_controllers.unwrap_or_default();
        let mut wanted: Vec<_> =
            limits.names().filter_map(Controller::of).filter(|c| !by_leaf.contains(c)).collect();
        if !wanted.is_empty() && leaf_controllers.is_none() {
            // Nothing else counts the processor time of a job without a leaf.
            wanted.push(Controller::Cpuacct);
        }
        self.made += 1;
        let name = self.made.to_string();
        let mut cage = Cage::default();
        for home in &mut self.hierarchies {
            let controllers: Vec<_> =
                home.hierarchy.controllers.iter().copied().filter(|c| wanted.contains(c)).collect();
            if controllers.is_empty() {
                continue;
            }
            let made = home.make(&name, controllers).and_then(|group| {
                let limited = write_limits(&group.directory, Version::One, &group.controllers, limits);
                cage.groups.push(group);
                limited
            });
            if let Err(error) = made {
                self.give_back(cage);
                return Err(error);
            }
        }
        Ok(cage)
    }

    /// Removes the groups of a job that is over; those that still hold processes later.
    pub fn give_back(&mut self, cage: Cage) {
        self.left.extend(cage.groups.into_iter().map(|group| group.path));
        self.left
            .retain(|path| fs::remove_dir(path).is_err_and(|error| error.kind() != io::ErrorKind::NotFound));
    }
}

impl Home {
    fn make(&mut self, name: &str, controllers: Vec<Controller>) -> io::Result<Group> {
        let keeper = match &mut self.group {
            Some(group) => group,
            none => none.insert(KeeperGroup::make(&self.hierarchy.own)?),
        };
        rustix::fs::mkdirat(&keeper.directory, name, Mode::from_raw_mode(0o755))?;
        let open = || {
            let directory = open_directory(&keeper.directory, Path::new(name))?;
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let procs = rustix::fs::openat(&directory, "cgroup.procs", flags, Mode::empty())?;
            io::Result::Ok((directory, procs))
        };
        match open() {
            Ok((directory, procs)) => {
                Ok(Group { path: keeper.path.join(name), directory, procs, controllers })
            }
            Err(error) => {
                rustix::fs::unlinkat(&keeper.directory, name, AtFlags::REMOVEDIR).ok();
                Err(error)
            }
        }
    }
}

impl Cage {
    /// For processes that are to join it.
    pub fn procs(&self) -> Vec<BorrowedFd<'_>> {
        self.groups.iter().map(|group| group.procs.as_fd()).collect()
    }

    /// It has a group with this controller.
    pub fn holds(&self, controller: Controller) -> bool {
        self.groups.iter().any(|group| group.controllers.contains(&controller))
    }

    /// What was counted against the job's limits.
    pub fn counts(&self) -> Counts {
        let counts = |group: &Group| read_counts(&group.directory, Version::One, &group.controllers);
        self.groups.iter().map(counts).fold(Counts::default(), Counts::and)
    }

    /// What the job used.
    pub fn usage(&self) -> Usage {
        let with = |controller| self.groups.iter().find(move |group| group.controllers.contains(&controller));
        Usage {
            cpu_time: with(Controller::Cpuacct).and_then(|group| cpu_time(&group.directory, Version::One)),
            peak_memory: with(Controller::Memory)
                .and_then(|group| peak_memory(&group.directory, Version::One)),
        }
    }
}

/// Whether the kernel counts our processes against RLIMIT_NPROC: it does not count those of root.
fn is_bound_by_user_limit() -> bool {
    !rustix::process::getuid().is_root() && !rustix::process::geteuid().is_root()
}

/// The RLIMIT_NPROC that lets a job without a group have `processes`: the kernel counts all of the user, so those there
/// are now come on top. Other jobs of the user share what is left over.
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

/// Why a value of a limit is none that can be held; `None`: it can.
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

    const MEMORY: Limits =
        Limits { memory: Some(1 << 26), processes: None, cpu_micros: None, open_files: None };

    fn limiter(mode: CgroupMode, hierarchies: Vec<Hierarchy>) -> Limiter {
        let hierarchies = hierarchies.into_iter().map(|hierarchy| Home { hierarchy, group: None }).collect();
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
        let cage = limiter.cage(&MEMORY, Some(&[Controller::Memory])).unwrap();
        assert!(cage.procs().is_empty());
        assert!(limiter.cage(&MEMORY, Some(&[])).is_err(), "its group cannot be made");
        assert!(limiter.cage(&Limits::default(), None).unwrap().groups.is_empty());
    }

    #[test]
    fn the_limit_of_a_user_leaves_room_for_the_processes_there_are() {
        assert!(user_limit(5) > 5, "this process counts");
        assert_eq!(user_limit(u64::MAX), u64::MAX);
    }
}
