//! The world of one seed: an agent that is killed and started, and everything that it talks to.

mod act;
mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use step_runner_agent::answer::Reply;
use step_runner_agent::lifecycle::{Action, Event, Job, RunAnswer};
use step_runner_agent::outcome::{EnvironmentFailure, JobEnd, Refusal};
use step_runner_agent::record::{Phase, Record, Wanted};
use step_runner_agent::scheduler::{self, EntryId, EntryLimits, Limits, OnStop, RequestId, Scheduler};
use step_runner_agent::time::{Jitter, Moment, Now, WallTime};
use step_runner_agent::tokens::Token;
use step_runner_agent::trace::{Form, Text};

use super::disk::{Folder, Folders};
use super::machine::{Environment, Machine};
use super::random::Random;
use super::server::{Sent, Server, Status};

/// Longest run in virtual time: the day of repeated updates, and some.
const LONGEST: u64 = 60 * 3_600_000;

/// Wall clock at the start, in milliseconds.
const START: u64 = 1_795_386_000_000;

/// What a run has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) jobs: u64,
    pub(crate) kills: u64,
    pub(crate) whole: u64,
    pub(crate) aborted: u64,
    pub(crate) cancelled: u64,
    pub(crate) repeated: u64,
    pub(crate) lost: u64,
    pub(crate) not_ours: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.jobs += other.jobs;
        self.kills += other.kills;
        self.whole += other.whole;
        self.aborted += other.aborted;
        self.cancelled += other.cancelled;
        self.repeated += other.repeated;
        self.lost += other.lost;
        self.not_ours += other.not_ours;
    }
}

/// Something that happens at a time.
#[derive(Debug)]
enum Due {
    /// A request arrives at the server.
    Arrive(u64, Sent),
    ArriveRequest(RequestId),
    /// An event for a job of the agent, or for its scheduler.
    Job(u64, Event),
    Schedule(scheduler::Event),
    /// The answer to a job request, and the job that it brings.
    Answered(RequestId, Reply, Option<u64>),
    /// Followed bytes of a log: the job, the offset, the number of the stream.
    Stream(u64, u64, u64),
    StartAgent,
    /// The environment of a job dies.
    Die(u64),
    /// Somebody cancels a job, or the server drops it.
    Cancel(u64),
    Drop(u64),
    Away(bool),
    Kill,
}

struct Agent {
    scheduler: Scheduler,
    jobs: BTreeMap<u64, Job>,
    streams: BTreeMap<u64, u64>,
    /// Times of the last claim and report of each job.
    last: BTreeMap<(u64, &'static str), u64>,
}

pub(crate) struct World {
    random: Random,
    now: u64,
    serial: u64,
    /// By time and serial number; what belongs to an agent has its number.
    due: BTreeMap<(u64, u64), (Option<u64>, Due)>,
    server: Server,
    machine: Machine,
    disk: Folders,
    agent: Option<Agent>,
    epoch: u64,
    kill_chance: u64,
    kills_left: u64,
    heads: u64,
    /// Folders of jobs that are over, as they were in the end.
    kept: BTreeMap<u64, Folder>,
    died: BTreeSet<u64>,
    /// True to print everything that happens.
    is_told: bool,
    totals: Totals,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = 2 + random.below(4);
        let server = Server::new(count, &mut random);
        let kill_chance = [0, 5, 20, 60][random.below(4) as usize];
        let mut world = Self {
            now: 0,
            serial: 0,
            due: BTreeMap::new(),
            server,
            machine: Machine::default(),
            disk: Folders::default(),
            agent: None,
            epoch: 0,
            kill_chance,
            kills_left: 12,
            heads: random.below(3),
            kept: BTreeMap::new(),
            died: BTreeSet::new(),
            is_told: super::number("AGENT_SEED").is_some(),
            totals: Totals { jobs: count, ..Totals::default() },
            random,
        };
        world.at(0, None, Due::StartAgent);
        for job in 1_001..1_001 + count {
            for (chance, due) in [(120, Due::Cancel(job)), (80, Due::Drop(job)), (100, Due::Die(job))] {
                if world.random.chance(chance) {
                    let at = world.random.below(120_000);
                    world.at(at, None, due);
                }
            }
        }
        if world.random.chance(300) {
            let at = world.random.below(60_000);
            let length = if world.random.chance(300) { 3_600_000 } else { world.random.below(60_000) };
            world.at(at, None, Due::Away(true));
            world.at(at + length, None, Due::Away(false));
        }
        for _ in 0..world.random.below(4) {
            let at = world.random.below(150_000);
            world.at(at, None, Due::Kill);
        }
        world
    }

