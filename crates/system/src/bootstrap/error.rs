//! Errors of copying the program.

use std::io;
use std::path::{Path, PathBuf};

/// Reasons why the copy failed. Each file at the destination is the old one or the complete new one.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The program would have to replace a folder.
    #[error("{} is a folder, but the program must be a file at this path: name another place, or remove the folder", path.display())]
    FolderInTheWay {
        /// The folder.
        path: PathBuf,
    },
    /// The path of a needed folder is taken by something else.
    #[error("{} is no folder, but DEST needs a folder there: name another place, or remove that file", path.display())]
    NoFolder {
        /// The path.
        path: PathBuf,
    },
    /// The path of the running program cannot be found.
    #[error(
        "cannot tell which program is running, as there is no /proc: mount it, or copy the program by other means"
    )]
    NoProc,
    /// A system call failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

pub(super) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BootstrapError {
    let path = path.to_owned();
    move |source| BootstrapError::Io { action, path, source }
}
