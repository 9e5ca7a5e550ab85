//! Checks that no more jobs run than the limit allows, also while the limit changes.

use std::collections::BTreeSet;

use super::Oracle;
use step_runner::actors::view::JobStatus;
use step_runner::model::JobState;

/// The slots of the running daemon, as far as its answers tell.
pub(super) struct Slots {
    /// The limit in force.
    limit: usize,
    /// Limits asked for and not confirmed. Each can be in force already.
    asked: Vec<usize>,
    /// The most jobs that can hold a slot now. Above the limit after that was lowered or the daemon restarted, which
    /// ends no job.
    most: usize,
    /// Jobs that held a slot before their first process.
    granted: BTreeSet<(String, i64)>,
}

impl Slots {
    /// Slots of a daemon that starts with the limit `max_running`; 0 is none.
    pub(super) const fn new(max_running: u64) -> Self {
        let limit = limit(max_running);
        Self { limit, asked: Vec::new(), most: usize::MAX, granted: BTreeSet::new() }
    }

    /// Returns the greatest limit that can be in force.
    fn highest(&self) -> usize {
        self.asked.iter().copied().max().unwrap_or_default().max(self.limit)
    }
}

impl Oracle {
    /// Records that another limit was asked for.
    pub(crate) fn limit_asked(&mut self, max_running: u64) {
        self.slots.asked.push(limit(max_running));
        self.slots.most = self.slots.most.max(self.slots.highest());
    }

    /// Records that this limit is in force. `jobs` have their places in the queue.
    pub(crate) fn limit_set(&mut self, max_running: u64, jobs: &[JobStatus]) {
        let limit = limit(max_running);
        // The daemon sets limits in the order in which they are asked for.
        if let Some(at) = self.slots.asked.iter().position(|asked| *asked == limit) {
            self.slots.asked.drain(..=at);
            self.slots.limit = limit;
        }
        self.placed(jobs);
    }

    /// True if more jobs can hold a slot than the limit allows: what holds one must be known.
    pub(crate) fn has_extra_slots(&self) -> bool {
        self.slots.most > self.slots.limit
    }

    /// Records which jobs hold a slot before their first process: those without a place in the queue.
    pub(crate) fn placed(&mut self, jobs: &[JobStatus]) {
        let has_slot = |job: &&JobStatus| job.state == JobState::Queued && job.queue_position == 0;
        let granted = jobs.iter().filter(has_slot).map(|job| (job.id.to_string(), job.registered));
        self.slots.granted.extend(granted);
    }

    /// Checks the number of running jobs as they were last observed.
    pub(super) fn check_slots(&mut self) {
        let running = self.count(|job| job.start_time.is_some() && job.end_time.is_none());
        if running > self.slots.most {
            self.wrong(format!("{running} jobs run in {} slots", self.slots.most));
        }
        let lives = &self.lives;
        self.slots.granted.retain(|key| {
            let last = lives.get(key).filter(|life| !life.gone).and_then(|life| life.last.as_ref());
            last.is_some_and(|job| job.start_time.is_none() && job.end_time.is_none())
        });
        let held = running + self.running_calls + self.slots.granted.len();
        self.slots.most = self.slots.most.min(held).max(self.slots.highest());
    }

    fn count(&self, matches: impl Fn(&JobStatus) -> bool) -> usize {
        let last = |key| self.lives.get(key).and_then(|life| life.last.as_ref());
        self.present.iter().filter_map(last).filter(|job| matches(job)).count()
    }
}

/// Returns the number of slots for a value of the setting.
const fn limit(max_running: u64) -> usize {
    if max_running == 0 { usize::MAX } else { max_running as usize }
}
