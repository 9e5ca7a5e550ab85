//! Connections that may be dropped to make room for a new one: no call was made on them, or their user may make none.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Droppable connections, oldest first. Clones share the list.
#[derive(Clone, Default)]
pub(super) struct Unused(Arc<Mutex<BTreeMap<u64, CancellationToken>>>);

impl Unused {
    /// Adds connection `number`. Cancelling `drop_me` ends it.
    pub(super) fn push(&self, number: u64, drop_me: CancellationToken) {
        self.0.lock().insert(number, drop_me);
    }

    /// Drops the oldest connection. Returns false if there is none.
    pub(super) fn drop_oldest(&self) -> bool {
        let oldest = self.0.lock().pop_first();
        oldest.inspect(|(_, drop_me)| drop_me.cancel()).is_some()
    }

    /// Removes a connection that is used or has ended.
    pub(super) fn remove(&self, number: u64) {
        self.0.lock().remove(&number);
    }
}
