//! The end of a keeper: asked for by its daemon, or because no daemon came back (service.md §6.4).

use std::time::Instant;

use super::containment::{kill_all, reap_orphans};
use super::server::Keeper;
use super::shared::{Serial, Shared};
use crate::files;
use crate::journal::{Reader, event::Event};
use crate::model::{JobKey, Outcome};

/// Why jobs end when no daemon is there to end them.
pub(super) const NOBODY: &str = "no daemon came back";

/// Why they end at once then.
pub(super) const STORAGE_FAILED: &str = "what it wrote could not be brought to the disk";

impl Keeper {
    /// No daemon came back, or in time: no new one is let in, every job is ended gently, then by force. `cause` follows
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
                // Closed for a daemon that perhaps died before it could record the end.
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

    /// Every job is ended as far as it can be.
    pub(super) fn is_farewell_over(&self) -> bool {
        self.jobs.values().all(|job| job.is_dropped() || job.closed.is_some())
    }

    /// Leaves nothing behind but what later daemons serve.
    pub(super) fn leave(mut self) {
        self.shared.state.remove_socket();
        kill_all(&mut self.shared);
        // What has ended is not left to a process that may never look for it.
        reap_orphans(&mut self.shared, |_, _| {});
        if let Some(connection) = &mut self.shared.connection {
            // What cannot be sent at once is not waited for: the daemon sees the end of the connection.
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

/// The journal of a job tells its end.
fn has_end(shared: &Shared, key: JobKey) -> bool {
    let bytes = shared.state.read_journal(key).unwrap_or_default();
    let mut events = Reader::<Event>::new(&bytes);
    events.any(|record| record.is_ok_and(|record| matches!(record.event, Event::Ended(_))))
}
