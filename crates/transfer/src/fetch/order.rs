//! Messages between the daemon and a worker, the process that fetches for it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use step_runner_core::job::event::FetchFailure;
use step_runner_web::Network;

/// Largest tree in bytes (faults.md row 69).
pub(crate) const MAX_TREE_BYTES: u64 = 1 << 30;

/// Maximum number of files, folders and links of a tree (faults.md row 69).
pub(crate) const MAX_TREE_ENTRIES: u64 = 100_000;

/// Location of a function. May hold credentials, so there is no `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A Git repository.
    Git {
        /// `http://` or `https://`, perhaps with user and password.
        url: String,
        /// Tag, branch, commit hash or its beginning (language.md §7.3).
        revision: String,
    },
    /// An image in a registry.
    Oci {
        /// `host[:port]`.
        registry: String,
        /// The image's name there.
        repository: String,
        /// A tag, or `sha256:` and 64 hexadecimal digits.
        version: String,
    },
}

/// A task for a worker: the first line of its input. Holds credentials, so there is no `Debug`.
#[derive(Serialize, Deserialize)]
pub struct Order {
    /// The function.
    pub source: Source,
    /// Settings for reaching servers.
    pub network: Network,
    /// Credentials as the step's environment has them: `DOCKER_AUTH_CONFIG`, and the content of `~/.netrc`.
    pub credentials: BTreeMap<String, String>,
    /// Existing empty folder for the worker's own files (a Git object store); the daemon removes it.
    pub scratch: PathBuf,
}

/// A message of a worker, one line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerMessage {
    /// The requested version, found on the remote: a full commit hash, or the digest of the manifest for this platform.
    /// The worker then waits for an [`Answer`].
    Resolved(String),
    /// Progress of the transfer, at most a few times a second.
    Progress(Progress),
    /// A read failed and is tried again: what went wrong, and when the next try begins.
    Retry(String),
    /// The tree is complete. Last message.
    Done(Stats),
    /// The tree cannot be fetched. Last message.
    Failed(FetchFailure),
}

/// The daemon's answer to [`WorkerMessage::Resolved`], one line of JSON. End of input instead means that the tree is not
/// needed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Existing empty folder to fill.
    pub into: PathBuf,
}

/// Progress of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes received.
    pub bytes: u64,
    /// Bytes expected, if known.
    pub total: Option<u64>,
}

/// Size of a fetched tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Regular files.
    pub files: u64,
    /// Files, folders and links.
    pub entries: u64,
    /// Bytes of the files.
    pub bytes: u64,
}
