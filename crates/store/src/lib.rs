//! The state folder (service.md §6.6): locks, job records, journals, logs for reading, file variables, recovery.
//!
//! This module owns every name inside the state folder and the lock beside the socket. It may not know of actors, gRPC
//! or processes: processes left after a crash are returned as data ([`scan::Leftover`]). Calls block, each for a few system
//! calls. No descriptor is kept per job.

mod close;
pub mod file_vars;
mod folder;
mod lock;
mod record;
mod removed;
mod scan;
pub mod socket;
mod state_dir;
mod steps;
mod synced;

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

pub use close::close_interrupted;
pub use close::{Closing, Death, written_log_len};
pub use file_vars::FilesLeft;
pub use folder::{JobFolder, LogFile, LogLost};
pub use lock::{Lock, LockError};
pub use record::{JobRecord, MadeDirectory, RecordedLimits};
pub use removed::Removed;
pub use removed::undeleted;
pub use scan::{Found, Journal, ScannedJob};
pub use state_dir::{FORMAT, OpenError, StateDir};
pub use state_dir::{StatePathInputs, check as check_state_dir, default_path};
pub use steps::Steps;
pub use steps::StepsFile;

use step_runner_model::Reason;
use step_runner_system::files;

/// A failed file operation: the action, the path, and the system's error as source.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct StoreError {
    /// The action: `write`, `create`, …
    pub action: &'static str,
    /// The path; inside the state folder it is relative to the folder.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl StoreError {
    fn new(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self { action, path, source }
    }

    /// Returns the reason for a client; see [`reason_of`] (service.md §3.6).
    pub fn reason(&self) -> Reason {
        reason_of(&self.source)
    }
}

/// Makes a job's working directory and its parents if missing, with mode 0700 (service.md §3.1). An existing directory
/// stays as it is. Anything else at the path is an error.
pub fn make_work_dir(path: &Path) -> Result<(), StoreError> {
    files::make_dirs(path).map_err(|error| match files::broken_link(path) {
        // The system says "File exists" of a link that leads nowhere.
        Some(broken) => StoreError::new("follow the symbolic link", path)(broken),
        None => StoreError::new("make the directory", path)(error),
    })
}

/// Reads a whole file as [`files::read_file`] does, with the retries of [`believed`].
fn read_record(at: impl AsFd, name: &str, max: u64) -> io::Result<Vec<u8>> {
    believed(|| files::read_file(at.as_fd(), name, max))
}

/// Retries a read that fails for a reason outside the file, such as lack of memory: an unreadable file costs a job its
/// record.
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

/// True if the error is about the file itself: another attempt would fail too.
fn is_of_file(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | InvalidData | PermissionDenied)
        || matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO | libc::ENOTDIR))
}

/// Returns the reason for a client of an error in the state folder's file system (service.md §3.6, faults.md row 15).
pub fn reason_of(error: &io::Error) -> Reason {
    match error.raw_os_error() {
        _ if files::is_full(error) => Reason::DiskFull,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => Reason::KeeperUnavailable,
        _ => Reason::NotWritable,
    }
}

#[cfg(test)]
mod tests;
