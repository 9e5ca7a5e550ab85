//! Admission: how many jobs run, and which one next (queue.md). Pure: a queue is told what happens and says which jobs
//! start; it knows neither clock nor actors.
//!
//! Every event touches one key and costs O(log n) for n waiting jobs: the waiting jobs of a key are ordered, and so are
//! the keys that may get the next slot, by what their first job is compared by.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Which waiting job comes next (queue.md §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The one that came first.
    Fifo,
    /// One of the key with the fewest running jobs; among those the lowest number, then the one that came first.
    Fair,
}

/// What bounds a queue; `None`: no such bound (queue.md §2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Jobs running at once.
    pub running: Option<usize>,
    /// Jobs running at once of one key.
    pub running_per_key: Option<usize>,
    /// Jobs waiting.
    pub queued: Option<usize>,
    /// Sum of the sizes of waiting jobs in bytes.
    pub queued_bytes: Option<u64>,
}

/// Whose share a job uses: server and project (queue.md §3). All jobs without either form one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Address of the server that the job is from.
    pub server: Arc<str>,
    /// The project's id there.
    pub project: Arc<str>,
}

impl Key {
    /// The key of a job with these variables, blanks around them removed; an id of digits has no leading zeros.
    pub fn new(server: &str, project: &str) -> Self {
        let project = project.trim();
        let is_number = !project.is_empty() && project.bytes().all(|byte| byte.is_ascii_digit());
        let project = match project.trim_start_matches('0') {
            "" if is_number => "0",
            significant if is_number => significant,
            _ => project,
        };
        Self { server: server.trim().into(), project: project.into() }
    }
}

/// The number that `text` is, if it counts as one: 1 to 20 ASCII digits, less than 2^64 (queue.md §3).
pub fn number(text: &str) -> Option<u64> {
    let is_number = (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// A job's place in the order, given once, when it is accepted (queue.md §3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Order number.
    pub order: u64,
    /// Serial number of its arrival.
    pub arrival: u64,
    /// Server whose numbers were compared when it was given.
    pub reference: Option<Arc<str>>,
    /// Highest order number given by then, this one included.
    pub highest: u64,
}

/// What became of a submitted job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is among those that start now; this would have been its place.
    Started(Place),
    /// It waits at this place.
    Queued(Place),
    /// It is queued or running already; nothing has changed.
    Existing,
    /// Too many wait already; it has left no trace.
    Full(Full),
}

/// Which bound was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Of [`Limits::queued`].
    Jobs {
        /// Jobs waiting, without this one.
        waiting: usize,
        /// The bound.
        limit: usize,
    },
    /// Of [`Limits::queued_bytes`].
    Bytes {
        /// Bytes waiting, without this one's.
        waiting: u64,
        /// The bound.
        limit: u64,
    },
}

/// What a waiting job is compared by within its key: order number and arrival. Under `fifo` the first is 0 for all.
type Rank = (u64, u64);

/// A job in the queue.
struct Entry {
    key: Key,
    state: EntryState,
}

enum EntryState {
    Waiting { place: Place, bytes: u64 },
    Running,
}

/// Jobs of one key.
struct Share<J> {
    waiting: BTreeMap<Rank, J>,
    running: usize,
}

impl<J> Default for Share<J> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), running: 0 }
    }
}

/// The queue of jobs named `J`.
pub struct Queue<J> {
    policy: Policy,
    limits: Limits,
    paused: bool,
    jobs: HashMap<J, Entry>,
    shares: HashMap<Key, Share<J>>,
    /// Keys that have waiting jobs and are below their cap, by (running jobs, first job's rank); under `fifo` the first
    /// is 0 for all.
    candidates: BTreeSet<(usize, Rank, Key)>,
    running: usize,
    waiting: usize,
    waiting_bytes: u64,
    arrivals: u64,
    /// Server whose numbers are compared; set by the first numbered job, forgotten when nothing waits.
    reference: Option<Arc<str>>,
    /// Highest order number given since then.
    highest: u64,
}

