//! Folders that are removed and still have to be deleted. They are on the disk under names of their own, so that neither a
//! restart nor another job with the same id forgets them (service.md §6.6).

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{fmt, io};

use super::state_dir::Shared;
use super::{JobFolder, StoreError, file_vars};
use step_runner_model::JobKey;
use step_runner_system::{failpoint, files};

/// Name prefix of removed folders that are not deleted yet (service.md §6.6).
pub(super) const GONE: &str = ".gone-";

/// Files of a removed job that are needed until its file variables are removed.
const RECORD: [&CStr; 2] = [c"job.json", c"journal"];

/// A removed folder that still has to be deleted. With `durability = power` delete it only once its new name is on the
/// disk: else a power cut could bring half a job back.
#[must_use]
pub struct Removed {
    shared: Arc<Shared>,
    /// Its name among the jobs.
    name: CString,
    /// The removed job, if its record may name file variables that are still there.
    with_files: Option<JobKey>,
}

impl fmt::Debug for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Removed").field(&self.name).finish()
    }
}

impl Removed {
    /// Returns a folder that the scan has found.
    pub(super) fn left(shared: &Arc<Shared>, name: &CStr) -> Self {
        let label = name.to_str().ok().and_then(|name| name.strip_prefix(GONE));
        let key = label.and_then(|label| JobKey::parse(label.split('-').next()?));
        Self { shared: Arc::clone(shared), name: name.to_owned(), with_files: key }
    }

    /// Notes that the file variables of the job are gone, so that its record is not needed any more.
    pub fn without_files(self) -> Self {
        Self { with_files: None, ..self }
    }

    /// Returns its path.
    pub fn path(&self) -> PathBuf {
        self.shared.path.join("jobs").join(&*self.name.to_string_lossy())
    }

    /// Gives a removed job its name back. Its removal was not announced to anybody.
    pub fn undo(&self, folder: &JobFolder) -> Result<(), StoreError> {
        files::rename(&self.shared.jobs, self.name.as_c_str(), &self.shared.jobs, &*folder.name)
            .map_err(folder.error("bring back", ""))
    }

    /// Deletes the folder.
    pub fn delete(&self) -> Result<(), StoreError> {
        self.delete_while(&|| true).map(|_| ())
    }

    /// Deletes a folder of a few small files, which takes no time worth another thread. False if more is left, or an
    /// entry could not be deleted.
    pub fn delete_if_small(&self) -> bool {
        if self.with_files.is_some() {
            return false;
        }
        let delete = || files::remove_small_tree(&self.shared.jobs, &self.name);
        matches!(failpoint::io("store::folder::delete").and_then(|()| delete()), Ok(Some(())))
    }

    /// Deletes parts of the folder as long as `goes_on` returns true. `None` if more is left. Its record stays as long as
    /// file variables of the job do.
    pub fn delete_while(&self, goes_on: &dyn Fn() -> bool) -> Result<Option<()>, StoreError> {
        failpoint::io("store::folder::delete").map_err(self.error())?;
        match self.remove_file_variables() {
            Ok(()) => files::remove_tree_while(&self.shared.jobs, &self.name, goes_on).map_err(self.error()),
            Err(left) => match self.delete_all_but_record(goes_on) {
                Ok(None) => Ok(None),
                _ => Err(left),
            },
        }
    }

    fn error(&self) -> impl FnOnce(io::Error) -> StoreError + use<> {
        StoreError::new("delete", self.path())
    }

    fn remove_file_variables(&self) -> Result<(), StoreError> {
        let Some(key) = self.with_files else { return Ok(()) };
        let folder = JobFolder::named(Arc::clone(&self.shared), key, &self.name.to_string_lossy());
        // Without a record nobody knows of any.
        let Ok(record) = folder.read_record() else { return Ok(()) };
        let (journal, _) = folder.read_good_journal();
        file_vars::remove_named(&record, &journal.files).map_err(file_vars::FilesLeft::into_first)
    }

