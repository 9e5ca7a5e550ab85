//! The connection to the keeper as a value. [`Connection`] decides who can use, start or end the keeper, and has what is
//! known of it in each state. [`SharedConnection`] is the one cell with it: callers wait there for their turn.
//!
//! | from | to | when |
//! |---|---|---|
//! | `Absent` | `Starting` | a caller wants a keeper, or looks for the one of an earlier daemon |
//! | `Starting` | `Connected` | the keeper has answered a Hello |
//! | `Starting` | `Absent` | the caller has given up |
//! | `Connected` | `Ending` | the keeper was silent for too long, or its connection is over |
//! | `Connected` | `Starting` | a caller looks for the keeper of an earlier daemon in place of the known one |
//! | `Ending` | `Absent` | the keeper is dead |
//! | `Ending` | `Connected` | the keeper survived |
//!
//! A start or an end has one owner, the caller that was told to do it. All other callers wait for the result.

use std::cell::RefCell;
use std::mem;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::keeper::protocol::FromKeeper;
use crate::process::sweep::Process;

/// A handle of a keeper that has answered.
pub(super) trait KeeperHandle: Clone {
    /// True if the connection is over. The link knows it first, so no state repeats it.
    fn is_over(&self) -> bool;
}

/// The connection to the keeper; see the module.
#[derive(Default)]
pub(super) enum Connection<K> {
    /// No keeper is known.
    #[default]
    Absent,
    /// A caller starts or looks for a keeper, which has not answered yet.
    Starting(Attempt),
    /// The keeper has answered. It lives, unless its connection is over.
    Connected(Known<K>, Condition),
    /// A caller has been ending the keeper since this time.
    Ending(Known<K>, Instant),
}

/// An attempt to reach a keeper.
#[derive(Default)]
pub(super) struct Attempt {
    /// The process that this daemon started for it.
    started: Option<Process>,
    is_silent: bool,
    held_back: HeldBack,
}

/// A keeper that has answered.
pub(super) struct Known<K> {
    keeper: K,
    /// Its process, as it has named it. A job can change what `keeper.json` says.
    process: Option<Process>,
    held_back: HeldBack,
}

/// Events held back until the jobs of the found keeper are registered. `None`: events are dispatched at once.
type HeldBack = Option<Vec<FromKeeper>>;

/// Condition of a keeper that has answered once.
#[derive(Clone, Copy)]
pub(super) enum Condition {
    /// It answers, as far as is known.
    Answering,
    /// It does not answer.
    Silent,
    /// It survived an attempt to end it. The first attempt began at this time, so the next one does not wait again.
    Surviving(Instant),
}

/// A caller's wish, called like the method of the port that has it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    /// The keeper. One is started if there is none.
    Get,
    /// The keeper, if there is one.
    Living,
    /// The keeper of an earlier daemon. It replaces the known one, whose connection is over.
    Find,
    /// An end of the keeper, because it is silent.
    EndSilent,
    /// An end of the keeper, if its connection is over.
    Forget,
}

/// The next act of a caller for its wish.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision<K> {
    /// Take this keeper.
    Take(K),
    /// Do nothing: there is no such keeper.
    Nothing,
    /// Start or find a keeper, as the owner of a [`Turn`].
    Start,
    /// End the keeper, as the owner of a [`Turn`].
    End,
}

impl<K: KeeperHandle> Connection<K> {
    /// Decides on a wish. `None`: the caller must wait until the owner of a start or an end is done, and ask again.
    /// [`Decision::Start`] and [`Decision::End`] change the state.
    pub(super) fn decide(&mut self, wish: Wish, now: Instant) -> Option<Decision<K>> {
        let decision = match (&*self, wish) {
            (Self::Starting(_) | Self::Ending(..), _) => return None,
            (Self::Absent, Wish::Get | Wish::Find) | (Self::Connected(..), Wish::Find) => Decision::Start,
            (Self::Connected(..), Wish::EndSilent) => Decision::End,
            (Self::Connected(known, _), Wish::Get | Wish::Forget) if known.keeper.is_over() => Decision::End,
            (Self::Connected(known, _), Wish::Get | Wish::Living) => Decision::Take(known.keeper.clone()),
            (Self::Absent, Wish::Living | Wish::EndSilent)
            | (Self::Absent | Self::Connected(..), Wish::Forget) => Decision::Nothing,
        };
        *self = match (mem::take(self), &decision) {
            (_, Decision::Start) => Self::Starting(Attempt::default()),
            (Self::Connected(known, Condition::Surviving(since)), Decision::End) => {
                Self::Ending(known, since)
            }
            (Self::Connected(known, _), Decision::End) => Self::Ending(known, now),
            (same, _) => same,
        };
        Some(decision)
    }

    /// Returns the keeper, unless there is none, or it is being started or ended.
    pub(super) fn keeper(&self) -> Option<&K> {
        if let Self::Connected(known, _) = self { Some(&known.keeper) } else { None }
    }

    /// True while the keeper is known not to answer.
    pub(super) fn is_silent(&self) -> bool {
        match self {
            Self::Starting(attempt) => attempt.is_silent,
            Self::Connected(known, Condition::Silent | Condition::Surviving(_)) => !known.keeper.is_over(),
            Self::Connected(_, Condition::Answering) | Self::Absent | Self::Ending(..) => false,
        }
    }

