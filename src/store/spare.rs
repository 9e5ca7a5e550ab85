//! Spare folders: emptied folders of removed jobs, which later jobs use again (docs/spec/service.md §6.6).
//!
//! A short job makes and deletes five inodes. ext4 without a journal does not use inodes again that were deleted lately, and
//! the search for others can take longer than the rest of the job. A spare folder needs no search. Where there is no such
//! search, new files cost less than used ones (docs/internals/performance.md), so there are no spare folders.
//!
//! A removed job's folder moves to the spare ones at once, and is emptied or deleted there. In an emptied one, two files
//! have other names, because recovery relies on these names: `job.json` shows that a Run was accepted, `log` that a keeper
//! has taken the job. Spare folders of an earlier daemon are never used: [`SpareFolders::clear`] has them deleted.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::folder::{Removed, RemovedPlace};
use super::state_dir::{Shared, ensure_dir};
use super::{JobFolder, StoreError};
use crate::{failpoint, files};

/// Name of the directory.
const DIRECTORY: &str = "spare";

/// Files of a plain folder, in the order in which they are emptied. `true`: a spare one has another name. From the names a
/// keeper whose daemon died sees whether the last one is empty.
const FILES: [(&CStr, bool); 4] =
    [(c"journal", false), (c"steps", false), (c"job.json", true), (c"log", true)];

/// The default working directory of a job.
const WORK: &CStr = c"work";

/// Largest file that is emptied, in bytes. Emptying a larger one takes longer than making a new one.
const MOST_BYTES: i64 = 256 << 10;

/// Largest number of spare folders. Each costs the disk a directory and four empty files.
const MOST_FOLDERS: usize = 1_024;

/// The spare folders of a state folder. No descriptor is kept for them, only one for their directory: else a link in its
/// place would lead elsewhere.
#[derive(Debug, Default)]
pub(super) struct SpareFolders {
    /// The directory, once the first folder has moved there.
    dir: OnceLock<OwnedFd>,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// Number of the latest folder.
    latest: u64,
    /// Numbers of the folders. The last one is used first, because its inodes are in the caches.
    kept: Vec<u64>,
    /// Largest number of folders. `None` until the first was removed.
    most: Option<usize>,
    /// True once the daemon ends: no folder is added.
    is_closed: bool,
}

impl JobFolder {
    /// Removes the working directory if that is empty. True if the folder then has short files and nothing else: record,
    /// journal, log and results. Such a folder can become a spare one, or be deleted without waiting.
    pub(crate) fn make_plain(&self) -> bool {
        self.try_make_plain().unwrap_or(false)
    }

    fn try_make_plain(&self) -> io::Result<bool> {
        let dir = files::open_dir(&self.shared.jobs, &*self.name)?;
        // A later job would inherit what a step has changed.
        if !files::is_as_made(&files::stat_of(&dir)?, files::DIR_MODE) {
            return Ok(false);
        }
        match files::remove_dir(&dir, WORK) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Ok(false),
            _ => {}
        }
        let entries = files::first_entries(&dir, FILES.len() + 1)?;
        let is_short = |name: &CStr| {
            files::stat_at(&dir, name).is_ok_and(|stat| {
                files::is_regular(&stat) && stat.st_nlink == 1 && stat.st_size <= MOST_BYTES
            })
        };
        let is_plain = |name: &CStr| FILES.iter().any(|(file, _)| *file == name) && is_short(name);
        Ok(entries.iter().all(|entry| is_plain(entry.name.as_c_str())))
    }

    /// Like [`Self::begin_removal`], for a plain folder. It moves to the spare ones. One rename is all that this takes, so
    /// no journal line announces it.
    pub(crate) fn begin_reuse(&self) -> Result<Option<Removed>, StoreError> {
        match self.shared.move_to_spare(&self.name) {
            Ok(Some(number)) => {
                Ok(Some(Removed { shared: Arc::clone(&self.shared), place: RemovedPlace::Spare(number) }))
            }
            // It can still be removed.
            Ok(None) | Err(_) => self.begin_removal(),
        }
    }
}

impl Removed {
    /// Makes a spare folder of one that [`JobFolder::begin_reuse`] has moved. False if the caller must delete it: for example,
    /// there are enough, or a follower still reads the log.
    pub(crate) fn keep_as_spare(&self) -> bool {
        let RemovedPlace::Spare(number) = self.place else { return false };
        matches!(self.shared.add_spare_folder(number), Ok(true))
    }
}

