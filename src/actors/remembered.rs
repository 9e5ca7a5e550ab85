//! Finished ids, remembered so that a late duplicate of a Run starts nothing (service.md §3.1, "Run after Finish").

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::clock;
use crate::job::reaper::Moment;
use crate::keeper::protocol::Remembered as Entry;
use crate::model::{JobKey, Recent};

/// Maximum number of finished requests that are remembered (service.md §3.1).
pub(super) const MAX_REMEMBERED: u32 = 10_000;

/// Finished ids with the digests of their requests; the oldest are forgotten first. An id can have several requests, one
/// after the other.
#[derive(Default)]
pub(super) struct Remembered {
    /// Each with the moment of its finish by our own clock: the wall clock may jump (faults.md row 63).
    entries: Recent<(Entry, Moment)>,
}

impl Remembered {
    pub(super) fn add(&mut self, entry: Entry) {
        self.insert(entry, Moment::AfterStart(clock::uptime()));
    }

    /// Adds an id that was finished before this daemon started and that a keeper remembers.
    pub(super) fn restore(&mut self, entry: Entry, remember_for: Duration) {
        let age = clock::now_micros().checked_sub(entry.at).and_then(|age| u64::try_from(age).ok());
        // A negative or too large age means that the clock has jumped.
        let age = age.map(Duration::from_micros).filter(|age| *age < remember_for).unwrap_or_default();
        self.insert(entry, Moment::before_start(age, clock::uptime()));
    }

    fn insert(&mut self, entry: Entry, since: Moment) {
        self.entries.add(entry.key, entry.digest, (entry, since));
        if self.entries.len() > MAX_REMEMBERED as usize {
            self.entries.forget_oldest();
        }
    }

    /// Returns the entries for a new keeper that were added within `remember_for`, the oldest first.
    pub(super) fn all(&self, remember_for: Duration) -> impl Iterator<Item = Entry> {
        let now = clock::uptime();
        let young = move |(entry, since): &(Entry, Moment)| (since.age(now) < remember_for).then_some(*entry);
        self.entries.iter().filter_map(young)
    }

    /// True if the same request was finished under this id within `remember_for`.
    pub(super) fn is_repeat(&self, key: JobKey, digest: [u8; 16], remember_for: Duration) -> bool {
        self.entries.get(key, digest).is_some_and(|(_, since)| since.age(clock::uptime()) < remember_for)
    }

    pub(super) fn finished_at(&self, key: JobKey) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_micros(self.entries.youngest(key)?.0.at)
    }
}
