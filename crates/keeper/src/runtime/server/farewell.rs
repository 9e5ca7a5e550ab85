//! The end of a keeper: its daemon asked for it, or no daemon came back (service.md §6.4).

use std::time::Instant;

use super::Keeper;
use crate::runtime::strays::{kill_all, reap_all};

/// Cause of the end of jobs when no daemon came back.
pub(super) const NOBODY: &str = "no daemon came back";

/// Cause of their end when a sync failed before.
pub(super) const STORAGE_FAILED: &str = "a sync of its data to the disk failed";

impl Keeper {
    /// Ends all jobs without a daemon, first gently, then by force, and lets no daemon in. They are interrupted by
    /// `cause`.
    pub(super) fn begin_farewell(&mut self, cause: &str) {
        self.shared.connection = None;
        self.shared.readiness.forget(&self.listener);
        self.shared.state.remove_socket();
        self.core.begin_farewell(cause, Instant::now());
        self.drive();
    }

    /// Kills all processes below the keeper, and removes its files except those that later daemons serve.
    pub(super) fn shut_down(mut self) {
        self.shared.state.remove_socket();
        kill_all(self.core.settings().kill_wait, &mut self.shared);
        // Reap them here: their next parent may never do so.
        reap_all(&mut self.shared);
        if let Some(connection) = &mut self.shared.connection {
            // Bytes that cannot be sent at once are lost: the daemon sees the end of the connection.
            connection.send();
        }
        self.shared.state.remove_identity();
        if self.core.is_farewell() && self.core.settings().remove_state {
            self.shared.state.remove();
        }
    }
}
