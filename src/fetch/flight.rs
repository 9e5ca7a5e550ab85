//! One transfer for each key at a time: who comes while it goes on waits for it (language.md §7.7). Different keys know
//! nothing of each other.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::cache::Key;
use crate::job::event::FetchFailure;

/// Transfers under way.
#[derive(Default)]
pub(super) struct Flights(Mutex<HashMap<Key, Over>>);

/// To wait for the end of another one's transfer: with its failure, if it had one.
pub(super) type Over = watch::Receiver<Option<FetchFailure>>;

/// What to do about a key.
pub(super) enum Turn<T> {
    /// Nothing: it is there.
    There(T),
    /// Wait for the end of this, then ask again: the transfer may have failed.
    Later(Over),
    /// Transfer it; others wait until this is dropped.
    Ours(Flight),
}

impl Flights {
    /// Whose turn it is. `there` looks whether the key is there; what is published before its flight is dropped is
    /// always seen.
    pub(super) fn turn<T>(self: &Arc<Self>, key: Key, there: impl FnOnce() -> Option<T>) -> Turn<T> {
        let mut flights = self.0.lock();
        if let Some(found) = there() {
            return Turn::There(found);
        }
        if let Some(over) = flights.get(&key) {
            return Turn::Later(over.clone());
        }
        let (sender, over) = watch::channel(None);
        flights.insert(key, over);
        Turn::Ours(Flight { flights: Arc::clone(self), key, over: sender })
    }
}

/// A transfer under way, held by the one who makes it. However it ends, the waiting ones hear of it.
pub(super) struct Flight {
    flights: Arc<Flights>,
    key: Key,
    over: watch::Sender<Option<FetchFailure>>,
}

impl Flight {
    /// It ends with this failure, for those who wait too.
    pub(super) fn fail(self, failure: FetchFailure) {
        self.over.send_replace(Some(failure));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.flights.0.lock().remove(&self.key);
    }
}

/// Waits for the end of another one's transfer; how it failed. One that was cancelled did not.
pub(super) async fn over(mut flight: Over) -> Option<FetchFailure> {
    while flight.changed().await.is_ok() {}
    flight.borrow().clone()
}

#[cfg(test)]
mod tests {
    use super::super::cache::Kind;
    use super::*;
    use crate::lang::diagnostic::Class;

    fn key(number: u8) -> Key {
        Key { kind: Kind::Oci, digest: [number; 32] }
    }

    #[tokio::test]
    async fn the_second_waits_for_the_first_and_then_has_its_turn() {
        let flights = Arc::<Flights>::default();
        let Turn::Ours(first) = flights.turn(key(1), || None::<()>) else { panic!("nobody was there") };
        let Turn::Later(end) = flights.turn(key(1), || None::<()>) else { panic!("somebody is there") };
        assert!(matches!(flights.turn(key(2), || None::<()>), Turn::Ours(_)), "another key waits for nobody");
        drop(first);
        assert_eq!(over(end).await, None);
        assert!(matches!(flights.turn(key(1), || Some(())), Turn::There(())));
        assert!(matches!(flights.turn(key(1), || None::<()>), Turn::Ours(_)));
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_who_wait() {
        let flights = Arc::<Flights>::default();
        let Turn::Ours(first) = flights.turn(key(1), || None::<()>) else { panic!("nobody was there") };
        let Turn::Later(end) = flights.turn(key(1), || None::<()>) else { panic!("somebody is there") };
        let failure = FetchFailure { class: Class::Limit, message: "no".to_owned() };
        first.fail(failure.clone());
        assert_eq!(over(end.clone()).await, Some(failure.clone()));
        assert_eq!(over(end).await, Some(failure));
        assert!(matches!(flights.turn(key(1), || None::<()>), Turn::Ours(_)));
    }
}
