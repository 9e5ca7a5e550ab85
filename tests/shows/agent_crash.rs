//! `agent-crash [--points N] [--parallel N] [--seed N]`: agent, its daemon and the daemon's keeper are killed with SIGKILL,
//! alone and together, while jobs print, upload artifacts and are cancelled (agent.md §9).
//!
//! The double gives each job once, as GitLab does. A job whose answer an agent that was killed has not stored is nobody's:
//! no process and no record has it, and GitLab drops it later. Every other one has exactly one result.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::agent::{Agent, Site};
use crate::agent_work::{self, End, Treatment, Work};
use crate::arguments::Arguments;
use crate::fake_gitlab::Job;
use crate::proc;
use crate::random::Random;
use crate::verdict::{Check, Misses, Shown};

const POINTS: u64 = 2_000;
const SMALL: u64 = 10;
const PARALLEL: u64 = 20;

/// Longest wait for the end of the jobs after the last kill.
const PATIENCE: Duration = Duration::from_mins(3);

/// Misses after which the proof ends.
const ENOUGH: usize = 10;

/// Processes to kill at one point, in this order.
const TARGETS: [&[Target]; 6] = [
    &[Target::Agent],
    &[Target::Agent],
    &[Target::Agent],
    &[Target::Daemon],
    &[Target::Agent, Target::Daemon],
    &[Target::Daemon, Target::Agent],
];

/// The same with the keeper, with whom all jobs end: seldom, so that others get on.
const WITH_KEEPER: [&[Target]; 4] = [
    &[Target::Keeper],
    &[Target::Agent, Target::Keeper],
    &[Target::Daemon, Target::Keeper],
    &[Target::Agent, Target::Daemon, Target::Keeper],
];

/// One in so many points is with the keeper.
const SELDOM: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Agent,
    Daemon,
    Keeper,
}

#[derive(Default)]
struct Figures {
    agents: u64,
    daemons: u64,
    keepers: u64,
    in_starts: u64,
    ends: BTreeMap<&'static str, u64>,
    artifacts: u64,
    uploads_again: usize,
    bytes: usize,
}

/// A job that is not over yet.
struct Live {
    work: Work,
    added: Instant,
    /// Time at which the server ends the job.
    until: Option<Instant>,
    patience: Duration,
}

struct Proof {
    site: Site,
    random: Random,
    agent: Option<Agent>,
    live: BTreeMap<u64, Live>,
    /// Jobs that the server has ended.
    aborted: Vec<Work>,
    /// What was killed, and when.
    kills: Vec<(Instant, Target)>,
    begun: Instant,
    added: u64,
    misses: Misses,
    figures: Figures,
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let points = arguments.number("points", if small { SMALL } else { POINTS });
    let (parallel, seed) = (arguments.number("parallel", PARALLEL), arguments.seed());
    let site = Site::new("agent-crash", parallel);
    agent_work::prepare(&site);
    let mut proof = Proof {
        site,
        random: Random::new(seed),
        agent: None,
        live: BTreeMap::new(),
        aborted: Vec::new(),
        kills: Vec::new(),
        begun: Instant::now(),
        added: 0,
        misses: Misses::default(),
        figures: Figures::default(),
    };
    proof.agent = Some(proof.site.start());
    let shown = proof.prove(points, parallel);
    proof.misses.check("the proof", shown);
    proof.verdict(points, seed)
}

impl Proof {
    fn prove(&mut self, points: u64, parallel: u64) -> Check {
        for _ in 0..points {
            if self.misses.count() >= ENOUGH {
                return Err("too many misses: it ends here".into());
            }
            self.fill(parallel);
            self.point()?;
            self.look();
        }
        self.finish()
    }

    /// Puts jobs into the queue until the agent has enough to do.
    fn fill(&mut self, parallel: u64) {
        while self.unfinished() < parallel {
            let mut random = self.random.fork(self.added);
            self.added += 1;
            let work = Work::add(&self.site, self.added, &mut random);
            let patience = random.micros(1_500_000);
            self.live.insert(work.id, Live { work, added: Instant::now(), until: None, patience });
        }
    }