    fn at(&mut self, time: u64, epoch: Option<u64>, due: Due) {
        self.serial += 1;
        self.due.insert((time, self.serial), (epoch, due));
    }

    /// Plans something for the agent that runs now, after a while.
    fn soon(&mut self, most: u64, due: Due) {
        let time = self.now + 1 + self.random.below(most);
        self.at(time, Some(self.epoch), due);
    }

    fn clock(&mut self) -> Now {
        Now {
            steady: Moment::after_start(Duration::from_millis(self.now)),
            wall: WallTime(START + self.now),
            jitter: Jitter(self.random.below(256) as u8),
        }
    }

    /// Runs until every job is over and nothing is left.
    pub(crate) fn run(mut self) -> Totals {
        let mut steps = 0;
        while !self.is_over() {
            steps += 1;
            assert!(steps < 200_000, "the agent never comes to rest");
            let next = self.due.keys().next().map(|(time, _)| *time);
            let now = self.clock();
            let wake = self.agent.as_ref().and_then(|agent| {
                let jobs = agent.jobs.values().filter_map(Job::wake);
                jobs.chain(agent.scheduler.wake(now.steady)).min()
            });
            let wake = wake.map(|wake| wake.since(Moment::START).as_nanos().div_ceil(1_000_000) as u64);
            let time = next
                .into_iter()
                .chain(wake)
                .min()
                .unwrap_or_else(|| panic!("nothing will ever happen again"));
            assert!(time < LONGEST, "the jobs do not end");
            self.now = self.now.max(time);
            if next.is_some_and(|next| next <= self.now) {
                let ((_, _), (epoch, due)) = self.due.pop_first().unwrap();
                if epoch.is_none_or(|epoch| epoch == self.epoch && self.agent.is_some()) {
                    if self.is_told {
                        tell(&format!("{} {due:?}", self.now));
                    }
                    self.happen(due);
                }
            } else {
                self.tick();
            }
        }
        self.check();
        self.totals
    }

    fn is_over(&self) -> bool {
        let has_jobs = self.agent.as_ref().is_none_or(|agent| !agent.jobs.is_empty());
        if has_jobs || !self.disk.0.is_empty() {
            return false;
        }
        // A job that was given to nobody, or left by who got it, is dropped by the server after an hour.
        let is_left = |id: &u64| self.kept.get(id).is_none_or(|kept| kept.read().0.phase == Phase::Taken);
        let is_settled = |id: &u64, status: Status| match status {
            Status::Created => false,
            Status::Pending | Status::Running | Status::Canceling => is_left(id) && !self.is_held(*id),
            Status::Dropped | Status::Reported(_) => true,
        };
        self.server.jobs.iter().all(|(id, job)| is_settled(id, job.status))
    }

    /// True if the agent has the job, or is about to get it.
    fn is_held(&self, job: u64) -> bool {
        let comes = |due: &Due| matches!(due, Due::Answered(_, _, Some(found)) if *found == job);
        let comes = self.due.values().any(|(epoch, due)| *epoch == Some(self.epoch) && comes(due));
        self.disk.0.contains_key(&job) || comes && self.agent.is_some()
    }

