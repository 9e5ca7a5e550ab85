//! Lock of an attempt: a file beside its folder, which only one call at a time holds (custom-executor.md §4).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use step_runner_model::error::{Exit, Failure};
use step_runner_system::files::{self, CWD};

use super::{AttemptFolder, make_root, unusable};

/// Time between two attempts to take a lock that somebody holds.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Longest wait for the lock of an attempt.
const LOCK_TIME: Duration = Duration::from_secs(30);

/// Lock of an attempt: only one call at a time makes or removes the folder and its daemon. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    /// Holds the kernel's lock until it is closed.
    file: File,
    path: PathBuf,
}

impl AttemptFolder {
    /// Makes the root, and takes the attempt's lock there. Waits up to [`LOCK_TIME`] for a call that holds it.
    pub(crate) fn lock(&self) -> Result<Lock, Failure> {
        let start = std::time::Instant::now();
        loop {
            if let Some(lock) = self.try_lock()? {
                return Ok(lock);
            }
            if start.elapsed() >= LOCK_TIME {
                let what = format!(
                    "another custom-executor process has not released {} within {LOCK_TIME:?}",
                    self.path.display()
                );
                let remedy = "wait until it has ended, then retry the job";
                return Err(Failure::new(Exit::TryLater, what).with_remedy(remedy));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// Makes the root, and takes the attempt's lock there; `None` if a call holds it.
    pub(crate) fn try_lock(&self) -> Result<Option<Lock>, Failure> {
        make_root(&self.root)?;
        let path = self.root.join(self.lock_name());
        loop {
            let lock = files::open_write(CWD, &path).map(File::from);
            let file = lock.map_err(|error| unusable(&path, "open the lock", &error))?;
            match files::try_lock(&file) {
                // A lock whose file was removed meanwhile locks nothing.
                Ok(true) if is_at(&file, &path) => return Ok(Some(Lock { file, path })),
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => return Err(unusable(&path, "take the lock", &error)),
            }
        }
    }
}

impl Lock {
    /// True if the lock's file is still the one that calls open.
    pub(crate) fn is_in_place(&self) -> bool {
        is_at(&self.file, &self.path)
    }

    /// Removes the lock's file and releases the lock, because the attempt is over. A waiting call notices the removal.
    pub(crate) fn remove(self) -> io::Result<()> {
        if self.is_in_place() { files::unlink(CWD, &self.path) } else { Ok(()) }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