    /// Returns the number of jobs that wait in the queue, or are acknowledged and not over.
    fn unfinished(&self) -> u64 {
        let world = self.site.gitlab.world();
        let runs = |id: &&u64| world.jobs[*id].running > 0;
        (world.queue.len() + self.live.keys().filter(runs).count()) as u64
    }

    /// Kills at a random moment, and starts the agent again.
    fn point(&mut self) -> Check {
        if self.random.one_in(3) {
            self.wait_for_call();
        } else {
            // Jobs get on in the longer pauses.
            let longest = if self.random.one_in(4) { 2_500_000 } else { 500_000 };
            std::thread::sleep(self.random.micros(longest));
        }
        let choice: &[&[Target]] = if self.random.one_in(SELDOM) { &WITH_KEEPER } else { &TARGETS };
        let targets = choice[self.random.below(choice.len() as u64) as usize];
        for target in targets {
            self.kill(*target)?;
        }
        while self.agent.is_none() {
            self.agent = Some(self.site.start());
            if self.random.one_in(5) {
                std::thread::sleep(self.random.micros(60_000));
                self.kill(Target::Agent)?;
                self.figures.in_starts += 1;
            }
        }
        Ok(())
    }

    /// Waits for the next call at the server, and a moment after it.
    fn wait_for_call(&mut self) {
        let seen = || self.site.gitlab.change(|world| world.seen.drain(..).count());
        seen();
        proc::wait_until(Duration::from_millis(400), || seen() > 0);
        std::thread::sleep(self.random.micros(6_000));
    }

    fn kill(&mut self, target: Target) -> Check {
        let pid = match target {
            Target::Agent => self.agent.as_ref().map(Agent::pid),
            Target::Daemon => self.site.daemon(),
            Target::Keeper => self.site.keeper(),
        };
        let Some(pid) = pid else { return Ok(()) };
        self.kills.push((Instant::now(), target));
        match target {
            Target::Agent => {
                self.figures.agents += 1;
                self.agent.take().map_or(Ok(()), Agent::kill)?;
            }
            Target::Daemon => self.figures.daemons += 1,
            Target::Keeper => self.figures.keepers += 1,
        }
        if target != Target::Agent {
            proc::kill(pid, Signal::KILL);
        }
        Ok(())
    }

    /// Ends jobs at the server whose time has come, and checks those that are over.
    fn look(&mut self) {
        let mut over = Vec::new();
        self.site.gitlab.change(|world| {
            for (id, live) in &mut self.live {
                let Some(job) = world.jobs.get_mut(id) else { continue };
                if !job.finals.is_empty() {
                    over.push((*id, std::mem::take(&mut job.trace), job.clone()));
                    continue;
                }
                let is_due = job.running > 0
                    && Instant::now() >= *live.until.get_or_insert_with(|| Instant::now() + live.patience);
                match live.work.treatment {
                    Treatment::Cancel if is_due && job.state == "running" => {
                        "canceling".clone_into(&mut job.state);
                    }
                    Treatment::Abort if is_due => {
                        "canceled".clone_into(&mut job.state);
                        over.push((*id, Vec::new(), Job::default()));
                    }
                    _ => {}
                }
            }
        });
        for (id, trace, job) in over {
            let Some(live) = self.live.remove(&id) else { continue };
            if job.finals.is_empty() {
                self.aborted.push(live.work);
            } else {
                self.over(&live, &Job { trace, ..job });
            }
        }
    }

