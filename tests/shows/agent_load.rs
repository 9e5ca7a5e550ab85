//! `agent-load [--jobs N] [--concurrent N]`: what the agent adds to a job in time and memory, and how fast it takes up a
//! thousand jobs of an agent that was killed. With a GitLab Runner (`scripts/agent-load` builds one) it runs the same jobs.
//!
//! The time before a job is that from the answer with the job to the first byte of its trace at the server, the time after
//! it that from its last command to its result there.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::json;

use crate::agent::{Agent, Site, end_of};
use crate::arguments::Arguments;
use crate::daemon::Scene;
use crate::fake_gitlab::{FakeGitlab, Job};
use crate::gitlab_runner::{self, Runner};
use crate::proc;
use crate::verdict::{Check, Misses, Shown, percentile};

const JOBS: u64 = 1_000;
const CONCURRENT: u64 = 200;
/// Records that an agent takes up at once.
const RECORDS: u64 = 1_000;
const SMALL: u64 = 8;

/// Jobs that a Runner may ask for in a second, so that it is never short of jobs of a second.
const RATE: usize = 50;

/// Longest wait for anything: the jobs take some minutes on a small machine.
const PATIENCE: Duration = Duration::from_mins(20);

/// Most memory of the agent for each running job, in KiB.
const MOST_MEMORY: u64 = 100;

/// Longest start of an agent that takes up all records.
const LONGEST_START: Duration = Duration::from_secs(2);

/// How many times better than a Runner the agent is, at least.
const BETTER: u64 = 2;

/// What was measured.
struct Measured {
    /// Microseconds before and after each job, sorted.
    before: Vec<u64>,
    after: Vec<u64>,
    took: Duration,
    /// KiB for each running job, by process.
    memory: Vec<(&'static str, u64)>,
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let jobs = arguments.number("jobs", if small { SMALL } else { JOBS });
    let concurrent = arguments.number("concurrent", if small { SMALL } else { CONCURRENT });
    let misses = Misses::default();
    let agent = of_agent(jobs, concurrent)?;
    let mut figures = vec![agent.told("agent")];
    let (count, start) = restart(if small { SMALL } else { RECORDS })?;
    figures.push(format!("an agent that was killed takes up {count} records in {start:.2?}"));
    let peer = gitlab_runner::program().map(|program| of_runner(&program, jobs, concurrent)).transpose()?;
    figures.extend(peer.iter().map(|peer| peer.told("GitLab Runner")));
    if !arguments.judges_time(small) {
        return misses.verdict(figures.join("; "));
    }
    let own = agent.memory.iter().find(|(name, _)| *name == "agent").map_or(0, |(_, memory)| *memory);
    if own > MOST_MEMORY {
        misses.add(format!("the agent takes {own} KiB for each running job, more than {MOST_MEMORY}"));
    }
    if start > LONGEST_START {
        misses.add(format!("the start took {start:.2?}, longer than {LONGEST_START:?}"));
    }
    if let Some(peer) = peer {
        agent.compare(&peer, &misses);
    }
    misses.verdict(figures.join("; "))
}

fn of_agent(jobs: u64, concurrent: u64) -> Check<Measured> {
    let site = Site::new("agent-load", concurrent);
    let agent = site.start();
    let queue = Queue::of(&site);
    // The agent's daemon and keeper are there after the first job.
    let first = queue.add("echo first");
    queue.all_ended(&[first])?;
    let (daemon, keeper) = site.daemon().zip(site.keeper()).ok_or("the agent has no daemon")?;
    let measured =
        queue.measure(jobs, concurrent, &[("agent", agent.pid()), ("daemon", daemon), ("keeper", keeper)]);
    close(&site, agent)?;
    measured
}

fn of_runner(program: &Path, jobs: u64, concurrent: u64) -> Check<Measured> {
    let scene = Scene::new("agent-load-runner");
    let gitlab = FakeGitlab::start();
    let runner = Runner::start(program, &scene.path("runner"), &gitlab, concurrent, RATE);
    let log = scene.path("runner").join("runner.log");
    let queue = Queue { gitlab: &gitlab, pipe: scene.path("go-on"), logs: vec![log] };
    let first = queue.add("echo first");
    queue.all_ended(&[first])?;
    queue.measure(jobs, concurrent, &[("runner", runner.process.id())])
}

/// Ends an agent, and checks that nothing is left.
fn close(site: &Site, agent: Agent) -> Check {
    let status = agent.end(Signal::QUIT)?;
    if !status.success() {
        return Err(format!("the agent ended with {status} after SIGQUIT"));
    }
    let breaches = site.gitlab.world().breaches.clone();
    if !breaches.is_empty() {
        return Err(format!("the server: {breaches:?}"));
    }
    site.check_end()
}

/// The server's queue, and what a miss shows of the program that takes jobs from it.
struct Queue<'a> {
    gitlab: &'a FakeGitlab,
    /// Path of the pipe that jobs wait for.
    pipe: PathBuf,
    logs: Vec<PathBuf>,
}

