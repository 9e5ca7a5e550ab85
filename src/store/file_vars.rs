//! File variables on disk (variables.md §3): all of a job's or none, 0600, by temporary name and rename; removed if
//! they are still the ones written.
//!
//! While a job's files are written, each lies in its directory under a temporary name made from the job's key and its
//! position, so recovery finds it without a record; what was renamed is found by the record in the journal, which is
//! written before the rename.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::{JobFolder, JobRecord, MadeDirectory, StoreError, reason_of};
use crate::files::{self, CWD};
use crate::journal::event::Event;
use crate::model::{JobKey, Reason};
use crate::variables::FileVariable;

/// Why file variables cannot be placed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The directory is a link or no directory.
    #[error("{path} is {what}: file variables are not written through it")]
    NotADirectory {
        /// The directory.
        path: String,
        /// `a symbolic link` or `not a directory`.
        what: &'static str,
    },
    /// The directory, or a file in it, cannot be made or written.
    #[error("cannot write file variables to {path}")]
    Io {
        /// The directory.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] StoreError),
}

impl FileError {
    /// `disk_full` or `not_writable` (variables.md §6).
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotADirectory { .. } => Reason::NotWritable,
            Self::Io { source, .. } => reason_of(source),
            Self::Journal(error) => error.reason(),
        }
    }

    fn io(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// At Run: makes the directory if it is missing and tries with an empty file whether it can be written (service.md
/// §3.1). Returns the directory if it was made, for [`JobRecord::made_directory`].
pub fn probe(key: JobKey, directory: &str) -> Result<Option<MadeDirectory>, FileError> {
    let (dir, made) = open_or_make(directory)?;
    let name = temporary(key, 0);
    let probed = create(dir.as_fd(), &name).and_then(|_| files::unlink(&dir, name.as_str()));
    if let Err(error) = probed {
        drop(files::unlink(&dir, name.as_str()));
        if let Some(made) = made {
            drop(remove_directory(&made));
        }
        return Err(FileError::io(directory)(error));
    }
    Ok(made)
}

/// Undoes a probe that a crash cut short: its file, and the directory if it is empty.
pub(super) fn undo_probe(key: JobKey, directory: &str) {
    let path = Path::new(directory);
    if let Ok(dir) = files::open_dir(CWD, path) {
        drop(files::unlink(&dir, temporary(key, 0).as_str()));
        drop(files::remove_dir(CWD, path));
    }
}

/// At the start of the job: writes all files, or none. Their identities are in the journal before they have their
/// names. May be repeated after a crash.
pub fn write_all(folder: &JobFolder, list: &[FileVariable]) -> Result<(), FileError> {
    let Some(first) = list.first() else { return Ok(()) };
    // All lie in one directory (variables.md §3).
    let (dir, _) = open_or_make(&first.directory)?;
    let key = folder.key();
    let written = write_temporaries(key, dir.as_fd(), list)
        .map_err(FileError::io(&first.directory))
        .and_then(|events| Ok(folder.append_all(&events)?))
        .and_then(|()| give_names(key, dir.as_fd(), list).map_err(FileError::io(&first.directory)));
    if written.is_err() {
        remove_temporaries(key, dir.as_fd(), list.len());
    }
    written
}

fn write_temporaries(key: JobKey, dir: BorrowedFd<'_>, list: &[FileVariable]) -> io::Result<Vec<Event>> {
    let mut events = Vec::with_capacity(list.len());
    for (index, variable) in list.iter().enumerate() {
        let file = create(dir, &temporary(key, index))?;
        files::write_all(&file, variable.content.as_bytes())?;
        let stat = files::stat_of(&file)?;
        events.push(Event::File { path: variable.path.clone(), device: stat.st_dev, inode: stat.st_ino });
    }
    Ok(events)
}

/// Renames all; if one fails (a directory has its name), those before it are removed again.
fn give_names(key: JobKey, dir: BorrowedFd<'_>, list: &[FileVariable]) -> io::Result<()> {
    for (index, variable) in list.iter().enumerate() {
        let renamed = files::rename(dir, temporary(key, index).as_str(), dir, variable.name.as_str());
        if let Err(error) = renamed {
            for done in list.iter().take(index) {
                drop(files::unlink(dir, done.name.as_str()));
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Makes a temporary file; one of the same name was left by an earlier attempt for the same job.
fn create(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    match files::create_new(dir, name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            files::unlink(dir, name)?;
            files::create_new(dir, name)
        }
        result => result,
    }
}

fn temporary(key: JobKey, index: usize) -> String {
    format!(".step-runner-{key}-{index}")
}

/// Returns how many could not be removed.
fn remove_temporaries(key: JobKey, dir: BorrowedFd<'_>, count: usize) -> usize {
    let remove = |index| files::unlink(dir, temporary(key, index).as_str()).or_else(if_gone);
    (0..count).filter(|index| remove(*index).is_err()).count()
}

/// What is not there needs no removal.
fn if_gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

impl JobFolder {
    /// At the end of the job: removes its file variables as record and journal tell of them. An error says why some may be
    /// left; then it is to be called again.
    pub fn remove_file_variables(&self) -> Result<(), String> {
        let job = self.read_job()?;
        match remove(self.key(), &job.record, &job.journal.files) {
            0 => Ok(()),
            failed => Err(format!("{failed} of them could not be removed")),
        }
    }
}

/// At the end of the job, or by recovery: removes the files that are still the ones written (`written`: path, device,
/// inode), unfinished ones, and the directory if it was made for the job and is empty. Returns how many of them
/// could not be removed: then it is to be called again.
pub fn remove(key: JobKey, record: &JobRecord, written: &[(String, u64, u64)]) -> usize {
    let mut failed = 0;
    for (path, device, inode) in written {
        failed += usize::from(remove_file(Path::new(path), *device, *inode).is_err());
    }
    if let Some(first) = record.files.first() {
        failed += match open_parent(Path::new(first)) {
            Ok(dir) => remove_temporaries(key, dir.as_fd(), record.files.len()),
            Err(error) => usize::from(if_gone(error).is_err()),
        };
    }
    if let Some(made) = &record.made_directory {
        failed += usize::from(remove_directory(made).is_err());
    }
    failed
}

/// Removes one file if it is the one with this identity.
fn remove_file(path: &Path, device: u64, inode: u64) -> io::Result<()> {
    let dir = match open_parent(path) {
        Ok(dir) => dir,
        Err(error) => return if_gone(error),
    };
    let name = path.file_name().unwrap_or(OsStr::new(""));
    match files::stat_at(&dir, name) {
        Ok(stat) if (stat.st_dev, stat.st_ino) == (device, inode) => {
            files::unlink(&dir, name).or_else(if_gone)
        }
        Ok(_) => Ok(()),
        Err(error) => if_gone(error),
    }
}

fn open_parent(path: &Path) -> io::Result<OwnedFd> {
    files::open_dir(CWD, path.parent().unwrap_or(Path::new("/")))
}

/// Removes a directory made for a job, if it is still that one and empty.
pub fn remove_directory(made: &MadeDirectory) -> io::Result<()> {
    let path = Path::new(&made.path);
    match files::stat_at(CWD, path) {
        Ok(stat) if (stat.st_dev, stat.st_ino) == (made.device, made.inode) => {
            match files::remove_dir(CWD, path) {
                // Somebody else's files are in it, it stays.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
                result => result.or_else(if_gone),
            }
        }
        Ok(_) => Ok(()),
        Err(error) => if_gone(error),
    }
}

fn open_or_make(directory: &str) -> Result<(OwnedFd, Option<MadeDirectory>), FileError> {
    let path = Path::new(directory);
    let mut is_new = files::make_dir(CWD, path);
    if is_new.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let parents = path.parent().unwrap_or(path);
        files::make_dirs(parents).map_err(FileError::io(directory))?;
        is_new = files::make_dir(CWD, path);
    }
    let is_new = match is_new {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(FileError::io(directory)(error)),
    };
    let dir = files::open_dir(CWD, path).inspect_err(|_| {
        if is_new {
            // Empty, and nobody has heard of it.
            drop(files::remove_dir(CWD, path));
        }
    });
    let dir = dir.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR) => {
            let is_link = files::is_link(path);
            let what = if is_link { "a symbolic link" } else { "not a directory" };
            FileError::NotADirectory { path: directory.to_owned(), what }
        }
        _ => FileError::io(directory)(error),
    })?;
    let made = if is_new {
        let stat = files::stat_of(&dir).map_err(FileError::io(directory))?;
        Some(MadeDirectory { path: directory.to_owned(), device: stat.st_dev, inode: stat.st_ino })
    } else {
        None
    };
    Ok((dir, made))
}
