use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;

use super::*;

/// A keeper with a number, and whether its connection is over.
#[derive(Clone, Debug)]
struct Played(u32, Rc<Cell<bool>>);

impl KeeperHandle for Played {
    fn is_over(&self) -> bool {
        self.1.get()
    }
}

impl PartialEq for Played {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

fn played(number: u32) -> Played {
    Played(number, Rc::default())
}

fn process(pid: u32) -> Process {
    Process { pid, parent: 1, group: pid, session: pid, start_time: 1, zombie: false }
}

fn notice(text: &str) -> FromKeeper {
    FromKeeper::Notice(text.into())
}

const ALL: [Wish; 5] = [Wish::Get, Wish::Living, Wish::Find, Wish::EndSilent, Wish::Forget];

fn starting() -> Connection<Played> {
    let mut connection = Connection::default();
    assert_eq!(connection.decide(Wish::Get, Instant::now()), Some(Decision::Start));
    connection.attempt(Some(process(7)), None);
    connection
}

fn connected(keeper: &Played) -> Connection<Played> {
    let mut connection = starting();
    connection.connected(keeper.clone(), Some(process(8)));
    connection
}

/// A keeper that was silent for too long and is being ended since `at`.
fn ending(keeper: &Played, at: Instant) -> Connection<Played> {
    let mut connection = connected(keeper);
    assert!(connection.note_silence(true));
    assert_eq!(connection.decide(Wish::EndSilent, at), Some(Decision::End));
    connection
}

#[test]
fn without_a_keeper_one_is_started_or_looked_for_and_none_is_ended() {
    for (wish, decision) in ALL.into_iter().zip([
        Decision::Start,
        Decision::Nothing,
        Decision::Start,
        Decision::Nothing,
        Decision::Nothing,
    ]) {
        assert_eq!(Connection::<Played>::default().decide(wish, Instant::now()), Some(decision), "{wish:?}");
    }
}

#[test]
fn every_caller_waits_while_another_starts_or_ends_the_keeper() {
    let mut ending = ending(&played(1), Instant::now());
    for wish in ALL {
        assert_eq!(starting().decide(wish, Instant::now()), None, "{wish:?}");
        assert_eq!(ending.decide(wish, Instant::now()), None, "{wish:?}");
    }
    assert_eq!((starting().keeper(), ending.keeper()), (None, None));
}

#[test]
fn a_start_that_fails_leaves_room_for_another() {
    let mut connection = starting();
    connection.give_up();
    assert_eq!(connection.decide(Wish::Get, Instant::now()), Some(Decision::Start));
}

#[test]
fn a_keeper_that_answers_is_used_and_not_forgotten() {
    let mut connection = connected(&played(1));
    assert_eq!(connection.keeper(), Some(&played(1)));
    for wish in [Wish::Get, Wish::Living] {
        assert_eq!(connection.decide(wish, Instant::now()), Some(Decision::Take(played(1))));
    }
    assert_eq!(connection.decide(Wish::Forget, Instant::now()), Some(Decision::Nothing));
}

#[test]
fn a_keeper_whose_connection_is_over_is_ended_before_another_is_started() {
    for wish in [Wish::Get, Wish::Forget] {
        let keeper = played(1);
        let mut connection = connected(&keeper);
        keeper.1.set(true);
        assert_eq!(connection.decide(Wish::Living, Instant::now()), Some(Decision::Take(played(1))));
        assert_eq!(connection.decide(wish, Instant::now()), Some(Decision::End));
        connection.ended();
        assert_eq!(connection.decide(Wish::Get, Instant::now()), Some(Decision::Start));
    }
}

#[test]
fn a_search_replaces_a_keeper_whose_connection_broke() {
    let mut connection = connected(&played(1));
    assert_eq!(connection.decide(Wish::Find, Instant::now()), Some(Decision::Start));
    connection.attempt(None, Some(Vec::new()));
    connection.connected(played(2), None);
    assert_eq!(connection.keeper(), Some(&played(2)));
}

#[test]
fn silence_is_noted_once_and_so_is_its_end() {
    for mut connection in [starting(), connected(&played(1))] {
        assert!(!connection.is_silent() && !connection.note_silence(false));
        assert!(connection.note_silence(true) && connection.is_silent());
        assert!(!connection.note_silence(true) && connection.is_silent());
        assert!(connection.note_silence(false) && !connection.is_silent());
    }
}

#[test]
fn another_attempt_does_not_begin_silent() {
    let mut connection = starting();
    connection.note_silence(true);
    connection.attempt(None, None);
    assert!(!connection.is_silent());
}

#[test]
fn no_keeper_and_none_that_is_gone_or_being_ended_is_silent() {
    let keeper = played(1);
    let mut gone = connected(&keeper);
    gone.note_silence(true);
    keeper.1.set(true);
    for mut connection in [Connection::default(), gone, ending(&played(1), Instant::now())] {
        assert!(!connection.is_silent());
        assert!(!connection.note_silence(true) && !connection.is_silent());
    }
}

#[test]
fn a_keeper_that_survives_its_end_is_ended_with_the_time_of_the_first_attempt() {
    let (begun, keeper) = (Instant::now(), played(1));
    let mut connection = ending(&keeper, begun);
    connection.give_up();
    assert_eq!(connection.decide(Wish::Living, begun), Some(Decision::Take(keeper.clone())));
    assert!(connection.is_silent());
    for (wish, is_over) in [(Wish::EndSilent, false), (Wish::Forget, true)] {
        keeper.1.set(is_over);
        assert_eq!(connection.decide(wish, begun + Duration::from_secs(9)), Some(Decision::End));
        assert_eq!(connection.ending_since(), Some(begun));
        connection.give_up();
        assert!(!connection.note_silence(!is_over));
        assert_eq!(connection.ending_since(), Some(begun));
    }
}

#[test]
fn a_keeper_that_survives_and_answers_again_gets_its_whole_time_to_die_later() {
    let begun = Instant::now();
    let mut connection = ending(&played(1), begun);
    connection.give_up();
    assert!(connection.note_silence(false) && connection.ending_since().is_none());
    let later = begun + Duration::from_secs(9);
    assert_eq!(connection.decide(Wish::EndSilent, later), Some(Decision::End));
    assert_eq!(connection.ending_since(), Some(later));
}

#[test]
fn the_started_process_is_known_until_the_keeper_has_named_its_own() {
    let connection = starting();
    assert_eq!((connection.started(), connection.named()), (Some(process(7)), None));
    for connection in [connected(&played(1)), ending(&played(1), Instant::now())] {
        assert_eq!((connection.started(), connection.named()), (None, Some(process(8))));
    }
}

#[test]
fn events_of_a_found_keeper_are_held_back_until_they_are_released() {
    let mut connection = Connection::default();
    connection.decide(Wish::Find, Instant::now());
    connection.attempt(None, Some(Vec::new()));
    assert!(connection.arrived(notice("a")).is_none());
    connection.connected(played(1), None);
    assert!(connection.arrived(notice("b")).is_none());
    let released = connection.release();
    assert!(
        matches!(&released[..], [FromKeeper::Notice(a), FromKeeper::Notice(b)] if a == "a" && b == "b"),
        "{released:?}"
    );
    assert!(connection.arrived(notice("c")).is_some() && connection.release().is_empty());
}

#[test]
fn events_held_back_end_with_their_keeper() {
    let keeper = played(1);
    let mut connection = Connection::default();
    connection.decide(Wish::Find, Instant::now());
    connection.attempt(None, Some(Vec::new()));
    connection.connected(keeper.clone(), None);
    assert!(connection.arrived(notice("a")).is_none());
    keeper.1.set(true);
    assert_eq!(connection.decide(Wish::Forget, Instant::now()), Some(Decision::End));
    assert!(connection.arrived(notice("b")).is_none());
    connection.ended();
    assert!(connection.release().is_empty());
}

#[test]
fn events_of_a_started_keeper_are_dispatched_at_once() {
    for mut connection in [starting(), connected(&played(1)), ending(&played(1), Instant::now())] {
        assert!(connection.arrived(notice("a")).is_some());
    }
}

#[tokio::test]
async fn a_caller_that_is_dropped_in_its_start_gives_the_next_one_its_turn() {
    let shared = Rc::new(SharedConnection::<Played>::new());
    let start = async |shared: Rc<SharedConnection<Played>>| {
        assert_eq!(shared.decided(Wish::Get).await, Decision::Start);
        let _turn = Turn(&shared);
        std::future::pending::<()>().await;
    };
    let play = async {
        let first = tokio::task::spawn_local(start(Rc::clone(&shared)));
        tokio::task::yield_now().await;
        let second = Rc::clone(&shared);
        let second = tokio::task::spawn_local(async move { second.decided(Wish::Get).await });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        first.abort();
        assert_eq!(second.await.unwrap(), Decision::Start);
    };
    LocalSet::new().run_until(play).await;
}

#[tokio::test]
async fn a_turn_that_ends_with_success_takes_nothing_back() {
    let shared = SharedConnection::new();
    assert_eq!(shared.decided(Wish::Get).await, Decision::Start);
    {
        let _turn = Turn(&shared);
        shared.change(|connection| connection.attempt(None, None));
        shared.change(|connection| connection.connected(played(1), None));
    }
    assert_eq!(shared.decided(Wish::Get).await, Decision::Take(played(1)));
}
