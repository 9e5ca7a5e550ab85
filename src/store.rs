//! The state folder (service.md §6.6): locks, job records, journals, logs for reading, file variables, recovery.
//!
//! Owns every name inside the state folder and the lock beside the socket. May not know of actors, gRPC or processes:
//! what is left running after a crash is returned as data ([`Leftover`]). Calls block; each is a handful of system
//! calls. No descriptor is kept per job.

mod close;
pub mod file_vars;
mod folder;
mod lock;
mod record;
mod scan;
pub mod socket;
mod state_dir;
mod steps;
mod synced;

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use close::{Closing, Death, close_interrupted};
pub use folder::{JobFolder, LogFile, LogLost, Removed};
pub use lock::{Lock, LockError};
pub use record::{JobRecord, MadeDirectory, Origin, RecordedLimits};
pub use scan::{Found, Journal, Leftover, ScannedJob};
pub use state_dir::{FORMAT, OpenError, Place, StateDir, default_path};
pub use steps::{StepLost, Steps, StepsFile};

use crate::files;
use crate::model::Reason;

/// A file operation failed: what was tried, where, and the system's reason as source.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct StoreError {
    /// What was tried: `write`, `create`, …
    pub action: &'static str,
    /// On what; inside the state folder relative to it.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

impl StoreError {
    fn new(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self { action, path, source }
    }

    /// The reason for a client: no space, or an environment that does not allow it (service.md §3.6).
    pub fn reason(&self) -> Reason {
        reason_of(&self.source)
    }
}

/// Makes a job's working directory if it is missing, 0700 with its parents (service.md §3.1). One that exists is kept
/// as it is; what is there and is no directory is an error.
pub fn make_work_dir(path: &Path) -> Result<(), StoreError> {
    files::make_dirs(path).map_err(StoreError::new("make the directory", path))
}

/// Removes a folder of ours that lies beside jobs (the cache of fetched trees) and all that is in it, however deep.
pub fn remove_all(path: &Path) -> Result<(), StoreError> {
    let removed = match (path.parent(), path.file_name().map(|name| CString::new(name.as_bytes()))) {
        (Some(parent), Some(Ok(name))) => {
            files::open_dir(files::CWD, parent).and_then(|parent| files::remove_tree(parent, &name))
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    removed.map_err(StoreError::new("remove", path))
}

/// Reads a whole file as [`files::read_file`] does, see [`believed`].
fn read_record(at: impl AsFd, name: &str, max: u64) -> io::Result<Vec<u8>> {
    believed(|| files::read_file(at.as_fd(), name, max))
}

/// A failure to read that says nothing about the file, such as no memory, is not believed at once: what cannot be read
/// costs a job its record.
fn believed<T>(read: impl Fn() -> io::Result<T>) -> io::Result<T> {
    const TRIES: usize = 3;
    let mut result = read();
    for _ in 1..TRIES {
        match &result {
            Err(error) if !is_of_file(error) => result = read(),
            _ => break,
        }
    }
    result
}

/// The failure to read tells of what is there: another attempt fails too.
fn is_of_file(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | InvalidData | PermissionDenied)
        || matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO | libc::ENOTDIR))
}

/// The reason for a client of an error of the state folder's file system (service.md §3.6, faults.md row 15).
pub fn reason_of(error: &io::Error) -> Reason {
    match error.raw_os_error() {
        _ if files::is_full(error) => Reason::DiskFull,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => Reason::KeeperUnavailable,
        _ => Reason::NotWritable,
    }
}

#[cfg(test)]
mod tests;
