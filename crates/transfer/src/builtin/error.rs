//! Errors of builtins.

use std::io;
use std::path::{Path, PathBuf};

use step_runner_core::job::event::FetchFailure;

/// An error for people, on one line. Says what to do unless that is obvious.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
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
    /// A stage of a CI job failed. Its exit code tells whose fault that is (language.md §17).
    #[error("{message}")]
    Stage {
        /// Exit code.
        code: u8,
        /// The reason.
        message: String,
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
    /// Returns the exit code of the process.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Stage { code, .. } => *code,
            _ => 1,
        }
    }

    pub(super) fn input(name: &'static str, message: impl Into<String>) -> Self {
        Self::Input { name, message: message.into() }
    }

    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { what, path: path.to_owned(), source }
    }

    /// Returns the error of an image that cannot be fetched because of `failure`.
    pub(super) fn unfetchable(what: &dyn ToString, failure: &FetchFailure) -> Self {
        Self::image(what, format!("this image could not be fetched: {}", failure.message))
    }

    pub(super) fn image(what: &dyn ToString, message: impl Into<String>) -> Self {
        Self::Image { what: what.to_string(), message: message.into() }
    }
}
