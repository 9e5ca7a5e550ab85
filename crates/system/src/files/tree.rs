//! Removes a folder with everything a job may have put into it.
//!
//! Links are removed, never followed; another file system mounted inside is left alone. Depth costs neither stack nor
//! descriptors: a directory that is not empty is moved up to the top and emptied there.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FileType;

use super::Entry;
use crate::files;

/// Maximum number of entries of a directory that are read at a time: a directory may have millions.
const AT_A_TIME: usize = 4096;

/// Maximum number of entries of a small tree.
const FEW_ENTRIES: usize = 64;

/// Maximum size in bytes of a file in a small tree. Removing large files takes long.
const SMALL_FILE: u64 = 1 << 20;

/// Removes `name` in `at` and everything below. What cannot be removed stays; the first error is returned.
pub fn remove_tree(at: impl AsFd, name: &CStr) -> io::Result<()> {
    remove_tree_while(at, name, &|| true).map(|_| ())
}

/// Like [`remove_tree`], while `goes_on` is true. `None` if there is more to remove.
pub fn remove_tree_while(at: impl AsFd, name: &CStr, goes_on: &dyn Fn() -> bool) -> io::Result<Option<()>> {
    remove_tree_if(at, name, &|_, _| goes_on())
}

/// Like [`remove_tree`], for a tree of a few small files. `None` if there is more to remove.
pub fn remove_small_tree(at: impl AsFd, name: &CStr) -> io::Result<Option<()>> {
    let left = Cell::new(FEW_ENTRIES);
    remove_tree_if(at, name, &|dir, entry| {
        let Some(rest) = left.get().checked_sub(1) else { return false };
        left.set(rest);
        let is_small = |stat: files::Stat| u64::try_from(stat.st_size).is_ok_and(|len| len <= SMALL_FILE);
        files::stat_at(dir, entry.name.as_c_str()).is_ok_and(is_small)
    })
}

/// Like [`remove_tree`], while `may_go` is true of the next entry and its directory. `None` if there is more to remove.
fn remove_tree_if(
    at: impl AsFd,
    name: &CStr,
    may_go: &dyn Fn(BorrowedFd<'_>, &Entry) -> bool,
) -> io::Result<Option<()>> {
    let top = match open(at.as_fd(), name) {
        Ok(top) => top,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(())),
        // Not a directory, or a link: remove it itself.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => {
            return files::unlink(at, name).map(Some);
        }
        Err(error) => return Err(error),
    };
    let device = files::stat_of(&top)?.st_dev;
    if !(Removal { device, top: top.as_fd(), moved: 0, may_go }.run()?) {
        return Ok(None);
    }
    drop(top);
    files::remove_dir(at, name).map(Some)
}

/// Performs `operation` in the directory `dir`, which its owner may have no access to.
fn with_access<T>(dir: BorrowedFd<'_>, operation: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match operation() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            files::allow_owner_of(dir)?;
            operation()
        }
        result => result,
    }
}

fn open(at: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    match files::open_dir(at, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            files::allow_owner(at, name)?;
            files::open_dir(at, name)
        }
        result => result,
    }
}

struct Removal<'a> {
    device: u64,
    top: BorrowedFd<'a>,
    /// Number of directories moved up so far; it names them.
    moved: u64,
    may_go: &'a dyn Fn(BorrowedFd<'_>, &Entry) -> bool,
}

impl Removal<'_> {
    /// Empties the top in passes; a pass that removes nothing has failed. False if `may_go` ended it.
    fn run(&mut self) -> io::Result<bool> {
        let mut most = AT_A_TIME;
        loop {
            let list = with_access(self.top, || files::some_entries(self.top, most))?;
            if list.is_empty() {
                return Ok(true);
            }
            let mut removed = false;
            let mut first_error = None;
            for entry in &list {
                match self.remove_entry(entry) {
                    Ok(true) => removed = true,
                    Ok(false) => return Ok(false),
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
            match first_error {
                Some(_) if !removed && list.len() == most => most = usize::MAX,
                Some(error) if !removed => return Err(error),
                _ => {}
            }
        }
    }

    /// False if `may_go` ended the removal.
    fn remove_entry(&mut self, entry: &Entry) -> io::Result<bool> {
        if !(self.may_go)(self.top, entry) {
            return Ok(false);
        }
        let name = entry.name.as_c_str();
        if remove_unless_full(self.top, entry)? {
            return Ok(true);
        }
        let dir = open(self.top, name)?;
        if files::stat_of(&dir)?.st_dev != self.device {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another file system is mounted inside"));
        }
        if !self.empty(dir.as_fd())? {
            return Ok(false);
        }
        drop(dir);
        with_access(self.top, || files::remove_dir(self.top, name)).map(|()| true)
    }

    /// Empties a directory below the top: a child directory that is not empty is moved up. What cannot go stays, and the
    /// other children go. False if `may_go` ended the removal.
    fn empty(&mut self, dir: BorrowedFd<'_>) -> io::Result<bool> {
        loop {
            let children = with_access(dir, || files::some_entries(dir, AT_A_TIME))?;
            let (mut is_smaller, mut first_error) = (false, None);
            for child in &children {
                if !(self.may_go)(dir, child) {
                    return Ok(false);
                }
                let gone = remove_unless_full(dir, child)
                    .and_then(|is_gone| if is_gone { Ok(()) } else { self.move_up(dir, &child.name) });
                match gone {
                    Ok(()) => is_smaller = true,
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
            match first_error {
                _ if children.is_empty() => return Ok(true),
                Some(error) if !is_smaller => return Err(error),
                _ => {}
            }
        }
    }

    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            let new = CString::new(format!(".{}", self.moved)).unwrap_or_default();
            match files::rename(dir, name, self.top, new.as_c_str()) {
                // The job has made this name.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR)
                    ) => {}
                // A directory moves only if its owner may write to it: its `..` changes.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    files::allow_owner(dir, name)?;
                    return with_access(self.top, || files::rename(dir, name, self.top, new.as_c_str()));
                }
                result => return result,
            }
        }
    }
}

/// Removes an entry of `dir`. False if it is a directory that is not empty.
fn remove_unless_full(dir: BorrowedFd<'_>, entry: &Entry) -> io::Result<bool> {
    let name = entry.name.as_c_str();
    if matches!(entry.kind, FileType::Directory | FileType::Unknown) {
        match with_access(dir, || files::remove_dir(dir, name)) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => return Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {}
            result => return result.map(|()| true),
        }
    }
    with_access(dir, || files::unlink(dir, name)).map(|()| true)
}