impl<J: Clone + Eq + Hash> Queue<J> {
    /// An empty queue.
    pub fn new(policy: Policy, limits: Limits) -> Self {
        Self {
            policy,
            limits,
            paused: false,
            jobs: HashMap::new(),
            shares: HashMap::new(),
            candidates: BTreeSet::new(),
            running: 0,
            waiting: 0,
            waiting_bytes: 0,
            arrivals: 0,
            reference: None,
            highest: 0,
        }
    }

    /// Jobs that wait.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Jobs that hold a slot.
    pub const fn running(&self) -> usize {
        self.running
    }

    /// A job is submitted: its key, its number if it has one, its size in bytes. Jobs that start now are added to
    /// `starts`, in order.
    pub fn submit(
        &mut self,
        job: &J,
        key: Key,
        number: Option<u64>,
        bytes: u64,
        starts: &mut Vec<J>,
    ) -> Submitted {
        if self.jobs.contains_key(job) {
            return Submitted::Existing;
        }
        let before = (self.reference.clone(), self.highest, self.arrivals);
        let place = self.place(&key, number);
        self.enqueue(job.clone(), key, &place, bytes);
        self.offer(starts);
        if self.is_running(job) {
            return Submitted::Started(place);
        }
        match self.overfull(bytes) {
            Some(full) => {
                self.remove(job);
                (self.reference, self.highest, self.arrivals) = before;
                Submitted::Full(full)
            }
            None => Submitted::Queued(place),
        }
    }

    /// Takes up a waiting job of an earlier process at its old place. No slot is offered: see [`Self::resume`].
    pub fn restore_waiting(&mut self, job: J, key: Key, place: &Place, bytes: u64) {
        self.arrivals = self.arrivals.max(place.arrival + 1);
        self.highest = self.highest.max(place.highest);
        self.reference = self.reference.take().or_else(|| place.reference.clone());
        self.enqueue(job, key, place, bytes);
    }

    /// Takes up a running job of an earlier process; it holds its slot even if that is one too many.
    pub fn restore_running(&mut self, job: J, key: Key) {
        self.change(&key, |share| share.running += 1);
        self.running += 1;
        self.jobs.insert(job, Entry { key, state: EntryState::Running });
    }

    /// A job is gone: it waited and was cancelled, or its last process is gone.
    pub fn leave(&mut self, job: &J, starts: &mut Vec<J>) {
        self.remove(job);
        self.offer(starts);
    }

    /// The key of a waiting or running job.
    pub fn key(&self, job: &J) -> Option<&Key> {
        self.jobs.get(job).map(|entry| &entry.key)
    }

    /// Nothing starts until [`Self::resume`].
    pub const fn pause(&mut self) {
        self.paused = true;
    }

    /// Ends a pause.
    pub fn resume(&mut self, starts: &mut Vec<J>) {
        self.paused = false;
        self.offer(starts);
    }

    /// Another policy, other limits. Lower ones end nothing; they delay starts (queue.md §8).
    pub fn configure(&mut self, policy: Policy, limits: Limits, starts: &mut Vec<J>) {
        if policy != self.policy || limits.running_per_key != self.limits.running_per_key {
            (self.policy, self.limits) = (policy, limits);
            self.sort_anew();
        }
        self.limits = limits;
        self.offer(starts);
    }

    /// Whether `job` holds a slot.
    pub fn is_running(&self, job: &J) -> bool {
        matches!(self.jobs.get(job), Some(Entry { state: EntryState::Running, .. }))
    }

    fn sort_anew(&mut self) {
        for share in self.shares.values_mut() {
            share.waiting.clear();
        }
        for (job, entry) in &self.jobs {
            if let (EntryState::Waiting { place, .. }, Some(share)) =
                (&entry.state, self.shares.get_mut(&entry.key))
            {
                share.waiting.insert(rank(self.policy, place), job.clone());
            }
        }
        let keys: Vec<Key> = self.shares.keys().cloned().collect();
        self.candidates.clear();
        for key in &keys {
            self.enter_candidates(key);
        }
    }