    /// Notes whether the keeper answers. Returns false if that was known.
    pub(super) fn note_silence(&mut self, is_silent: bool) -> bool {
        if self.is_silent() == is_silent {
            return false;
        }
        match self {
            Self::Starting(attempt) => attempt.is_silent = is_silent,
            Self::Connected(known, condition) if !known.keeper.is_over() => {
                *condition = if is_silent { Condition::Silent } else { Condition::Answering };
            }
            Self::Connected(..) | Self::Absent | Self::Ending(..) => return false,
        }
        true
    }
}

impl<K> Connection<K> {
    /// Begins an attempt of a start or a search. The process was `started` by this daemon.
    pub(super) fn attempt(&mut self, started: Option<Process>, held_back: HeldBack) {
        if let Self::Starting(attempt) = self {
            *attempt = Attempt { started, is_silent: false, held_back };
        }
    }

    /// The keeper has answered its first Hello.
    pub(super) fn connected(&mut self, keeper: K, process: Option<Process>) {
        if let Self::Starting(attempt) = self {
            let held_back = attempt.held_back.take();
            *self = Self::Connected(Known { keeper, process, held_back }, Condition::Answering);
        }
    }

    /// The keeper that was being ended is dead.
    pub(super) fn ended(&mut self) {
        if let Self::Ending(..) = self {
            *self = Self::Absent;
        }
    }

    /// The owner of a start or an end stops without success.
    fn give_up(&mut self) {
        *self = match mem::take(self) {
            Self::Starting(_) => Self::Absent,
            Self::Ending(known, since) => Self::Connected(known, Condition::Surviving(since)),
            same @ (Self::Absent | Self::Connected(..)) => same,
        };
    }

    /// Returns the process that this daemon started for a keeper that has not answered yet.
    pub(super) fn started(&self) -> Option<Process> {
        if let Self::Starting(attempt) = self { attempt.started } else { None }
    }

    /// Returns the process that the keeper has named.
    pub(super) fn named(&self) -> Option<Process> {
        match self {
            Self::Connected(known, _) | Self::Ending(known, _) => known.process,
            Self::Absent | Self::Starting(_) => None,
        }
    }

    /// Returns the time at which the first attempt to end the keeper began.
    pub(super) fn ending_since(&self) -> Option<Instant> {
        match self {
            Self::Connected(_, Condition::Surviving(since)) | Self::Ending(_, since) => Some(*since),
            Self::Connected(..) | Self::Absent | Self::Starting(_) => None,
        }
    }

    /// Takes an event of the keeper. Returns it, unless it is held back.
    pub(super) fn arrived(&mut self, event: FromKeeper) -> Option<FromKeeper> {
        match self.held_back().and_then(Option::as_mut) {
            Some(held_back) => held_back.push(event),
            None => return Some(event),
        }
        None
    }

    /// Returns the events held back, in order. Later ones are not held back.
    pub(super) fn release(&mut self) -> Vec<FromKeeper> {
        self.held_back().and_then(Option::take).unwrap_or_default()
    }

    fn held_back(&mut self) -> Option<&mut HeldBack> {
        match self {
            Self::Absent => None,
            Self::Starting(attempt) => Some(&mut attempt.held_back),
            Self::Connected(known, _) | Self::Ending(known, _) => Some(&mut known.held_back),
        }
    }
}

/// The cell that the clones of a port share.
pub(super) struct SharedConnection<K> {
    connection: RefCell<Connection<K>>,
    changed: Notify,
}

impl<K> SharedConnection<K> {
    pub(super) fn new() -> Self {
        Self { connection: RefCell::default(), changed: Notify::new() }
    }

    /// Reads or updates the connection. Wakes nobody.
    pub(super) fn with<T>(&self, with: impl FnOnce(&mut Connection<K>) -> T) -> T {
        with(&mut self.connection.borrow_mut())
    }

    /// Changes the connection, and wakes all that wait for a change.
    pub(super) fn change(&self, change: impl FnOnce(&mut Connection<K>)) {
        self.with(change);
        self.wake();
    }

    /// Wakes all that wait for a change: they look again.
    pub(super) fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Resolves with the next change after this call.
    pub(super) fn changed(&self) -> impl Future<Output = ()> {
        self.changed.notified()
    }
}

impl<K: KeeperHandle> SharedConnection<K> {
    /// Decides on a wish, once it is the caller's turn.
    pub(super) async fn decided(&self, wish: Wish) -> Decision<K> {
        loop {
            if let Some(decision) = self.with(|connection| connection.decide(wish, Instant::now())) {
                return decision;
            }
            self.changed().await;
        }
    }

    /// Notes whether the keeper answers. Returns false if that was known.
    pub(super) fn note_silence(&self, is_silent: bool) -> bool {
        let is_new = self.with(|connection| connection.note_silence(is_silent));
        if is_new {
            self.wake();
        }
        is_new
    }
}

/// The ownership of a start or an end. If it is dropped before its success, because of an error or because its caller was
/// dropped, the next caller has its turn.
pub(super) struct Turn<'a, K>(pub(super) &'a SharedConnection<K>);

impl<K> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        self.0.change(Connection::give_up);
    }
}

#[cfg(test)]
mod tests;
