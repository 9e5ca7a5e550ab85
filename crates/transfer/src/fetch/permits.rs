//! Bounds the number of workers at once, in all and for each host.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Most workers at once; further fetches wait in their order of arrival. More than there are processors, because a
/// worker is a process of some 20 MiB that mostly waits for its network.
pub(super) const MAX_WORKERS: usize = 16;

/// Most workers for one host. A host that does not answer blocks only these places, until its workers' deadlines.
pub(super) const MAX_FOR_HOST: usize = 8;

pub(super) struct WorkerPermits {
    all: Arc<Semaphore>,
    /// Hosts that somebody fetches from or waits for.
    hosts: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The place of one worker, freed when dropped.
#[derive(Debug)]
pub(super) struct WorkerPermit {
    _any: OwnedSemaphorePermit,
    _host: OwnedSemaphorePermit,
}

impl Default for WorkerPermits {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_WORKERS)), hosts: Mutex::default() }
    }
}

impl WorkerPermits {
    /// Waits for a place for a worker that talks to `host`.
    pub(super) async fn take(&self, host: &str) -> Result<WorkerPermit, AcquireError> {
        // First the host's place: a fetch that waits for its host must not hold up others.
        let of_host = self.of_host(host).acquire_owned().await?;
        Ok(WorkerPermit { _any: Arc::clone(&self.all).acquire_owned().await?, _host: of_host })
    }

    fn of_host(&self, host: &str) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock();
        if let Some(known) = hosts.get(host).and_then(Weak::upgrade) {
            return known;
        }
        hosts.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(MAX_FOR_HOST));
        hosts.insert(host.to_owned(), Arc::downgrade(&new));
        new
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.all.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_silent_host_leaves_places_for_others() {
        let permits = WorkerPermits::default();
        let mut held = Vec::new();
        for _ in 0..MAX_FOR_HOST {
            held.push(permits.take("silent").await.unwrap());
        }
        let mut next = Box::pin(permits.take("silent"));
        assert!(next.as_mut().now_or_never().is_none());
        for host in ["a", "b"] {
            for _ in 0..(MAX_WORKERS - MAX_FOR_HOST) / 2 {
                held.push(permits.take(host).await.unwrap());
            }
        }
        assert!(permits.take("c").now_or_never().is_none());
        held.remove(0);
        assert!(next.await.is_ok());
        held.clear();
        drop(permits.take("d").await.unwrap());
        assert_eq!((permits.free(), permits.hosts.lock().len()), (MAX_WORKERS, 1), "hosts are forgotten");
    }
}
