//! `power [--cuts N] [--parallel N] [--seed N] [--untimed]`: daemons with `durability = power` on file systems whose
//! power is cut at random moments (service.md §6.4 item 4, §6.6; faults.md rows 27 and 43). Everything that a client
//! was told before the cut must still be true after it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use step_runner::model::JobId;

use crate::arguments::Arguments;
use crate::client::Client;
use crate::daemon::{Daemon, Scene};
use crate::loop_disk::{LoopDisk, missing_part};
use crate::power_job::{Found, PowerJob};
use crate::proc;
use crate::random::Random;
use crate::verdict::{Check, Misses, Shown, percentile};

const CUTS: u64 = 300;
const SMALL: u64 = 3;
const PARALLEL: u64 = 6;

/// Number of jobs started between two cuts.
const JOBS: u64 = 4;

/// Longest time between two cuts, in microseconds.
const LONGEST_RUN: u64 = 2_500_000;

/// Longest part of a job's output that can be lost.
const LONGEST_TAIL: Duration = Duration::from_secs(1);

/// The bound where other programs keep the disk busy: their syncs add to the time.
const LONGEST_TAIL_BUSY: Duration = Duration::from_secs(5);

const OPTIONS: &[&str] = &["--durability=power", "--state-limit=1MiB"];

#[derive(Default)]
struct Figures {
    cuts: AtomicU64,
    in_starts: AtomicU64,
    jobs: AtomicU64,
    ended: AtomicU64,
    gone: AtomicU64,
    seen: AtomicU64,
    /// For jobs that printed all the time: the time from the last kept line to the cut, and the number of bytes lost.
    tails: Mutex<Vec<(Duration, u64)>>,
    interrupted: AtomicU64,
    /// Times until Runs were answered.
    answers: Mutex<Vec<Duration>>,
    slowest_start: Mutex<Duration>,
}

struct Proof {
    misses: Misses,
    figures: Figures,
    left: AtomicU64,
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    if let Some(part) = missing_part() {
        crate::parts::skipped("power", part);
        return Ok(format!("skipped: no {part}"));
    }
    let cuts = arguments.number("cuts", if small { SMALL } else { CUTS });
    let parallel = arguments.number("parallel", PARALLEL).clamp(1, cuts.max(1));
    let seed = arguments.seed();
    let proof = Proof { misses: Misses::default(), figures: Figures::default(), left: AtomicU64::new(cuts) };
    std::thread::scope(|scope| {
        for lane in 0..parallel {
            let (proof, random) = (&proof, Random::new(seed).fork(lane));
            scope.spawn(move || {
                let shown = Lane::new(random, lane).and_then(|lane| lane.run(proof));
                proof.misses.check(&format!("lane {lane}"), shown);
            });
        }
    });
    let Figures { cuts, in_starts, jobs, ended, gone, seen, tails, interrupted, answers, slowest_start } =
        &proof.figures;
    let mut answers = answers.lock().unwrap().clone();
    answers.sort_unstable();
    let answer = |percent| percentile(&answers, percent).unwrap_or_default();
    let n = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    let mut tails = tails.lock().unwrap().clone();
    tails.sort_unstable();
    let [median, longest] = [50, 100].map(|percent| percentile(&tails, percent));
    let most = tails.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let time = |tail: Option<(Duration, u64)>| tail.map_or(Duration::ZERO, |(time, _)| time);
    let allowed = if arguments.judges_time(small) { LONGEST_TAIL } else { LONGEST_TAIL_BUSY };
    if longest.is_some_and(|(time, _)| time > allowed) {
        proof.misses.add(format!("a tail of {:?} was lost", time(longest)));
    }
    let slowest = *slowest_start.lock().unwrap();
    proof.misses.verdict(format!(
        "seed {seed}: {} cuts ({} of them in the daemon's start), {} jobs: {} had ended and {} were removed before the cut, {} \
         interrupted by it; 0 of {} bytes that followers had seen lost or changed, 0 torn entries; lost tails of {} jobs that \
         printed: median {:?}, longest {:?}, at most {most} bytes; Run answered after {:?} (median), \
         {:?} (longest); slowest start {slowest:?}",
        n(cuts),
        n(in_starts),
        n(jobs),
        n(ended),
        n(gone),
        n(interrupted),
        n(seen),
        tails.len(),
        time(median),
        time(longest),
        answer(50),
        answer(100),
    ))
}

/// A file system, its daemon, and its jobs.
struct Lane {
    // Dropped before the scene, in whose folder it is mounted.
    disk: LoopDisk,
    scene: Scene,
    client: Client,
    random: Random,
    number: u64,
    jobs: Vec<PowerJob>,
    begun: u64,
}

impl Lane {
    fn new(random: Random, number: u64) -> Check<Self> {
        let scene = Scene::new("power");
        let disk = LoopDisk::new(&scene.state())?;
        let client = Client::new(&scene.socket());
        Ok(Self { disk, scene, client, random, number, jobs: Vec::new(), begun: 0 })
    }

