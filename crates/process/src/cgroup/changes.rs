//! Tells which groups were changed or frozen by others: a step can write to the files of any group that its user may write
//! to.
//!
//! The kernel reports writes, and changes of `cgroup.events`, through one inotify descriptor. Reading all settings before
//! each reuse of a leaf costs more than the rest of the reuse, and does not show a `cgroup.kill`. A write by `io_submit` is
//! not reported. Owns no leaf, and reads none.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::AtFlags;
use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Files that say nothing about the next process in a group: a write to one of them only moves a process or thread.
const NO_SETTINGS: [&str; 2] = ["cgroup.procs", "cgroup.threads"];

/// Files whose change can mean that the group was frozen.
const FREEZES: [&[u8]; 2] = [b"cgroup.freeze", b"cgroup.events"];

/// Room for the events of one read.
const READ_BYTES: usize = 4 << 10;

/// A leaf that is watched. Dropping it ends the watch: the kernel does not end it with the group.
#[derive(Debug)]
pub(super) struct LeafWatch {
    inotify: Arc<OwnedFd>,
    /// Number that the kernel gave the watch.
    id: i32,
    inode: u64,
}

/// The watched groups.
#[derive(Debug)]
pub(super) struct LeafChanges {
    /// `None` if the user has too many of them.
    inotify: Option<Arc<OwnedFd>>,
    /// Numbers of the watches.
    unchanged: HashSet<i32>,
    /// Paths of the groups by the numbers of their watches.
    paths: HashMap<i32, PathBuf>,
    /// Watched groups that may be frozen.
    suspects: HashSet<i32>,
}

impl LeafChanges {
    pub(super) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok().map(Arc::new);
        Self { inotify, unchanged: HashSet::new(), paths: HashMap::new(), suspects: HashSet::new() }
    }

    /// Becomes readable when there may be suspects.
    pub(super) fn events(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_deref().map(AsFd::as_fd)
    }

    /// Watches the new group behind `directory`, which is at `path`. `None` if that is not possible, so that nobody can say
    /// whether the group is unchanged.
    pub(super) fn watch(&mut self, directory: impl AsFd, path: &Path) -> Option<LeafWatch> {
        let inotify = Arc::clone(self.inotify.as_ref()?);
        let inode = rustix::fs::fstat(&directory).ok()?.st_ino;
        let opened = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
        let events = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::CREATE | WatchFlags::ONLYDIR;
        let id = inotify::add_watch(&inotify, opened, events).ok()?;
        self.unchanged.insert(id);
        self.paths.insert(id, path.to_owned());
        Some(LeafWatch { inotify, id, inode })
    }

    /// True if nobody has changed a setting of the leaf, or made a group in it, since the watch began.
    pub(super) fn is_unchanged(&mut self, watch: &LeafWatch) -> bool {
        self.take_events();
        self.unchanged.contains(&watch.id)
    }

    /// Returns the paths of the groups that may have been frozen, by the events taken since the last call.
    pub(super) fn suspects(&mut self) -> Vec<PathBuf> {
        self.suspects.drain().filter_map(|id| self.paths.get(&id).cloned()).collect()
    }

    /// Takes the events that the kernel has reported.
    pub(super) fn take_events(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut events = Reader::new(inotify, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    self.unchanged.clear();
                    self.suspects.extend(self.paths.keys());
                }
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    self.unchanged.remove(&event.wd());
                    self.paths.remove(&event.wd());
                }
                Ok(event) => {
                    if event.file_name().is_some_and(|name| FREEZES.contains(&name.to_bytes())) {
                        self.suspects.insert(event.wd());
                    }
                    if !is_usual(&event) {
                        self.unchanged.remove(&event.wd());
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return,
                // From here on it is unknown which leaves were changed.
                Err(_) => return self.unchanged.clear(),
            }
        }
    }
}

impl LeafWatch {
    /// True if `directory` is that of the leaf, and not of another group with its name.
    pub(super) fn is_of(&self, directory: impl AsFd) -> bool {
        rustix::fs::fstat(directory).is_ok_and(|stat| stat.st_ino == self.inode)
    }