    fn place(&mut self, key: &Key, number: Option<u64>) -> Place {
        if let Some(number) = number {
            let reference = self.reference.get_or_insert_with(|| Arc::clone(&key.server));
            if *reference == key.server {
                self.highest = self.highest.max(number);
            }
        }
        let own = number.filter(|_| self.reference.as_ref() == Some(&key.server));
        let place = Place {
            order: own.unwrap_or(self.highest),
            arrival: self.arrivals,
            reference: self.reference.clone(),
            highest: self.highest,
        };
        self.arrivals += 1;
        place
    }

    fn enqueue(&mut self, job: J, key: Key, place: &Place, bytes: u64) {
        let rank = rank(self.policy, place);
        self.waiting += 1;
        self.waiting_bytes += bytes;
        let name = job.clone();
        self.change(&key, |share| drop(share.waiting.insert(rank, name)));
        self.jobs.insert(job, Entry { key, state: EntryState::Waiting { place: place.clone(), bytes } });
    }

    /// Takes a job out, waiting or running.
    fn remove(&mut self, job: &J) {
        let Some(Entry { key, state }) = self.jobs.remove(job) else { return };
        match state {
            EntryState::Waiting { place, bytes } => {
                let rank = rank(self.policy, &place);
                self.change(&key, |share| drop(share.waiting.remove(&rank)));
                self.no_longer_waiting(bytes);
            }
            EntryState::Running => {
                self.change(&key, |share| share.running -= 1);
                self.running -= 1;
            }
        }
    }

    fn no_longer_waiting(&mut self, bytes: u64) {
        self.waiting -= 1;
        self.waiting_bytes -= bytes;
        if self.waiting == 0 {
            self.reference = None;
            self.highest = 0;
        }
    }

    /// Gives free slots away until there is none or no candidate.
    fn offer(&mut self, starts: &mut Vec<J>) {
        while !self.paused
            && self.limits.running.is_none_or(|limit| self.running < limit)
            && let Some((_, rank, key)) = self.candidates.first().cloned()
        {
            let mut chosen = None;
            self.change(&key, |share| {
                chosen = share.waiting.remove(&rank);
                share.running += 1;
            });
            self.running += 1;
            let Some(job) = chosen else { continue };
            let state =
                self.jobs.get_mut(&job).map(|entry| std::mem::replace(&mut entry.state, EntryState::Running));
            if let Some(EntryState::Waiting { bytes, .. }) = state {
                self.no_longer_waiting(bytes);
            }
            starts.push(job);
        }
    }

    fn overfull(&self, bytes: u64) -> Option<Full> {
        let jobs = self.limits.queued.filter(|limit| self.waiting > *limit);
        let size = self.limits.queued_bytes.filter(|limit| self.waiting_bytes > *limit);
        jobs.map(|limit| Full::Jobs { waiting: self.waiting - 1, limit })
            .or_else(|| size.map(|limit| Full::Bytes { waiting: self.waiting_bytes - bytes, limit }))
    }

    /// Changes the share of `key`; a share that is empty then is dropped.
    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Share<J>)) {
        self.leave_candidates(key);
        let share = self.shares.entry(key.clone()).or_default();
        change(share);
        if share.waiting.is_empty() && share.running == 0 {
            self.shares.remove(key);
        }
        self.enter_candidates(key);
    }

    fn leave_candidates(&mut self, key: &Key) {
        if let Some(candidate) = self.candidate(key) {
            self.candidates.remove(&candidate);
        }
    }

    fn enter_candidates(&mut self, key: &Key) {
        if let Some(candidate) = self.candidate(key) {
            self.candidates.insert(candidate);
        }
    }

    /// How `key` stands among those that may get the next slot; `None`: nothing of it waits, or it is at its cap.
    fn candidate(&self, key: &Key) -> Option<(usize, Rank, Key)> {
        let share = self.shares.get(key)?;
        let (rank, _) = share.waiting.first_key_value()?;
        let is_capped = self.limits.running_per_key.is_some_and(|cap| share.running >= cap);
        let count = if self.policy == Policy::Fair { share.running } else { 0 };
        (!is_capped).then(|| (count, *rank, key.clone()))
    }
}

const fn rank(policy: Policy, place: &Place) -> Rank {
    match policy {
        Policy::Fifo => (0, place.arrival),
        Policy::Fair => (place.order, place.arrival),
    }
}