    fn run(mut self, proof: &Proof) -> Check {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let mut daemon = Daemon::start_with(&self.scene, OPTIONS)?;
        let mut shown = Ok(());
        while shown.is_ok() && proof.misses.count() < 10 && take_one(&proof.left) {
            match runtime.block_on(self.one_cut(daemon, proof)) {
                Ok(next) => {
                    daemon = next;
                    proof.figures.cuts.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(miss) => shown = Err(miss),
            }
            self.end_processes();
            return shown;
        }
        shown = daemon.stop().map(drop);
        self.disk.unmount()?;
        shown
    }

    async fn one_cut(&mut self, daemon: Daemon, proof: &Proof) -> Check<Daemon> {
        for _ in 0..JOBS {
            self.begun += 1;
            let id = format!("job-{}-{}", self.number, self.begun);
            let mut job = PowerJob::new(id, &mut self.random);
            job.begin(&self.client);
            self.jobs.push(job);
        }
        tokio::time::sleep(self.random.micros(LONGEST_RUN)).await;
        for job in &mut self.jobs {
            job.leave().await;
        }
        proof.figures.answers.lock().unwrap().extend(self.jobs.iter().filter_map(PowerJob::run_took));
        let written: Vec<u64> = self.jobs.iter().map(|job| self.log_size(&job.id)).collect();
        let cut_at = self.cut(daemon, false)?;
        let mut daemon = self.start(proof)?;
        if self.random.one_in(4) {
            // Cuts again in the middle of the recovery.
            self.cut(daemon, false)?;
            let starting = Daemon::spawn_with(&self.scene, OPTIONS);
            tokio::time::sleep(self.random.micros(20_000)).await;
            self.cut(starting, true)?;
            proof.figures.in_starts.fetch_add(1, Ordering::Relaxed);
            daemon = self.start(proof)?;
        }
        let (mut kept, mut done) = (Vec::new(), Vec::new());
        for (mut job, written) in std::mem::take(&mut self.jobs).into_iter().zip(written) {
            proof.figures.jobs.fetch_add(1, Ordering::Relaxed);
            match job.check(&self.client).await {
                Err(miss) => {
                    proof.misses.add(format!("{}: {miss}", job.id));
                    continue;
                }
                Ok(Found::Gone) => {
                    proof.figures.gone.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Ok(Found::Ended) => {
                    proof.figures.ended.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Found::Interrupted { last, seen, bytes }) => {
                    proof.figures.interrupted.fetch_add(1, Ordering::Relaxed);
                    proof.figures.seen.fetch_add(seen as u64, Ordering::Relaxed);
                    if let Some(last) = last {
                        let time = Duration::from_micros(u64::try_from(cut_at - last).unwrap_or(0));
                        let lost = written.saturating_sub(bytes as u64);
                        proof.figures.tails.lock().unwrap().push((time, lost));
                    }
                }
            }
            // Keeps some jobs for the next cut.
            if self.random.one_in(4) && self.jobs.len() < 20 {
                kept.push(job);
            } else {
                done.push(job.id);
            }
        }
        let finished = done.iter().map(|id| self.client.finish(id));
        futures_util::future::try_join_all(finished).await?;
        self.jobs = kept;
        Ok(daemon)
    }

    fn log_size(&self, id: &str) -> u64 {
        let key = JobId::parse(id).map(|id| id.key().to_string()).unwrap_or_default();
        std::fs::metadata(self.scene.state().join("jobs").join(key).join("log")).map_or(0, |log| log.len())
    }

    /// Cuts the power and kills the processes; in half of the cases the processes run on the dead disk for a moment
    /// first. Returns the time of the cut in microseconds since the epoch. A daemon cannot start on a dead disk, but a
    /// running one goes on.
    fn cut(&mut self, daemon: Daemon, may_have_ended: bool) -> Check<i64> {
        let disk_first = self.random.one_in(2);
        if disk_first {
            self.disk.cut()?;
        }
        let at = step_runner::clock::now_micros();
        if disk_first {
            std::thread::sleep(self.random.micros(30_000));
        }
        let killed = daemon.kill();
        self.kill_keepers();
        if !(may_have_ended && disk_first) {
            killed?;
        }
        if !disk_first {
            self.disk.cut()?;
        }
        self.disk.unmount()?;
        self.disk.mount()?;
        Ok(at)
    }

    fn start(&self, proof: &Proof) -> Check<Daemon> {
        let mut daemon = Daemon::spawn_with(&self.scene, OPTIONS);
        let took = daemon.wait_ready()?;
        let mut slowest = proof.figures.slowest_start.lock().unwrap();
        *slowest = slowest.max(took);
        Ok(daemon)
    }

    /// Kills all processes of this lane after a miss.
    fn end_processes(&self) {
        for pid in proc::with_environment(&self.scene.tag) {
            proc::kill(pid, Signal::KILL);
        }
        self.kill_keepers();
    }

    /// Kills the keepers of this scene, including one that is just starting.
    fn kill_keepers(&self) {
        for pid in proc::with_argument(&self.scene.state().to_string_lossy()) {
            if proc::describe(&[pid]).contains("step-runner keeper") {
                proc::kill(pid, Signal::KILL);
            }
        }
    }
}

fn take_one(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}