impl Shared {
    /// Moves a job's folder to the spare ones. Returns its number there; `None` once the daemon ends.
    fn move_to_spare(&self, job: &str) -> io::Result<Option<u64>> {
        let mut list = self.spare.list.lock();
        if list.is_closed {
            return Ok(None);
        }
        let dir = if let Some(dir) = self.spare.dir.get() {
            dir
        } else {
            let dir = ensure_dir(&self.root, DIRECTORY).map_err(|error| error.source)?;
            self.spare.dir.get_or_init(|| dir)
        };
        let number = list.latest + 1;
        files::rename(&self.jobs, job, dir, name(number).as_c_str())?;
        list.latest = number;
        Ok(Some(number))
    }

    /// Empties the folder and adds it to the list.
    fn add_spare_folder(&self, number: u64) -> io::Result<bool> {
        let mut list = self.spare.list.lock();
        let most = *list.most.get_or_insert_with(|| if is_worthwhile(&self.root) { MOST_FOLDERS } else { 0 });
        // Many folders can be on their way at a time.
        if list.is_closed
            || list.kept.len() >= most
            || !empty(&files::open_dir(self.spare_dir()?, name(number).as_c_str())?)?
        {
            return Ok(false);
        }
        list.kept.push(number);
        Ok(true)
    }

    /// Returns the directory of the spare folders. Fails if it was not made yet.
    pub(super) fn spare_dir(&self) -> io::Result<BorrowedFd<'_>> {
        self.spare.dir.get().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Deletes all spare folders, to make room. False if there are none.
    pub(super) fn delete_spare_folders(&self) -> bool {
        let kept = std::mem::take(&mut self.spare.list.lock().kept);
        for number in &kept {
            // What stays is deleted by the next start.
            drop(self.spare_dir().and_then(|dir| files::remove_tree(dir, &name(*number))));
        }
        !kept.is_empty()
    }

    /// Deletes all spare folders and their directory, with folders in it whose deletion failed before. None are added from
    /// now on.
    pub(super) fn close_spare_folders(&self) {
        let mut list = self.spare.list.lock();
        list.is_closed = true;
        list.kept.clear();
        let name = CString::new(DIRECTORY).unwrap_or_default();
        // What stays is deleted by the next start.
        drop(files::remove_tree(&self.root, &name));
    }

    /// Moves a spare folder to `jobs/`, under the name `name`. It may replace an empty folder there. False if there is no
    /// spare folder, or if the name is taken.
    pub(super) fn take_spare_folder(&self, name: &str) -> bool {
        let mut list = self.spare.list.lock();
        let Some(number) = list.kept.pop() else { return false };
        let renamed = self
            .spare_dir()
            .and_then(|dir| files::rename(dir, self::name(number).as_c_str(), &self.jobs, name));
        if matches!(&renamed, Err(error) if is_taken(error)) {
            list.kept.push(number);
        }
        renamed.is_ok()
    }
}

/// Returns the name of a spare folder in its directory.
pub(super) fn name(number: u64) -> CString {
    CString::new(number.to_string()).unwrap_or_default()
}

impl SpareFolders {
    /// Wants spare folders on every file system.
    #[cfg(test)]
    pub(super) fn want(&self) {
        self.list.lock().most = Some(MOST_FOLDERS);
    }

    /// Moves the spare folders of an earlier daemon to `jobs/` as one removed folder. The scan reports it, to be deleted.
    pub(super) fn clear(shared: &Arc<Shared>) -> Result<(), StoreError> {
        let name = CString::new(DIRECTORY).unwrap_or_default();
        shared
            .set_gone(&shared.root, &name, DIRECTORY)
            .map(drop)
            .map_err(StoreError::new("remove", DIRECTORY))
    }
}

/// Deletes a plain folder. Fails if anything else is in it.
pub(super) fn delete_plain(at: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let dir = files::open_dir(at, name)?;
    for (file, _) in FILES {
        match files::unlink(&dir, file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    drop(dir);
    files::remove_dir(at, name)
}

/// True if used folders cost less than new ones in the state folder `root`.
fn is_worthwhile(root: &OwnedFd) -> bool {
    failpoint::io("store::spare::worth").is_err() || files::avoids_used_inodes(root)
}

/// Empties the files of a folder. False if one of them is open elsewhere or no ordinary file; then nothing is changed.
fn empty(dir: &OwnedFd) -> io::Result<bool> {
    let mut opened = Vec::with_capacity(FILES.len());
    for (name, has_spare_name) in FILES {
        match files::open_sole(dir, name) {
            Ok(Some(file)) => opened.push((file, name, has_spare_name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(None) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    for (file, name, has_spare_name) in opened {
        files::empty(file)?;
        if has_spare_name {
            let spare = files::spare_name(&name.to_string_lossy());
            files::rename(dir, name, dir, spare.as_str())?;
        }
    }
    Ok(true)
}

/// True if a rename of a directory failed because the new name is taken.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EEXIST | libc::ENOTEMPTY | libc::ENOTDIR))
}
