//! The ladder that ends the processes of a job: SIGTERM, the grace, repeated SIGKILL, and finally giving up
//! (service.md §6.2). It decides only what to do at which time, and knows no process.

use std::time::{Duration, Instant};

/// First pause between two checks for living processes; it doubles up to [`LAST_PAUSE`].
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Longest such pause.
pub(crate) const LAST_PAUSE: Duration = Duration::from_millis(20);

/// Pause between attempts to kill processes that outlived `kill_wait` (service.md §6.3, "processes of ended jobs").
const STUBBORN_PAUSE: Duration = Duration::from_secs(30);

/// A requested end. The caller that creates it asks the processes to end; [`Self::check`] tells what must follow.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    /// Time of the first request. Each grace counts from here.
    first: Instant,
    /// From this time on, survivors get SIGKILL.
    kill_at: Instant,
    /// Time to give up on survivors. Set with the first SIGKILL.
    give_up_at: Option<Instant>,
    check_at: Instant,
    pause: Duration,
}

/// Result of a check: the actions that are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rung {
    /// SIGKILL for all that lives.
    pub(super) kill: bool,
    /// The survivors outlived a SIGKILL: something holds them.
    pub(super) again: bool,
    /// The time for SIGKILL is over: what lives is left behind.
    pub(super) given_up: bool,
}

impl Ending {
    pub(super) fn new(now: Instant, grace: Duration) -> Self {
        Self { first: now, kill_at: now + grace, give_up_at: None, check_at: now, pause: FIRST_PAUSE }
    }

    /// Returns the time of the next check.
    pub(super) const fn check_at(&self) -> Instant {
        self.check_at
    }

    /// True if the time for SIGKILL is over, so that nobody waits for survivors any more.
    pub(super) fn has_given_up(&self, now: Instant) -> bool {
        self.give_up_at.is_some_and(|at| at <= now)
    }

    /// Takes the shorter one of two graces.
    pub(super) fn shorten(&mut self, grace: Duration) {
        self.kill_at = self.kill_at.min(self.first + grace);
    }

    /// Ends the grace.
    pub(super) fn kill_now(&mut self, now: Instant) {
        self.kill_at = self.kill_at.min(now);
    }

    /// Makes a check due at once, and lets further ones follow after short pauses: the processes need no time of
    /// their own any more.
    pub(super) const fn hurry(&mut self, now: Instant) {
        self.check_at = now;
        self.pause = FIRST_PAUSE;
    }

    /// Makes the next check due at the end of the grace. Before that, nobody waits for the last process.
    pub(super) const fn rest(&mut self) {
        self.check_at = self.kill_at;
    }

    /// Returns the actions that are due, and sets the time of the next check. `is_empty` is true if no process is
    /// left. `kill_wait` is the time for SIGKILL to work.
    pub(super) fn check(&mut self, now: Instant, is_empty: bool, kill_wait: Duration) -> Rung {
        let given_up = self.has_given_up(now);
        let kill = !is_empty && now >= self.kill_at;
        let again = kill && self.give_up_at.is_some();
        if kill {
            self.give_up_at.get_or_insert(now + kill_wait);
        }
        self.pause = if given_up { STUBBORN_PAUSE } else { (self.pause * 2).min(LAST_PAUSE) };
        self.check_at = now + self.pause;
        Rung { kill, again, given_up }
    }
}

#[cfg(test)]
mod tests;
