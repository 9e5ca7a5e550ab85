//! The end of a job: stop, close, drop (service.md §6.1 "Job", §6.2).

use std::time::{Duration, Instant};

use super::job::{Job, Presence};
use super::protocol::{Closed, FromKeeper};
use super::shared::KeeperShared;
use crate::files;
use crate::journal::event::{End, Event};
use crate::model::{LogChannel, Outcome};

/// First pause between two checks for living processes; it doubles up to [`LAST_PAUSE`].
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Longest such pause.
pub(super) const LAST_PAUSE: Duration = Duration::from_millis(20);

/// Pause between attempts to kill processes that outlived `kill_wait` (service.md §6.3, "processes of ended jobs").
const STUBBORN_PAUSE: Duration = Duration::from_secs(30);

/// A requested end of the job.
pub(super) struct Ending {
    /// When the end was first requested; Stop counts its grace from here.
    first: Instant,
    /// From this time on, survivors get SIGKILL.
    kill_at: Instant,
    /// When to give up on survivors; set with the first SIGKILL.
    give_up_at: Option<Instant>,
    check_at: Instant,
    pause: Duration,
}

/// A close under way.
pub(super) struct Closing {
    /// Last lines for the log.
    lines: Vec<(LogChannel, String)>,
    /// Outcome to record, if no daemon is there to do it.
    outcome: Option<Outcome>,
    /// Report to send once the log is written to its end.
    closed: Option<Closed>,
}

impl Ending {
    fn new(grace: Duration) -> Self {
        let now = Instant::now();
        Self { first: now, kill_at: now + grace, give_up_at: None, check_at: now, pause: FIRST_PAUSE }
    }

    /// Checks again at once, and then with short pauses.
    fn hurry(&mut self) {
        self.check_at = Instant::now();
        self.pause = FIRST_PAUSE;
    }
}

impl Job {
    /// Cancels the job: asks the running step to end, and kills everything after `grace`. A shorter grace wins, a
    /// longer one is ignored.
    pub(super) fn stop(&mut self, grace: Duration, shared: &KeeperShared) {
        if self.closed.is_some() {
            return;
        }
        let first = self.ending.is_none();
        let ending = self.ending.get_or_insert_with(|| Ending::new(grace));
        ending.kill_at = ending.kill_at.min(ending.first + grace);
        if self.closing.is_some() {
            ending.hurry();
        } else {
            ending.check_at = ending.kill_at;
        }
        if first {
            self.containment.thaw(shared);
        }
        if first && self.has_process() {
            self.containment.terminate_step(self.leader());
        }
    }

    /// Ends the remaining processes and closes the log.
    pub(super) fn close(
        &mut self,
        grace: Duration,
        lines: Vec<(LogChannel, String)>,
        outcome: Option<Outcome>,
        shared: &mut KeeperShared,
    ) {
        if self.closed.is_some() || self.closing.is_some() {
            return;
        }
        self.closing = Some(Closing { lines, outcome, closed: None });
        let was_asked = self.ending.is_some();
        self.ending.get_or_insert_with(|| Ending::new(grace)).hurry();
        if !self.containment.is_empty(shared) {
            self.containment.thaw(shared);
            // SIGTERM goes to the whole group of a running step, and to each other process.
            let leader = self.leader();
            if self.has_process() && !was_asked {
                self.containment.terminate_step(leader);
            }
            self.containment.terminate_rest(leader, shared);
        }
        self.ending_tick(Instant::now(), shared);
    }

    /// Drops the job for the daemon: kills its processes. Once none is left, the job is `Gone`.
    pub(super) fn drop_job(&mut self, shared: &mut KeeperShared) {
        self.presence = Presence::Dropped;
        let ending = self.ending.get_or_insert_with(|| Ending::new(Duration::ZERO));
        ending.kill_at = Instant::now();
        ending.hurry();
        self.ending_tick(Instant::now(), shared);
    }

    /// Closes the job without a daemon, and records `outcome`.
    pub(super) fn interrupt(
        &mut self,
        grace: Duration,
        outcome: Outcome,
        line: String,
        shared: &mut KeeperShared,
    ) {
        match &mut self.closing {
            Some(closing) => closing.outcome = Some(outcome),
            None => self.close(grace, vec![(LogChannel::Err, line)], Some(outcome), shared),
        }
    }

    /// Continues at once a close that waited for the disk, even if it pauses because of survivors.
    pub(super) fn close_anew(&mut self) {
        if let (Some(_), Some(ending)) = (&self.closing, &mut self.ending) {
            ending.hurry();
        }
    }

    /// Continues a close or drop at once. Called when the job's reaper is dead or has no process left.
    pub(super) fn end_anew(&mut self) {
        let waits = self.closing.is_some() || self.is_dropped();
        if let Some(ending) = self.ending.as_mut().filter(|_| waits) {
            ending.hurry();
        }
    }

    pub(super) fn ending_deadline(&self) -> Option<Instant> {
        let ending = self.ending.as_ref()?;
        let has_work = self.closing.is_some() || self.is_dropped() || self.step.is_some();
        (has_work && self.closed.is_none() || self.is_dropped()).then_some(ending.check_at)
    }

    pub(super) fn ending_tick(&mut self, now: Instant, shared: &mut KeeperShared) {
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
            let is_repeated = ending.give_up_at.is_some();
            ending.give_up_at.get_or_insert(now + shared.settings.kill_wait);
            if is_repeated {
                self.containment.thaw_survivors(shared);
            }
            self.containment.kill(self.leader(), shared);
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

    /// Writes the last bytes of the log and reports the end. Called again while the disk refuses them.
    fn finish_close(&mut self, survivors: bool, shared: &mut KeeperShared) {
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
            // Sync before recording the end. If that fails, nothing is recorded, and the next start closes the job.
            if !self.is_synced || shared.sync() {
                self.journal(&self.ended(outcome), shared);
            }
        }
        self.closed = Some(closed.clone());
        self.tell(&FromKeeper::Closed { key: self.key, closed }, shared);
    }

    /// Returns the end record of a job that no daemon came back for. A later start counts its ended steps.
    pub(super) fn ended(&self, outcome: Outcome) -> Event {
        let end = End::new(outcome, crate::clock::now_micros(), self.log.len(), self.log.inode());
        Event::Ended(End { end_boot: Some(crate::clock::boot_micros()), ..end })
    }

    fn write_end(
        &mut self,
        lines: Vec<(LogChannel, String)>,
        survivors: bool,
        shared: &mut KeeperShared,
    ) -> Closed {
        let unkilled = if survivors { self.containment.survivors(shared) } else { Vec::new() };
        let unkilled: Vec<u32> = unkilled.iter().map(|process| process.pid).collect();
        let usage = self.containment.usage();
        self.close_pipes(shared);
        for (kind, text) in lines {
            self.line(kind, &text, shared);
        }
        if !unkilled.is_empty() {
            self.line(LogChannel::Err, &format!("{} processes could not be killed", unkilled.len()), shared);
        }
        if let Some(text) = self.log.foreign().text() {
            self.line(LogChannel::Err, &format!("warning: {text}"), shared);
        }
        self.log.append_final_notes(&shared.stamp());
        Closed { unkilled, cpu_time: usage.cpu_time, peak_memory: usage.peak_memory, ..Closed::default() }
    }
}
