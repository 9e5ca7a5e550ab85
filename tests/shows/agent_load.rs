//! `agent-load [--jobs N] [--concurrent N]`: what the agent adds to a job in time and memory, and how fast it takes up a
//! thousand jobs of an agent that was killed.
//!
//! The time before a job is that from the answer with the job to the first byte of its trace at the server, the time after
//! it that from its last command to its result there.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::json;

use crate::agent::{Agent, Site};
use crate::arguments::Arguments;
use crate::fake_gitlab::Job;
use crate::proc;
use crate::verdict::{Check, Misses, Shown, percentile};

const JOBS: u64 = 1_000;
const CONCURRENT: u64 = 200;
/// Records that an agent takes up at once.
const RECORDS: u64 = 1_000;
const SMALL: u64 = 8;

/// Longest wait for anything: the jobs take some minutes on a small machine.
const PATIENCE: Duration = Duration::from_mins(20);

/// Most memory of the agent for each running job, in KiB.
const MOST_MEMORY: u64 = 100;

/// Longest start of an agent that takes up all records.
const LONGEST_START: Duration = Duration::from_secs(2);

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
    let mut figures = vec![agent.told()];
    let (count, start) = restart(if small { SMALL } else { RECORDS })?;
    figures.push(format!("an agent that was killed takes up {count} records in {start:.2?}"));
    let own = agent.memory.iter().find(|(name, _)| *name == "agent").map_or(0, |(_, memory)| *memory);
    if arguments.judges_time(small) && own > MOST_MEMORY {
        misses.add(format!("the agent takes {own} KiB for each running job, more than {MOST_MEMORY}"));
    }
    if arguments.judges_time(small) && start > LONGEST_START {
        misses.add(format!("the start took {start:.2?}, longer than {LONGEST_START:?}"));
    }
    misses.verdict(figures.join("; "))
}

