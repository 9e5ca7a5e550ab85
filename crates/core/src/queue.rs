//! Admission of jobs: decides how many jobs run and which waiting job starts next (queue.md). Pure: the caller reports
//! events, the queue returns the jobs to start. It knows neither clock nor actors.
//!
//! Every event touches one key and costs O(log n) for n waiting jobs: the waiting jobs of each key are sorted by rank,
//! and the keys that may get the next slot are sorted by their running jobs and the rank of their first waiting job.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Rule that picks the next waiting job (queue.md §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// First in, first out.
    Fifo,
    /// A job of the key with the fewest running jobs. Ties go to the lowest order number, then to the earliest arrival.
    Fair,
}

/// Bounds of a queue; `None` means unbounded (queue.md §2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// Jobs running at once.
    pub running: Option<usize>,
    /// Jobs running at once of one key.
    pub running_per_key: Option<usize>,
    /// Sum of the sizes of running jobs in bytes. A job that is larger by itself runs alone.
    pub running_bytes: Option<u64>,
    /// Jobs waiting.
    pub queued: Option<usize>,
    /// Sum of the sizes of waiting jobs in bytes.
    pub queued_bytes: Option<u64>,
}

/// Owner of a job's share: server and project (queue.md §3). All jobs with neither form one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShareKey {
    /// Address of the server that the job is from.
    pub server: Arc<str>,
    /// The project's id there.
    pub project: Arc<str>,
}

impl ShareKey {
    /// Makes a key from a job's variables. Trims them and removes leading zeros of a numeric project id.
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

/// Parses a job number: 1 to 20 ASCII digits, less than 2^64 (queue.md §3). Returns `None` for any other text.
pub fn number(text: &str) -> Option<u64> {
    let is_number = (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// A job's place in the order. It is assigned once, when the queue accepts the job (queue.md §3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Order number.
    pub(crate) order: u64,
    /// Serial number of its arrival.
    pub(crate) arrival: u64,
    /// Server whose numbers were comparable when the place was assigned.
    pub(crate) reference: Option<Arc<str>>,
    /// Highest order number assigned up to then, including this one.
    pub(crate) highest: u64,
}

/// Outcome of [`Queue::submit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The job is among those that start now. The place is the one it would have waited at.
    Started(Place),
    /// The job waits at this place.
    Queued(Place),
    /// The job is already queued or running; nothing has changed.
    Existing,
    /// The queue is full. It keeps no trace of this job.
    Full(Full),
}

/// The bound that a refused job would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// [`QueueLimits::queued`].
    Jobs {
        /// Jobs waiting, without this one.
        waiting: usize,
        /// The bound.
        limit: usize,
    },
    /// [`QueueLimits::queued_bytes`].
    Bytes {
        /// Bytes waiting, without this one's.
        waiting: u64,
        /// The bound.
        limit: u64,
    },
}

/// Sort key of a waiting job within its share: order number and arrival. Under `fifo` the order number is 0 for all.
type Rank = (u64, u64);

/// A job in the queue.
struct Entry {
    key: ShareKey,
    state: EntryState,
}

enum EntryState {
    Waiting { place: Place, bytes: u64 },
    Running { bytes: u64 },
}

/// Jobs of one key.
struct KeyShare<J> {
    waiting: BTreeMap<Rank, J>,
    running: usize,
}

impl<J> Default for KeyShare<J> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), running: 0 }
    }
}

/// The queue of jobs named `J`.
pub struct Queue<J> {
    policy: Policy,
    limits: QueueLimits,
    paused: bool,
    jobs: HashMap<J, Entry>,
    shares: HashMap<ShareKey, KeyShare<J>>,
    /// Keys with waiting jobs that are below their cap, sorted by running jobs and their first waiting job's rank.
    /// Under `fifo` the number of running jobs counts as 0.
    candidates: BTreeSet<(usize, Rank, ShareKey)>,
    running: usize,
    running_bytes: u64,
    waiting: usize,
    waiting_bytes: u64,
    arrivals: u64,
    /// Server whose numbers are comparable. The first numbered job sets it; it is cleared when no job waits.
    reference: Option<Arc<str>>,
    /// Highest order number assigned since `reference` was set.
    highest: u64,
}

