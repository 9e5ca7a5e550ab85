//! Where the artifacts and caches of a machine's jobs are (ci.md §4).

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Folder of the artifacts in a project.
pub const FOLDER: &str = ".step-runner";

/// Characters of the hash in the name of a project's folder of caches.
const HASH_LENGTH: usize = 16;

/// The artifacts of a project's jobs: files in `artifacts/JOB`, variables in `dotenv/JOB`.
#[derive(Debug)]
pub struct ArtifactStore {
    root: PathBuf,
}

impl ArtifactStore {
    /// The store of a project.
    pub fn of_project(project: &Path) -> Self {
        Self::at(project.join(FOLDER))
    }

    pub(super) const fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Its path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Folder of a job's files. It is there if the job has ended well, or has left any.
    pub fn files(&self, job: &str) -> PathBuf {
        self.root.join("artifacts").join(file_name(job))
    }

    /// File of the variables that a job has left for others.
    pub fn dotenv(&self, job: &str) -> PathBuf {
        self.root.join("dotenv").join(file_name(job))
    }

    /// Makes the store, with a file that keeps git from it.
    pub(super) fn make(&self) -> io::Result<()> {
        fs::create_dir_all(self.root.join("dotenv"))?;
        let ignore = self.root.join(".gitignore");
        if ignore.exists() { Ok(()) } else { fs::write(ignore, "*\n") }
    }

    /// Removes what an earlier run of a job has left.
    pub fn clear(&self, job: &str) -> io::Result<()> {
        gone(fs::remove_dir_all(self.files(job)))?;
        gone(fs::remove_file(self.dotenv(job)))
    }
}

/// Makes an error of a file that was not there to a success.
pub(super) fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Returns the folder of a project's caches below the user's cache directory, which `variable` tells; `None` without
/// one.
pub fn caches_of(project: &Path, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    let hash = Sha256::digest(project.as_os_str().as_encoded_bytes());
    let mut name = project.file_name().map(|name| file_name(&name.to_string_lossy())).unwrap_or_default();
    name.push('-');
    name.extend(hex(&hash).chars().take(HASH_LENGTH));
    Some(caches.join("step-runner").join("ci").join(name))
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut digits, byte| {
        // Writing to memory does not fail.
        write!(digits, "{byte:02x}").ok();
        digits
    })
}

/// Returns the name of a job or key as the name of a file: other bytes than `A-Z a-z 0-9 . _ -` as `%XX`.
pub(super) fn file_name(name: &str) -> String {
    let mut encoded = String::new();
    for (index, byte) in name.bytes().enumerate() {
        // A dot at the start could be `.` or `..`.
        let is_plain = byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (byte == b'.' && index > 0);
        if is_plain {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").ok();
        }
    }
    encoded
}
