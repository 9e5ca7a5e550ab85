//! The ladder that ends the processes of a job: SIGTERM, the grace, SIGKILL again and again, and at last giving up
//! (service.md §6.2). It says when to do what; it knows no process.

use std::time::{Duration, Instant};

/// First pause between two checks for living processes; it doubles up to [`LAST_PAUSE`].
pub(in crate::keeper) const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Longest such pause.
pub(in crate::keeper) const LAST_PAUSE: Duration = Duration::from_millis(20);

/// Pause between attempts to kill processes that outlived `kill_wait` (service.md §6.3, "processes of ended jobs").
const STUBBORN_PAUSE: Duration = Duration::from_secs(30);

/// A requested end. Whoever makes it has asked the processes to end; a check tells what is to follow.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    /// When the end was first requested; each grace counts from here.
    first: Instant,
    /// From this time on, survivors get SIGKILL.
    kill_at: Instant,
    /// When to give up on survivors; set with the first SIGKILL.
    give_up_at: Option<Instant>,
    check_at: Instant,
    pause: Duration,
}

/// Result of a check: the next things to do.
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

    /// When to check next.
    pub(super) const fn check_at(&self) -> Instant {
        self.check_at
    }

    /// True if SIGKILL had its time: what lives is not waited for.
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

    /// Checks at once, and then with short pauses: nothing waits for the processes' own time any more.
    pub(super) const fn hurry(&mut self, now: Instant) {
        self.check_at = now;
        self.pause = FIRST_PAUSE;
    }

    /// Checks when the grace is over. Before that nobody waits for the last process.
    pub(super) const fn rest(&mut self) {
        self.check_at = self.kill_at;
    }

    /// Climbs on, as it is time to check. `is_empty`: no process is left. `kill_wait`: time for SIGKILL to work.
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
