//! Thaws control groups: a step of the same user can freeze its own group, or one of another job.
//!
//! A frozen process handles no signal but SIGKILL (version 2), or none at all (version 1). A process that is started in
//! a frozen group never gets to its program, and its starter waits as long.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};

use super::controllers::{group_of, own_texts, read_file, seen_at, write_file};

/// State file of a group of version 2.
const FREEZE: &str = "cgroup.freeze";

/// A start that takes longer may hang in a frozen group.
const LATE: Duration = Duration::from_millis(100);

/// Pause between two thaws during such a start, as others can freeze the group again.
const AGAIN: Duration = Duration::from_millis(5);

/// Stack size of the thread that thaws: it calls nothing deep.
const STACK: usize = 64 << 10;

/// Groups that were thawed and not yet reported, whoever saw that they were frozen.
#[derive(Clone, Debug, Default)]
pub(super) struct ThawCount(Arc<AtomicU32>);

impl ThawCount {
    fn add(&self, thawed: bool) {
        self.0.fetch_add(u32::from(thawed), Ordering::Relaxed);
    }

    /// Returns the count and starts anew.
    pub(super) fn take(&self) -> u32 {
        self.0.swap(0, Ordering::Relaxed)
    }

    /// Thaws and counts the group of version 2 at `path`.
    pub(super) fn thaw_path(&self, path: &Path) {
        self.add(thaw_path(path));
    }

    /// Thaws and counts the group of version 2 at `path` and all groups below it.
    pub(super) fn thaw_tree(&self, path: &Path) {
        self.thaw_path(path);
        let Ok(entries) = fs::read_dir(path) else { return };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            self.thaw_tree(&entry.path());
        }
    }

    /// Thaws and counts the group of version 2 behind `directory`, if it was told to freeze. False if the group is gone.
    pub(super) fn thaw(&self, directory: impl AsFd) -> bool {
        // Mostly nothing is frozen, and reading takes no lock of the kernel, unlike writing.
        let Some(state) = read_file(&directory, FREEZE) else { return is_there(directory) };
        if state.trim_end() != "0" {
            self.add(write_file(directory, FREEZE, "0").is_ok());
        }
        true
    }
}

/// False if the directory was removed while it was open. Kernels before 5.2 have no file to freeze by.
fn is_there(directory: impl AsFd) -> bool {
    rustix::fs::openat(directory, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// Thaws the group of version 2 at `path`. True if it was told to freeze.
fn thaw_path(path: &Path) -> bool {
    let file = path.join(FREEZE);
    match fs::read_to_string(&file) {
        Ok(state) if state.trim_end() == "0" => return false,
        // Whoever froze it may have taken the rights away as well.
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return false,
        Ok(_) | Err(_) => {}
    }
    if fs::write(&file, "0").is_err() {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).ok();
        fs::write(file, "0").ok();
    }
    true
}

/// Thaws the groups in which process `pid` may be frozen. A group that holds this process is left alone: whoever froze it
/// meant more than that process.
pub fn thaw_process(pid: u32) {
    let (mounts, own) = own_texts();
    let theirs = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    for group in find_freezer_groups(&mounts, &own, &theirs) {
        fs::write(group.join("freezer.state"), "THAWED").ok();
    }
    for group in find_groups(&mounts, &own, &theirs) {
        thaw_path(&group);
    }
}

/// Returns the group of version 1 of a process and those above it, up to the first that holds this process.
fn find_freezer_groups(mounts: &str, own: &str, theirs: &str) -> Vec<PathBuf> {
    groups_between(mounts, own, theirs, "freezer", |file_system| {
        let options = file_system.strip_prefix("cgroup ").and_then(|rest| rest.split(' ').nth(1));
        options.is_some_and(|options| options.split(',').any(|option| option == "freezer"))
    })
}

/// Returns the group of version 2 of a process and those above it, up to the first that holds this process.
fn find_groups(mounts: &str, own: &str, theirs: &str) -> Vec<PathBuf> {
    groups_between(mounts, own, theirs, "", |file_system| file_system.starts_with("cgroup2 "))
}

fn groups_between(
    mounts: &str,
    own: &str,
    theirs: &str,
    controller: &str,
    is_mounted_as: impl Fn(&str) -> bool,
) -> Vec<PathBuf> {
    let (Some(own), Some(theirs)) = (group_of(own, controller), group_of(theirs, controller)) else {
        return Vec::new();
    };
    let mount = mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        is_mounted_as(file_system).then_some(mount)
    });
    let Some(mount) = mount else { return Vec::new() };
    let holds_us = |group: &Path| Path::new(own).starts_with(group);
    let between = Path::new(theirs).ancestors().take_while(|group| !holds_us(group));
    between.filter_map(|group| seen_at(mount, group.to_str()?)).collect()
}

/// Thaws groups while a process is started in them.
///
/// The start blocks its thread until the process executes its program, so another thread has to thaw.
#[derive(Default)]
pub struct Thawer {
    shared: Arc<FreezerShared>,
    has_thread: bool,
}