    /// Checks a job that has a result.
    fn over(&mut self, live: &Live, job: &Job) {
        let during = |kill: &&(Instant, Target)| kill.0 >= live.added;
        let keeper = self.kills.iter().filter(during).any(|(_, target)| *target == Target::Keeper);
        match live.work.check(job, keeper).and_then(|end| no_process(&live.work.mark).map(|()| end)) {
            Ok(end) => {
                let name = match end {
                    End::Natural => "to their own end",
                    End::Cancelled => "cancelled",
                    End::Interrupted => "interrupted",
                    End::Unprepared => "killed in all preparations",
                };
                *self.figures.ends.entry(name).or_default() += 1;
                self.figures.artifacts += job.artifacts.len() as u64;
                self.figures.uploads_again += job.uploads_again;
                self.figures.bytes += job.trace.len();
            }
            Err(miss) => {
                let at = |instant: Instant| instant.duration_since(self.begun).as_millis();
                let kills = self.kills.iter().filter(during);
                let kills: Vec<_> =
                    kills.map(|(time, target)| format!("{target:?} at {} ms", at(*time))).collect();
                let name = format!("{}.trace", live.work.mark);
                std::fs::write(self.site.scene.path(&name), &job.trace).ok();
                self.misses.add(format!(
                    "{} (job {}, {:?}, added at {} ms): {miss}; killed meanwhile: {}; its trace is in {name}",
                    live.work.mark,
                    live.work.id,
                    live.work.treatment,
                    at(live.added),
                    kills.join(", ")
                ));
            }
        }
    }

    /// Waits for the end of all jobs, and checks what is left.
    fn finish(&mut self) -> Check {
        let until = Instant::now() + PATIENCE;
        while self.unfinished() > 0 || !self.site.records().is_empty() {
            if Instant::now() > until {
                let world = self.site.gitlab.world();
                let claimed =
                    self.live.keys().map(|id| (id, &world.jobs[id])).filter(|(_, job)| job.running > 0);
                let states = claimed.map(|(id, job)| {
                    format!("job {id}: {}, {} claims, {} bytes", job.state, job.running, job.trace.len())
                });
                let (states, records) = (states.collect::<Vec<_>>().join("; "), self.site.records());
                drop(world);
                return Err(format!("not over after {PATIENCE:?}: {states}; records {records:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
            self.look();
        }
        self.look();
        let agent = self.agent.take().ok_or("there is no agent")?;
        let status = agent.end(Signal::QUIT)?;
        if !status.success() {
            return Err(format!("the agent ended with {status} after SIGQUIT"));
        }
        let world = self.site.gitlab.world();
        for work in &self.aborted {
            self.misses.check(&work.mark, work.check_aborted(&world.jobs[&work.id]));
        }
        for (id, live) in &self.live {
            let job = &world.jobs[id];
            if job.running > 0 || !job.trace.is_empty() {
                self.misses.add(format!("{}: {} claims and no end", live.work.mark, job.running));
            }
        }
        if let Some((id, job)) = world.jobs.iter().find(|(_, job)| job.finals.len() > 1) {
            self.misses.add(format!("job {id} has {} results", job.finals.len()));
        }
        for breach in &world.breaches {
            self.misses.add(format!("the server: {breach}"));
        }
        drop(world);
        self.site.check_end()
    }

    fn verdict(mut self, points: u64, seed: u64) -> Shown {
        let took = self.begun.elapsed();
        let ends: Vec<_> = self.figures.ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
        let Figures { agents, daemons, keepers, in_starts, artifacts, uploads_again, bytes, .. } =
            self.figures;
        let verdict = self.misses.verdict(format!(
            "seed {seed}: {points} points, {:.0} a minute: {agents} kills of agents ({in_starts} in their starts), {daemons} \
             of daemons, {keepers} of keepers; {} jobs: {}, {} ended by the server, {} never acknowledged; {artifacts} \
             artifacts, {uploads_again} of them sent again after a lost answer; {bytes} bytes of traces, 0 lost, 0 doubled, \
             0 changed",
            points as f64 / took.as_secs_f64() * 60.0,
            self.added,
            ends.join(", "),
            self.aborted.len(),
            self.live.len(),
        ));
        if verdict.is_err() {
            eprintln!("{}", self.site.last_words());
            self.site.scene.keep();
        }
        verdict
    }
}

/// Checks that no process of a job is left.
fn no_process(mark: &str) -> Check {
    let entry = format!("SHOWS_JOB={mark}");
    let found = proc::with_environment(&entry);
    match proc::wait_until(Duration::from_secs(5), || !found.iter().any(|&pid| proc::lives(pid))) {
        Some(_) => Ok(()),
        None => Err(format!("processes outlive the job: {}", proc::describe(&found))),
    }
}
