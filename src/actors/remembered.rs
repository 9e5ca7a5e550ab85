//! Ids that were finished, so that a late duplicate of a Run starts nothing (service.md §3.1, "Run after Finish").

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::clock;
use crate::keeper::protocol::Remembered as Entry;
use crate::model::JobKey;

/// Finished ids at most remembered (service.md §3.1).
const MAX_REMEMBERED: usize = 10_000;

/// Finished ids, and the digests of what was asked under them; the oldest are forgotten first.
#[derive(Default)]
pub(super) struct Remembered {
    entries: HashMap<JobKey, Entry>,
    order: VecDeque<JobKey>,
}

impl Remembered {
    pub(super) fn add(&mut self, entry: Entry) {
        if self.entries.insert(entry.key, entry).is_none() {
            self.order.push_back(entry.key);
        }
        while self.order.len() > MAX_REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.entries.remove(&oldest);
            }
        }
    }

    /// All entries, for a new keeper.
    pub(super) fn all(&self) -> impl Iterator<Item = Entry> {
        self.entries.values().copied()
    }

    /// Whether the same request under the same id has had its turn within the time that is remembered.
    pub(super) fn is_repeat(&self, key: JobKey, digest: [u8; 16], remember_for: Duration) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.digest == digest && is_fresh(entry, remember_for))
    }

    /// When the job of this id was finished.
    pub(super) fn finished_at(&self, key: JobKey) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_micros(self.entries.get(&key)?.at)
    }
}

fn is_fresh(entry: &Entry, remember_for: Duration) -> bool {
    let age = clock::now_micros().saturating_sub(entry.at).max(0);
    Duration::from_micros(age as u64) < remember_for
}