impl<'a> Queue<'a> {
    fn of(site: &'a Site) -> Self {
        let logs = vec![site.scene.path("agent.log"), site.state("daemon/log")];
        Self { gitlab: &site.gitlab, pipe: site.scene.path("go-on"), logs }
    }

    /// Measures a running program: memory with `concurrent` jobs that wait, then the times of short jobs.
    fn measure(&self, jobs: u64, concurrent: u64, pids: &[(&'static str, u32)]) -> Check<Measured> {
        let idle: Vec<u64> = pids.iter().map(|(_, pid)| proc::memory(*pid).1).collect();
        let held = Held::start(self, concurrent)?;
        let memory = pids
            .iter()
            .zip(idle)
            .map(|((name, pid), idle)| (*name, proc::memory(*pid).1.saturating_sub(idle) / concurrent));
        let memory = memory.collect();
        held.end()?;
        let begun = Instant::now();
        let ids: Vec<u64> =
            (0..jobs).map(|_| self.add("echo begin; sleep 1; echo end $EPOCHREALTIME")).collect();
        self.all_ended(&ids)?;
        let took = begun.elapsed();
        let world = self.gitlab.world();
        let ended: Vec<&Job> = ids.iter().map(|id| &world.jobs[id]).collect();
        let mut before: Vec<u64> =
            ended.iter().map(|job| between(job.times.given, job.times.traced)).collect();
        let mut after: Vec<u64> = ended
            .iter()
            .map(|job| last_output(job).map(|last| between(Some(last), job.times.ended)))
            .collect::<Check<_>>()?;
        before.sort_unstable();
        after.sort_unstable();
        Ok(Measured { before, after, took, memory })
    }

    /// Puts a job with one line of script into the queue.
    fn add(&self, line: &str) -> u64 {
        self.gitlab.add(|job| {
            job["steps"][0]["script"] = json!([line]);
            // So the last line is the one that the job has printed.
            let variables = job["variables"].as_array_mut().unwrap();
            variables.push(json!({"key": "FF_TIMESTAMPS", "value": "false"}));
        })
    }

    /// Waits until the server has a result of each job, which must be success.
    fn all_ended(&self, ids: &[u64]) -> Check {
        self.wait(ids, "end", |job| !job.finals.is_empty())?;
        let world = self.gitlab.world();
        match ids.iter().map(|id| &world.jobs[id]).find(|job| job.state != "success") {
            Some(job) => Err(format!("a job has failed: {}", job.text())),
            None => Ok(()),
        }
    }

    fn wait(&self, ids: &[u64], what: &str, is_so: impl Fn(&Job) -> bool) -> Check {
        let waits = || {
            let mut world = self.gitlab.world();
            world.seen.clear();
            ids.iter().filter(|id| !is_so(&world.jobs[*id])).count()
        };
        if proc::wait_until(PATIENCE, || waits() == 0).is_some() {
            return Ok(());
        }
        let said: Vec<_> = self.logs.iter().map(end_of).collect();
        Err(format!("{} of {} jobs do not {what}; {}", waits(), ids.len(), said.join("\n")))
    }
}

fn between(from: Option<SystemTime>, to: Option<SystemTime>) -> u64 {
    let time = from.zip(to).and_then(|(from, to)| to.duration_since(from).ok());
    time.map_or(0, |time| time.as_micros() as u64)
}

/// Returns the time of the last command, which the job has printed.
fn last_output(job: &Job) -> Check<SystemTime> {
    let text = job.text();
    let printed = text.lines().rev().find_map(|line| line.trim_end().strip_prefix("end "));
    let seconds = printed.and_then(|printed| printed.parse::<f64>().ok());
    let seconds = seconds.ok_or_else(|| format!("no time in the trace:\n{text}"))?;
    Ok(UNIX_EPOCH + Duration::from_secs_f64(seconds))
}

/// Jobs that wait without using the processor.
struct Held<'q> {
    queue: &'q Queue<'q>,
    ids: Vec<u64>,
    pipe: File,
}

impl<'q> Held<'q> {
    /// Starts jobs, and waits until all of them run.
    fn start(queue: &'q Queue<'q>, count: u64) -> Check<Self> {
        let path = &queue.pipe;
        if !path.exists() {
            let made = Command::new("mkfifo").arg(path).status().map_err(|error| error.to_string())?;
            if !made.success() {
                return Err(format!("mkfifo ended with {made}"));
            }
        }
        // A pipe that is open for both keeps none of its readers from opening it.
        let pipe = OpenOptions::new().read(true).write(true).open(path).map_err(|error| error.to_string())?;
        let line = format!("echo held; read -r line <{}", path.display());
        let ids: Vec<u64> = (0..count).map(|_| queue.add(&line)).collect();
        queue.wait(&ids, "start", |job| job.text().lines().any(|line| line.trim_end() == "held"))?;
        Ok(Self { queue, ids, pipe })
    }