    /// True if the leaf is `name` in the group behind `parent`. While it is open, no event tells of its removal.
    pub(super) fn is_at(&self, parent: impl AsFd, name: &str) -> bool {
        let there = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        there.is_ok_and(|stat| stat.st_ino == self.inode)
    }
}

impl Drop for LeafWatch {
    fn drop(&mut self) {
        inotify::remove_watch(&*self.inotify, self.id).ok();
    }
}

/// True for writes that happen to every leaf.
fn is_usual(event: &Event<'_>) -> bool {
    let is_write = event.events().contains(ReadFlags::MODIFY);
    is_write && event.file_name().is_some_and(|name| !is_setting(name.to_bytes()))
}

/// False for files that the kernel changes by itself, or whose content does not matter to the next process.
fn is_setting(name: &[u8]) -> bool {
    let name = str::from_utf8(name).unwrap_or_default();
    !NO_SETTINGS.contains(&name) && !name.ends_with(".events") && !name.ends_with(".events.local")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Makes a folder with some files of a group, lets `change` change it, and returns whether it counts as unchanged.
    fn is_unchanged_after(change: impl FnOnce(&Path)) -> bool {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cgroup.freeze", "cgroup.kill", "cgroup.procs", "cgroup.events", "memory.events.local"] {
            fs::write(folder.path().join(name), "0\n").unwrap();
        }
        let directory = fs::File::open(folder.path()).unwrap();
        let mut changes = LeafChanges::new();
        let watch = changes.watch(&directory, Path::new("")).unwrap();
        assert!(changes.is_unchanged(&watch));
        change(folder.path());
        changes.is_unchanged(&watch)
    }

    #[test]
    fn fault_84_a_written_file_or_a_group_below_makes_another_group_of_it() {
        for (name, is_unchanged) in [
            ("cgroup.freeze", false),
            ("cgroup.kill", false),
            ("cgroup.procs", true),
            ("cgroup.events", true),
            ("memory.events.local", true),
        ] {
            let written = is_unchanged_after(|folder| {
                fs::write(folder.join(name), "1\n").unwrap();
                fs::write(folder.join(name), "0\n").unwrap();
            });
            assert_eq!(written, is_unchanged, "{name}");
        }
        assert!(!is_unchanged_after(|folder| fs::create_dir(folder.join("below")).unwrap()));
        let no_rights = fs::Permissions::from_mode(0o000);
        assert!(!is_unchanged_after(
            |folder| fs::set_permissions(folder.join("cgroup.procs"), no_rights).unwrap()
        ));
    }

    #[test]
    fn fault_84_another_group_of_the_same_name_is_another_group() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::File::open(folder.path().join(name)).unwrap()
        };
        let (first, second) = (open("1"), open("2"));
        let mut changes = LeafChanges::new();
        let watch = changes.watch(&first, Path::new("")).unwrap();
        assert!(watch.is_of(&first));
        assert!(!watch.is_of(&second));
    }

    #[test]
    fn a_leaf_that_is_given_up_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let directory = fs::File::open(folder.path()).unwrap();
        let mut changes = LeafChanges::new();
        drop(changes.watch(&directory, Path::new("")).unwrap());
        changes.take_events();
        assert!(changes.unchanged.is_empty() && changes.paths.is_empty());
    }

    #[test]
    fn fault_95_a_write_that_freezes_and_a_change_of_the_events_make_a_group_a_suspect() {
        let folder = tempfile::tempdir().unwrap();
        let directory = fs::File::open(folder.path()).unwrap();
        let mut changes = LeafChanges::new();
        let _watch = changes.watch(&directory, folder.path()).unwrap();
        for (name, is_suspect) in [("cgroup.freeze", true), ("cgroup.events", true), ("cgroup.procs", false)]
        {
            fs::write(folder.path().join(name), "1\n").unwrap();
            changes.take_events();
            assert_eq!(!changes.suspects().is_empty(), is_suspect, "{name}");
            assert!(changes.suspects().is_empty(), "{name}");
        }
    }
}
