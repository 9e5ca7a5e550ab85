//! All jobs of a keeper, their timers, and the reports about their logs.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::action::{Action, Actions, Serial};
use super::event::{Event, LogView, Moment};
use super::job::{Job, Presence};
use crate::protocol::{FromKeeper, KeeperSettings, Remembered};
use step_runner_model::{JobKey, ProcessNumber, Recent};

/// Minimum time between two reports of log lengths. Followers do not notice it, and the daemon wakes up far less
/// often.
const LENGTHS_EVERY: Duration = Duration::from_millis(5);

/// The runtime's part of a job: descriptors, processes, the log.
pub trait Body {
    /// Returns the state of the job's log at this moment.
    fn log(&self) -> LogView;

    /// Returns when the body has something to do on its own.
    fn due(&self) -> Option<Instant>;
}

/// A job and the runtime's part of it.
pub struct Registered<B> {
    /// The job.
    pub job: Job,
    /// The runtime's part.
    pub body: B,
}

/// The state of a keeper.
pub struct Core<B> {
    pub(super) settings: KeeperSettings,
    pub(super) jobs: HashMap<Serial, Box<Registered<B>>>,
    /// Jobs that a daemon can name: all but dropped ones.
    pub(super) by_key: HashMap<JobKey, Serial>,
    pub(super) last_serial: Serial,
    /// Finished ids, each with the time at which the daemon reported it; the oldest first.
    pub(super) remembered: Recent<(Remembered, Instant)>,
    pub(super) digest_key: Option<[u8; 16]>,
    pub(super) actions: Actions,
    /// Steps that wait to be started, in the order asked for.
    pub(super) starts: VecDeque<(Serial, ProcessNumber)>,
    timers: BTreeSet<(Instant, Serial)>,
    /// Jobs whose logs grew since the daemon was told.
    grown: Vec<Serial>,
    lengths_told: Instant,
    /// Time since which no daemon has greeted us. `None` while one is connected.
    pub(super) alone_since: Option<Instant>,
    /// True once the keeper has begun to end its jobs without a daemon.
    is_farewell: bool,
}

impl<B: Body> Core<B> {
    /// Creates the state of a keeper that starts now.
    pub fn new(now: Instant) -> Self {
        Self {
            settings: first_settings(),
            jobs: HashMap::new(),
            by_key: HashMap::new(),
            last_serial: 0,
            remembered: Recent::default(),
            digest_key: None,
            actions: Actions::default(),
            starts: VecDeque::new(),
            timers: BTreeSet::new(),
            grown: Vec::new(),
            lengths_told: now,
            alone_since: Some(now),
            is_farewell: false,
        }
    }

    /// Returns the settings in force.
    pub const fn settings(&self) -> &KeeperSettings {
        &self.settings
    }

    /// Returns a job by its number.
    pub fn get(&self, serial: Serial) -> Option<&Registered<B>> {
        self.jobs.get(&serial).map(Box::as_ref)
    }

    /// Returns a job by its number, for its runtime.
    pub fn get_mut(&mut self, serial: Serial) -> Option<&mut Registered<B>> {
        self.jobs.get_mut(&serial).map(Box::as_mut)
    }

    /// Returns all jobs, dropped ones included.
    pub fn all(&self) -> impl Iterator<Item = &Registered<B>> {
        self.jobs.values().map(Box::as_ref)
    }

