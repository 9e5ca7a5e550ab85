//! The keeper's group with the leaves that no job uses: kept for the next jobs, open or by their names.

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::Resource;

use super::changes::{LeafChanges, LeafWatch};
use super::tree::remove_tree;
use super::{CgroupError, KeeperGroup, KeptFile, Leaf, MAX_TAKEN, StepGroup, parents, remove_stale};
use crate::controllers::{Controller, LimitCounts, hand_on, open_directory, own_group};
use crate::freezer::{ThawCount, Thawer, Watched};

/// Maximum number of unused leaves that are kept by name for the next jobs. Making a leaf costs more than all other
/// preparations of its job. Each costs the kernel a few KiB.
const MAX_FREE: usize = 256;

/// Maximum number of leaves that are kept open, because opening one and its files costs as much as half a start …
const MAX_OPEN: usize = 128;

/// … but not more than fit, with three descriptors each, into this fraction of all descriptors that the keeper may
/// have.
const SHARE_OF_DESCRIPTORS: u64 = 16;

/// The keeper's group and the leaves that are not in use.
#[derive(Debug)]
pub struct Pool {
    group: KeeperGroup,
    /// Controllers that can limit the leaves.
    controllers: Vec<Controller>,
    /// Leaves that no job uses, unchanged and empty when they were given back.
    open: Vec<Leaf>,
    max_open: usize,
    free: Vec<FreeLeaf>,
    made: u32,
    changes: LeafChanges,
    thaws: ThawCount,
    /// Watch of the keeper's group.
    _watch: Option<LeafWatch>,
}

/// A leaf that no job uses, by its name.
#[derive(Debug)]
struct FreeLeaf {
    name: String,
    watch: LeafWatch,
}

impl Pool {
    /// Makes the keeper's group, and removes those of dead keepers beside it.
    pub fn open() -> Result<Self, CgroupError> {
        let own = own_group().ok_or(CgroupError::NotMounted)?;
        let parent = parents(&own).find(|parent| !hand_on(parent).is_empty()).unwrap_or(&own).to_owned();
        remove_stale(&parent);
        let group =
            KeeperGroup::make(&parent).map_err(|source| CgroupError::NotWritable { path: parent, source })?;
        let controllers = hand_on(&group.path);
        let descriptors = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let max_open = (descriptors / (3 * SHARE_OF_DESCRIPTORS)).min(MAX_OPEN as u64) as usize;
        let (open, free, mut changes) = (Vec::new(), Vec::new(), LeafChanges::new());
        let watch = changes.watch(&group.directory, &group.path);
        Ok(Self {
            group,
            controllers,
            open,
            max_open,
            free,
            made: 0,
            changes,
            thaws: ThawCount::default(),
            _watch: watch,
        })
    }

    /// Returns the directory of the keeper's group.
    pub fn path(&self) -> &Path {
        &self.group.path
    }

    /// True if process `pid` is in one of the leaves.
    pub fn holds(&self, pid: u32) -> bool {
        let group = self.group.path.file_name().unwrap_or_default().to_string_lossy();
        let inside = format!("/{group}/");
        fs::read_to_string(format!("/proc/{pid}/cgroup"))
            .is_ok_and(|groups| groups.lines().any(|line| line.starts_with("0::") && line.contains(&inside)))
    }

    /// Returns the controllers that can limit its leaves.
    pub fn controllers(&self) -> &[Controller] {
        &self.controllers
    }

    /// Returns an empty leaf for a job, thawed and without settings of another one.
    pub fn take(&mut self) -> io::Result<Leaf> {
        while let Some(leaf) = self.open.pop() {
            let is_there = |watch: &LeafWatch| watch.is_at(&self.group.directory, &leaf.name);
            let is_same = |watch| is_there(watch) && self.changes.is_unchanged(watch);
            if leaf.watch.as_ref().is_some_and(is_same) && !leaf.is_populated() {
                return Ok(leaf);
            }
            remove_tree(&leaf.path);
        }
        while let Some(FreeLeaf { name, watch }) = self.free.pop() {
            let Ok(mut leaf) = self.open_leaf(name) else { continue };
            let is_same = watch.is_of(&leaf.directory) && self.changes.is_unchanged(&watch);
            if is_same && !leaf.is_populated() {
                leaf.watch = Some(watch);
                leaf.used_before = leaf.cpu_time().unwrap_or_default();
                return Ok(leaf);
            }
            remove_tree(&leaf.path);
        }
        let mut leaf = self.make_leaf()?;
        leaf.watch = self.changes.watch(&leaf.directory, &leaf.path);
        Ok(leaf)
    }

