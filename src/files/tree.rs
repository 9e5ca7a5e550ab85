//! Removal of a folder with all a job may have put into it.
//!
//! Links are removed, never followed; another file system mounted inside is left alone. Depth costs neither stack nor
//! descriptors: a directory that is not empty is moved up to the top and emptied there.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FileType;

use super::Entry;
use crate::files;

/// Removes `name` in `at` and everything below. What cannot be removed stays, with the first error.
pub fn remove_tree(at: impl AsFd, name: &CStr) -> io::Result<()> {
    let top = match open(at.as_fd(), name) {
        Ok(top) => top,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // Not a directory, or a link: it is removed itself.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => {
            return files::unlink(at, name);
        }
        Err(error) => return Err(error),
    };
    Removal { device: files::stat_of(&top)?.st_dev, top: top.as_fd(), moved: 0 }.run()?;
    drop(top);
    files::remove_dir(at, name)
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
    /// Directories moved up so far; names them.
    moved: u64,
}

impl Removal<'_> {
    /// Passes over the top until one finds nothing; a pass that removes nothing has failed.
    fn run(&mut self) -> io::Result<()> {
        loop {
            let list = files::entries(self.top)?;
            if list.is_empty() {
                return Ok(());
            }
            let mut removed = false;
            let mut first_error = None;
            for entry in &list {
                match self.remove_entry(entry) {
                    Ok(()) => removed = true,
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
            if let (false, Some(error)) = (removed, first_error) {
                return Err(error);
            }
        }
    }

    fn remove_entry(&mut self, entry: &Entry) -> io::Result<()> {
        if !matches!(entry.kind, FileType::Directory | FileType::Unknown) {
            return files::unlink(self.top, entry.name.as_c_str());
        }
        match files::remove_dir(self.top, entry.name.as_c_str()) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {
                return files::unlink(self.top, entry.name.as_c_str());
            }
            result => return result,
        }
        let dir = open(self.top, &entry.name)?;
        if files::stat_of(&dir)?.st_dev != self.device {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another file system is mounted inside"));
        }
        for child in files::entries(&dir)? {
            self.empty(dir.as_fd(), &child)?;
        }
        drop(dir);
        files::remove_dir(self.top, entry.name.as_c_str())
    }

    /// Removes a child of a directory, or moves it to the top.
    fn empty(&mut self, dir: BorrowedFd<'_>, child: &Entry) -> io::Result<()> {
        let name = child.name.as_c_str();
        if matches!(child.kind, FileType::Directory | FileType::Unknown) {
            match files::remove_dir(dir, name) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    return self.move_up(dir, name);
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {}
                result => return result,
            }
        }
        match files::unlink(dir, name) {
            // The directory itself may be read-only for its owner.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                files::allow_owner(dir, c".")?;
                files::unlink(dir, name)
            }
            result => result,
        }
    }

    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            let new = CString::new(format!(".{}", self.moved)).unwrap_or_default();
            match files::rename(dir, name, self.top, new.as_c_str()) {
                // A name of the job's own; or a directory that must be ours to write before it may move.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR)
                    ) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    files::allow_owner(dir, c".")?;
                    files::allow_owner(dir, name)?;
                    return files::rename(dir, name, self.top, new.as_c_str());
                }
                result => return result,
            }
        }
    }
}
