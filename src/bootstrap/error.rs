//! Why a copy was not made.

use std::io;
use std::path::{Path, PathBuf};

/// See the module's text. Whatever was there before is there still.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The program would have to replace a folder.
    #[error("{} is a folder, and the program shall be there: remove it, or name another place", path.display())]
    FolderInTheWay {
        /// The folder.
        path: PathBuf,
    },
    /// A folder would have to replace something else.
    #[error("{} is no folder, and one shall be there: remove it, or name another place", path.display())]
    NoFolder {
        /// What is there.
        path: PathBuf,
    },
    /// Nothing tells where the running program is.
    #[error(
        "cannot tell which program is running, as there is no /proc: mount it, or copy the program by other means"
    )]
    NoProc,
    /// A call of the system failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

pub(super) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BootstrapError {
    let path = path.to_owned();
    move |source| BootstrapError::Io { action, path, source }
}
