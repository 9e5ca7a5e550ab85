//! The end of a job: stop, close, drop (service.md §6.1 "Job", §6.2).

use std::time::{Duration, Instant};

use super::job::{Job, Presence};
use super::protocol::{Closed, FromKeeper};
use super::shared::Shared;
use crate::files;
use crate::journal::event::{End, Event};
use crate::model::{Kind, Outcome};
use crate::process::group;

/// First pause between two looks at what still lives; each is twice as long as the one before …
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// … up to this one.
pub(super) const LAST_PAUSE: Duration = Duration::from_millis(20);

/// Pause between attempts at processes that outlived `kill_wait` (service.md §6.3, "processes of ended jobs").
const STUBBORN_PAUSE: Duration = Duration::from_secs(30);

/// An end that was asked for.
pub(super) struct Ending {
    /// When Stop asked first; its graces count from here.
    first: Instant,
    /// From when on SIGKILL is sent.
    kill_at: Instant,
    /// Set with the first SIGKILL: from then on survivors are given up.
    give_up_at: Option<Instant>,
    check_at: Instant,
    pause: Duration,
}

/// A job that is being closed.
pub(super) struct Closing {
    /// Last lines.
    lines: Vec<(Kind, String)>,
    /// The end to record, if no daemon is there to do it.
    outcome: Option<Outcome>,
    /// What will be reported, once the log is written to its end.
    closed: Option<Closed>,
}

impl Ending {
    fn new(grace: Duration) -> Self {
        let now = Instant::now();
        Self { first: now, kill_at: now + grace, give_up_at: None, check_at: now, pause: FIRST_PAUSE }
    }

    /// Looks again at once, and often.
    fn hurry(&mut self) {
        self.check_at = Instant::now();
        self.pause = FIRST_PAUSE;
    }
}

impl Job {
    /// Cancel: the running step gently, after `grace` everything by force. A shorter grace counts, a longer does not.
    pub(super) fn stop(&mut self, grace: Duration) {
        if self.closed.is_some() {
            return;
        }
        let leader = self.leader();
        let first = self.ending.is_none();
        let ending = self.ending.get_or_insert_with(|| Ending::new(grace));
        ending.kill_at = ending.kill_at.min(ending.first + grace);
        if self.closing.is_some() {
            ending.hurry();
        } else {
            ending.check_at = ending.kill_at;
        }
        if first && let Some(leader) = leader {
            group::terminate(leader);
        }
    }

    /// Ends what is left and closes the log.
    pub(super) fn close(
        &mut self,
        grace: Duration,
        lines: Vec<(Kind, String)>,
        outcome: Option<Outcome>,
        shared: &mut Shared,
    ) {
        if self.closed.is_some() || self.closing.is_some() {
            return;
        }
        self.closing = Some(Closing { lines, outcome, closed: None });
        let was_asked = self.ending.is_some();
        self.ending.get_or_insert_with(|| Ending::new(grace)).hurry();
        if !self.containment.is_empty(shared) {
            // The group of a running step is asked once, whole; the rest one by one.
            let leader = self.leader();
            if let Some(leader) = leader.filter(|_| !was_asked) {
                group::terminate(leader);
            }
            self.containment.terminate(leader, shared);
        }
        self.ending_tick(Instant::now(), shared);
    }

    /// The daemon forgets the job: what lives is killed, then it is `gone`.
    pub(super) fn drop_job(&mut self, shared: &mut Shared) {
        self.presence = Presence::Dropped;
        let ending = self.ending.get_or_insert_with(|| Ending::new(Duration::ZERO));
        ending.kill_at = Instant::now();
        ending.hurry();
        self.ending_tick(Instant::now(), shared);
    }

    /// No daemon will end the job: it is closed by the keeper, and recorded as interrupted.
    pub(super) fn interrupt(&mut self, grace: Duration, outcome: Outcome, line: String, shared: &mut Shared) {
        match &mut self.closing {
            Some(closing) => closing.outcome = Some(outcome),
            None => self.close(grace, vec![(Kind::Err, line)], Some(outcome), shared),
        }
    }

