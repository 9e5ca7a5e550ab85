//! Why a builtin could not do its work.

use std::io;
use std::path::{Path, PathBuf};

/// For people, on one line, with what to do where that is not plain.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// No builtin program has this name.
    #[error("no builtin program is called {0:?}")]
    Unknown(String),
    /// An input is of the right type but makes no sense.
    #[error("input \"{name}\": {message}")]
    Input {
        /// The input.
        name: &'static str,
        /// What is wrong, and what to do.
        message: String,
    },
    /// A file or folder cannot be used.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A registry, or the way there.
    #[error(transparent)]
    Registry(#[from] crate::oci::OciError),
    /// An archive or image is not as it should be.
    #[error("{what}: {message}")]
    Image {
        /// The archive or image.
        what: String,
        /// What is wrong with it.
        message: String,
    },
}

impl BuiltinError {
    /// A senseless input.
    pub(super) fn input(name: &'static str, message: impl Into<String>) -> Self {
        Self::Input { name, message: message.into() }
    }

    /// For `map_err`.
    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { what, path: path.to_owned(), source }
    }

    /// A bad archive or image.
    pub(super) fn image(what: &dyn ToString, message: impl Into<String>) -> Self {
        Self::Image { what: what.to_string(), message: message.into() }
    }
}
