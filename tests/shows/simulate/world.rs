//! One run: the daemon's real actors on virtual time, a simulated keeper, and clients that follow the schedule.
//!
//! Everything runs in one thread, including blocking work. A crash drops all tasks of the daemon at once. Files on disk
//! and the state of the keeper remain.

mod clients;
mod closing;
mod stage;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::keeper::{self, Account, Wrongs};
use super::oracle::Oracle;
use super::schedule::{Do, Schedule};
use crate::random::Random;
use clients::new_request;
use futures_util::future::join_all;
use stage::{PLAYED, Played, Stage, Virtual, living};
use step_runner::actors::handle::JobsHandle;
use step_runner::actors::stored::Encode;
use step_runner::actors::supervisor::{SupervisorEnd, SupervisorParts};
use step_runner::clock::{self};
use step_runner::config::{Config, Limit, QueuePolicy};
use step_runner::fetch::{CacheLimits, Fetcher};
use step_runner::grpc::{step_event_bytes, step_result_bytes, stored_kind};
use step_runner::model::{JobId, ProcessInfo, Refusal};
use step_runner::store::StateDir;
use step_runner::variables::Base;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, sleep};

/// Wall-clock time at which every run begins, in the year 2030.
const DAWN: u64 = 1_893_456_000;

/// A running daemon.
pub(crate) struct Daemon {
    set: Rc<LocalSet>,
    driver: JoinHandle<()>,
    pub(crate) jobs: JobsHandle,
    ended: SupervisorEnd,
}

pub(crate) struct World {
    schedule: Rc<Schedule>,
    folder: PathBuf,
    dawn: Instant,
    jumped: Rc<Cell<i64>>,
    asked: Rc<Cell<u64>>,
    boot: Rc<Cell<u64>>,
    boots: u64,
    pub(crate) max_running: u64,
    is_paused: bool,
    pub(crate) daemon: Option<Daemon>,
    pub(crate) oracle: Rc<RefCell<Oracle>>,
    account: Rc<RefCell<Account>>,
    wrongs: Wrongs,
    /// Failpoints with an injected panic, which can still strike.
    armed: Vec<&'static str>,
}

/// Result of one run.
pub(crate) struct Verdict {
    /// The first violations.
    pub(crate) wrongs: Vec<String>,
    /// Trace of events, in order.
    pub(crate) trace: Vec<String>,
    /// Virtual time that passed.
    pub(crate) passed: Duration,
}

/// Runs a schedule in `folder`, which must be empty.
pub(crate) fn play(schedule: &Schedule, folder: &Path) -> Verdict {
    let verdict = on_stage(schedule, folder, async |world| {
        world.play().await;
        Ok(world.verdict())
    });
    fail::teardown_all();
    verdict.unwrap()
}

/// Runs a schedule until its first job has ended by itself. Returns the job's state and age.
pub(crate) fn first_end(schedule: &Schedule, folder: &Path) -> Result<(String, Duration), String> {
    on_stage(schedule, folder, async |world| {
        world.start().await;
        for step in &schedule.steps {
            world.pass(step.after).await;
            world.perform(&step.what).await;
            if let Some(wrong) = world.wrongs.borrow().first() {
                return Err(wrong.clone());
            }
        }
        let start = world.dawn;
        let jobs = world.daemon.as_ref().ok_or("no daemon")?.jobs.clone();
        while start.elapsed() < Duration::from_hours(4) {
            if let Some(status) = jobs.all().first().filter(|status| status.end_time.is_some()) {
                return Ok((format!("{:?}", status.state), start.elapsed()));
            }
            sleep(Duration::from_millis(100)).await;
        }
        Err("it does not end".into())
    })
}

