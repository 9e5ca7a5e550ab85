//! Folders that are used again. To make and delete the five inodes of a short job is most of what its files cost, and
//! on ext4, which does not reuse inodes that were deleted lately, more than everything else of the job. So the folder
//! of a removed job, if it is plain, is emptied, kept under a number in `spare/`, and given to a later job.
//!
//! A folder in `spare/` is as good as a new one: its files are empty, and two of them have other names, because
//! `job.json` and `log` say by their names that a Run was accepted and that a keeper has taken the job.
//!
//! Nothing is trusted over a restart: [`SpareFolders::clear`] gives up what an earlier daemon left.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::folder::Removed;
use super::state_dir::{Shared, ensure_dir};
use super::{JobFolder, StoreError};
use crate::files;

/// Name of the directory.
const SPARE: &str = "spare";

/// Files of a plain folder. `true`: a spare one has another name.
const FILES: [(&CStr, bool); 4] =
    [(c"job.json", true), (c"log", true), (c"journal", false), (c"steps", false)];

/// Most bytes of a file that is emptied: a longer one takes more time than a new one.
const MOST_BYTES: i64 = 256 << 10;

/// Most spare folders. A disk sees them as so many directories with four empty files.
const MOST_FOLDERS: usize = 256;

/// The spare folders of a state folder.
#[derive(Debug, Default)]
pub(super) struct SpareFolders {
    /// The directory; `None` if it could not be made. Made when it is needed first.
    dir: OnceLock<Option<OwnedFd>>,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// Number of the next folder.
    next: u64,
    /// Numbers of the folders, the latest last: its inodes are in the caches.
    kept: Vec<u64>,
}

/// A job's folder that holds nothing but its record, journal, log and results, all of them short: it may become a spare
/// one, or be deleted at once.
#[derive(Debug)]
pub(crate) struct PlainFolder(OwnedFd);

impl JobFolder {
    /// Opens the folder if it is plain.
    pub(crate) fn open_plain(&self) -> Option<PlainFolder> {
        let dir = files::open_dir(&self.shared.jobs, &*self.name).ok()?;
        let entries = files::some_entries(&dir, FILES.len() + 1).ok()?;
        let is_short = |name: &CStr| files::stat_at(&dir, name).is_ok_and(|stat| stat.st_size <= MOST_BYTES);
        let is_plain = |name: &CStr| FILES.iter().any(|(file, _)| *file == name) && is_short(name);
        entries.iter().all(|entry| is_plain(entry.name.as_c_str())).then_some(PlainFolder(dir))
    }
}

impl Removed {
    /// Makes the folder, which is `plain`, a spare one. False if it may not become one, for example because a follower
    /// still reads the log, or if there are enough; then it must be deleted.
    pub(crate) fn keep_as_spare(&self, plain: &PlainFolder) -> bool {
        matches!(self.shared.keep_spare(&self.name, plain), Ok(true))
    }
}

impl Shared {
    fn keep_spare(&self, gone: &CStr, plain: &PlainFolder) -> io::Result<bool> {
        if self.spare.list.lock().kept.len() >= MOST_FOLDERS {
            return Ok(false);
        }
        let Some(spare) = self.spare.dir.get_or_init(|| ensure_dir(&self.root, SPARE).ok()) else {
            return Ok(false);
        };
        if !plain.empty()? {
            return Ok(false);
        }
        let mut list = self.spare.list.lock();
        list.next += 1;
        let number = list.next;
        files::rename(&self.jobs, gone, spare, number.to_string().as_str())?;
        list.kept.push(number);
        Ok(true)
    }

    /// Gives a spare folder the name `name` in `jobs/`. False if there is none, or if that name is taken by anything but
    /// an empty folder.
    pub(super) fn use_spare(&self, name: &str) -> bool {
        let Some(Some(spare)) = self.spare.dir.get() else { return false };
        let mut list = self.spare.list.lock();
        let Some(number) = list.kept.pop() else { return false };
        let renamed = files::rename(spare, number.to_string().as_str(), &self.jobs, name);
        if matches!(&renamed, Err(error) if is_taken(error)) {
            list.kept.push(number);
        }
        renamed.is_ok()
    }
}

impl SpareFolders {
    /// Gives up the spare folders of an earlier daemon: moves them to `jobs/`, as a removed folder.
    pub(super) fn clear(shared: &Arc<Shared>) -> Result<(), StoreError> {
        let name = CString::new(SPARE).unwrap_or_default();
        // The scan finds it there and has it deleted.
        shared.set_gone(&shared.root, &name, SPARE).map(drop).map_err(StoreError::new("remove", SPARE))
    }
}

impl PlainFolder {
    /// Empties the files. False, with nothing changed, if one of them is open elsewhere or no ordinary file.
    fn empty(&self) -> io::Result<bool> {
        let mut opened = Vec::with_capacity(FILES.len());
        for (name, has_spare_name) in FILES {
            match files::open_sole(&self.0, name) {
                Ok(Some(file)) => opened.push((file, name, has_spare_name)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(None) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        for (file, name, has_spare_name) in opened {
            if has_spare_name {
                let spare = files::spare_name(&name.to_string_lossy());
                files::rename(&self.0, name, &self.0, spare.as_str())?;
            }
            files::empty(file)?;
        }
        Ok(true)
    }
}

/// True if the new name of a renamed directory is taken.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EEXIST | libc::ENOTEMPTY | libc::ENOTDIR))
}