    fn make_leaf(&mut self) -> io::Result<Leaf> {
        let mut taken = 0;
        loop {
            self.made += 1;
            let name = self.made.to_string();
            match rustix::fs::mkdirat(&self.group.directory, &name, Mode::from_raw_mode(0o755)) {
                // A step has made it.
                Err(Errno::EXIST) if taken < MAX_TAKEN => taken += 1,
                made => {
                    made?;
                    return self.open_leaf(name);
                }
            }
        }
    }

    /// Thaws the keeper's group, in which all leaves are.
    pub fn thaw(&self) {
        self.thaws.thaw(&self.group.directory);
    }

    /// Becomes readable when a group may have been frozen. `None` if the kernel cannot tell.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.changes.events()
    }

    /// Takes what [`Self::events`] has to tell.
    pub fn take_events(&mut self) {
        self.changes.take_events();
    }

    /// Thaws the keeper's group and leaves that somebody has frozen, by the events taken since the last call.
    pub fn thaw_frozen(&mut self) {
        self.changes.suspects().iter().for_each(|group| self.thaws.thaw_path(group));
    }

    /// Returns the number of thaws since the last call, also of those for a start or a stop.
    pub fn take_thaws(&self) -> u32 {
        self.thaws.take()
    }

    /// Keeps its group, `leaf` and the group of a step thawed until the result is dropped: another process may freeze them
    /// while a step is started there.
    pub fn keep_thawed(&self, leaf: &Leaf, step: Option<&StepGroup>, thawer: &mut Thawer) -> Watched {
        let groups = step.map(StepGroup::path).into_iter().chain([leaf.path(), self.path()]);
        thawer.watch(groups.map(Path::to_owned).collect(), self.thaws.clone())
    }

    /// Watches a group, so that [`Self::thaw_frozen`] sees it.
    pub(super) fn watch(&mut self, directory: impl AsFd, path: &Path) -> Option<LeafWatch> {
        self.changes.watch(directory, path)
    }

    fn open_leaf(&self, name: String) -> io::Result<Leaf> {
        let directory = open_directory(&self.group.directory, Path::new(&name))?;
        let group = self.group.path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Leaf {
            directory,
            path: self.group.path.join(&name),
            suffix: format!("/{group}/{name}"),
            name,
            watch: None,
            events: KeptFile::default(),
            statistics: KeptFile::default(),
            is_kept_open: false,
            used: Cell::default(),
            used_before: Duration::ZERO,
            used_elsewhere: Duration::ZERO,
            spent: AtomicBool::new(false),
            controllers: self.controllers.clone(),
            is_limited: false,
            thaws: self.thaws.clone(),
            counted_elsewhere: LimitCounts::default(),
        })
    }

    /// Returns a leaf for a job that goes on after its processes were killed.
    pub fn replace(&mut self, spent: Leaf) -> io::Result<Leaf> {
        let mut leaf = self.take()?;
        leaf.used_elsewhere = spent.usage().cpu_time.unwrap_or_default();
        leaf.counted_elsewhere = spent.counts();
        self.give_back(spent);
        Ok(leaf)
    }

    /// Takes back a leaf that was seen empty, after its usage was read for the last time.
    pub fn give_back_empty(&mut self, mut leaf: Leaf) {
        match leaf.used.get().filter(|_| leaf.watch.is_some() && !leaf.is_used_up()) {
            Some(used) if self.open.len() < self.max_open => {
                (leaf.used_before, leaf.used_elsewhere) = (used, Duration::ZERO);
                leaf.counted_elsewhere = LimitCounts::default();
                leaf.is_kept_open = true;
                self.open.push(leaf);
            }
            _ => self.give_back(leaf),
        }
    }

    /// Closes the leaves that no job uses. They are kept by their names.
    pub fn rest(&mut self) {
        for leaf in std::mem::take(&mut self.open) {
            self.give_back(leaf);
        }
    }

    /// Takes a leaf back. [`Self::take`] checks whether it is empty and unchanged.
    pub fn give_back(&mut self, mut leaf: Leaf) {
        let is_used_up = leaf.is_used_up();
        match leaf.watch.take().filter(|_| !is_used_up && self.free.len() < MAX_FREE) {
            Some(watch) => self.free.push(FreeLeaf { name: leaf.name, watch }),
            None if leaf.is_populated() => {}
            None => remove_tree(&leaf.path),
        }
    }
}
