//! Groups that were thawed, for the operator's log.

use std::time::{Duration, Instant};

/// Minimum time between two reports: a process can freeze its group in a loop.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Thaws that are not reported yet.
#[derive(Debug, Default)]
pub(super) struct Thaws {
    told: Option<Instant>,
    untold: u32,
}

impl Thaws {
    /// Counts thawed groups. Returns a report if one is due.
    pub(super) fn add(&mut self, thawed: u32, now: Instant) -> Option<String> {
        self.untold = self.untold.saturating_add(thawed);
        if thawed == 0 || self.told.is_some_and(|told| now - told < TOLD_EVERY) {
            return None;
        }
        self.told = Some(now);
        let count = std::mem::take(&mut self.untold);
        Some(format!(
            "something froze control groups of jobs; they were thawed at once ({count} since the last report)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_95_groups_that_are_frozen_again_and_again_are_one_report() {
        let (mut thaws, start) = (Thaws::default(), Instant::now());
        assert_eq!(thaws.add(0, start), None);
        assert!(thaws.add(1, start).unwrap().contains("(1 since"));
        assert_eq!(thaws.add(2, start + TOLD_EVERY / 2), None);
        assert!(thaws.add(1, start + TOLD_EVERY).unwrap().contains("(3 since"));
    }
}