    /// Lets them go on, and waits for their ends.
    fn end(mut self) -> Check {
        self.pipe.write_all(&vec![b'\n'; self.ids.len()]).map_err(|error| error.to_string())?;
        self.queue.all_ended(&self.ids)
    }
}

/// Kills an agent with as many jobs, and starts another. Returns their number, and the time until it has them all.
fn restart(count: u64) -> Check<(u64, Duration)> {
    let site = Site::new("agent-load", count);
    let agent = site.start();
    let queue = Queue::of(&site);
    let held = Held::start(&queue, count)?;
    let records = site.records().len() as u64;
    agent.kill()?;
    let begun = Instant::now();
    let agent = site.start();
    let ready = format!("the agent is ready entries=1 jobs={records}");
    if proc::wait_until(PATIENCE, || agent.said().contains(&ready)).is_none() {
        return Err(format!("the agent does not take up {records} records: {}", site.last_words()));
    }
    let start = begun.elapsed();
    held.end()?;
    close(&site, agent)?;
    Ok((records, start))
}

impl Measured {
    /// Notes in what the agent is not as much better as it shall be.
    fn compare(&self, peer: &Self, misses: &Misses) {
        let times = [("before", &self.before, &peer.before), ("after", &self.after, &peer.after)];
        for (when, own, other) in times {
            for percent in [50, 99] {
                let (own, other) = (percentile(own, percent), percentile(other, percent));
                if own.zip(other).is_some_and(|(own, other)| own * BETTER > other) {
                    misses.add(format!(
                        "p{percent} of the time {when} a job is not {BETTER} times better than that of GitLab Runner"
                    ));
                }
            }
        }
    }

    fn told(&self, whose: &str) -> String {
        let times = |sorted: &[u64]| {
            let at = |percent| percentile(sorted, percent).unwrap_or(0) as f64 / 1_000.0;
            format!("p50 {:.1} ms, p99 {:.1} ms", at(50), at(99))
        };
        let memory: Vec<_> =
            self.memory.iter().map(|(name, memory)| format!("{name} {memory} KiB")).collect();
        format!(
            "{whose}: {} jobs in {:.1?}; before a job {}; after it {}; memory for each running job: {}",
            self.before.len(),
            self.took,
            times(&self.before),
            times(&self.after),
            memory.join(", ")
        )
    }
}
