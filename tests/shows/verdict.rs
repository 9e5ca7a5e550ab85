//! The final report of a proof.

use std::sync::{Arc, Mutex};

/// Figures, or what was missed.
pub(crate) type Shown = Result<String, String>;

/// A check that failed.
pub(crate) type Check<T = ()> = Result<T, String>;

/// So many percent of `sorted` are not greater: the nearest rank. `None` of nothing.
pub(crate) fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Misses, from any task.
#[derive(Clone, Default)]
pub(crate) struct Misses(Arc<Mutex<Vec<String>>>);

impl Misses {
    /// Printed at once: a proof that hangs later has said what it saw.
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
