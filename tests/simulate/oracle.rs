//! What must hold of everything that clients see, whatever happens.
//!
//! A *life* is one registration of an id, told from others by the time of its registration.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use step_runner::actors::view::JobStatus;
use step_runner::model::{EndClass, JobState, Reason, Refusal};
use tokio::time::Instant;

use crate::keeper::{Account, Wrongs};
use crate::schedule::Schedule;
use crate::world::words;

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

    /// All jobs as Status shows them now.
    pub(crate) fn observe(&mut self, jobs: &[JobStatus]) {
        let now = self.now();
        let mut present = BTreeSet::new();
        for status in jobs {
            let key = (status.id.to_string(), status.registered);
            if !self.lives.contains_key(&key) {
                self.note(format!("{} is registered ({})", key.0, key.1));
            }
            present.insert(key.clone());
            self.observe_one(key, status, now);
        }
        let gone: Vec<_> = self.present.difference(&present).cloned().collect();
        for key in gone {
            self.note(format!("{} is gone", key.0));
            self.vanished(&key, now);
        }
        self.present = present;
        self.looked = now;
        let running = self.running();
        if running > self.slots {
            self.wrong(format!("{running} jobs run in {} slots", self.slots));
        }
        self.slots = self.slots.min(running + self.running_calls).max(self.cap);
        let started = self.account.borrow().order.len();
        while self.executions < started {
            let (tag, _) = self.account.borrow().order[self.executions];
            let content = self.account.borrow().content.get(&tag).copied();
            self.executions += 1;
            if let Some(content) = content {
                self.executed(content);
            }
        }
    }

    /// A job of this content ran its first step.
    fn executed(&mut self, content: u64) {
        let (id, content) = (content / 10, content % 10);
        if let Some(life) = self.present.iter().find(|(name, _)| *name == format!("job-{id}")).cloned() {
            self.contents.insert(life, content);
        }
        self.note(format!("content {content} of job-{id} runs"));
        let since = self.remembered.get(&(id, content)).copied();
        if since.is_some_and(|at| self.now().saturating_sub(at) < Duration::from_mins(59)) {
            self.wrong(format!("content {content} of job-{id} runs again after its Finish"));
        }
    }

    fn observe_one(&mut self, key: (String, i64), status: &JobStatus, now: Duration) {
        let (armed_now, looked) = (self.armed_now, self.looked);
        let life = self.lives.entry(key.clone()).or_insert_with(|| {
            // Those of the last round are finished by the simulator itself.
            let id = key.0.strip_prefix("job-").and_then(|id| id.parse().ok());
            let finish_asked =
                id.is_none_or(|id: u64| self.finishing.get(&id).is_some_and(|count| *count > 0));
            // Its keeper may have died while it was being registered.
            let keeper_died = self.died_at.is_some_and(|at| at + Duration::from_secs(2) >= now);
            Life { armed: armed_now, finish_asked, keeper_died, ..Life::default() }
        });
        let mut wrongs = Vec::new();
        if life.gone {
            wrongs.push("is there again after it was removed".to_owned());
        }
        if let Some(last) = &life.last {
            if rank(status.state) < rank(last.state) {
                wrongs.push(format!("went back from {:?} to {:?}", last.state, status.state));
            }
            if status.log_bytes < last.log_bytes {
                wrongs.push(format!("its log shrank from {} to {}", last.log_bytes, status.log_bytes));
            }
            if last.start_time.is_some() && last.start_time != status.start_time {
                wrongs.push(format!("its start moved from {:?} to {:?}", last.start_time, status.start_time));
            }
            let end = |status: &JobStatus| {
                (status.state, status.exit_code, status.message.clone(), status.end_time, status.log_bytes)
            };
            if matches!(last.state, JobState::Ended(_)) && end(last) != end(status) {
                wrongs.push(format!("its end changed from {:?} to {:?}", end(last), end(status)));
            }
        }
        if status.start_time.is_some() {
            life.began.get_or_insert(looked);
        }
        let mut ended = None;
        if let (JobState::Ended(class), None) = (status.state, life.ended) {
            life.ended = Some(looked);
            ended = Some(class);
        }
        let changed = life.last.as_ref().is_none_or(|last| last.state != status.state);
        life.last = Some(status.clone());
        for wrong in wrongs {
            self.wrong(format!("{} ({}): {wrong}", key.0, key.1));
        }
        if changed {
            self.note(format!(
                "{} is {:?} {} {:?} {}",
                key.0, status.state, status.exit_code, status.message, status.log_bytes
            ));
        }
        if let Some(class) = ended {
            self.judge_end(&key, class, status, now);
        }
    }

    /// Whether a job may end as it did.
    fn judge_end(&self, key: &(String, i64), class: EndClass, status: &JobStatus, now: Duration) {
        let Some(life) = self.lives.get(key) else { return };
        let internal = status.message.starts_with("internal");
        let fine = match class {
            EndClass::Interrupted => life.keeper_died || life.armed,
            EndClass::Timeout => life.began.is_some_and(|began| {
                let shortest = self.shortest_limit(key).min(self.runaway_after);
                now.saturating_sub(began) + Duration::from_millis(2) >= shortest
            }),
            EndClass::Cancelled => {
                let waited = life.began.is_none();
                life.cancel_asked || life.finish_asked || waited && now >= self.queued_after
            }
            EndClass::Success => status.exit_code == 0 && status.message.is_empty(),
            EndClass::Failure if internal => life.armed,
            EndClass::Failure => status.exit_code > 0,
        };
        if !fine {
            self.wrong(format!(
                "{} ends as {class:?} ({}: {:?}) without a reason",
                key.0, status.exit_code, status.message
            ));
        }
        if life.cancelled_waiting && class != EndClass::Cancelled && !(internal && life.armed) {
            self.wrong(format!("{} was cancelled while it waited and ends as {class:?}", key.0));
        }
    }

    /// The shortest time limit among the requests of an id.
    fn shortest_limit(&self, key: &(String, i64)) -> Duration {
        let id = key.0.strip_prefix("job-").and_then(|id| id.parse::<usize>().ok());
        let limits = id.and_then(|id| self.limits.get(id));
        limits.into_iter().flatten().flatten().min().copied().unwrap_or(Duration::MAX)
    }

    fn vanished(&mut self, key: &(String, i64), now: Duration) {
        let stale_after = self.stale_after;
        let Some(life) = self.lives.get_mut(key) else { return };
        life.gone = true;
        let keyless = life.keyless;
        let stale =
            life.ended.is_some_and(|at| now.saturating_sub(at) + Duration::from_secs(1) >= stale_after);
        if !life.finish_asked && !stale && !life.rebooted {
            let text = format!("{} vanished: nobody finished it; ended {:?}", key.0, life.ended);
            self.wrong(text);
        }
        // The last request of an id is remembered, whoever removed its job.
        let content = self.contents.get(key).copied();
        if let Some(id) = key.0.strip_prefix("job-").and_then(|id| id.parse::<u64>().ok()) {
            self.remembered.retain(|(known, _), _| *known != id);
            if let Some(content) = content.filter(|_| !keyless) {
                self.remembered.insert((id, content), now);
            }
        }
    }

    pub(crate) fn run_asked(&mut self) -> Asked {
        self.running_calls += 1;
        Asked { at: self.now(), life: None, epoch: self.epoch }
    }

    pub(crate) fn run_answered(
        &mut self,
        asked: Asked,
        id: u64,
        content: u64,
        answer: &Result<(), Refusal>,
        there: Option<&JobStatus>,
    ) {
        self.note(format!("Run job-{id} {content}: {}", words(answer)));
        self.running_calls = self.running_calls.saturating_sub(1);
        match answer {
            Ok(()) => {
                let finished = self.finish_at.get(&id).is_some_and(|at| *at >= asked.at);
                let late =
                    self.lives.iter().any(|((name, _), life)| *name == format!("job-{id}") && life.gone);
                if there.is_none() && !finished && !late {
                    self.wrong(format!("Run of job-{id} is answered and there is no job"));
                }
            }
            Err(refusal) => {
                let passing = [Reason::QueueFull, Reason::KeeperUnavailable, Reason::DeadlineExceeded];
                let passing = passing.contains(&refusal.reason)
                    || self.armed_now && matches!(refusal.reason, Reason::ShuttingDown | Reason::Internal);
                if !passing {
                    self.wrong(format!("Run of job-{id} is refused: {refusal}"));
                }
            }
        }
    }

    pub(crate) fn finish_asked(&mut self, id: u64, there: Option<&JobStatus>) -> Asked {
        self.note(format!("Finish job-{id} is asked for"));
        let now = self.now();
        self.finish_at.insert(id, now);
        *self.finishing.entry(id).or_default() += 1;
        let name = format!("job-{id}");
        // A Run under way is ordered before it: its job too is finished.
        for (_, life) in self.lives.iter_mut().filter(|((known, _), life)| *known == name && !life.gone) {
            life.finish_asked = true;
        }
        Asked { at: now, life: there.map(|status| status.registered), epoch: self.epoch }
    }

    pub(crate) fn finish_answered(
        &mut self,
        asked: Asked,
        id: u64,
        answer: &Result<(), Refusal>,
        there: Option<&JobStatus>,
    ) {
        self.note(format!("Finish job-{id}: {}", words(answer)));
        if let Some(count) = self.finishing.get_mut(&id) {
            *count = count.saturating_sub(1);
        }
        if let Err(refusal) = answer
            && !(self.armed_now && refusal.reason == Reason::ShuttingDown)
        {
            self.wrong(format!("Finish of job-{id} is refused: {refusal}"));
        }
        if answer.is_err() {
            return;
        }
        if there.is_some_and(|status| Some(status.registered) == asked.life) {
            self.wrong(format!("Finish of job-{id} is answered and the job is there"));
        }
        let took = self.now().saturating_sub(asked.at);
        if took > END_TIME && asked.epoch == self.epoch {
            self.wrong(format!("Finish of job-{id} took {took:?}"));
        }
    }

    pub(crate) fn cancel_asked(&mut self, id: u64, before: Option<&JobStatus>) {
        self.note(format!("Cancel job-{id} is asked for"));
        let Some(status) = before else { return };
        if let Some(life) = self.lives.get_mut(&(format!("job-{id}"), status.registered)) {
            life.cancel_asked = true;
        }
    }

    pub(crate) fn cancel_answered(
        &mut self,
        id: u64,
        before: Option<&JobStatus>,
        answer: &Result<(), Refusal>,
        after: Option<&JobStatus>,
    ) {
        self.note(format!("Cancel job-{id}: {}", words(answer)));
        match answer {
            Ok(()) if before.is_none() => self.wrong(format!("Cancel of unknown job-{id} succeeds")),
            Ok(()) => {}
            Err(refusal) if before.is_none() && refusal.reason == Reason::UnknownJob => {}
            Err(refusal) if self.armed_now && refusal.reason == Reason::ShuttingDown => {}
            Err(refusal) => self.wrong(format!("Cancel of job-{id} is refused: {refusal}")),
        }
        let (Ok(()), Some(before), Some(after)) = (answer, before, after) else { return };
        let waits = after.start_time.is_none() && before.registered == after.registered;
        if waits && let Some(life) = self.lives.get_mut(&(format!("job-{id}"), after.registered)) {
            life.cancelled_waiting |=
                life.ended.is_none() && !matches!(after.state, JobState::Ended(_)) && !life.armed;
        }
    }

    /// Longest part of a log that anybody has seen.
    pub(crate) fn seen(&self, id: u64, life: i64) -> u64 {
        self.lives.get(&(format!("job-{id}"), life)).map_or(0, |life| life.log.len() as u64)
    }

    pub(crate) fn follow_asked(&mut self, id: u64, life: i64, leaves: bool) -> Follower {
        self.followers += 1;
        if !leaves {
            self.open.insert(self.followers);
        }
        Follower { number: self.followers, id, life }
    }

    pub(crate) fn follow_refused(&mut self, follower: Follower, at: u64, refusal: &Refusal) {
        self.open.remove(&follower.number);
        self.note(format!("FollowLogs job-{} at {at}: {}", follower.id, refusal.reason.word()));
        let key = (format!("job-{}", follower.id), follower.life);
        let finished = self.lives.get(&key).is_some_and(|life| life.finish_asked || life.gone);
        let fine = refusal.reason == Reason::UnknownJob && finished;
        if !fine {
            self.wrong(format!("FollowLogs of job-{} at {at} is refused: {refusal}", follower.id));
        }
    }

    pub(crate) fn read(&mut self, follower: Follower, at: u64, bytes: &[u8]) {
        let key = (format!("job-{}", follower.id), follower.life);
        let Some(life) = self.lives.get_mut(&key) else { return };
        let at = at as usize;
        let known = life.log.len().saturating_sub(at).min(bytes.len());
        let same = life.log.get(at..at + known) == bytes.get(..known);
        let gap = at > life.log.len();
        if !gap {
            life.log.extend_from_slice(&bytes[known..]);
        }
        if !same || gap || bytes.is_empty() {
            self.wrong(format!(
                "the log of job-{} differs at {at}: {:?}",
                follower.id,
                String::from_utf8_lossy(bytes)
            ));
        }
    }

    pub(crate) fn read_to_end(&mut self, follower: Follower, at: u64, status: Option<&JobStatus>) {
        self.open.remove(&follower.number);
        self.note(format!("FollowLogs job-{} ends at {at}", follower.id));
        let Some(status) = status.filter(|status| status.registered == follower.life) else { return };
        if status.end_time.is_none() {
            self.wrong(format!("FollowLogs of job-{} ends while it is {:?}", follower.id, status.state));
        } else if status.log_bytes != at {
            self.wrong(format!("FollowLogs of job-{} ends at {at} of {}", follower.id, status.log_bytes));
        }
    }

    pub(crate) fn steps_refused(&mut self, id: u64, life: i64, refusal: &Refusal) {
        self.note(format!("FollowSteps job-{id}: {}", refusal.reason.word()));
        let key = (format!("job-{id}"), life);
        let finished = self.lives.get(&key).is_some_and(|life| life.finish_asked || life.gone);
        if !(finished && matches!(refusal.reason, Reason::UnknownJob | Reason::DataLoss)) {
            self.wrong(format!("FollowSteps of job-{id} is refused: {refusal}"));
        }
    }

    pub(crate) fn step_read(&mut self, id: u64, life: i64, at: usize, result: &[u8]) {
        let Some(life) = self.lives.get_mut(&(format!("job-{id}"), life)) else { return };
        let wrong = match life.results.get(at) {
            Some(known) => known != result,
            None if life.results_end => true,
            None => {
                life.results.push(result.to_vec());
                life.results.len() != at + 1
            }
        };
        if wrong {
            self.wrong(format!("result {at} of job-{id} is another one than before"));
        }
    }

    pub(crate) fn steps_end(&mut self, id: u64, life: i64, count: usize) {
        self.note(format!("FollowSteps job-{id} ends after {count}"));
        let Some(life) = self.lives.get_mut(&(format!("job-{id}"), life)) else { return };
        life.results_end = true;
        let has_root = life.results.last().is_some_and(|last| step_runner::grpc::is_root_result(last));
        if !has_root || life.results.len() != count {
            self.wrong(format!(
                "the results of job-{id} end after {count} of {}, root: {has_root}",
                self.known(id)
            ));
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

/// A state never goes back.
const fn rank(state: JobState) -> u8 {
    match state {
        JobState::Queued => 0,
        JobState::Running => 1,
        JobState::Cancelling => 2,
        JobState::Ended(_) => 3,
    }
}