/// Runs jobs that nobody follows or finishes. The reaper removes them, and the ids of finished jobs are remembered with
/// their time.
pub(crate) fn abandoned(schedule: &Schedule, folder: &Path, count: u64) -> Result<String, String> {
    on_stage(schedule, folder, async |world| {
        world.start().await;
        let daemon = world.daemon.as_ref().ok_or("no daemon")?;
        let name = |number: u64| JobId::parse(&format!("abandoned-{number}")).unwrap();
        let runs = (0..count).map(|number| {
            let steps = "[{name: s, script: 'sim 999 1 1 0 0 1 0'}]".to_owned();
            daemon.jobs.run(new_request(name(number), steps, 0, None))
        });
        for answer in join_all(runs).await {
            answer.map_err(|refusal| refusal.to_string())?;
        }
        // The keeper needs its own time to run them.
        let begin = Instant::now();
        while daemon.jobs.all().iter().any(|job| job.end_time.is_none()) {
            sleep(Duration::from_secs(1)).await;
        }
        let took = begin.elapsed();
        let ended = daemon.jobs.all().iter().filter(|job| job.end_time.is_some()).count();
        let folders = || std::fs::read_dir(folder.join("state/jobs")).map_or(0, Iterator::count);
        if (ended, folders()) != (count as usize, count as usize) {
            return Err(format!("{ended} of {count} have ended, {} folders", folders()));
        }
        sleep(schedule.stale_after.saturating_sub(took + Duration::from_mins(1))).await;
        if daemon.jobs.all().len() != count as usize {
            return Err("removed too early".into());
        }
        sleep(took + Duration::from_mins(3)).await;
        let left = daemon.jobs.all().len();
        if left + folders() > 0 {
            return Err(format!("{left} jobs and {} folders are left", folders()));
        }
        for number in [0, count - 1] {
            match daemon.jobs.follow_logs(&name(number), 0) {
                Err(refusal) if refusal.to_string().starts_with("unknown_job: finished at ") => {}
                Err(refusal) => return Err(format!("a later FollowLogs: {refusal}")),
                Ok(_) => return Err("a log is followed after its removal".into()),
            }
        }
        Ok(format!("{count} jobs removed"))
    })
}

/// Runs `play` in a new world.
fn on_stage<T>(
    schedule: &Schedule,
    folder: &Path,
    work: impl AsyncFnOnce(&mut World) -> Result<T, String>,
) -> Result<T, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let local = LocalSet::new();
    let result = local.block_on(&runtime, async {
        let mut world = World::new(schedule.clone(), folder);
        let result = work(&mut world).await;
        world.crash().await;
        result
    });
    PLAYED.set(None);
    drop((local, runtime));
    clock::steer(None);
    result
}

mod fail {
    /// Disables all failpoints.
    pub(super) fn teardown_all() {
        for (name, _) in step_runner::failpoint::fail::list() {
            step_runner::failpoint::fail::remove(name);
        }
    }
}

impl World {
    fn new(schedule: Schedule, folder: &Path) -> Self {
        let account = Rc::<RefCell<Account>>::default();
        let wrongs = Wrongs::default();
        let random = Random::new(schedule.seed).fork(7);
        let state = folder.join("state");
        let (door, mut comes) = mpsc::unbounded_channel::<(keeper::Shared, DuplexStream)>();
        tokio::task::spawn_local(async move {
            while let Some((keeper, wire)) = comes.recv().await {
                keeper::connect(&keeper, wire).await;
            }
        });
        PLAYED.set(Some(Played {
            keeper: None,
            state,
            random,
            account: Rc::clone(&account),
            wrongs: Rc::clone(&wrongs),
            started: 0,
            door,
        }));
        let dawn = Instant::now();
        Self {
            folder: folder.to_owned(),
            dawn,
            jumped: Rc::default(),
            asked: Rc::default(),
            boot: Rc::new(Cell::new(1_000_000)),
            boots: 0,
            max_running: schedule.max_running,
            is_paused: false,
            daemon: None,
            oracle: Rc::new(RefCell::new(Oracle::new(
                &schedule,
                dawn,
                Rc::clone(&account),
                Rc::clone(&wrongs),
            ))),
            account,
            wrongs,
            armed: Vec::new(),
            schedule: Rc::new(schedule),
        }
    }