    fn delete_all_but_record(&self, goes_on: &dyn Fn() -> bool) -> io::Result<Option<()>> {
        let folder = files::open_dir(&self.shared.jobs, self.name.as_c_str())?;
        for entry in files::entries(&folder)? {
            let is_record = RECORD.contains(&entry.name.as_c_str());
            if !is_record && files::remove_tree_while(&folder, &entry.name, goes_on)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }
}

impl JobFolder {
    /// Removes the folder by a rename (service.md §6.6). From then on the job is gone and its id is free. The result must
    /// be deleted; else the next start does it. `None` if there is no folder.
    pub fn begin_removal(&self) -> Result<Option<Removed>, StoreError> {
        // On a full disk the removal itself frees space.
        self.shared.with_reserve(|| self.set_gone())
    }

    /// Renames the folder so that it belongs to no job. `None` if there is no folder.
    pub(super) fn set_gone(&self) -> Result<Option<Removed>, StoreError> {
        self.set_gone_from(&self.shared.jobs)
    }

    fn set_gone_from(&self, directory: impl AsFd) -> Result<Option<Removed>, StoreError> {
        let own = CString::new(&*self.name).map_err(|error| self.error("remove", "")(error.into()))?;
        self.shared.set_gone(directory, &own, &self.name).map_err(self.error("remove", ""))
    }

    /// Moves the directory `name` of the folder out of the way at once, whatever the job has put into it. The result
    /// must be deleted. `None` if there is no such directory.
    pub fn set_dir_gone(&self, name: &CStr) -> Result<Option<Removed>, StoreError> {
        // Most jobs have none, and nothing needs to be opened for that.
        let inside = [self.name.as_bytes(), b"/", name.to_bytes()].concat();
        if files::stat_at(&self.shared.jobs, inside.as_slice())
            .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        {
            return Ok(None);
        }
        // Not the job's own label: a file that a step has put there is no record.
        let label = format!("part-{}", self.name);
        let set_gone = || match self.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            folder => {
                let folder = folder?;
                match self.shared.set_gone(&folder, name, &label) {
                    // A directory moves only if its owner may write to it: its `..` changes.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        files::allow_owner_of(&folder)?;
                        files::open_dir(&folder, name).and_then(files::allow_owner_of)?;
                        self.shared.set_gone(&folder, name, &label)
                    }
                    gone => gone,
                }
            }
        };
        set_gone().map_err(self.error("remove", &name.to_string_lossy()))
    }

    /// Removes the folder that was set aside under this id, or that a full disk kept from being set aside. For
    /// Finish, or a new Run of the id (service.md §3.6). `None` if there is none. It creates nothing, so it needs no
    /// space.
    pub fn remove_set_aside(&self) -> Result<Option<Removed>, StoreError> {
        let removed = match self.shared.open_broken()? {
            Some(broken) => self.set_gone_from(&broken)?,
            None => None,
        };
        removed.map_or_else(|| self.set_gone(), |removed| Ok(Some(removed)))
    }
}

/// Returns the removed folders in the state folder `state` that are not deleted yet.
pub fn undeleted(state: &Path) -> io::Result<Vec<PathBuf>> {
    let jobs = state.join("jobs");
    let entries = files::open_dir(files::CWD, jobs.as_path()).and_then(files::entries)?;
    let is_gone = |name: &CStr| name.to_bytes().starts_with(GONE.as_bytes());
    let names = entries.iter().map(|entry| entry.name.as_c_str()).filter(|name| is_gone(name));
    Ok(names.map(|name| jobs.join(&*name.to_string_lossy())).collect())
}

impl Shared {
    /// Moves `name` from the directory `from` to `jobs`, under a new name that contains `label` and belongs to no job.
    /// `None` if there is no such name.
    pub(super) fn set_gone(
        self: &Arc<Self>,
        from: impl AsFd,
        name: &CStr,
        label: &str,
    ) -> io::Result<Option<Removed>> {
        loop {
            let serial = self.serial.fetch_add(1, Ordering::Relaxed);
            let gone = CString::new(format!("{GONE}{label}-{}-{serial}", std::process::id()))?;
            match files::rename(from.as_fd(), name, &self.jobs, gone.as_c_str()) {
                Ok(()) => return Ok(Some(Removed::left(self, &gone))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                // The name is taken: an earlier daemon with the same pid left it.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST)) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
