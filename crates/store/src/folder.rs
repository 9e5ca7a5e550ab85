//! The folder of one job: makes it, appends to it, reads from it and removes it.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::state_dir::{Shared, StateDir};
use super::{JobRecord, StoreError};
use step_runner_log::journal;
use step_runner_log::journal::event::{End, Event};
use step_runner_model::{JobKey, ProcessNumber};
use step_runner_system::{failpoint, files};

/// Largest `job.json` that is read. The id is short; number and length of the file variables' paths are bounded.
pub(super) const MAX_JOB_JSON: u64 = 64 << 20;

/// Name of the file that notes which directory outside of the folder is being made for the job.
const MAKING: &str = "making";

/// The folder `jobs/KEY`. Each call resolves names anew; nothing is held open.
#[derive(Clone, Debug)]
pub struct JobFolder {
    pub(super) shared: Arc<Shared>,
    key: JobKey,
    /// `KEY`, formatted once.
    pub(super) name: Arc<str>,
}

/// Files of an attempt in which secrets can be: what it returns, its script, the inputs of a builtin.
const STEP_FILES: [&CStr; 4] = [c"output", c"export", c"script", c"inputs"];

impl StateDir {
    /// Returns the folder of a job, existing or not.
    pub fn folder(&self, key: JobKey) -> JobFolder {
        JobFolder::new(Arc::clone(&self.shared), key)
    }
}

impl JobFolder {
    pub(super) fn new(shared: Arc<Shared>, key: JobKey) -> Self {
        let name = key.to_string();
        Self::named(shared, key, &name)
    }

    /// Returns the folder of a job that has another name.
    pub(super) fn named(shared: Arc<Shared>, key: JobKey, name: &str) -> Self {
        Self { shared, key, name: name.into() }
    }

    /// The job's key.
    pub const fn key(&self) -> JobKey {
        self.key
    }

    /// Returns the path of a name in the folder, based on the state folder's path.
    pub fn path(&self, name: &str) -> PathBuf {
        let parts = [self.shared.path.as_path(), "jobs".as_ref(), (*self.name).as_ref(), name.as_ref()];
        let length = parts.iter().map(|part| part.as_os_str().len() + 1).sum();
        let mut path = PathBuf::with_capacity(length);
        path.extend(parts);
        path
    }

    /// `KEY/NAME`, relative to `jobs`.
    pub(super) fn inside(&self, name: &str) -> String {
        [&self.name, "/", name].concat()
    }

