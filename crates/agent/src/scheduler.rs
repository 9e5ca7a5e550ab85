//! Who asks for a job next, and when (agent.md §4).
//!
//! The scheduler counts slots, and knows when each entry may ask, with which ticket, and when it must not. It takes no
//! job that the agent cannot start: a request in flight holds a slot, and becomes the slot of the job that it brings.

mod entry;
mod stop;
#[cfg(test)]
mod stop_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use stop::{Exit, OnStop, Signal};

use crate::answer::Reply;
use crate::routing::Ticket;
use crate::time::{Jitter, Moment};
use entry::Entry;
use stop::Stop;

/// An entry of the configuration. The caller keeps its number over reloads and new tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryId(pub u64);

/// A job request, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Settings for all entries together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slots.
    pub concurrent: usize,
    /// Time from an answer without a job to the entry's next request.
    pub check_interval: Duration,
    /// What SIGTERM does to jobs.
    pub on_stop: OnStop,
    /// Time that a stop leaves to requests in flight, or to jobs that it ends.
    pub shutdown_timeout: Duration,
}

/// Settings of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryLimits {
    /// Most jobs and requests; `None`: no limit but the slots.
    pub limit: Option<usize>,
    /// Most requests in flight.
    pub request_concurrency: usize,
    /// True to wait for the interval after a job, too.
    pub strict_check_interval: bool,
    /// Refusals in a row that stop the entry.
    pub unhealthy_requests_limit: u32,
    /// For how long.
    pub unhealthy_interval: Duration,
}

/// An agent that takes one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// Time to wait for the job; `None`: for ever.
    pub wait: Option<Duration>,
}

/// Something that the scheduler must know.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time that [`Scheduler::wake`] named has come.
    Tick,
    /// The configuration was read, at the start and after each reload.
    Configured(Limits, Vec<(EntryId, EntryLimits)>),
    /// A job of an earlier run of the agent goes on. It holds a slot if it has not ended.
    Adopted {
        /// Its entry, which can be gone.
        entry: EntryId,
        /// True if it holds a slot.
        is_running: bool,
    },
    /// A request was answered.
    Answered {
        /// The request.
        request: RequestId,
        /// Its answer, after all tries.
        reply: Reply,
        /// True if the answer is a job whose id and token could be read.
        has_job: bool,
        /// Random part of a wait.
        jitter: Jitter,
    },
    /// An entry's environment answered, or did not.
    Environment {
        /// The entry.
        entry: EntryId,
        /// True if it answered.
        is_there: bool,
    },
    /// A preparation ended. Only failures of the machine count here.
    Prepared {
        /// The entry.
        entry: EntryId,
        /// True if the machine, engine or cluster is at fault.
        is_system_failure: bool,
    },
    /// Space for state is short, or is there again.
    Disk {
        /// True if there is enough.
        is_enough: bool,
    },
    /// The entry has another token from now on.
    TokenReplaced(EntryId),
    /// A job has ended: its slot is free.
    JobEnded(EntryId),
    /// A job is reported: its record is gone.
    JobClosed(EntryId),
    /// A signal came.
    Signal(Signal),
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask for a job.
    Ask {
        /// For this entry.
        entry: EntryId,
        /// Number of the request.
        request: RequestId,
        /// Its ticket: with one, the server may hold the request.
        ticket: Option<Ticket>,
    },
    /// Ask the entry's environment if it is there, within a time limit.
    CheckEnvironment(EntryId),
    /// Tell the operator.
    Tell(EntryId, Told),
    /// End all jobs, and those that requests in flight still bring.
    EndJobs {
        /// True to kill them at once.
        force: bool,
    },
    /// End the agent. Requests in flight are dropped, records of jobs stay.
    Exit(Exit),
}

/// News about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The server refuses it: it stops for this time.
    Unhealthy(Duration),
    /// The server answers again.
    Healthy,
    /// Its environment does not answer: it asks for no job.
    NoEnvironment,
    /// Its preparations fail: it stops for this time.
    CannotPrepare(Duration),
}

/// A request in flight.
struct InFlight {
    entry: EntryId,
    /// Tokens that the entry had before this one.
    generation: u32,
}

/// The scheduler.
pub struct Scheduler {
    limits: Limits,
    entries: BTreeMap<EntryId, Entry>,
    in_flight: BTreeMap<RequestId, InFlight>,
    requests: u64,
    has_space: bool,
    once: Option<OnceState>,
    stop: Stop,
}

struct OnceState {
    deadline: Option<Moment>,
}

impl Scheduler {
    /// Makes a scheduler without entries.
    pub fn new(limits: Limits, once: Option<Once>, now: Moment) -> Self {
        let once = once.map(|once| OnceState { deadline: once.wait.map(|wait| now + wait) });
        Self {
            limits,
            entries: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            requests: 0,
            has_space: true,
            once,
            stop: Stop::new(),
        }
    }

    /// Takes an event. Returns what to do, in this order.
    pub fn handle(&mut self, event: Event, now: Moment) -> Vec<Action> {
        let mut actions = Vec::new();
        self.apply(event, now, &mut actions);
        self.end_once(now);
        if self.stop.asks() && self.has_space {
            self.offer(now, &mut actions);
        }
        let (waiting, open) = (self.in_flight.len(), self.open());
        actions.extend(self.stop.exit(waiting, open, now).map(Action::Exit));
        actions
    }