#[derive(Default)]
struct FreezerShared {
    turn: Mutex<Turn>,
    changed: Condvar,
}

#[derive(Default)]
struct Turn {
    /// Groups of the start under way.
    groups: Option<Watch>,
    /// Starts so far.
    count: u64,
    /// True while the thread waits for the next start.
    is_idle: bool,
    is_over: bool,
}

/// Groups to keep thawed, and the count of the thaws.
struct Watch {
    groups: Vec<PathBuf>,
    thaws: ThawCount,
}

impl Watch {
    fn thaw(&self) {
        self.groups.iter().for_each(|group| self.thaws.thaw_path(group));
    }
}

/// A start under way. Dropping it ends the watch.
#[must_use]
pub struct Watched(Arc<FreezerShared>);

impl Thawer {
    /// Keeps `groups` thawed until the result is dropped. Thaws them once if no thread can be started.
    pub(super) fn watch(&mut self, groups: Vec<PathBuf>, thaws: ThawCount) -> Watched {
        let watch = Watch { groups, thaws };
        if !self.has_thread {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("thaw".into()).stack_size(STACK);
            self.has_thread = builder.spawn(move || shared.serve()).is_ok();
        }
        if !self.has_thread {
            watch.thaw();
        }
        let mut turn = self.shared.turn.lock();
        turn.groups = Some(watch);
        turn.count += 1;
        // In a burst of starts the thread is awake and sees the next one by itself.
        let wakes = std::mem::take(&mut turn.is_idle);
        drop(turn);
        if wakes {
            self.shared.changed.notify_one();
        }
        Watched(Arc::clone(&self.shared))
    }
}

impl Drop for Thawer {
    fn drop(&mut self) {
        self.shared.turn.lock().is_over = true;
        self.shared.changed.notify_one();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.turn.lock().groups = None;
    }
}

impl FreezerShared {
    fn serve(&self) {
        let mut turn = self.turn.lock();
        while !turn.is_over {
            if turn.groups.is_none() {
                turn.is_idle = true;
                self.changed.wait(&mut turn);
                continue;
            }
            let count = turn.count;
            self.changed.wait_for(&mut turn, LATE);
            while turn.count == count
                && let Some(watch) = &turn.groups
            {
                // The lock is held meanwhile: groups of a start that is over are not touched any more.
                watch.thaw();
                self.changed.wait_for(&mut turn, AGAIN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_84_groups_are_thawed_while_a_start_takes_long() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FREEZE);
        let mut thawer = Thawer::default();
        for _ in 0..2 {
            fs::write(&file, "1").unwrap();
            let thaws = ThawCount::default();
            let watched = thawer.watch(vec![folder.path().to_owned(), "/nowhere".into()], thaws.clone());
            while fs::read_to_string(&file).unwrap() != "0" {
                std::thread::yield_now();
            }
            drop(watched);
            assert_eq!(thaws.take(), 1);
        }
    }

    #[test]
    fn a_group_that_was_removed_is_told_from_one_that_cannot_freeze() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.procs"), "").unwrap();
        let directory = fs::File::open(folder.path()).unwrap();
        let thaws = ThawCount::default();
        assert!(thaws.thaw(&directory), "a kernel without the file");
        fs::write(folder.path().join(FREEZE), "1\n").unwrap();
        assert!(thaws.thaw(&directory));
        assert_eq!(fs::read_to_string(folder.path().join(FREEZE)).unwrap(), "0");
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(!thaws.thaw(&directory));
        assert_eq!(thaws.take(), 1);
    }

    #[test]
    fn the_freezer_groups_of_a_process_are_those_that_do_not_hold_us() {
        let mounts = "39 31 0:36 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";
        let groups = |own, theirs| find_freezer_groups(mounts, own, theirs);
        assert_eq!(groups("7:freezer:/a\n", "7:freezer:/a\n"), Vec::<PathBuf>::new());
        assert_eq!(groups("7:freezer:/a\n", "7:freezer:/\n"), Vec::<PathBuf>::new());
        let below = |path: &str| Path::new("/sys/fs/cgroup/freezer").join(path);
        assert_eq!(groups("7:freezer:/a\n", "7:freezer:/a/b/c\n"), [below("a/b/c"), below("a/b")]);
        assert_eq!(groups("7:freezer:/a\n", "7:freezer:/d\n"), [below("d")]);
        assert_eq!(groups("0::/a\n", "0::/b\n"), Vec::<PathBuf>::new());
        let mounts = "40 31 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = |own, theirs| find_groups(mounts, own, theirs);
        assert_eq!(groups("0::/a\n", "0::/a\n"), Vec::<PathBuf>::new());
        assert_eq!(groups("0::/a\n", "0::/a/b\n"), [Path::new("/sys/fs/cgroup/unified/a/b")]);
        assert_eq!(groups("0::/a\n", "0::/d\n"), [Path::new("/sys/fs/cgroup/unified/d")]);
    }
}