    /// Returns what makes an error about the name `name` of the folder.
    pub(super) fn error<'a>(
        &'a self,
        action: &'static str,
        name: &'a str,
    ) -> impl FnOnce(io::Error) -> StoreError + use<'a> {
        move |source| StoreError::new(action, format!("jobs/{}/{name}", self.name))(source)
    }

    /// Makes the folder. Fails with `AlreadyExists` if the name is taken. Without a record the folder
    /// belongs to no job.
    pub fn make(&self) -> Result<(), StoreError> {
        let make = || files::make_dir(&self.shared.jobs, &*self.name);
        failpoint::io("store::folder::make").and_then(|()| make()).map_err(self.error("make", ""))
    }

    /// Notes that `directory`, outside of the folder, is about to be made for this job. If the daemon dies before the
    /// record says so, the next daemon removes the directory.
    pub fn note_making(&self, directory: &str) -> Result<(), StoreError> {
        files::replace(&self.shared.jobs, &self.inside(MAKING), directory.as_bytes())
            .map_err(self.error("write", MAKING))
    }

    /// Removes a folder with such a note but no record, and the directory if empty. `false` if there is no note.
    pub(super) fn undo_making(&self) -> bool {
        let note = files::read_file(&self.shared.jobs, self.inside(MAKING).as_str(), MAX_JOB_JSON);
        let Ok(directory) = note.and_then(|note| String::from_utf8(note).map_err(io::Error::other)) else {
            return false;
        };
        // A directory that is not empty stays: it holds files of others.
        super::file_vars::undo_probe(self.key, &directory);
        self.discard();
        true
    }

    /// Replaces `job.json`, by temporary name and rename.
    pub fn write_record(&self, record: &JobRecord) -> Result<(), StoreError> {
        let json = journal::encode(record)
            .map_err(|error| self.error("write", "job.json")(io::Error::other(error)))?;
        let write = || files::replace(&self.shared.jobs, &self.inside("job.json"), &json);
        failpoint::io("store::record::write").and_then(|()| write()).map_err(self.error("write", "job.json"))
    }

    /// Returns the inode of the job's log; `None` if no keeper has opened it.
    pub fn log_inode(&self) -> Option<u64> {
        files::stat_at(&self.shared.jobs, self.inside("log").as_str()).ok().map(|stat| stat.st_ino)
    }

    /// Deletes a folder whose Run was not answered. No client knows of it, so no journal line announces the removal.
    pub fn discard(&self) {
        if let Ok(name) = CString::new(&*self.name) {
            drop(files::remove_tree(&self.shared.jobs, &name));
        }
    }

    /// Appends one event to the journal. An end can use the reserve on a full disk (faults.md row 26).
    pub fn append(&self, event: &Event) -> Result<(), StoreError> {
        self.append_all(std::slice::from_ref(event))
    }

    /// Appends events with one write.
    pub(crate) fn append_all(&self, events: &[Event]) -> Result<(), StoreError> {
        let mut lines = Vec::new();
        for event in events {
            let line = journal::encode(event)
                .map_err(|error| self.error("write", "journal")(io::Error::other(error)))?;
            lines.extend_from_slice(&line);
        }
        let is_last = events.iter().any(|event| matches!(event, Event::Ended(_)));
        self.append_bytes("journal", &lines, is_last)
    }

    pub(super) fn append_bytes(&self, name: &str, bytes: &[u8], use_reserve: bool) -> Result<(), StoreError> {
        let file = self.inside(name);
        let append = || {
            failpoint::io(if name == "steps" { "store::steps::append" } else { "store::journal::append" })?;
            let fd = files::open_append(&self.shared.jobs, file.as_str())?;
            files::append(fd, bytes)
        };
        let appended = if use_reserve { self.shared.with_reserve(append) } else { append() };
        appended.map_err(self.error("write", name))
    }

    /// Cuts a torn tail off `journal` or `steps`, so that later records can follow.
    pub(super) fn cut(&self, name: &str, len: u64) -> Result<(), StoreError> {
        files::open_append(&self.shared.jobs, self.inside(name).as_str())
            .and_then(|fd| files::cut(fd, len))
            .map_err(self.error("cut", name))
    }

    /// Cuts the torn last line off a journal that others append to, if it is still the last.
    pub fn mend_journal(&self) -> Result<(), StoreError> {
        match self.read_journal().ok().and_then(|journal| journal.torn) {
            Some(len) => self.cut("journal", len),
            None => Ok(()),
        }
    }

    /// Opens the log for reading. `inode` is the recorded one: a file with another inode is not the job's log.
    pub fn open_log(&self, inode: Option<u64>) -> Result<LogFile, LogLost> {
        let (file, stat) =
            files::open_read(&self.shared.jobs, self.inside("log").as_str()).map_err(|error| {
                if error.kind() == io::ErrorKind::NotFound { LogLost::Removed } else { error.into() }
            })?;
        if inode.is_some_and(|inode| inode != stat.st_ino) {
            return Err(LogLost::Replaced);
        }
        Ok(LogFile { file, inode: stat.st_ino })
    }

    /// Makes one of the folder's own directories (`tmp`, `work`, `vars`) if missing. Returns its path.
    pub fn make_dir(&self, name: &str) -> Result<PathBuf, StoreError> {
        match files::make_dir(&self.shared.jobs, self.inside(name).as_str()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.error("make", name)(error))
            }
            _ => Ok(self.path(name)),
        }
    }

    /// Removes the files of an attempt, `tmp/PROCESS`. If a step has put many or large files beside them, some of these stay
    /// until the job's end. A step may have replaced any of the folders by a link: none is followed.
    pub fn remove_step_files(&self, process: ProcessNumber) -> Result<(), StoreError> {
        let remove = || {
            let tmp = files::open_dir(self.open()?, "tmp")?;
            let name = CString::new(process.to_string())?;
            let own = files::open_dir(&tmp, name.as_c_str())?;
            // Remove these first: they can hold secrets, and there may be too much else to remove now.
            for file in STEP_FILES {
                files::unlink(&own, file).ok();
            }
            files::remove_small_tree(&tmp, &name).map(drop)
        };
        match remove() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.error("remove", &format!("tmp/{process}"))(error))
            }
            _ => Ok(()),
        }
    }

    /// Opens the folder itself, not one that a link in its place leads to.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        files::open_dir(&self.shared.jobs, &*self.name)
    }

    /// Records the end of the job, whose log is complete. With `durability = power` also notes the synced length.
    pub fn record_end(&self, end: &End) -> Result<(), StoreError> {
        if self.synced().is_some() {
            self.shared.with_reserve(|| self.note_synced(end.log_len))?;
        }
        self.append(&Event::Ended(end.clone()))
    }

    /// Moves the folder unread to `broken/`, under the same name (service.md §6.4 item 5). Replaces an earlier one.
    pub fn set_aside(&self) -> Result<(), StoreError> {
        let broken = super::state_dir::ensure_dir(&self.shared.root, "broken")?;
        let name = CString::new(&*self.name).map_err(|error| self.error("set aside", "")(error.into()))?;
        files::remove_tree(&broken, &name).map_err(self.error("set aside", ""))?;
        files::rename(&self.shared.jobs, name.as_c_str(), &broken, name.as_c_str())
            .map_err(self.error("set aside", ""))
    }
}