    fn apply(&mut self, event: Event, now: Moment, actions: &mut Vec<Action>) {
        match event {
            Event::Tick => {}
            Event::Configured(limits, entries) => self.configure(limits, entries, now),
            Event::Adopted { entry, is_running } => {
                let entry = self.entries.entry(entry).or_insert_with(|| Entry::gone(now));
                entry.open += 1;
                entry.running += usize::from(is_running);
            }
            Event::Answered { request, reply, has_job, jitter } => {
                let Some(request) = self.in_flight.remove(&request) else { return };
                let check_interval = self.limits.check_interval;
                if let Some(entry) = self.entries.get_mut(&request.entry) {
                    let told =
                        entry.answered(&reply, has_job, request.generation, check_interval, now, jitter);
                    actions.extend(told.map(|told| Action::Tell(request.entry, told)));
                }
                if has_job && self.once.is_some() {
                    self.stop.drain();
                }
                actions.extend(self.stop.job_came(has_job));
            }
            Event::Environment { entry, is_there } => {
                let told = self.entries.get_mut(&entry).and_then(|found| found.environment(is_there, now));
                actions.extend(told.map(|told| Action::Tell(entry, told)));
            }
            Event::Prepared { entry, is_system_failure } => {
                let found = self.entries.get_mut(&entry);
                let told = found.and_then(|found| found.prepared(is_system_failure, now));
                actions.extend(told.map(|told| Action::Tell(entry, told)));
            }
            Event::Disk { is_enough } => self.has_space = is_enough,
            Event::TokenReplaced(entry) => {
                if let Some(entry) = self.entries.get_mut(&entry) {
                    entry.token_replaced();
                }
            }
            Event::JobEnded(entry) => {
                if let Some(entry) = self.entries.get_mut(&entry) {
                    entry.running = entry.running.saturating_sub(1);
                }
            }
            Event::JobClosed(entry) => {
                if let Some(entry) = self.entries.get_mut(&entry) {
                    entry.open = entry.open.saturating_sub(1);
                }
                self.entries.retain(|_, entry| !entry.is_over());
            }
            Event::Signal(signal) => {
                let open = self.open() + self.in_flight.len();
                actions.extend(self.stop.signal(signal, &self.limits, open, now));
            }
        }
    }

    fn configure(&mut self, limits: Limits, entries: Vec<(EntryId, EntryLimits)>, now: Moment) {
        self.limits = limits;
        for entry in self.entries.values_mut() {
            entry.limits = None;
        }
        for (id, limits) in entries {
            self.entries.entry(id).or_insert_with(|| Entry::gone(now)).limits = Some(limits);
        }
        self.entries.retain(|_, entry| !entry.is_over());
    }

    /// Returns how many jobs have a record.
    fn open(&self) -> usize {
        self.entries.values().map(|entry| entry.open).sum()
    }

    /// Returns how many slots are free.
    fn free(&self) -> usize {
        let slots = if self.once.is_some() { self.limits.concurrent.min(1) } else { self.limits.concurrent };
        slots.saturating_sub(self.entries.values().map(Entry::count).sum())
    }

    /// Ends an agent that was to take one job, once the time for it is over.
    fn end_once(&mut self, now: Moment) {
        let is_over =
            self.once.as_ref().and_then(|once| once.deadline).is_some_and(|deadline| deadline <= now);
        // Without space no entry can try.
        let have_tried = self.entries.values().all(|entry| entry.has_tried || entry.limits.is_none());
        if is_over && (have_tried || !self.has_space) {
            self.stop.drain();
        }
    }

    /// Lets entries ask while slots are free.
    fn offer(&mut self, now: Moment, actions: &mut Vec<Action>) {
        loop {
            let free = self.free();
            if free == 0 {
                return;
            }
            actions.extend(self.checks(now));
            let is_late =
                self.once.as_ref().and_then(|once| once.deadline).is_some_and(|deadline| deadline <= now);
            let could_ask: Vec<EntryId> = self
                .entries
                .iter()
                .filter(|(_, entry)| {
                    entry.can_ask(now) && entry.is_fresh(now) && !(is_late && entry.has_tried)
                })
                .map(|(id, _)| *id)
                .collect();
            let next = could_ask
                .iter()
                .filter_map(|id| Some((*id, self.entries.get(id)?)))
                .filter(|(_, entry)| entry.next <= now)
                .min_by_key(|(id, entry)| (entry.count(), entry.last_asked, *id))
                .map(|(id, _)| id);
            let Some(id) = next else { return };
            // A held request keeps its slot. With fewer slots than entries none may be held, or the others starve.
            let may_be_held = free >= could_ask.len() && self.once.is_none();
            actions.extend(self.ask(id, may_be_held, now));
        }
    }

    fn ask(&mut self, id: EntryId, may_be_held: bool, now: Moment) -> Option<Action> {
        let entry = self.entries.get_mut(&id)?;
        self.requests += 1;
        let request = RequestId(self.requests);
        let ticket = entry.ask(now).filter(|_| may_be_held);
        self.in_flight.insert(request, InFlight { entry: id, generation: entry.generation });
        Some(Action::Ask { entry: id, request, ticket })
    }

    /// Asks environments of entries that could ask but for them.
    fn checks(&mut self, now: Moment) -> Vec<Action> {
        let entries = self.entries.iter_mut().filter(|(_, entry)| entry.can_ask(now));
        entries.filter_map(|(id, entry)| entry.check(now).then_some(Action::CheckEnvironment(*id))).collect()
    }

    /// Returns when to send [`Event::Tick`], if nothing else happens before.
    pub fn wake(&self, now: Moment) -> Option<Moment> {
        let stop = self.stop.wake();
        if !self.stop.asks() {
            return stop;
        }
        let once = self.once.as_ref().and_then(|once| once.deadline).filter(|deadline| *deadline > now);
        let is_blocked = !self.has_space || self.free() == 0;
        let entries = self.entries.values().filter(|_| !is_blocked).filter_map(|entry| entry.wake(now));
        entries.chain(stop).chain(once).min()
    }
}
