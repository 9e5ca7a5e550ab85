//! Tells which leaves were changed by others: a step can write to the files of any leaf that its user may write to.
//!
//! The kernel reports the writes through one inotify descriptor. Reading all settings before each reuse of a leaf costs
//! more than the rest of the reuse, and does not show a `cgroup.kill`. Owns no leaf, and reads none.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Files that say nothing of how the next process will fare in a group: processes are moved by two of them.
const NO_SETTINGS: [&str; 2] = ["cgroup.procs", "cgroup.threads"];

/// Room for the events of one read.
const READ_BYTES: usize = 4 << 10;

/// A leaf that is watched: the number that the kernel gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WatchId(i32);

/// The watched leaves that nobody has changed.
#[derive(Debug)]
pub(super) struct LeafChanges {
    /// `None` if the user has too many of them.
    inotify: Option<OwnedFd>,
    unchanged: HashSet<WatchId>,
}

impl LeafChanges {
    /// Watches nothing yet.
    pub(super) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok();
        Self { inotify, unchanged: HashSet::new() }
    }

    /// Watches the new leaf behind `directory`. `None` if that is not possible, so that nobody can say whether the leaf
    /// is unchanged.
    pub(super) fn watch(&mut self, directory: impl AsFd) -> Option<WatchId> {
        let path = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
        let events = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::CREATE | WatchFlags::ONLYDIR;
        let id = WatchId(inotify::add_watch(self.inotify.as_ref()?, path, events).ok()?);
        self.unchanged.insert(id);
        Some(id)
    }

    /// True if nobody has changed a setting of the leaf, or made a group in it, since it is watched.
    pub(super) fn is_unchanged(&mut self, id: WatchId) -> bool {
        self.take_events();
        self.unchanged.contains(&id)
    }

    fn take_events(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut events = Reader::new(inotify, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => self.unchanged.clear(),
                Ok(event) if event.file_name().is_some_and(|name| !is_setting(name.to_bytes())) => {}
                Ok(event) => {
                    self.unchanged.remove(&WatchId(event.wd()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return,
                // What was changed is unknown now.
                Err(_) => return self.unchanged.clear(),
            }
        }
    }
}

/// False for files that the kernel changes by itself, or whose content does not matter to the next process.
fn is_setting(name: &[u8]) -> bool {
    let name = str::from_utf8(name).unwrap_or_default();
    !NO_SETTINGS.contains(&name) && !name.ends_with(".events") && !name.ends_with(".events.local")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn fault_84_a_written_file_or_a_group_below_makes_another_group_of_it() {
        for (change, is_change) in [
            ("cgroup.freeze", true),
            ("cgroup.kill", true),
            ("pids.max", true),
            ("below", true),
            ("cgroup.procs", false),
            ("cgroup.events", false),
            ("memory.events.local", false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(change);
            if change != "below" {
                fs::write(&file, "0\n").unwrap();
            }
            let directory = fs::File::open(folder.path()).unwrap();
            let mut changes = LeafChanges::new();
            let id = changes.watch(&directory).unwrap();
            assert!(changes.is_unchanged(id), "{change}");
            if change == "below" {
                fs::create_dir(&file).unwrap();
            } else {
                fs::write(&file, "1\n").unwrap();
                fs::write(&file, "0\n").unwrap();
            }
            assert_eq!(changes.is_unchanged(id), !is_change, "{change}");
        }
    }

    #[test]
    fn a_leaf_that_is_gone_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let directory = fs::File::open(folder.path()).unwrap();
        let mut changes = LeafChanges::new();
        let id = changes.watch(&directory).unwrap();
        drop(directory);
        folder.close().unwrap();
        assert!(!changes.is_unchanged(id));
        assert!(changes.unchanged.is_empty());
    }
}
