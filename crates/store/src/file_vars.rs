//! File variables on disk (variables.md §3). All files of a job are written or none, with mode 0600, by temporary name
//! and rename. They are removed only if they are still the files that were written.
//!
//! A temporary name is made from the job's key and the file's position, so recovery finds it without a record. The
//! journal names a file before its rename, so recovery finds the renamed file too.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::{JobFolder, JobRecord, MadeDirectory, StoreError, reason_of};
use step_runner_core::variables::FileVariable;
use step_runner_log::journal::event::Event;
use step_runner_model::{JobKey, Reason};
use step_runner_system::files::{self, CWD};

/// Number of attempts to make a file in a directory that other jobs remove when they leave it empty.
const TRIES: u32 = 8;

/// Extension of a directory that jobs with one `build_dir` share (variables.md §3).
const SHARED_EXTENSION: &str = "tmp";

/// Reason why file variables cannot be placed.
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
    /// Other users could replace our files by their own.
    #[error(
        "{path} was there before, in a folder that every user may write to, and is not a private folder of this user: \
         file variables are not written to it; remove it"
    )]
    NotOurs {
        /// The directory.
        path: String,
    },
    /// The directory, or a file in it, cannot be made or written.
    #[error("cannot write file variables to {path}")]
    Io {
        /// The directory.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] StoreError),
}

