//! Checks conditions that must hold for everything that clients see, whatever happens.
//!
//! A *life* is one registration of an id, identified by the time of its registration.

mod calls;
mod slots;
mod states;
mod streams;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use super::keeper::{Account, Wrongs};
use super::schedule::Schedule;
use slots::Slots;
use step_runner::actors::view::JobStatus;
use tokio::time::Instant;

/// Longest time of a cancel with its kill, with all delays of the simulated keeper.
const END_TIME: Duration = Duration::from_mins(1);

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Life {
    last: Option<JobStatus>,
    /// Time of the Run that made it.
    asked: Option<Duration>,
    began: Option<Duration>,
    ended: Option<Duration>,
    log: Vec<u8>,
    results: Vec<Vec<u8>>,
    results_end: bool,
    /// Finish was called for it at least once.
    finish_asked: bool,
    cancel_asked: bool,
    /// Cancel was answered before the job started, and the memory of its keeper was not lost since.
    cancelled_waiting: bool,
    /// The keeper or the host died while the job existed.
    keeper_died: bool,
    /// A panic was injected while the job existed.
    armed: bool,
    gone: bool,
    /// Keeper and daemon both died while the job existed, so its digest can no longer be compared.
    keyless: bool,
    /// The host was restarted while the job existed, so only the wall clock tells its age.
    rebooted: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Asked {
    at: Duration,
    /// Registration time of the job that existed at the time of the call.
    life: Option<i64>,
    epoch: u64,
}

#[derive(Default)]
struct AskedRuns {
    count: u32,
    /// Time of the first one.
    since: Duration,
}

#[derive(Clone, Copy)]
pub(crate) struct Follower {
    number: usize,
    id: u64,
    life: i64,
}

pub(crate) struct Oracle {
    dawn: Instant,
    account: Rc<RefCell<Account>>,
    wrongs: Wrongs,
    trace: Vec<String>,
    lives: BTreeMap<(String, i64), Life>,
    present: BTreeSet<(String, i64)>,
    stale_after: Duration,
    queued_after: Duration,
    runaway_after: Duration,
    limits: Vec<Vec<Option<Duration>>>,
    slots: Slots,
    /// Number of Runs without an answer (also those given up). Each can already hold a slot.
    running_calls: usize,
    /// Runs without an answer, by id.
    asked_runs: BTreeMap<u64, AskedRuns>,
    /// Ids with such a Run when the keeper died: it may have taken the job.
    cut_runs: BTreeSet<u64>,
    /// Ids that were finished while a Run had no answer: its job may have come and gone between two observations.
    finished_unseen: BTreeSet<u64>,
    /// Requests that were finished, by id and content, with the time.
    remembered: BTreeMap<(u64, u64), Duration>,
    /// Jobs whose first step ran before anyone saw them: when, and what content, by id.
    unseen: BTreeMap<u64, (Duration, u64)>,
    /// Content of each life: the last one that ran.
    contents: BTreeMap<(String, i64), u64>,
    open: BTreeSet<usize>,
    followers: usize,
    /// Number of daemon starts.
    epoch: u64,
    armed_now: bool,
    /// Time of the last Finish call for each id.
    finish_at: BTreeMap<u64, Duration>,
    /// Number of Finish calls without an answer (also those given up). They can still apply to a Run in progress.
    finishing: BTreeMap<u64, u32>,
    executions: usize,
    /// Time of the last observation. Changes seen now happened after it.
    looked: Duration,
    /// Time of the keeper's last death.
    died_at: Option<Duration>,
}

impl Oracle {
    pub(crate) fn new(
        schedule: &Schedule,
        dawn: Instant,
        account: Rc<RefCell<Account>>,
        wrongs: Wrongs,
    ) -> Self {
        Self {
            dawn,
            account,
            wrongs,
            trace: Vec::new(),
            lives: BTreeMap::new(),
            present: BTreeSet::new(),
            stale_after: schedule.stale_after,
            queued_after: schedule.queued_after,
            runaway_after: schedule.runaway_after,
            limits: schedule
                .requests
                .iter()
                .map(|of| of.iter().map(|planned| planned.limit).collect())
                .collect(),
            slots: Slots::new(0),
            running_calls: 0,
            asked_runs: BTreeMap::new(),
            cut_runs: BTreeSet::new(),
            finished_unseen: BTreeSet::new(),
            remembered: BTreeMap::new(),
            unseen: BTreeMap::new(),
            contents: BTreeMap::new(),
            open: BTreeSet::new(),
            followers: 0,
            epoch: 0,
            armed_now: false,
            finish_at: BTreeMap::new(),
            finishing: BTreeMap::new(),
            executions: 0,
            looked: Duration::ZERO,
            died_at: None,
        }
    }

    fn now(&self) -> Duration {
        self.dawn.elapsed()
    }

    fn wrong(&self, text: String) {
        self.wrongs.borrow_mut().push(format!("at {:?}: {text}", self.now()));
    }

    pub(crate) fn note(&mut self, text: String) {
        self.trace.push(format!("{:>14} {text}", format!("{:?}", self.now())));
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.trace.clone()
    }

    pub(crate) fn started(&mut self, max_running: u64) {
        self.epoch += 1;
        self.note("a daemon is there".into());
        self.slots = Slots::new(max_running);
        self.running_calls = 0;
        self.asked_runs.clear();
    }

    pub(crate) fn crashed(&mut self) {
        self.note("the daemon is gone".into());
        self.open.clear();
        self.finishing.clear();
    }

    /// Records that neither daemon nor keeper lives, so all digests are lost.
    pub(crate) fn forgotten(&mut self) {
        self.remembered.clear();
        for key in &self.present {
            if let Some(life) = self.lives.get_mut(key) {
                life.keeper_died = true;
                life.keyless = true;
            }
        }
    }

    pub(crate) fn rebooted(&mut self) {
        for key in &self.present {
            if let Some(life) = self.lives.get_mut(key) {
                life.rebooted = true;
            }
        }
    }

    pub(crate) fn keeper_died(&mut self, has_daemon: bool) {
        self.died_at = Some(self.now());
        self.note("the keeper is gone".into());
        self.cut_runs.extend(self.asked_runs.iter().filter(|(_, runs)| runs.count > 0).map(|(id, _)| *id));
        if !has_daemon {
            self.forgotten();
        }
        for key in &self.present {
            if let Some(life) = self.lives.get_mut(key) {
                life.keeper_died = true;
            }
        }
        // What was remembered reaches the next keeper only if the daemon lives until then.
        self.remembered.clear();
    }

    /// Records that a panic was injected.
    pub(crate) fn armed(&mut self) {
        self.armed_now = true;
        for key in &self.present {
            if let Some(life) = self.lives.get_mut(key) {
                life.armed = true;
            }
        }
    }

    fn known(&self, id: u64) -> usize {
        self.lives
            .iter()
            .filter(|((name, _), _)| *name == format!("job-{id}"))
            .map(|(_, life)| life.results.len())
            .max()
            .unwrap_or(0)
    }

    /// Checks the state after every id was finished and time has passed.
    pub(crate) fn all_finished(&mut self) {
        if !self.open.is_empty() {
            self.wrong(format!("{} followers wait for ever", self.open.len()));
        }
    }
}
