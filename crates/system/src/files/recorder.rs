//! Records the changes of a thread through [`crate::files`], and computes what a crash could leave of them.
//!
//! [`Recording::start`] begins with a folder as it is. Every change below it by the same thread is noted with the
//! identity of the file, not its name. [`History`] then gives the folder as a killed process leaves it
//! ([`History::killed`]) or as a power cut may leave it ([`History::power_cut`]). Only in tests and with the feature
//! `failpoints`.

mod crash;
mod image;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, Stat};
use rustix::path::Arg;

pub use crash::{Choices, History, Piece};
pub use image::{Id, Image};

/// One change. Numbers identify files and directories; unlike inodes, they are never used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A file was made.
    Create {
        /// Its directory.
        dir: Id,
        /// Its name.
        name: Vec<u8>,
        /// The file.
        id: Id,
    },
    /// A directory was made.
    Mkdir {
        /// Its parent.
        dir: Id,
        /// Its name.
        name: Vec<u8>,
        /// The directory.
        id: Id,
    },
    /// Bytes were written with one call.
    Write {
        /// The file.
        id: Id,
        /// Offset of the first byte.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A file's length was set: cut, or extended by zeros.
    Cut {
        /// The file.
        id: Id,
        /// Its length.
        len: u64,
    },
    /// A file or directory got a name, replacing what had it.
    Rename {
        /// The old directory.
        from: Id,
        /// The old name.
        old: Vec<u8>,
        /// The new directory.
        to: Id,
        /// The new name.
        new: Vec<u8>,
        /// The file or directory.
        id: Id,
    },
    /// A name was removed.
    Remove {
        /// The directory.
        dir: Id,
        /// The name.
        name: Vec<u8>,
    },
    /// The content of a file, or the names of a directory, were synced.
    Sync {
        /// The file or directory.
        id: Id,
    },
    /// Everything was synced.
    SyncAll,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

struct Recorder {
    /// The folder when the recording began.
    base: Image,
    /// The folder as it should be now.
    now: Image,
    /// Present numbers, by device and inode.
    ids: HashMap<(u64, u64), Id>,
    ops: Vec<Op>,
}

/// A recording of this thread. Ends when it is dropped.
pub struct Recording(());

impl Recording {
    /// Begins with the content of `root`. A thread has one recording: a second one replaces the first.
    pub fn start(root: &Path) -> io::Result<Self> {
        let mut ids = HashMap::new();
        let base = Image::read(root, |stat, id| {
            ids.insert((stat.st_dev, stat.st_ino), id);
        })?;
        let recorder = Recorder { now: base.clone(), base, ids, ops: Vec::new() };
        RECORDER.set(Some(recorder));
        Ok(Self(()))
    }

    /// Returns the number of changes so far. What was promised by then must survive each later crash.
    pub fn position(&self) -> usize {
        RECORDER.with_borrow(|recorder| recorder.as_ref().map_or(0, |recorder| recorder.ops.len()))
    }

    /// Ends the recording.
    pub fn finish(self) -> History {
        let Recorder { base, ops, .. } = RECORDER.take().unwrap_or_else(|| Recorder {
            base: Image::default(),
            now: Image::default(),
            ids: HashMap::new(),
            ops: Vec::new(),
        });
        History { base, ops }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDER.take();
    }
}

impl Recorder {
    fn note(&mut self, op: Op) {
        self.now.apply(&op);
        self.ops.push(op);
    }

    fn known(&self, stat: &Stat) -> Option<Id> {
        self.ids.get(&(stat.st_dev, stat.st_ino)).copied()
    }

    fn open(&self, fd: BorrowedFd<'_>) -> Option<Id> {
        self.known(&rustix::fs::fstat(fd).ok()?)
    }

    /// Returns the directory of a name below `at`, and the name's last part.
    fn place(&self, at: BorrowedFd<'_>, name: &impl Arg) -> Option<(Id, Vec<u8>)> {
        let name = name.to_string_lossy().into_owned();
        let (parent, last) = name.rsplit_once('/').unwrap_or((".", &name));
        let parent = if parent.is_empty() { "/" } else { parent };
        let stat = rustix::fs::statat(at, parent, AtFlags::empty()).ok()?;
        Some((self.known(&stat)?, last.as_bytes().to_vec()))
    }

    fn new_id(&mut self, stat: &Stat) -> Id {
        let id = self.now.next_id();
        self.ids.insert((stat.st_dev, stat.st_ino), id);
        id
    }
}

/// Notes the operation that `of` returns, if there is a recorder. `None`: the change was not below its root.
fn note(of: impl FnOnce(&mut Recorder) -> Option<Op>) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder
            && let Some(op) = of(recorder)
        {
            recorder.note(op);
        }
    });
}

pub(super) fn made(at: BorrowedFd<'_>, name: impl Arg + Copy) {
    note(|recorder| {
        let (dir, last) = recorder.place(at, &name)?;
        let stat = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let id = recorder.new_id(&stat);
        Some(Op::Mkdir { dir, name: last, id })
    });
}

/// Notes a file that was opened, if that made it.
pub(super) fn opened(at: BorrowedFd<'_>, name: impl Arg + Copy, file: impl std::os::fd::AsFd) {
    note(|recorder| {
        let (dir, last) = recorder.place(at, &name)?;
        let stat = rustix::fs::fstat(file).ok()?;
        let was = recorder.now.entry(dir, &last);
        if was.is_some() && was == recorder.known(&stat) {
            return None;
        }
        let id = recorder.new_id(&stat);
        Some(Op::Create { dir, name: last, id })
    });
}

/// Notes that `bytes` were written; the file's position is behind them.
pub(super) fn written(file: BorrowedFd<'_>, bytes: &[u8]) {
    note(|recorder| {
        let id = recorder.open(file)?;
        let appends = rustix::fs::fcntl_getfl(file).ok()?.contains(OFlags::APPEND);
        let end = rustix::fs::tell(file).ok()?;
        debug_assert!(!appends || end >= bytes.len() as u64);
        Some(Op::Write { id, at: end.checked_sub(bytes.len() as u64)?, bytes: bytes.to_vec() })
    });
}

pub(super) fn cut_to(file: BorrowedFd<'_>, len: u64) {
    note(|recorder| Some(Op::Cut { id: recorder.open(file)?, len }));
}

/// Notes that a file is at least so long.
pub(super) fn reserved(file: BorrowedFd<'_>, len: u64) {
    note(|recorder| {
        let id = recorder.open(file)?;
        (recorder.now.len(id)? < len).then_some(Op::Cut { id, len })
    });
}

pub(super) fn renamed(from: BorrowedFd<'_>, old: impl Arg + Copy, to: BorrowedFd<'_>, new: impl Arg + Copy) {
    note(|recorder| {
        let (from, old) = recorder.place(from, &old)?;
        let (to, new) = recorder.place(to, &new)?;
        let id = recorder.now.entry(from, &old)?;
        Some(Op::Rename { from, old, to, new, id })
    });
}

pub(super) fn removed(at: BorrowedFd<'_>, name: impl Arg + Copy) {
    note(|recorder| {
        let (dir, name) = recorder.place(at, &name)?;
        Some(Op::Remove { dir, name })
    });
}

pub(super) fn synced(fd: BorrowedFd<'_>) {
    note(|recorder| Some(Op::Sync { id: recorder.open(fd)? }));
}

pub(super) fn synced_all() {
    note(|_| Some(Op::SyncAll));
}