    /// True if no job is left.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns the next action, if there is one. Take all of them after each call that changes the state.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.next()
    }

    /// Passes an event to a job.
    pub fn on(&mut self, serial: Serial, event: Event, now: Instant) {
        let Some(registered) = self.jobs.get_mut(&serial) else { return };
        let at = Moment { now, log: registered.body.log(), settings: &self.settings };
        registered.job.on(event, &at, &mut self.actions);
    }

    /// Completes a change of a job: reports what is new and sets the timer. Returns the body if the job is gone.
    pub fn settle(&mut self, serial: Serial) -> Option<B> {
        let registered = self.jobs.get_mut(&serial)?;
        let (job, log) = (&mut registered.job, registered.body.log());
        if job.settle(log, &mut self.actions) {
            self.grown.push(serial);
        }
        let is_gone = job.presence == Presence::Gone;
        let due = job.due(log).into_iter().chain(registered.body.due()).min().filter(|_| !is_gone);
        if due != job.timer {
            if let Some(at) = job.timer {
                self.timers.remove(&(at, serial));
            }
            self.timers.extend(due.map(|at| (at, serial)));
            job.timer = due;
        }
        is_gone.then(|| self.jobs.remove(&serial)).flatten().map(|registered| registered.body)
    }

    /// Returns when the first job has something to do.
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the jobs that have something to do: first for their bodies, then for [`Event::StepsDue`] and
    /// [`Event::EndDue`].
    pub fn due(&self, now: Instant) -> Vec<Serial> {
        self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, serial)| *serial).collect()
    }

    /// True if a step waits to be started.
    pub fn has_starts(&self) -> bool {
        !self.starts.is_empty()
    }

    /// Starts one step and returns its job. A start may take long, so the caller looks for requests between two
    /// starts.
    pub fn start_next(&mut self, now: Instant) -> Option<Serial> {
        let (serial, number) = self.starts.pop_front()?;
        self.on(serial, Event::Turn(number), now);
        Some(serial)
    }

    /// Returns when the daemon must be told that logs grew, if they did. The first growth after a quiet time is due
    /// at once, the others together after a short while.
    pub fn lengths_due(&self) -> Option<Instant> {
        (!self.grown.is_empty()).then(|| self.lengths_told + LENGTHS_EVERY)
    }

    /// Returns the lengths of grown logs, for the daemon. Leaves out closed jobs: their ends have reported the
    /// lengths, and a later frame could reach a new job with the same key.
    pub fn take_lengths(&mut self, now: Instant) -> FromKeeper {
        self.lengths_told = now;
        let jobs = &mut self.jobs;
        let len = |serial| {
            let registered = jobs
                .get_mut(&serial)
                .filter(|registered| !registered.job.is_dropped() && !registered.job.is_closed())?;
            Some((registered.job.key(), registered.job.tell_len(registered.body.log().len)))
        };
        FromKeeper::Lengths(self.grown.drain(..).filter_map(len).collect())
    }

    /// Notes that no daemon is connected.
    pub fn disconnected(&mut self, now: Instant) {
        self.alone_since.get_or_insert(now);
    }

    /// Returns the time since which no daemon has greeted us.
    pub const fn alone_since(&self) -> Option<Instant> {
        self.alone_since
    }

    /// Returns when to give up waiting for a daemon.
    pub fn farewell_due(&self) -> Option<Instant> {
        let since = self.alone_since.filter(|_| !self.is_farewell)?;
        Some(since + self.settings.keeper_wait)
    }

    /// Ends all jobs without a daemon, first gently, then by force. They are interrupted by `cause`.
    pub fn begin_farewell(&mut self, cause: &str, now: Instant) {
        self.is_farewell = true;
        for (serial, registered) in &mut self.jobs {
            let job = &mut registered.job;
            job.gate = None;
            if job.is_dropped() {
                continue;
            }
            job.interrupt(self.settings.cancel_grace, cause, now, &mut self.actions);
            self.actions.push(Action::Settle(*serial));
        }
    }

    /// True once the keeper has begun to end its jobs without a daemon.
    pub const fn is_farewell(&self) -> bool {
        self.is_farewell
    }

    /// True if every job has ended as far as it can.
    pub fn is_farewell_over(&self) -> bool {
        self.jobs.values().all(|registered| registered.job.is_dropped() || registered.job.is_closed())
    }
}

/// Returns the settings that apply before the first Hello.
const fn first_settings() -> KeeperSettings {
    KeeperSettings {
        keeper_wait: Duration::from_secs(10),
        kill_wait: Duration::from_secs(2),
        cancel_grace: Duration::from_secs(5),
        leftover_keep: true,
        max_remembered: 0,
        remember_for: Duration::ZERO,
        remove_state: false,
    }
}
