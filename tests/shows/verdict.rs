//! The final report of a proof.

use std::sync::{Arc, Mutex};

/// Figures of a proof, or its misses.
pub(crate) type Shown = Result<String, String>;

/// Result of a check. The error describes the miss.
pub(crate) type Check<T = ()> = Result<T, String>;

/// Returns the percentile by the nearest-rank method, or `None` if `sorted` is empty.
pub(crate) fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Collects misses from all tasks.
#[derive(Clone, Default)]
pub(crate) struct Misses(Arc<Mutex<Vec<String>>>);

impl Misses {
    /// Adds a miss. It is printed at once, in case the proof hangs later.
    pub(crate) fn add(&self, miss: String) {
        eprintln!("miss: {miss}");
        self.0.lock().unwrap().push(miss);
    }

    pub(crate) fn check(&self, what: &str, check: Check) {
        if let Err(miss) = check {
            self.add(format!("{what}: {miss}"));
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn verdict(&self, figures: String) -> Shown {
        match self.count() {
            0 => Ok(figures),
            n => Err(format!("{n} misses; {figures}")),
        }
    }
}