fn of_agent(jobs: u64, concurrent: u64) -> Check<Measured> {
    let site = Site::new("agent-load", concurrent);
    let agent = site.start();
    // The agent's daemon and keeper are there after the first job.
    let first = add(&site, "echo first");
    all_ended(&site, &[first])?;
    let (daemon, keeper) = site.daemon().zip(site.keeper()).ok_or("the agent has no daemon")?;
    let measured =
        measure(&site, jobs, concurrent, &[("agent", agent.pid()), ("daemon", daemon), ("keeper", keeper)]);
    close(&site, agent)?;
    measured
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

/// Measures a running agent: memory with `concurrent` jobs that wait, then the times of short jobs.
fn measure(site: &Site, jobs: u64, concurrent: u64, pids: &[(&'static str, u32)]) -> Check<Measured> {
    let idle: Vec<u64> = pids.iter().map(|(_, pid)| proc::memory(*pid).1).collect();
    let held = Held::start(site, concurrent)?;
    let memory = pids
        .iter()
        .zip(idle)
        .map(|((name, pid), idle)| (*name, proc::memory(*pid).1.saturating_sub(idle) / concurrent));
    let memory = memory.collect();
    held.end(site)?;
    let begun = Instant::now();
    let ids: Vec<u64> =
        (0..jobs).map(|_| add(site, "echo begin; sleep 1; echo end $EPOCHREALTIME")).collect();
    all_ended(site, &ids)?;
    let took = begun.elapsed();
    let world = site.gitlab.world();
    let ended: Vec<&Job> = ids.iter().map(|id| &world.jobs[id]).collect();
    let mut before: Vec<u64> = ended.iter().map(|job| between(job.times.given, job.times.traced)).collect();
    let mut after: Vec<u64> = ended
        .iter()
        .map(|job| last_output(job).map(|last| between(Some(last), job.times.ended)))
        .collect::<Check<_>>()?;
    before.sort_unstable();
    after.sort_unstable();
    Ok(Measured { before, after, took, memory })
}

/// Puts a job with one line of script into the queue.
fn add(site: &Site, line: &str) -> u64 {
    site.gitlab.add(|job| {
        job["steps"][0]["script"] = json!([line]);
        // So the last line is the one that the job has printed.
        let variables = job["variables"].as_array_mut().unwrap();
        variables.push(json!({"key": "FF_TIMESTAMPS", "value": "false"}));
    })
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

/// Waits until the server has a result of each job, which must be success.
fn all_ended(site: &Site, ids: &[u64]) -> Check {
    wait(site, ids, "end", |job| !job.finals.is_empty())?;
    let world = site.gitlab.world();
    match ids.iter().map(|id| &world.jobs[id]).find(|job| job.state != "success") {
        Some(job) => Err(format!("a job has failed: {}", job.text())),
        None => Ok(()),
    }
}

fn wait(site: &Site, ids: &[u64], what: &str, is_so: impl Fn(&Job) -> bool) -> Check {
    let waits = || {
        let mut world = site.gitlab.world();
        world.seen.clear();
        ids.iter().filter(|id| !is_so(&world.jobs[*id])).count()
    };
    match proc::wait_until(PATIENCE, || waits() == 0) {
        Some(_) => Ok(()),
        None => Err(format!("{} of {} jobs do not {what}; {}", waits(), ids.len(), site.last_words())),
    }
}

/// Jobs that wait without using the processor.
struct Held {
    ids: Vec<u64>,
    pipe: File,
}

impl Held {
    /// Starts jobs, and waits until all of them run.
    fn start(site: &Site, count: u64) -> Check<Self> {
        let path = site.scene.path("go-on");
        if !path.exists() {
            let made = Command::new("mkfifo").arg(&path).status().map_err(|error| error.to_string())?;
            if !made.success() {
                return Err(format!("mkfifo ended with {made}"));
            }
        }
        // A pipe that is open for both keeps none of its readers from opening it.
        let pipe =
            OpenOptions::new().read(true).write(true).open(&path).map_err(|error| error.to_string())?;
        let line = format!("echo held; read -r line <{}", path.display());
        let ids: Vec<u64> = (0..count).map(|_| add(site, &line)).collect();
        wait(site, &ids, "start", |job| job.text().lines().any(|line| line.trim_end() == "held"))?;
        Ok(Self { ids, pipe })
    }

    /// Lets them go on, and waits for their ends.
    fn end(mut self, site: &Site) -> Check {
        self.pipe.write_all(&vec![b'\n'; self.ids.len()]).map_err(|error| error.to_string())?;
        all_ended(site, &self.ids)
    }
}

/// Kills an agent with as many jobs, and starts another. Returns their number, and the time until it has them all.
fn restart(count: u64) -> Check<(u64, Duration)> {
    let site = Site::new("agent-load", count);
    let agent = site.start();
    let held = Held::start(&site, count)?;
    let records = site.records().len() as u64;
    agent.kill()?;
    let begun = Instant::now();
    let agent = site.start();
    let ready = format!("the agent is ready entries=1 jobs={records}");
    if proc::wait_until(PATIENCE, || agent.said().contains(&ready)).is_none() {
        return Err(format!("the agent does not take up {records} records: {}", site.last_words()));
    }
    let start = begun.elapsed();
    held.end(&site)?;
    close(&site, agent)?;
    Ok((records, start))
}

impl Measured {
    fn told(&self) -> String {
        let times = |sorted: &[u64]| {
            let at = |percent| percentile(sorted, percent).unwrap_or(0) as f64 / 1_000.0;
            format!("p50 {:.1} ms, p99 {:.1} ms", at(50), at(99))
        };
        let memory: Vec<_> =
            self.memory.iter().map(|(name, memory)| format!("{name} {memory} KiB")).collect();
        format!(
            "{} jobs in {:.1?}; before a job {}; after it {}; memory for each running job: {}",
            self.before.len(),
            self.took,
            times(&self.before),
            times(&self.after),
            memory.join(", ")
        )
    }
}
