//! Errors of builtins.

use std::io;
use std::path::{Path, PathBuf};

/// An error for people, on one line. Says what to do unless that is obvious.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuiltinError {
    /// No builtin program has this name.
    #[error("no builtin program is called {0:?}")]
    Unknown(String),
    /// An input has the right type but an invalid value.
    #[error("input \"{name}\": {message}")]
    Input {
        /// The input's name.
        name: &'static str,
        /// The reason, and the remedy.
        message: String,
    },
    /// A file or folder cannot be used.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// The action that failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A registry failed or cannot be reached.
    #[error(transparent)]
    Registry(#[from] crate::oci::OciError),
    /// An archive or image is invalid.
    #[error("{what}: {message}")]
    Image {
        /// The archive or image.
        what: String,
        /// The reason.
        message: String,
    },
}

impl BuiltinError {
    pub(super) fn input(name: &'static str, message: impl Into<String>) -> Self {
        Self::Input { name, message: message.into() }
    }

    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { what, path: path.to_owned(), source }
    }

    pub(super) fn image(what: &dyn ToString, message: impl Into<String>) -> Self {
        Self::Image { what: what.to_string(), message: message.into() }
    }
}