impl FileError {
    /// Returns the reason for a client (variables.md §6); see [`reason_of`].
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotADirectory { .. } | Self::NotOurs { .. } => Reason::NotWritable,
            Self::Io { source, .. } => reason_of(source),
            Self::Journal(error) => error.reason(),
        }
    }

    fn io(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// Makes the directory at Run, if missing, and tests with an empty file that it can be written (service.md §3.1).
/// Returns the directory if it was made, for [`JobRecord::made_directory`].
pub fn probe(key: JobKey, directory: &str) -> Result<Option<MadeDirectory>, FileError> {
    let name = temporary(key, 0);
    let (mut all_made, mut tries) = (None, 0);
    loop {
        let (dir, made, _) = open_with_file(directory, &name)?;
        all_made = made.or(all_made);
        tries += 1;
        match files::unlink(&dir, name.as_str()) {
            Ok(()) => return Ok(all_made),
            // The start of this daemon undoes the probe of a killed one, which has the same names. Perhaps the directory is
            // gone too.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
            Err(error) => {
                // What fails once may not fail twice, and a refused Run should leave nothing.
                drop(files::unlink(&dir, name.as_str()));
                if let Some(made) = all_made {
                    drop(remove_directory(&made));
                }
                return Err(FileError::io(directory)(error));
            }
        }
    }
}

/// Opens the directory, or makes it, and makes a temporary file in it. Another job, or the end of one that a killed daemon
/// began, can remove the directory meanwhile, because it is empty, which is then tried again.
fn open_with_file(
    directory: &str,
    name: &str,
) -> Result<(OwnedFd, Option<MadeDirectory>, OwnedFd), FileError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let (dir, made) = match open_or_make(directory) {
            Err(FileError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound && tries < TRIES =>
            {
                continue;
            }
            opened => opened?,
        };
        match create(dir.as_fd(), name) {
            Ok(file) => return Ok((dir, made, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
            Err(error) => {
                drop(files::unlink(&dir, name));
                if let Some(made) = made {
                    drop(remove_directory(&made));
                }
                return Err(FileError::io(directory)(error));
            }
        }
    }
}

/// Undoes an interrupted probe: removes its file, and the directory if it is empty.
pub(super) fn undo_probe(key: JobKey, directory: &str) {
    let path = Path::new(directory);
    if let Ok(dir) = files::open_dir(CWD, path) {
        drop(files::unlink(&dir, temporary(key, 0).as_str()));
        drop(files::remove_dir(CWD, path));
    }
}

/// Writes all files or none, at the start of the job. The journal gets their identities before the files get their
/// names, and is read again: a file that no event names could not be told from anybody's, and its secret would stay. The
/// call can be repeated after a crash.
pub fn write_all(folder: &JobFolder, list: &[FileVariable]) -> Result<(), FileError> {
    let Some(first) = list.first() else { return Ok(()) };
    // All files are in one directory (variables.md §3). The first file keeps it from being removed meanwhile.
    let key = folder.key();
    let (dir, _, file) = open_with_file(&first.directory, &temporary(key, 0))?;
    let written = write_temporaries(key, dir.as_fd(), file, list)
        .map_err(FileError::io(&first.directory))
        .and_then(|events| Ok(folder.append_all(&events).and_then(|()| folder.check_named(&events))?))
        .and_then(|()| give_names(key, dir.as_fd(), list).map_err(FileError::io(&first.directory)));
    if written.is_err() {
        drop(remove_temporaries(key, dir.as_fd(), list.len()));
    }
    written
}

/// Writes all temporary files, of which `first` is the first and empty.
fn write_temporaries(
    key: JobKey,
    dir: BorrowedFd<'_>,
    first: OwnedFd,
    list: &[FileVariable],
) -> io::Result<Vec<Event>> {
    let mut events = Vec::with_capacity(list.len());
    let mut first = Some(first);
    for (index, variable) in list.iter().enumerate() {
        let file = first.take().map_or_else(|| create(dir, &temporary(key, index)), Ok)?;
        files::write_all(&file, variable.content.as_bytes())?;
        let stat = files::stat_of(&file)?;
        events.push(Event::File { path: variable.path.clone(), device: stat.st_dev, inode: stat.st_ino });
    }
    Ok(events)
}

/// Renames all files. If one rename fails (a directory has the name), the earlier files are removed again.
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

/// Makes a temporary file. An existing one is from an earlier attempt for the same job.
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

/// Removes temporary files. Returns the first error.
fn remove_temporaries(key: JobKey, dir: BorrowedFd<'_>, count: usize) -> io::Result<()> {
    let remove = |index| files::unlink(dir, temporary(key, index).as_str()).or_else(if_gone);
    (0..count).map(remove).fold(Ok(()), io::Result::and)
}

/// Treats a missing file as removed, and so one whose directory a step has replaced by a link or a file.
fn if_gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound || files::is_foreign(&error) { Ok(()) } else { Err(error) }
}

/// File variables of a job that could not be removed. The caller must try again.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.text())]
pub struct FilesLeft {
    /// True if a secret may still be in one of them: it could be neither removed nor overwritten.
    pub has_content: bool,
    /// Number of names that are left.
    count: usize,
    /// The first of them.
    #[source]
    first: StoreError,
}

impl FilesLeft {
    fn text(&self) -> String {
        let state = if self.has_content { "may still hold secrets" } else { "are emptied, but still there" };
        format!("file variables {state} ({} names)", self.count)
    }

    /// Returns the path of the first one.
    pub fn path(&self) -> &Path {
        &self.first.path
    }

    /// Returns the error of the first one.
    pub(crate) fn into_first(self) -> StoreError {
        self.first
    }
}

/// Counts what could not be removed.
#[derive(Default)]
struct Tally {
    has_content: bool,
    count: usize,
    first: Option<StoreError>,
}

impl Tally {
    fn add(&mut self, path: &Path, error: io::Error, has_content: bool) {
        self.count += 1;
        self.has_content |= has_content;
        let error = StoreError { action: "remove", path: path.to_owned(), source: error };
        self.first.get_or_insert(error);
    }

    fn result(self) -> Result<(), FilesLeft> {
        let Self { has_content, count, first } = self;
        first.map_or(Ok(()), |first| Err(FilesLeft { has_content, count, first }))
    }
}

impl JobFolder {
    /// Asserts that these events can be read in the journal: a device may have lost them, or what stands before them.
    fn check_named(&self, events: &[Event]) -> Result<(), StoreError> {
        let (journal, damage) = self.read_good_journal();
        let is_lost = |event: &Event| {
            matches!(event, Event::File { path, device, inode }
                if !journal.files.iter().any(|(named, at, of)| (named, at, of) == (path, device, inode)))
        };
        if !events.iter().any(is_lost) {
            return Ok(());
        }
        let reason = damage.unwrap_or_else(|| "the device has lost what was written last".to_owned());
        Err(self.error("read", "journal")(io::Error::other(reason)))
    }

    /// Removes the job's file variables at its end, as record and journal name them. A device that has lost a part of the
    /// journal keeps no file whose name is in the rest.
    pub fn remove_file_variables(&self) -> Result<(), FilesLeft> {
        let mut left = Tally::default();
        match self.read_record() {
            Ok(record) => {
                let (journal, damage) = self.read_good_journal();
                remove_all(self.key(), &record, &journal.files, &mut left);
                if let Some(reason) = damage {
                    note_unnamed(&record, &journal.files, &reason, &mut left);
                }
            }
            Err(reason) => {
                let StoreError { path, source, .. } =
                    self.error("read", "job.json")(io::Error::other(reason));
                left.add(&path, source, true);
            }
        }
        left.result()
    }
}

/// Removes a job's files at its end or in recovery: those in `written` (path, device, inode) that are still the same,
/// unfinished ones, and the directory if it is empty.
pub fn remove(key: JobKey, record: &JobRecord, written: &[(String, u64, u64)]) -> Result<(), FilesLeft> {
    let mut left = Tally::default();
    remove_all(key, record, written, &mut left);
    left.result()
}

fn remove_all(key: JobKey, record: &JobRecord, written: &[(String, u64, u64)], left: &mut Tally) {
    if let Some(first) = record.files.first().map(Path::new) {
        let removed = match open_parent(first) {
            Ok(dir) => remove_temporaries(key, dir.as_fd(), record.files.len()),
            Err(error) => if_gone(error),
        };
        if let Err(error) = removed {
            left.add(first.parent().unwrap_or(first), error, true);
        }
    }
    remove_written(record, written, left);
}

/// Counts files that are there and that no event in `written` names: they may be the job's.
fn note_unnamed(record: &JobRecord, written: &[(String, u64, u64)], reason: &str, left: &mut Tally) {
    let is_named = |path: &&String| written.iter().any(|(named, ..)| named == *path);
    let unnamed = record.files.iter().filter(|path| !is_named(path)).map(Path::new);
    for path in unnamed.filter(|path| files::stat_at(CWD, *path).is_ok()) {
        left.add(path, io::Error::other(reason.to_owned()), true);
    }
}

/// Like [`remove`], for a job whose folder has left its place. Unfinished files stay, because another job with the same
/// id gives its own the same names.
pub(super) fn remove_named(record: &JobRecord, written: &[(String, u64, u64)]) -> Result<(), FilesLeft> {
    let mut left = Tally::default();
    remove_written(record, written, &mut left);
    left.result()
}

fn remove_written(record: &JobRecord, written: &[(String, u64, u64)], left: &mut Tally) {
    for (path, device, inode) in written {
        let path = Path::new(path);
        if let Err((error, has_content)) =
            remove_file(path, (*device, *inode), record.made_directory.as_ref())
        {
            left.add(path, error, has_content);
        }
    }
    if let Some(made) = &record.made_directory
        && let Err(error) = remove_directory(made)
    {
        left.add(Path::new(&made.path), error, false);
    }
    // Whichever job of the directory is the last removes it, also if an earlier one has made it. Nothing of a job is in
    // an empty directory, so one that cannot be removed is no failure.
    let shared = record.files.first().and_then(|first| Path::new(first).parent());
    if let Some(shared) = shared.filter(|path| path.extension().is_some_and(|end| end == SHARED_EXTENSION)) {
        drop(files::remove_dir(CWD, shared));
    }
}

/// Removes a file. Overwrites it if its name cannot be removed. An error comes with `true` if the content may be there.
fn remove_file(
    path: &Path,
    identity: (u64, u64),
    made: Option<&MadeDirectory>,
) -> Result<(), (io::Error, bool)> {
    let unseen = |error| if_gone(error).map_err(|error| (error, true));
    let dir = match open_parent(path) {
        Ok(dir) => dir,
        Err(error) => return unseen(error),
    };
    let name = path.file_name().unwrap_or(OsStr::new(""));
    match files::stat_at(&dir, name) {
        Ok(stat) if (stat.st_dev, stat.st_ino) == identity => {}
        Ok(_) => return Ok(()),
        Err(error) => return unseen(error),
    }
    let unlinked = match files::unlink(&dir, name) {
        // A step has taken the directory's write bit.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_made(&dir, made) => {
            files::allow_owner_of(&dir).and_then(|()| files::unlink(&dir, name))
        }
        unlinked => unlinked,
    };
    unlinked.or_else(if_gone).map_err(|error| (error, files::wipe(&dir, name, identity).is_err()))
}

