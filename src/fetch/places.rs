//! Places for workers: so many at once, and of these only so many for one host.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Most workers at once; further fetches wait in the order they came. Each is a process of some 20 MiB that waits for
/// its network most of the time, so more than there are processors.
pub(super) const MAX_WORKERS: usize = 16;

/// Most workers for one host: one that does not answer holds their places until their time is over, and must not hold
/// all of them.
pub(super) const MAX_FOR_HOST: usize = 8;

/// See the module's text.
pub(super) struct Places {
    all: Arc<Semaphore>,
    /// Of hosts that somebody fetches from or waits for.
    hosts: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A worker's place until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _any: OwnedSemaphorePermit,
    _host: OwnedSemaphorePermit,
}

impl Default for Places {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_WORKERS)), hosts: Mutex::default() }
    }
}

impl Places {
    /// A place for a worker that talks with `host`, as soon as there is one.
    pub(super) async fn take(&self, host: &str) -> Result<Place, AcquireError> {
        // Who waits for a host takes no place away from others.
        let of_host = self.of_host(host).acquire_owned().await?;
        Ok(Place { _any: Arc::clone(&self.all).acquire_owned().await?, _host: of_host })
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

    /// How many are free.
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
        let places = Places::default();
        let mut held = Vec::new();
        for _ in 0..MAX_FOR_HOST {
            held.push(places.take("silent").await.unwrap());
        }
        let mut next = Box::pin(places.take("silent"));
        assert!(next.as_mut().now_or_never().is_none());
        for host in ["a", "b"] {
            for _ in 0..(MAX_WORKERS - MAX_FOR_HOST) / 2 {
                held.push(places.take(host).await.unwrap());
            }
        }
        assert!(places.take("c").now_or_never().is_none());
        held.remove(0);
        assert!(next.await.is_ok());
        held.clear();
        drop(places.take("d").await.unwrap());
        assert_eq!((places.free(), places.hosts.lock().len()), (MAX_WORKERS, 1), "hosts are forgotten");
    }
}
