//! The end of a keeper: its daemon asked for it, or no daemon came back (service.md §6.4).

use std::time::Instant;

use super::containment::{kill_all, reap_orphans};
use super::server::Keeper;
use super::shared::{KeeperShared, Serial};
use crate::files;
use crate::journal::{Reader, event::Event};
use crate::model::{JobKey, Outcome};

/// Cause of the end of jobs when no daemon came back.
pub(super) const NOBODY: &str = "no daemon came back";

/// Cause of their end when a sync failed before.
pub(super) const STORAGE_FAILED: &str = "what it wrote could not be brought to the disk";

impl Keeper {
    /// Ends all jobs without a daemon, first gently, then by force, and lets no daemon in. `cause` follows
    /// `job interrupted: `.
    pub(super) fn begin_farewell(&mut self, cause: &str) {
        self.farewell = true;
        self.shared.connection = None;
        self.shared.readiness.forget(&self.listener);
        self.shared.state.remove_socket();
        let grace = self.shared.settings.cancel_grace;
        let serials: Vec<Serial> = self.jobs.keys().copied().collect();
        for serial in serials {
            let Some(job) = self.jobs.get_mut(&serial) else { continue };
            job.blocked = None;
            if job.is_dropped() {
                continue;
            }
            let outcome = Outcome::interrupted(cause);
            if job.closed.is_some() {
                // Closed for a daemon that may have died before it recorded the end.
                for path in job.secret_files.drain(..) {
                    files::unlink(files::CWD, path.as_path()).ok();
                }
                let key = job.key;
                if !has_end(&self.shared, key) && (!job.is_synced || self.shared.sync()) {
                    let ended = job.ended(outcome);
                    self.shared.journal(key, &ended);
                }
            } else {
                job.interrupt(grace, outcome, format!("job interrupted: {cause}"), &mut self.shared);
            }
            self.settle(serial);
        }
    }

    /// True if every job has ended as far as it can.
    pub(super) fn is_farewell_over(&self) -> bool {
        self.jobs.values().all(|job| job.is_dropped() || job.closed.is_some())
    }

    /// Kills all processes below the keeper, and removes its files except those that later daemons serve.
    pub(super) fn shut_down(mut self) {
        self.shared.state.remove_socket();
        kill_all(&mut self.shared);
        // Reap them here: their next parent may never do so.
        reap_orphans(&mut self.shared, |_, _| {});
        if let Some(connection) = &mut self.shared.connection {
            // Bytes that cannot be sent at once are lost: the daemon sees the end of the connection.
            connection.send();
        }
        self.shared.state.remove_identity();
        if self.farewell && self.shared.settings.remove_state {
            self.shared.state.remove();
        }
    }

    /// When to give up waiting for a daemon.
    pub(super) fn farewell_at(&self) -> Option<Instant> {
        let since = self.alone_since.filter(|_| !self.farewell)?;
        Some(since + self.shared.settings.keeper_wait)
    }
}

/// True if the journal of the job holds its end.
fn has_end(shared: &KeeperShared, key: JobKey) -> bool {
    let bytes = shared.state.read_journal(key).unwrap_or_default();
    let mut events = Reader::<Event>::new(&bytes);
    events.any(|record| record.is_ok_and(|record| matches!(record.event, Event::Ended(_))))
}
