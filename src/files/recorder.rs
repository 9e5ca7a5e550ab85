//! What a thread changed through this seam, operation by operation, and what a crash could have left of it.
//!
//! [`Recording::start`] begins with a folder as it is; every change made through [`crate::files`] below it by the same
//! thread is noted with the identity of the file, not its name. [`History`] then gives the folder as a killed process
//! leaves it ([`History::killed`]) or as a power cut may leave it ([`History::power_cut`]). Only in tests and with the
//! feature `failpoints`.

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
pub use image::{Id, Image, ROOT};

/// One change. Files and directories are named by numbers that are never used twice, unlike inodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A file was made.
    Create {
        /// In this directory,
        dir: Id,
        /// by this name.
        name: Vec<u8>,
        /// The file.
        id: Id,
    },
    /// A directory was made.
    Mkdir {
        /// In this directory,
        dir: Id,
        /// by this name.
        name: Vec<u8>,
        /// The directory.
        id: Id,
    },
    /// Bytes were written with one call.
    Write {
        /// To this file,
        id: Id,
        /// from this offset on.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A file got a length: cut, or longer by zeros.
    Cut {
        /// The file.
        id: Id,
        /// Its length.
        len: u64,
    },
    /// A name was given to a file or directory, replacing what had it.
    Rename {
        /// The directory it was in,
        from: Id,
        /// and its name there.
        old: Vec<u8>,
        /// The directory it is in,
        to: Id,
        /// and its name there.
        new: Vec<u8>,
        /// The file or directory.
        id: Id,
    },
    /// A name was removed.
    Remove {
        /// Of this directory.
        dir: Id,
        /// The name.
        name: Vec<u8>,
    },
    /// The content of a file, or the names of a directory, were brought to the disk.
    Sync {
        /// Which.
        id: Id,
    },
    /// Everything was.
    SyncAll,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

struct Recorder {
    /// The folder when the recording began.
    base: Image,
    /// What it should be now.
    now: Image,
    /// Which number a device and inode has now.
    ids: HashMap<(u64, u64), Id>,
    ops: Vec<Op>,
}

/// A recording of this thread. Ends when it is dropped.
pub struct Recording(());

impl Recording {
    /// Begins with what is below `root`. One recording at a time and thread: a second one replaces the first.
    pub fn start(root: &Path) -> io::Result<Self> {
        let mut ids = HashMap::new();
        let base = Image::read(root, |stat, id| {
            ids.insert((stat.st_dev, stat.st_ino), id);
        })?;
        let recorder = Recorder { now: base.clone(), base, ids, ops: Vec::new() };
        RECORDER.set(Some(recorder));
        Ok(Self(()))
    }

    /// How many changes there were so far: what was promised to somebody from here on must survive each later crash.
    pub fn position(&self) -> usize {
        RECORDER.with_borrow(|recorder| recorder.as_ref().map_or(0, |recorder| recorder.ops.len()))
    }

    /// Ends it.
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

    /// The directory that a name below `at` lies in, and its last part.
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

/// Notes what `of` makes of the recorder, if there is one and what was changed is below its root.
fn note(of: impl FnOnce(&mut Recorder) -> Option<Op>) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder
            && let Some(op) = of(recorder)
        {
            recorder.note(op);
        }
    });
}

/// A directory was made.
pub(super) fn made(at: BorrowedFd<'_>, name: impl Arg + Copy) {
    note(|recorder| {
        let (dir, last) = recorder.place(at, &name)?;
        let stat = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let id = recorder.new_id(&stat);
        Some(Op::Mkdir { dir, name: last, id })
    });
}

/// A file was opened that is made if it is missing.
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

/// `bytes` were written; the file's position is behind them.
pub(super) fn written(file: BorrowedFd<'_>, bytes: &[u8]) {
    note(|recorder| {
        let id = recorder.open(file)?;
        let appends = rustix::fs::fcntl_getfl(file).ok()?.contains(OFlags::APPEND);
        let end = rustix::fs::tell(file).ok()?;
        debug_assert!(!appends || end >= bytes.len() as u64);
        Some(Op::Write { id, at: end.checked_sub(bytes.len() as u64)?, bytes: bytes.to_vec() })
    });
}

/// A file got a length.
pub(super) fn cut_to(file: BorrowedFd<'_>, len: u64) {
    note(|recorder| Some(Op::Cut { id: recorder.open(file)?, len }));
}

/// A file is at least so long.
pub(super) fn reserved(file: BorrowedFd<'_>, len: u64) {
    note(|recorder| {
        let id = recorder.open(file)?;
        (recorder.now.len(id)? < len).then_some(Op::Cut { id, len })
    });
}

/// Something got another name.
pub(super) fn renamed(from: BorrowedFd<'_>, old: impl Arg + Copy, to: BorrowedFd<'_>, new: impl Arg + Copy) {
    note(|recorder| {
        let (from, old) = recorder.place(from, &old)?;
        let (to, new) = recorder.place(to, &new)?;
        let id = recorder.now.entry(from, &old)?;
        Some(Op::Rename { from, old, to, new, id })
    });
}

/// A name is gone.
pub(super) fn removed(at: BorrowedFd<'_>, name: impl Arg + Copy) {
    note(|recorder| {
        let (dir, name) = recorder.place(at, &name)?;
        Some(Op::Remove { dir, name })
    });
}

/// A file or directory was synced.
#[cfg(test)]
pub(super) fn synced(fd: BorrowedFd<'_>) {
    note(|recorder| Some(Op::Sync { id: recorder.open(fd)? }));
}

/// Everything was.
pub(super) fn synced_all() {
    note(|_| Some(Op::SyncAll));
}