    fn tick(&mut self) {
        let now = self.clock();
        let Some(agent) = &self.agent else { return };
        let is_due = |wake: Option<Moment>| wake.is_some_and(|wake| wake <= now.steady);
        let due: Vec<u64> =
            agent.jobs.iter().filter(|(_, job)| is_due(job.wake())).map(|(id, _)| *id).collect();
        for job in due {
            self.job_event(job, Event::Tick);
        }
        self.schedule(scheduler::Event::Tick);
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::StartAgent => self.start(),
            Due::Kill => {
                if self.agent.is_some() {
                    self.kill();
                }
            }
            Due::Away(is_away) => self.server.is_away = is_away,
            Due::Cancel(job) => {
                let job = self.server.jobs.get_mut(&job).unwrap();
                if job.status == Status::Running {
                    job.status = Status::Canceling;
                    self.totals.cancelled += 1;
                }
            }
            Due::Drop(job) => {
                let job = self.server.jobs.get_mut(&job).unwrap();
                if matches!(job.status, Status::Running | Status::Canceling) {
                    job.status = Status::Dropped;
                    self.totals.aborted += 1;
                }
            }
            Due::Die(job) => {
                if self.machine.environments.contains_key(&job) {
                    self.machine.finish(job);
                    self.machine.environments.remove(&job);
                    self.died.insert(job);
                    self.totals.lost += 1;
                    if self.agent.is_some() {
                        self.soon(500, Due::Job(job, Event::Lost("the container was killed".to_owned())));
                    }
                }
            }
            Due::Arrive(job, sent) => {
                let event: fn(Reply) -> Event = match sent {
                    Sent::Claim => Event::Claimed,
                    Sent::Append { .. } | Sent::SignOfLife => Event::Traced,
                    Sent::Report(..) => Event::Reported,
                };
                let reply = self.server.call(job, &sent, &mut self.random);
                self.soon(50, Due::Job(job, event(reply)));
            }
            Due::ArriveRequest(request) => {
                let (reply, job) = self.server.request(&mut self.random);
                self.soon(50, Due::Answered(request, reply, job));
            }
            Due::Answered(request, reply, job) => {
                let jitter = Jitter(self.random.below(256) as u8);
                if let Some(job) = job {
                    self.take(job);
                }
                let event = scheduler::Event::Answered { request, reply, has_job: job.is_some(), jitter };
                self.schedule(event);
            }
            Due::Job(job, event) => self.job_event(job, event),
            Due::Schedule(event) => self.schedule(event),
            Due::Stream(job, offset, stream) => self.stream(job, offset, stream),
        }
    }

    /// Sends what a log has to who follows it.
    fn stream(&mut self, job: u64, offset: u64, stream: u64) {
        let is_followed = self.agent.as_ref().is_some_and(|agent| agent.streams.get(&job) == Some(&stream));
        if !is_followed {
            return;
        }
        let Some(found) = self.machine.job(job) else {
            return self.job_event(job, Event::Lost("the environment is gone".to_owned()));
        };
        let there = &found.log(self.now)[(offset as usize).min(found.log(self.now).len())..];
        let piece = there[..there.len().min(1 + self.random.below(400) as usize)].to_vec();
        let end = found.end(self.now).filter(|_| piece.len() == there.len());
        if self.random.chance(30) {
            return self.job_event(job, Event::LogBroken);
        }
        let next = offset + piece.len() as u64;
        if !piece.is_empty() {
            self.job_event(job, Event::Log(piece));
        }
        let Some(end) = end else { return self.soon(1_500, Due::Stream(job, next, stream)) };
        for event in [Event::LogEnded, Event::Ended(end)] {
            if self.agent.is_some() {
                self.job_event(job, event);
            }
        }
    }

    fn start(&mut self) {
        self.epoch += 1;
        let now = self.clock();
        let limits = Limits {
            concurrent: 2,
            check_interval: Duration::from_secs(20),
            on_stop: OnStop::Detach,
            shutdown_timeout: Duration::from_secs(30),
        };
        let entry = EntryLimits {
            limit: None,
            request_concurrency: 1,
            strict_check_interval: false,
            unhealthy_requests_limit: 3,
            unhealthy_interval: Duration::from_hours(1),
        };
        let scheduler = Scheduler::new(limits, None, now.steady);
        let agent =
            Agent { scheduler, jobs: BTreeMap::new(), streams: BTreeMap::new(), last: BTreeMap::new() };
        self.agent = Some(agent);
        let folders: Vec<_> = self.disk.0.iter().map(|(job, folder)| (*job, folder.read())).collect();
        for (id, (record, _)) in &folders {
            assert_eq!(*id, record.job);
            let event = scheduler::Event::Adopted { entry: EntryId(0), is_running: record.holds_slot() };
            self.schedule(event);
        }
        self.schedule(scheduler::Event::Configured(limits, vec![(EntryId(0), entry)]));
        for (id, (record, disk)) in folders {
            if self.agent.is_none() {
                return;
            }
            let now = self.clock();
            let (job, actions) = Job::resume(record, &disk, now);
            self.add(id, job, actions);
        }
    }

    fn kill(&mut self) {
        self.agent = None;
        self.totals.kills += 1;
        let away = if self.random.chance(30) { 7_200_000 } else { self.random.below(20_000) };
        if away >= 3_600_000 {
            // The server drops what gives no sign of life for an hour.
            let jobs: Vec<u64> = self.server.jobs.keys().copied().collect();
            for job in jobs {
                self.at(self.now + 3_600_000, None, Due::Drop(job));
            }
        }
        self.at(self.now + away, None, Due::StartAgent);
    }

    /// Returns true if the agent is killed now.
    fn is_killed(&mut self) -> bool {
        if self.kills_left > 0 && self.random.chance(self.kill_chance) {
            self.kills_left -= 1;
            self.kill();
            return true;
        }
        false
    }

    fn schedule(&mut self, event: scheduler::Event) {
        let now = self.clock();
        let Some(agent) = &mut self.agent else { return };
        let actions = agent.scheduler.handle(event, now.steady);
        for action in actions {
            match action {
                scheduler::Action::Ask { request, .. } => self.soon(50, Due::ArriveRequest(request)),
                scheduler::Action::CheckEnvironment(entry) => {
                    let is_there = !self.random.chance(20);
                    self.soon(50, Due::Schedule(scheduler::Event::Environment { entry, is_there }));
                }
                scheduler::Action::Tell(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Begins with the job that an answer brought.
    fn take(&mut self, id: u64) {
        let has_timestamps = self.random.chance(500);
        let record = Record {
            phase: Phase::Taken,
            entry: EntryId(0),
            server: "https://gitlab.test".to_owned(),
            settings: serde_json::Value::Null,
            job: id,
            token: Token::new(&format!("glcbt-{id}")).unwrap(),
            project: Some(5),
            failure_reasons: BTreeSet::new(),
            has_timestamps,
            is_debug: false,
            output_limit: if self.random.chance(200) { 300 } else { 1 << 20 },
            timeout: Duration::from_hours(3),
            prepare_timeout: Duration::from_mins(10),
            concurrent: (0, 0),
            taken: WallTime(START + self.now),
            acknowledged: None,
            time_limit: None,
            preparations: 0,
            wanted: Wanted::default(),
            end: None,
            ended: None,
            was_submitted: false,
            stages: Vec::new(),
            payload: Some("{}".to_owned()),
            refused: self.random.chance(40).then(|| "the job has \"secrets\"".to_owned()),
        };
        let now = self.clock();
        let (job, actions) = Job::take(record, now);
        self.add(id, job, actions);
    }

    fn add(&mut self, id: u64, job: Job, actions: Vec<Action>) {
        if let Some(agent) = &mut self.agent {
            agent.jobs.insert(id, job);
        }
        self.perform(id, actions);
    }

    fn job_event(&mut self, id: u64, event: Event) {
        let now = self.clock();
        let Some(job) = self.agent.as_mut().and_then(|agent| agent.jobs.get_mut(&id)) else { return };
        let actions = job.handle(event, now);
        self.perform(id, actions);
    }

    /// Performs actions one by one. The agent can be killed before and in each.
    fn perform(&mut self, id: u64, actions: Vec<Action>) {
        for action in actions {
            if self.is_told {
                tell(&format!("    {id} {action:?}"));
            }
            if self.is_killed() {
                if self.random.chance(500) {
                    self.disk.tear(id, &action, &mut self.random);
                }
                return;
            }
            if action == Action::DeleteRecord {
                self.keep(id);
            }
            if !self.disk.perform(id, &action) {
                self.act(id, action);
            } else if action == Action::DeleteRecord {
                if let Some(agent) = &mut self.agent {
                    agent.jobs.remove(&id);
                }
                self.schedule(scheduler::Event::JobClosed(EntryId(0)));
            }
            if self.agent.is_none() {
                return;
            }
        }
    }

    /// Keeps the files of a job for the comparison at the end.
    fn keep(&mut self, id: u64) {
        self.kept.insert(id, self.disk.0[&id].clone());
    }
}

/// Prints what happens, for a seed that is repeated.
#[expect(clippy::print_stderr, reason = "asked for")]
pub(crate) fn tell(text: &str) {
    eprintln!("{text}");
}
