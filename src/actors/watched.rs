//! [`Watched`]: a value that its owner changes and any number of tasks wait for. It owns no task and knows nothing of its
//! users. Like `tokio::sync::watch`, but inside of its owner: each job has two, for as long as it is kept, and the
//! channel's own block takes 350 bytes of memory.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A value with a number that grows with each change. A reader keeps the number it has seen.
pub(super) struct Watched<T> {
    current: Mutex<Current<T>>,
    changed: Notify,
}

struct Current<T> {
    value: T,
    /// Number of changes so far, plus 1.
    version: u64,
}

/// The version that a reader has seen. A new one has seen none.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen(u64);

impl<T: Copy> Watched<T> {
    pub(super) fn new(value: T) -> Self {
        Self { current: Mutex::new(Current { value, version: 1 }), changed: Notify::new() }
    }

    /// Returns the value.
    pub(super) fn get(&self) -> T {
        self.current.lock().value
    }

    /// Returns the value, and notes in `seen` that this one was seen.
    pub(super) fn see(&self, seen: &mut Seen) -> T {
        let current = self.current.lock();
        seen.0 = current.version;
        current.value
    }

    /// Changes the value and wakes all that wait.
    pub(super) fn change(&self, change: impl FnOnce(&mut T)) {
        self.change_if(|value| {
            change(value);
            true
        });
    }

    /// Changes the value. Wakes all that wait if `change` returns `true`, so it must do that if it changes anything.
    pub(super) fn change_if(&self, change: impl FnOnce(&mut T) -> bool) {
        let mut current = self.current.lock();
        if change(&mut current.value) {
            current.version += 1;
            drop(current);
            self.changed.notify_waiters();
        }
    }

    /// Waits until there is a value that was not seen.
    pub(super) async fn newer(&self, seen: Seen) {
        self.when(|current| current.version != seen.0).await;
    }

    /// Waits until `is_reached` is true of the value.
    pub(super) async fn until(&self, is_reached: impl Fn(&T) -> bool) {
        self.when(|current| is_reached(&current.value)).await;
    }

    async fn when(&self, is_due: impl Fn(&Current<T>) -> bool) {
        loop {
            // Create the waiter before checking the value, so that it is woken by each change from here on.
            let changed = self.changed.notified();
            if is_due(&self.current.lock()) {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_reader_waits_only_for_what_it_has_not_seen() {
        let watched = Watched::new(1);
        let mut seen = Seen::default();
        assert!(poll(std::pin::pin!(watched.newer(seen))).is_ready(), "it has seen nothing");
        assert_eq!(watched.see(&mut seen), 1);
        let mut newer = std::pin::pin!(watched.newer(seen));
        assert!(poll(newer.as_mut()).is_pending());
        watched.change_if(|_| false);
        assert!(poll(newer.as_mut()).is_pending(), "nothing has changed");
        watched.change(|value| *value = 2);
        assert!(poll(newer.as_mut()).is_ready());
        assert_eq!((watched.get(), watched.see(&mut seen)), (2, 2));
    }

    #[test]
    fn a_change_between_the_look_and_the_wait_wakes_the_reader() {
        let watched = Watched::new(1);
        let mut seen = Seen::default();
        watched.see(&mut seen);
        let newer = watched.newer(seen); // not polled yet
        watched.change(|value| *value = 2);
        assert!(poll(std::pin::pin!(newer)).is_ready());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn readers_on_other_threads_see_the_last_value() {
        let watched = Arc::new(Watched::new(0_u32));
        let readers: Vec<_> = (0..8)
            .map(|_| {
                let watched = Arc::clone(&watched);
                tokio::spawn(async move {
                    let (mut seen, mut last) = (Seen::default(), 0);
                    while last < 10_000 {
                        watched.newer(seen).await;
                        let value = watched.see(&mut seen);
                        assert!(value >= last, "{value} after {last}");
                        last = value;
                    }
                })
            })
            .collect();
        let ended = tokio::spawn({
            let watched = Arc::clone(&watched);
            async move { watched.until(|value| *value == 10_000).await }
        });
        for _ in 0..10_000 {
            watched.change(|value| *value += 1);
        }
        for reader in readers.into_iter().chain([ended]) {
            reader.await.unwrap();
        }
    }
}
