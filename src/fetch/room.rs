//! Room on the disk: the cache lies on the file system of journals and logs, and must not be what fills it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::retry_on_intr;

use super::cache::Cache;

/// See the module's text.
pub(super) struct Room {
    cache: Arc<Cache>,
    /// The state folder.
    state: PathBuf,
    /// Bytes to be left free (`state_limit`, service.md §3.7).
    kept_free: u64,
}

/// Why nothing more can be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoRoom {
    /// Not even without the trees that nobody uses.
    #[error(
        "{free} bytes are free for state, {kept_free} are to be kept free (state_limit), and {more} more are to come: \
         make room on that disk"
    )]
    Full {
        /// Bytes.
        free: u64,
        /// Bytes.
        kept_free: u64,
        /// Bytes.
        more: u64,
    },
    /// It cannot be told.
    #[error("cannot tell how much is free for state: {0}")]
    Unknown(io::Error),
}

impl Room {
    /// For the cache in the state folder `state`.
    pub(super) const fn new(cache: Arc<Cache>, state: PathBuf, kept_free: u64) -> Self {
        Self { cache, state, kept_free }
    }

    /// Makes sure that there is room for `more` bytes, as far as is known of them. Trees that nobody uses go first.
    pub(super) async fn make(&self, more: u64) -> Result<(), NoRoom> {
        let needed = self.kept_free.saturating_add(more);
        let free = self.free()?;
        if free >= needed {
            return Ok(());
        }
        self.cache.evict_more(needed - free);
        self.cache.removed().await;
        match self.free()? {
            free if free >= needed => Ok(()),
            free => Err(NoRoom::Full { free, kept_free: self.kept_free, more }),
        }
    }

    fn free(&self) -> Result<u64, NoRoom> {
        let found = retry_on_intr(|| rustix::fs::statvfs(&self.state));
        let found = found.map_err(|error| NoRoom::Unknown(error.into()))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}
