//! Allows one transfer for each key at a time. Further requests for the key wait for it (language.md §7.7); different
//! keys are independent.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::cache::CacheKey;
use step_runner_core::job::event::FetchFailure;

/// Transfers under way.
#[derive(Default)]
pub(super) struct Flights(Mutex<HashMap<CacheKey, Over>>);

/// Receives the end of another job's transfer, with its failure if it failed.
pub(super) type Over = watch::Receiver<Option<FetchFailure>>;

/// The next action of a caller.
pub(super) enum FlightTurn<T> {
    /// Use this: the key is there.
    Present(T),
    /// Wait for the end of this transfer, then ask again, because it may fail.
    Wait(Over),
    /// Transfer it. Others wait until the flight is dropped.
    Transfer(Flight),
}

impl Flights {
    /// Decides what the caller does for `key`. `there` runs under the lock, so a tree published before its flight is
    /// dropped is always seen.
    pub(super) fn turn<T>(
        self: &Arc<Self>,
        key: CacheKey,
        there: impl FnOnce() -> Option<T>,
    ) -> FlightTurn<T> {
        let mut flights = self.0.lock();
        if let Some(found) = there() {
            return FlightTurn::Present(found);
        }
        if let Some(over) = flights.get(&key) {
            return FlightTurn::Wait(over.clone());
        }
        let (sender, over) = watch::channel(None);
        flights.insert(key, over);
        FlightTurn::Transfer(Flight { flights: Arc::clone(self), key, over: sender })
    }
}

/// A transfer under way, held by the caller that makes it. Dropping it wakes all who wait.
pub(super) struct Flight {
    flights: Arc<Flights>,
    key: CacheKey,
    over: watch::Sender<Option<FetchFailure>>,
}

impl Flight {
    /// Ends the transfer and passes `failure` to all who wait.
    pub(super) fn fail(self, failure: FetchFailure) {
        self.over.send_replace(Some(failure));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.flights.0.lock().remove(&self.key);
    }
}

/// Waits for the end of another job's transfer. Returns its failure; a cancelled one has none.
pub(super) async fn over(mut flight: Over) -> Option<FetchFailure> {
    while flight.changed().await.is_ok() {}
    flight.borrow().clone()
}

#[cfg(test)]
mod tests {
    use super::super::cache::Kind;
    use super::*;
    use step_runner_lang::diagnostic::Class;

    fn key(number: u8) -> CacheKey {
        CacheKey { kind: Kind::Oci, digest: [number; 32] }
    }

    #[tokio::test]
    async fn the_second_waits_for_the_first_and_then_has_its_turn() {
        let flights = Arc::<Flights>::default();
        let FlightTurn::Transfer(first) = flights.turn(key(1), || None::<()>) else {
            panic!("nobody was there")
        };
        let FlightTurn::Wait(end) = flights.turn(key(1), || None::<()>) else { panic!("somebody is there") };
        assert!(
            matches!(flights.turn(key(2), || None::<()>), FlightTurn::Transfer(_)),
            "another key waits for nobody"
        );
        drop(first);
        assert_eq!(over(end).await, None);
        assert!(matches!(flights.turn(key(1), || Some(())), FlightTurn::Present(())));
        assert!(matches!(flights.turn(key(1), || None::<()>), FlightTurn::Transfer(_)));
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_who_wait() {
        let flights = Arc::<Flights>::default();
        let FlightTurn::Transfer(first) = flights.turn(key(1), || None::<()>) else {
            panic!("nobody was there")
        };
        let FlightTurn::Wait(end) = flights.turn(key(1), || None::<()>) else { panic!("somebody is there") };
        let failure = FetchFailure { class: Class::Limit, message: "no".to_owned() };
        first.fail(failure.clone());
        assert_eq!(over(end.clone()).await, Some(failure.clone()));
        assert_eq!(over(end).await, Some(failure));
        assert!(matches!(flights.turn(key(1), || None::<()>), FlightTurn::Transfer(_)));
    }
}
