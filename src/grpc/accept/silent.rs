//! The connections that may be dropped for another: they have not said what they want, or may not say it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Connections without their preface, and those of users who may not call; oldest first. Clones share the list.
#[derive(Clone, Default)]
pub(super) struct Silent(Arc<Mutex<VecDeque<(u64, CancellationToken)>>>);

impl Silent {
    /// Adds connection `number`; it ends when `drop_me` is cancelled.
    pub(super) fn push(&self, number: u64, drop_me: CancellationToken) {
        self.0.lock().push_back((number, drop_me));
    }

    /// Drops the oldest; `false` if there is none.
    pub(super) fn drop_oldest(&self) -> bool {
        let oldest = self.0.lock().pop_front();
        oldest.inspect(|(_, drop_me)| drop_me.cancel()).is_some()
    }

    /// The connection has spoken, or is over.
    pub(super) fn remove(&self, number: u64) {
        self.0.lock().retain(|(other, _)| *other != number);
    }

    pub(super) fn holds(&self, number: u64) -> bool {
        self.0.lock().iter().any(|(other, _)| *other == number)
    }
}
