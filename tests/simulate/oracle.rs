//! The conditions on everything that clients see, whatever happens.
//!
//! A *life* is one registration of an id, identified by the time of its registration.

mod calls;
mod states;
mod streams;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use crate::keeper::{Account, Wrongs};
use crate::schedule::Schedule;
use step_runner::actors::view::JobStatus;
use tokio::time::Instant;

/// Cancel and kill, with all delays of the simulated keeper.
const END_TIME: Duration = Duration::from_mins(1);

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Life {
    last: Option<JobStatus>,
    began: Option<Duration>,
    ended: Option<Duration>,
    log: Vec<u8>,
    results: Vec<Vec<u8>>,
    results_end: bool,
    /// Finish was asked for it, at least once.
    finish_asked: bool,
    cancel_asked: bool,
    /// Cancel was answered before anything of it ran, and its keeper's memory was not lost since.
    cancelled_waiting: bool,
    /// The keeper or host died while it lived.
    keeper_died: bool,
    /// A defect was to strike while it lived.
    armed: bool,
    gone: bool,
    /// Keeper and daemon died while it was there: its digest says nothing any more.
    keyless: bool,
    /// The host started again meanwhile: only the wall clock tells its age.
    rebooted: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Asked {
    at: Duration,
    /// Registration of the life that was there.
    life: Option<i64>,
    epoch: u64,
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
    /// The setting, and most jobs that may run now: lowering it ends nothing, nor does a restart.
    cap: usize,
    slots: usize,
    /// Runs that are not answered (or were given up): one may have a slot already.
    running_calls: usize,
    /// Contents that had their turn: finished at, by id and content.
    remembered: BTreeMap<(u64, u64), Duration>,
    /// Contents under way: those that a Run asked for, by id.
    contents: BTreeMap<(String, i64), u64>,
    open: BTreeSet<usize>,
    followers: usize,
    /// Starts of a daemon.
    epoch: u64,
    armed_now: bool,
    /// When a Finish was asked for an id last.
    finish_at: BTreeMap<u64, Duration>,
    /// Finish calls that are not answered (or were given up): they wait for a Run under way.
    finishing: BTreeMap<u64, u32>,
    executions: usize,
    /// The look before this one: what is seen now happened after it.
    looked: Duration,
    /// When the keeper died last.
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
            limits: schedule.requests.iter().map(|of| of.iter().map(|(_, limit)| *limit).collect()).collect(),
            cap: usize::MAX,
            slots: usize::MAX,
            running_calls: 0,
            remembered: BTreeMap::new(),
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
        self.cap = cap_of(max_running);
        self.slots = usize::MAX;
        self.running_calls = 0;
    }

    pub(crate) fn crashed(&mut self) {
        self.note("the daemon is gone".into());
        self.open.clear();
        self.finishing.clear();
    }

    /// Neither daemon nor keeper lives: nobody knows digests any more.
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
        if !has_daemon {
            self.forgotten();
        }
        for key in &self.present {
            if let Some(life) = self.lives.get_mut(key) {
                life.keeper_died = true;
            }
        }
        // What was remembered is told to the next keeper by a daemon that lives until then.
        self.remembered.clear();
    }

    /// A defect is to strike somewhere.
    pub(crate) fn armed(&mut self) {
        self.armed_now = true;
        for key in &self.present {
            if let Some(life) = self.lives.get_mut(key) {
                life.armed = true;
            }
        }
    }

    pub(crate) fn lowered(&mut self, max_running: u64) {
        self.cap = cap_of(max_running);
        self.slots = self.slots.max(self.cap);
    }

    fn running(&self) -> usize {
        let runs = |key: &&(String, i64)| {
            let last = self.lives.get(key).and_then(|life| life.last.as_ref());
            last.is_some_and(|status| status.start_time.is_some() && status.end_time.is_none())
        };
        self.present.iter().filter(runs).count()
    }

    fn known(&self, id: u64) -> usize {
        self.lives
            .iter()
            .filter(|((name, _), _)| *name == format!("job-{id}"))
            .map(|(_, life)| life.results.len())
            .max()
            .unwrap_or(0)
    }

    /// Every id was finished, and time has passed.
    pub(crate) fn all_finished(&mut self) {
        if !self.open.is_empty() {
            self.wrong(format!("{} followers wait for ever", self.open.len()));
        }
    }
}

/// Slots of a setting.
const fn cap_of(max_running: u64) -> usize {
    if max_running == 0 { usize::MAX } else { max_running as usize }
}