/// True if `dir` is the directory that was made for the job.
fn is_made(dir: &OwnedFd, made: Option<&MadeDirectory>) -> bool {
    let is_same = |made: &MadeDirectory| {
        files::stat_of(dir).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (made.device, made.inode))
    };
    made.is_some_and(is_same)
}

fn open_parent(path: &Path) -> io::Result<OwnedFd> {
    files::open_dir(CWD, path.parent().unwrap_or(Path::new("/")))
}

/// Removes a directory made for a job, if it is still the same one and empty.
pub fn remove_directory(made: &MadeDirectory) -> io::Result<()> {
    let path = Path::new(&made.path);
    match files::stat_at(CWD, path) {
        Ok(stat) if (stat.st_dev, stat.st_ino) == (made.device, made.inode) => {
            match files::remove_dir(CWD, path) {
                // It holds files of others, so it stays.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
                result => result.or_else(if_gone),
            }
        }
        Ok(_) => Ok(()),
        Err(error) => if_gone(error),
    }
}

/// True if the existing `dir` at `path` lies where every user can make directories, as in `/tmp`, and is not private to
/// this user.
fn is_open_to_others(path: &Path, dir: &OwnedFd) -> io::Result<bool> {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let parent = files::stat_of(open_parent(path)?)?;
    let own = files::stat_of(dir)?;
    let is_private =
        own.st_uid == rustix::process::geteuid().as_raw() && own.st_mode & WRITABLE_BY_OTHERS == 0;
    Ok(parent.st_mode & 0o002 != 0 && !is_private)
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
            // It is empty and unknown to others.
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
    } else if is_open_to_others(path, &dir).map_err(FileError::io(directory))? {
        return Err(FileError::NotOurs { path: directory.to_owned() });
    } else {
        None
    };
    Ok((dir, made))
}