    /// The disk takes bytes again: a close that waited for it goes on at once, however long it would leave survivors alone.
    pub(super) fn close_anew(&mut self) {
        if let (Some(_), Some(ending)) = (&self.closing, &mut self.ending) {
            ending.hurry();
        }
    }

    pub(super) fn ending_deadline(&self) -> Option<Instant> {
        let ending = self.ending.as_ref()?;
        let has_work = self.closing.is_some() || self.is_dropped() || self.step.is_some();
        (has_work && self.closed.is_none() || self.is_dropped()).then_some(ending.check_at)
    }

    pub(super) fn ending_tick(&mut self, now: Instant, shared: &mut Shared) {
        if self.ending_deadline().is_none_or(|at| at > now) {
            return;
        }
        let empty = self.step.is_none() && self.containment.is_empty(shared);
        if empty && self.is_dropped() {
            self.presence = Presence::Gone;
        }
        let Some(ending) = &mut self.ending else { return };
        let given_up = ending.give_up_at.is_some_and(|at| at <= now);
        if !empty && now >= ending.kill_at {
            ending.give_up_at.get_or_insert(now + shared.settings.kill_wait);
            if let Some(leader) = self.leader() {
                group::kill(leader);
            }
            self.containment.kill(shared);
        }
        if let Some(ending) = &mut self.ending {
            ending.pause = if given_up { STUBBORN_PAUSE } else { (ending.pause * 2).min(LAST_PAUSE) };
            ending.check_at = now + ending.pause;
        }
        if given_up && self.step.is_some() {
            self.give_up_step(shared);
        }
        if self.closing.is_some() && (empty || given_up) {
            self.finish_close(given_up && !empty, shared);
        }
    }

    /// Everything that can end has ended: the log gets its last bytes. Called again while the disk refuses them.
    fn finish_close(&mut self, survivors: bool, shared: &mut Shared) {
        if self.log.is_waiting() {
            return;
        }
        let Some(mut closing) = self.closing.take() else { return };
        let mut closed = match closing.closed.take() {
            Some(closed) => closed,
            None => self.write_end(std::mem::take(&mut closing.lines), survivors, shared),
        };
        if self.log.is_waiting() {
            self.closing = Some(Closing { closed: Some(closed), ..closing });
            return;
        }
        closed.log_damaged = self.log.close();
        closed.log_len = self.log.len();
        self.containment.release(shared);
        if let Some(outcome) = closing.outcome {
            for path in self.secret_files.drain(..) {
                files::unlink(files::CWD, path.as_path()).ok();
            }
            // What the record speaks of is on the disk before it; else the next start closes the job.
            if !self.is_synced || shared.sync() {
                shared.journal(self.key, &self.ended(outcome));
            }
        }
        self.closed = Some(closed.clone());
        shared.tell(&FromKeeper::Closed { key: self.key, closed });
    }

    /// The end record of a job that no daemon came back for. How many of its steps had ended is in its results.
    pub(super) fn ended(&self, outcome: Outcome) -> Event {
        let end = End::new(outcome, crate::clock::now_micros(), self.log.len(), self.log.inode());
        Event::Ended(End { end_boot: Some(crate::clock::boot_micros()), ..end })
    }

    fn write_end(&mut self, lines: Vec<(Kind, String)>, survivors: bool, shared: &mut Shared) -> Closed {
        let unkilled = if survivors { self.containment.survivors(shared) } else { Vec::new() };
        let usage = self.containment.usage(shared);
        self.close_pipes(shared);
        for (kind, text) in lines {
            self.line(kind, &text, shared);
        }
        if !unkilled.is_empty() {
            self.line(Kind::Err, &format!("{} processes could not be killed", unkilled.len()), shared);
        }
        self.log.last_words(&shared.stamp());
        Closed { unkilled, cpu_time: usage.cpu_time, peak_memory: usage.peak_memory, ..Closed::default() }
    }
}