/// Reason why a job's log cannot be served: `data_loss` (service.md §3.6, faults.md row 29).
#[derive(Debug, thiserror::Error)]
pub enum LogLost {
    /// There is no file.
    #[error("the job's log was removed")]
    Removed,
    /// The file is not the one that was recorded.
    #[error("the job's log was replaced by another file")]
    Replaced,
    /// The file is shorter than was reported.
    #[error("the job's log was cut: it has {actual} bytes, {expected} were written")]
    Cut {
        /// Actual length in bytes.
        actual: u64,
        /// Reported length in bytes.
        expected: u64,
    },
    /// It cannot be read.
    #[error("the job's log cannot be read")]
    Io(#[from] io::Error),
}

/// A job's log, open for reading. It outlives the removal of the job.
#[derive(Debug)]
pub struct LogFile {
    file: OwnedFd,
    inode: u64,
}

impl LogFile {
    /// Returns the inode, for the record.
    pub const fn inode(&self) -> u64 {
        self.inode
    }

    /// Checks that the file has at least the reported length.
    pub fn check_reaches(&self, known: u64) -> Result<(), LogLost> {
        let actual = self.length()?;
        if actual < known { Err(LogLost::Cut { actual, expected: known }) } else { Ok(()) }
    }

    /// Returns the current length.
    pub fn length(&self) -> io::Result<u64> {
        Ok(u64::try_from(files::stat_of(&self.file)?.st_size).unwrap_or_default())
    }

    /// Reads at most `max` bytes at `offset`, up to the reported length `known`. Fails if the file ends before.
    pub fn read_piece(&self, offset: u64, known: u64, max: usize) -> Result<Vec<u8>, LogLost> {
        // A file that was cut and has grown again holds other bytes at this offset.
        self.check_reaches(known)?;
        let want = usize::try_from(known.saturating_sub(offset)).unwrap_or(usize::MAX).min(max);
        let piece = files::read_piece(&self.file, offset, want)?;
        if piece.len() < want {
            return Err(LogLost::Cut { actual: offset + piece.len() as u64, expected: known });
        }
        Ok(piece)
    }
}