impl<J: Clone + Eq + Hash> Queue<J> {
    /// An empty queue.
    pub fn new(policy: Policy, limits: QueueLimits) -> Self {
        Self {
            policy,
            limits,
            paused: false,
            jobs: HashMap::new(),
            shares: HashMap::new(),
            candidates: BTreeSet::new(),
            running: 0,
            running_bytes: 0,
            waiting: 0,
            waiting_bytes: 0,
            arrivals: 0,
            reference: None,
            highest: 0,
        }
    }

    /// Returns the number of waiting jobs.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the number of jobs that hold a slot.
    pub const fn running(&self) -> usize {
        self.running
    }

    /// Submits a job with its key, its number, if it has one, and its size in bytes. Appends the jobs that start now to
    /// `starts`, in order.
    pub fn submit(
        &mut self,
        job: &J,
        key: ShareKey,
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

    /// Restores a waiting job of an earlier process at its old place. Offers no slot; [`Self::resume`] does.
    pub fn restore_waiting(&mut self, job: J, key: ShareKey, place: &Place, bytes: u64) {
        self.arrivals = self.arrivals.max(place.arrival + 1);
        self.highest = self.highest.max(place.highest);
        self.reference = self.reference.take().or_else(|| place.reference.clone());
        self.enqueue(job, key, place, bytes);
    }

    /// Restores a running job of an earlier process. It keeps its slot even if that exceeds the limits.
    pub fn restore_running(&mut self, job: J, key: ShareKey, bytes: u64) {
        self.change(&key, |share| share.running += 1);
        self.running += 1;
        self.running_bytes += bytes;
        self.jobs.insert(job, Entry { key, state: EntryState::Running { bytes } });
    }

    /// Removes a cancelled waiting job, or a running job whose last process is gone, and offers the free slots.
    pub fn remove_job(&mut self, job: &J, starts: &mut Vec<J>) {
        self.remove(job);
        self.offer(starts);
    }

    /// Returns the key of a waiting or running job.
    pub fn key(&self, job: &J) -> Option<&ShareKey> {
        self.jobs.get(job).map(|entry| &entry.key)
    }

    /// Stops all starts until [`Self::resume`].
    pub const fn pause(&mut self) {
        self.paused = true;
    }

    /// Ends a pause.
    pub fn resume(&mut self, starts: &mut Vec<J>) {
        self.paused = false;
        self.offer(starts);
    }

    /// Sets another policy and other limits. Lower limits end no job; they only delay starts (queue.md §8).
    pub fn configure(&mut self, policy: Policy, limits: QueueLimits, starts: &mut Vec<J>) {
        if policy != self.policy || limits.running_per_key != self.limits.running_per_key {
            (self.policy, self.limits) = (policy, limits);
            self.sort_anew();
        }
        self.limits = limits;
        self.offer(starts);
    }

    /// Returns the waiting jobs in start order, if no running job ends in between. Those of capped keys come last.
    pub fn order(&self) -> Vec<J> {
        let mut order = Vec::with_capacity(self.waiting);
        let mut shares: HashMap<&ShareKey, _> = self
            .shares
            .iter()
            .map(|(key, share)| (key, (share.waiting.iter().peekable(), share.running)))
            .collect();
        let mut candidates: BTreeSet<(usize, Rank, &ShareKey)> =
            self.candidates.iter().map(|(count, rank, key)| (*count, *rank, key)).collect();
        while let Some((count, _, key)) = candidates.pop_first() {
            let Some((waiting, running)) = shares.get_mut(key) else { continue };
            order.extend(waiting.next().map(|(_, job)| job.clone()));
            *running += 1;
            let is_capped = self.limits.running_per_key.is_some_and(|cap| *running >= cap);
            if let Some((rank, _)) = waiting.peek().filter(|_| !is_capped) {
                let count = if self.policy == Policy::Fair { count + 1 } else { 0 };
                candidates.insert((count, **rank, key));
            }
        }
        let mut capped: Vec<_> = shares.into_values().flat_map(|(waiting, _)| waiting).collect();
        capped.sort_unstable_by_key(|(rank, _)| **rank);
        order.extend(capped.into_iter().map(|(_, job)| job.clone()));
        order
    }

    /// True if `job` holds a slot.
    pub fn is_running(&self, job: &J) -> bool {
        matches!(self.jobs.get(job), Some(Entry { state: EntryState::Running { .. }, .. }))
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
        let keys: Vec<ShareKey> = self.shares.keys().cloned().collect();
        self.candidates.clear();
        for key in &keys {
            self.enter_candidates(key);
        }
    }

    fn place(&mut self, key: &ShareKey, number: Option<u64>) -> Place {
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

    fn enqueue(&mut self, job: J, key: ShareKey, place: &Place, bytes: u64) {
        let rank = rank(self.policy, place);
        self.waiting += 1;
        self.waiting_bytes += bytes;
        let name = job.clone();
        self.change(&key, |share| drop(share.waiting.insert(rank, name)));
        self.jobs.insert(job, Entry { key, state: EntryState::Waiting { place: place.clone(), bytes } });
    }

    /// Removes a job, waiting or running.
    fn remove(&mut self, job: &J) {
        let Some(Entry { key, state }) = self.jobs.remove(job) else { return };
        match state {
            EntryState::Waiting { place, bytes } => {
                let rank = rank(self.policy, &place);
                self.change(&key, |share| drop(share.waiting.remove(&rank)));
                self.no_longer_waiting(bytes);
            }
            EntryState::Running { bytes } => {
                self.change(&key, |share| share.running -= 1);
                self.running -= 1;
                self.running_bytes -= bytes;
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

    /// Starts jobs until no slot, no room or no candidate is left. If the best candidate finds no room, those behind it wait
    /// too: else small jobs could keep a large one out for ever.
    fn offer(&mut self, starts: &mut Vec<J>) {
        while !self.paused
            && self.limits.running.is_none_or(|limit| self.running < limit)
            && let Some((_, rank, key)) = self.candidates.first().cloned()
            && self
                .shares
                .get(&key)
                .and_then(|share| share.waiting.get(&rank))
                .is_some_and(|job| self.fits(job))
        {
            let mut chosen = None;
            self.change(&key, |share| {
                chosen = share.waiting.remove(&rank);
                share.running += 1;
            });
            self.running += 1;
            let Some(job) = chosen else { continue };
            if let Some(entry) = self.jobs.get_mut(&job)
                && let EntryState::Waiting { bytes, .. } = entry.state
            {
                entry.state = EntryState::Running { bytes };
                self.running_bytes += bytes;
                self.no_longer_waiting(bytes);
            }
            starts.push(job);
        }
    }

    /// True if a waiting job has room beside the running ones.
    fn fits(&self, job: &J) -> bool {
        let Some(limit) = self.limits.running_bytes.filter(|_| self.running > 0) else { return true };
        match self.jobs.get(job) {
            Some(Entry { state: EntryState::Waiting { bytes, .. }, .. }) => {
                self.running_bytes.saturating_add(*bytes) <= limit
            }
            _ => true,
        }
    }

    fn overfull(&self, bytes: u64) -> Option<Full> {
        let jobs = self.limits.queued.filter(|limit| self.waiting > *limit);
        let size = self.limits.queued_bytes.filter(|limit| self.waiting_bytes > *limit);
        jobs.map(|limit| Full::Jobs { waiting: self.waiting - 1, limit })
            .or_else(|| size.map(|limit| Full::Bytes { waiting: self.waiting_bytes - bytes, limit }))
    }

    /// Changes the share of `key` and drops the share if it is empty afterwards.
    fn change(&mut self, key: &ShareKey, change: impl FnOnce(&mut KeyShare<J>)) {
        self.leave_candidates(key);
        let share = self.shares.entry(key.clone()).or_default();
        change(share);
        if share.waiting.is_empty() && share.running == 0 {
            self.shares.remove(key);
        }
        self.enter_candidates(key);
    }

    fn leave_candidates(&mut self, key: &ShareKey) {
        if let Some(candidate) = self.candidate(key) {
            self.candidates.remove(&candidate);
        }
    }

    fn enter_candidates(&mut self, key: &ShareKey) {
        if let Some(candidate) = self.candidate(key) {
            self.candidates.insert(candidate);
        }
    }

    /// Returns the entry of `key` in `candidates`, or `None` if it has no waiting job or is at its cap.
    fn candidate(&self, key: &ShareKey) -> Option<(usize, Rank, ShareKey)> {
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