    fn config(&self) -> Config {
        Config {
            max_running: self.max_running,
            max_queued: Limit(Some(self.schedule.max_queued)),
            max_running_per_project: Limit(self.schedule.per_project),
            queue_policy: if self.schedule.is_fifo { QueuePolicy::Fifo } else { QueuePolicy::Fair },
            stale_after: self.schedule.stale_after,
            runaway_after: self.schedule.runaway_after,
            queued_after: self.schedule.queued_after,
            state_limit: step_runner::config::Bytes(0),
            ..Config::default()
        }
    }

    fn wrong(&self, text: impl Into<String>) {
        self.wrongs.borrow_mut().push(text.into());
    }

    /// Starts a daemon on the files that the last one left.
    async fn start(&mut self) {
        let clock = Virtual {
            dawn: self.dawn,
            start: Instant::now(),
            jumped: Rc::clone(&self.jumped),
            asked: Rc::clone(&self.asked),
            boot: Rc::clone(&self.boot),
        };
        clock::steer(Some(Rc::new(clock)));
        let process = ProcessInfo { boot_id: format!("boot {}", self.boots), pid: 1, start_time: 1 };
        let state = match StateDir::open(&self.folder.join("state"), &process) {
            Ok(state) => state,
            Err(error) => return self.wrong(format!("the state folder cannot be opened: {error}")),
        };
        let room = CacheLimits { cache: 1 << 20, kept_free: 0 };
        let fetcher = Fetcher::new(state.path(), room, |_| None).unwrap();
        let (base, _) =
            Base::new(vec![("PATH".into(), "/usr/bin:/bin".into())], step_runner::config::EnvBase::All, &[]);
        let parts = SupervisorParts {
            config: Arc::new(self.config()),
            base,
            state,
            socket: Path::new("/none").into(),
            daemon_path: Some("/usr/bin:/bin".into()),
            fetcher: Arc::new(fetcher),
            boot_id: process.boot_id,
            encode: Encode { result: step_result_bytes, event: step_event_bytes },
            kind: stored_kind,
            private: false,
            host: Arc::new(Stage),
        };
        let set = Rc::new(LocalSet::new());
        let driver = tokio::task::spawn_local({
            let set = Rc::clone(&set);
            async move { set.run_until(std::future::pending::<()>()).await }
        });
        let started = set.spawn_local(JobsHandle::start_recovered(parts)).await;
        match started {
            Ok(Ok((jobs, ended))) => self.daemon = Some(Daemon { set, driver, jobs, ended }),
            Ok(Err(error)) => self.wrong(format!("the daemon does not start: {error}")),
            Err(error) => self.wrong(format!("the daemon's start panics: {error}")),
        }
        if self.is_paused {
            // A pause ends with its daemon.
            self.is_paused = false;
        }
        self.oracle.borrow_mut().started(self.max_running);
        self.observe();
    }

    /// Kills the daemon, as `kill -9` does.
    async fn crash(&mut self) {
        let Some(Daemon { set, driver, jobs, ended }) = self.daemon.take() else { return };
        driver.abort();
        drop(driver.await);
        drop((jobs, ended));
        if let Ok(set) = Rc::try_unwrap(set) {
            drop(set);
        } else {
            self.wrong("the simulator holds the daemon's tasks");
        }
        self.oracle.borrow_mut().crashed();
        if living().is_none_or(|keeper| !keeper.borrow().is_told) {
            self.oracle.borrow_mut().forgotten();
        }
    }

    /// Passes the current state of all jobs to the oracle, without a call.
    fn observe(&self) {
        if let Some(daemon) = &self.daemon {
            self.oracle.borrow_mut().observe(&daemon.jobs.all());
        }
    }

    async fn turns(&self, count: u64) {
        for _ in 0..count {
            tokio::task::yield_now().await;
            self.observe();
        }
    }

    /// Lets time pass, with an observation now and then.
    async fn pass(&self, mut time: Duration) {
        let mut look = Duration::from_millis(1);
        while !time.is_zero() {
            let piece = time.min(look);
            sleep(piece).await;
            self.observe();
            time -= piece;
            look = (look * 2).min(Duration::from_secs(20));
        }
    }

