//! Keeps disk space free: the cache shares its file system with journals and logs, and must not fill it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::retry_on_intr;

use super::cache::Cache;

/// Checks the free disk space before and during transfers. Evicts unused trees to make room.
pub(super) struct DiskSpace {
    cache: Arc<Cache>,
    /// The state folder.
    state: PathBuf,
    /// Bytes to leave free (`state_limit`, service.md §3.7).
    kept_free: u64,
}

/// Reasons why nothing more can be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskSpaceError {
    /// Too little space is free, even after the eviction of unused trees.
    #[error(
        "too little disk space: {free} bytes are free for state, {kept_free} must stay free (state_limit), and the transfer \
         needs {more} more: make room on that disk"
    )]
    Full {
        /// Free bytes.
        free: u64,
        /// Bytes to keep free.
        kept_free: u64,
        /// Bytes still expected.
        more: u64,
    },
    /// The free space is unknown.
    #[error("cannot tell how much is free for state: {0}")]
    Unknown(io::Error),
}

impl DiskSpace {
    pub(super) const fn new(cache: Arc<Cache>, state: PathBuf, kept_free: u64) -> Self {
        Self { cache, state, kept_free }
    }

    /// Makes sure that `more` bytes fit, as far as their number is known. Evicts unused trees if needed.
    pub(super) async fn make(&self, more: u64) -> Result<(), DiskSpaceError> {
        let needed = self.kept_free.saturating_add(more);
        let free = self.free()?;
        if free >= needed {
            return Ok(());
        }
        self.cache.evict_more(needed - free);
        self.cache.removed().await;
        match self.free()? {
            free if free >= needed => Ok(()),
            free => Err(DiskSpaceError::Full { free, kept_free: self.kept_free, more }),
        }
    }

    fn free(&self) -> Result<u64, DiskSpaceError> {
        let found = retry_on_intr(|| rustix::fs::statvfs(&self.state));
        let found = found.map_err(|error| DiskSpaceError::Unknown(error.into()))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}
