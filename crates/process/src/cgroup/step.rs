//! The group of one step below the leaf of its job: for a step that runs beside others, or after a step that has left
//! processes. It has no limits of its own; those of the leaf hold for all of them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::changes::LeafWatch;
use super::pool::Pool;
use super::tree::{groups_below, remove_tree};
use super::{Leaf, MAX_TAKEN};
use crate::controllers::{open_directory, read_file};
use crate::sweep::Process;
use step_runner_model::ProcessNumber;

/// A control group below a [`Leaf`]. Dropping it removes it, as far as it is empty.
#[derive(Debug)]
pub struct StepGroup {
    directory: OwnedFd,
    path: PathBuf,
    /// End of its path as `/proc/PID/cgroup` shows it.
    suffix: String,
    /// Tells if somebody freezes it.
    _watch: Option<LeafWatch>,
}

impl Pool {
    /// Makes a group below `leaf` for the step whose process has this number.
    pub fn make_step_group(&mut self, leaf: &Leaf, process: ProcessNumber) -> io::Result<StepGroup> {
        let mut taken = 0;
        let name = loop {
            let name = if taken == 0 { format!("step-{process}") } else { format!("step-{process}.{taken}") };
            match rustix::fs::mkdirat(&leaf.directory, &name, Mode::from_raw_mode(0o755)) {
                // A process of the job has made it.
                Err(Errno::EXIST) if taken < MAX_TAKEN => taken += 1,
                made => {
                    made?;
                    break name;
                }
            }
        };
        let directory = open_directory(&leaf.directory, Path::new(&name))?;
        let path = leaf.path.join(&name);
        let watch = self.watch(&directory, &path);
        Ok(StepGroup { directory, path, suffix: format!("{}/{name}", leaf.suffix), _watch: watch })
    }
}

impl StepGroup {
    /// Returns its directory, for a spawn into it.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Returns the path of its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if it or a group below it holds a living process. True if that cannot be read; false if it was removed.
    pub fn is_populated(&self) -> bool {
        match read_file(&self.directory, "cgroup.events") {
            Some(events) => !events.lines().any(|line| line == "populated 0"),
            None => self.path.exists(),
        }
    }

    /// True if process `pid` is in it or in a group below it.
    pub fn holds(&self, pid: u32) -> bool {
        is_in(pid, &self.suffix)
    }

    /// Returns the living processes in it and in groups below it.
    pub fn members(&self) -> Vec<Process> {
        living(self.processes().into_iter(), |pid| self.holds(pid))
    }

    fn processes(&self) -> Vec<u32> {
        let groups = groups_below(&self.path);
        processes_in(&self.directory, groups.iter().map(PathBuf::as_path))
    }

    /// Kills everything in it and below; process by process if the kernel cannot kill a group.
    pub fn kill(&self) {
        if kill_group(&self.directory).is_err() {
            kill_each(&self.processes(), |pid| self.holds(pid));
        }
    }
}

impl Drop for StepGroup {
    fn drop(&mut self) {
        remove_tree(&self.path);
    }
}

impl Leaf {
    /// Returns the living processes in it and in groups below it, but not in `steps`.
    pub fn own_members(&self, steps: &[&StepGroup]) -> Vec<Process> {
        living(self.own_processes(steps).into_iter(), |pid| self.is_own(pid, steps))
    }

    /// Kills everything in it and below, but not in `steps`. Repeat it until nothing is left.
    pub fn kill_own(&self, steps: &[&StepGroup]) {
        kill_each(&self.own_processes(steps), |pid| self.is_own(pid, steps));
    }

    fn is_own(&self, pid: u32, steps: &[&StepGroup]) -> bool {
        self.holds(pid) && !steps.iter().any(|step| step.holds(pid))
    }

    fn own_processes(&self, steps: &[&StepGroup]) -> Vec<u32> {
        let groups = groups_below(&self.path);
        let is_own = |path: &&PathBuf| !steps.iter().any(|step| path.starts_with(&step.path));
        processes_in(&self.directory, groups.iter().filter(is_own).map(PathBuf::as_path))
    }
}

/// True if process `pid` is in the group whose path ends in `suffix`, or below it.
pub(super) fn is_in(pid: u32, suffix: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| {
        let is_here = |line: &str| line.ends_with(suffix) || line.contains(&format!("{suffix}/"));
        groups.lines().any(|line| line.starts_with("0::") && is_here(line))
    })
}

/// Returns the ids of the processes in the group behind `directory` and in the groups at `below`.
pub(super) fn processes_in<'p>(directory: impl AsFd, below: impl Iterator<Item = &'p Path>) -> Vec<u32> {
    let own = read_file(directory, "cgroup.procs").unwrap_or_default();
    let below = below.filter_map(|path| fs::read_to_string(path.join("cgroup.procs")).ok());
    let all: Vec<String> = [own].into_iter().chain(below).collect();
    all.iter().flat_map(|procs| procs.lines()).filter_map(|line| line.parse().ok()).collect()
}

/// Returns the living ones of `processes`. `is_member` is asked again: a number may have been reused since it was read.
pub(super) fn living(processes: impl Iterator<Item = u32>, is_member: impl Fn(u32) -> bool) -> Vec<Process> {
    let member = |pid| {
        let process = Process::read(pid).filter(|process| !process.zombie)?;
        is_member(pid).then_some(process)
    };
    processes.filter_map(member).collect()
}

/// Tells the kernel to kill a group and those below it. Fails if it cannot (before Linux 5.14).
pub(super) fn kill_group(directory: impl AsFd) -> rustix::io::Result<()> {
    let file = rustix::fs::openat(directory, "cgroup.kill", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, b"1").map(drop)
}

/// Kills each of `processes` that is a member.
pub(super) fn kill_each(processes: &[u32], is_member: impl Fn(u32) -> bool) {
    for &pid in processes {
        let Some(handle) = Pid::from_raw(pid as i32) else { continue };
        let Ok(pidfd) = rustix::process::pidfd_open(handle, PidfdFlags::empty()) else { continue };
        // While the descriptor is open, the number is not reused: the membership read now is this process's.
        if is_member(pid) {
            rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).ok();
        }
    }
}