    async fn play(&mut self) {
        self.start().await;
        let schedule = Rc::clone(&self.schedule);
        for (at, step) in schedule.steps.iter().enumerate() {
            if self.daemon.is_none() || !self.wrongs.borrow().is_empty() {
                return;
            }
            self.pass(step.after).await;
            self.turns(step.turns).await;
            self.oracle.borrow_mut().note(format!("{at}: {:?}", step.what));
            self.perform(&step.what).await;
            self.observe();
            self.check_alive().await;
        }
        self.close().await;
    }

    /// Checks that the supervisor lives. If an injected panic has killed it, the whole daemon ends and is restarted.
    async fn check_alive(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let lives = matches!(daemon.ended.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Empty));
        if lives {
            return;
        }
        if self.armed.iter().any(|at| at.starts_with("actors::supervisor")) {
            self.oracle.borrow_mut().note("a defect ended the daemon".into());
            self.crash().await;
            self.start().await;
        } else {
            self.wrong("the supervisor is dead");
        }
    }

    async fn perform(&mut self, what: &Do) {
        match *what {
            Do::Run { id, content, leaves } => self.run(id, content, leaves),
            Do::Finish { id, leaves } => self.finish(id, leaves),
            Do::Cancel { id } => self.cancel(id),
            Do::Follow { id, from, leaves } => self.follow(id, from, leaves),
            Do::FollowSteps { id } => self.follow_steps(id),
            Do::KeeperDies => self.keeper_dies(),
            Do::DaemonDies { away } => {
                self.crash().await;
                self.pass(Duration::from_millis(away)).await;
                self.start().await;
            }
            Do::BothDie { away } => {
                self.keeper_dies();
                self.crash().await;
                self.oracle.borrow_mut().forgotten();
                self.pass(Duration::from_millis(away)).await;
                self.start().await;
            }
            Do::HostDies { away } => {
                self.keeper_dies();
                self.crash().await;
                self.oracle.borrow_mut().forgotten();
                self.oracle.borrow_mut().rebooted();
                self.boots += 1;
                self.boot.set(0);
                self.pass(Duration::from_millis(away)).await;
                self.start().await;
            }
            Do::Jump { seconds } => {
                // The sum of all jumps is at most a year.
                let year = 31_536_000;
                self.jumped.set((self.jumped.get() + seconds).clamp(-year, year));
            }
            Do::Pause => {
                self.is_paused = true;
                self.operate(|jobs| async move { jobs.pause().await });
            }
            Do::Resume => {
                self.is_paused = false;
                self.operate(|jobs| async move { jobs.resume().await });
            }
            Do::MaxRunning(count) => {
                self.max_running = count;
                self.oracle.borrow_mut().limit_asked(count);
                let (config, oracle) = (self.config(), Rc::clone(&self.oracle));
                self.operate(|jobs| async move {
                    jobs.configure(config).await;
                    let mut all = jobs.all();
                    jobs.place(&mut all).await;
                    oracle.borrow_mut().limit_set(count, &all);
                });
            }
            Do::Panic { at } => {
                self.armed.push(at);
                self.oracle.borrow_mut().armed();
                step_runner::failpoint::fail::cfg(at, "1*panic").unwrap();
            }
        }
    }

    fn keeper_dies(&mut self) {
        let keeper = living();
        if let Some(keeper) = keeper {
            keeper.borrow_mut().die();
            self.oracle.borrow_mut().keeper_died(self.daemon.is_some());
        }
    }
}

pub(crate) fn job_id(id: u64) -> JobId {
    JobId::parse(&format!("job-{id}")).unwrap()
}

/// Returns a short form of an answer.
pub(crate) fn words(answer: &Result<(), Refusal>) -> String {
    match answer {
        Ok(()) => "OK".into(),
        Err(refusal) => refusal.reason.word().into(),
    }
}
