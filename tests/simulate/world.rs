//! One run: the daemon's own actors on virtual time, a simulated keeper, and clients that do what the schedule says.
//!
//! Everything runs in one thread; what would block runs in its turn. A crash drops all tasks of the daemon at once and
//! leaves what is on disk and what the keeper knows.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use indexmap::IndexMap;
use step_runner::actors::handle::{JobsHandle, RunRequest};
use step_runner::actors::host::Host;
use step_runner::actors::supervisor::{Supervisor, SupervisorEnd, SupervisorParts};
use step_runner::clock::{self, Clock};
use step_runner::config::{Config, Limit, QueuePolicy};
use step_runner::fetch::{Fetcher, Limits};
use step_runner::grpc::{is_root_result, step_result_bytes};
use step_runner::keeper::link::Wire;
use step_runner::model::{JobId, Refusal};
use step_runner::process::cgroup::CgroupError;
use step_runner::process::remains::Remains;
use step_runner::store::{ProcessInfo, StateDir};
use step_runner::variables::{self, Base};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, sleep};

use crate::keeper::{self, Account, Keeper, Wrongs};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::schedule::{Do, Schedule};

/// When every run begins: 2030.
const DAWN: u64 = 1_893_456_000;

/// Room between daemon and keeper.
const WIRE: usize = 1 << 16;

thread_local! {
    /// The keeper of this thread's run, and how one is started.
    static PLAYED: RefCell<Option<Played>> = const { RefCell::new(None) };
}

/// What the host is asked, which has no room for what belongs to a thread.
struct Played {
    keeper: Option<keeper::Shared>,
    state: PathBuf,
    random: Random,
    account: Rc<RefCell<Account>>,
    wrongs: Wrongs,
    started: u64,
    /// Connections for the keeper. It takes them among its own tasks: those of the daemon die with the daemon.
    door: mpsc::UnboundedSender<(keeper::Shared, DuplexStream)>,
}

struct Stage;

impl Host for Stage {
    fn has_keeper(&self, _: &StateDir) -> std::io::Result<bool> {
        Ok(living().is_some())
    }

    fn connect(&self, _: &StateDir) -> std::io::Result<Wire> {
        let keeper = living().ok_or(std::io::ErrorKind::ConnectionRefused)?;
        let (ours, theirs) = tokio::io::duplex(WIRE);
        PLAYED.with_borrow(|played| drop(played.as_ref().unwrap().door.send((keeper, theirs))));
        Ok(Wire::Memory(ours))
    }

    fn start_keeper(&self, state: &StateDir, _: &str) -> std::io::Result<Wire> {
        PLAYED.with_borrow_mut(|played| {
            let played = played.as_mut().unwrap();
            if played.keeper.as_ref().is_some_and(|keeper| keeper.borrow().is_alive) {
                played.wrongs.borrow_mut().push("a second keeper is started beside a living one".into());
            }
            played.started += 1;
            let random = played.random.fork(played.started);
            let (account, wrongs) = (Rc::clone(&played.account), Rc::clone(&played.wrongs));
            played.keeper = Some(Keeper::start(&played.state, random, account, wrongs));
        });
        self.connect(state)
    }

    fn kill_keeper(&self, _: &StateDir) {
        if let Some(keeper) = living() {
            keeper.borrow_mut().die();
        }
    }

    fn control_group(&self) -> Result<std::path::PathBuf, CgroupError> {
        Err(CgroupError::NotMounted)
    }

    fn kill(&self, _: &Remains, _: Duration) -> Vec<u32> {
        // What a keeper ran died with it.
        Vec::new()
    }
}

fn living() -> Option<keeper::Shared> {
    PLAYED.with_borrow(|played| {
        played.as_ref()?.keeper.as_ref().filter(|keeper| keeper.borrow().is_alive).cloned()
    })
}

/// Virtual clocks.
struct Virtual {
    /// Start of the run.
    dawn: Instant,
    /// Start of the daemon.
    start: Instant,
    /// How far the wall clock has jumped.
    jumped: Rc<Cell<i64>>,
    /// The wall clock never says the same twice.
    asked: Rc<Cell<u64>>,
    boot: Rc<Cell<u64>>,
}

impl Clock for Virtual {
    fn uptime(&self) -> Duration {
        let jumped = ::fail::eval("simulate::clock::uptime_jumps", |_| self.jumped.get().unsigned_abs());
        self.start.elapsed() + Duration::from_secs(jumped.unwrap_or(0))
    }

    fn boot_micros(&self) -> u64 {
        self.dawn.elapsed().as_micros() as u64 + self.boot.get()
    }

    fn now(&self) -> SystemTime {
        self.asked.set(self.asked.get() + 1);
        let seconds = (DAWN as i64 + self.jumped.get()) as u64;
        UNIX_EPOCH
            + Duration::from_secs(seconds)
            + self.dawn.elapsed()
            + Duration::from_micros(self.asked.get())
    }
}

/// A living daemon.
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
    /// A defect was to strike; it may strike later.
    armed: Vec<&'static str>,
}

/// What one run came to.
pub(crate) struct Verdict {
    /// The first things that must not be.
    pub(crate) wrongs: Vec<String>,
    /// What was seen, in order.
    pub(crate) trace: Vec<String>,
    /// Virtual time that passed.
    pub(crate) passed: Duration,
}

/// Plays a schedule in `folder`, which is empty.
pub(crate) fn play(schedule: &Schedule, folder: &Path) -> Verdict {
    let verdict = on_stage(schedule, folder, async |world| {
        world.play().await;
        Ok(world.verdict())
    });
    fail::teardown_all();
    verdict.unwrap()
}

/// State and age of the first job of a schedule when it has ended by itself.
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

/// Jobs that nobody follows or finishes: the reaper removes them, and their ids say when.
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
        // The keeper takes them up at its own pace.
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

/// Does something in a world of its own.
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
    /// No place fails any more.
    pub(super) fn teardown_all() {
        for (name, _) in ::fail::list() {
            ::fail::remove(name);
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
                keeper::connect(&keeper, wire);
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

    /// Starts a daemon on what the last one left.
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
        let room = Limits { cache: 1 << 20, kept_free: 0 };
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
            encode: step_result_bytes,
            is_root: is_root_result,
            private: false,
            host: Arc::new(Stage),
        };
        let set = Rc::new(LocalSet::new());
        let driver = tokio::task::spawn_local({
            let set = Rc::clone(&set);
            async move { set.run_until(std::future::pending::<()>()).await }
        });
        let started = set.spawn_local(Supervisor::start_recovered(parts)).await;
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

    /// `kill -9`.
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

    /// Looks at everything that can be seen without asking.
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

    /// Lets time pass, with a look now and then.
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

    /// The supervisor lives; one that a defect was to strike may have died of it, and the program with it.
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
                // At most a year from the truth.
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
                self.oracle.borrow_mut().lowered(count);
                let config = self.config();
                self.operate(|jobs| async move { jobs.configure(config).await });
            }
            Do::Panic { at } => {
                self.armed.push(at);
                self.oracle.borrow_mut().armed();
                ::fail::cfg(at, "1*panic").unwrap();
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

    fn operate<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(JobsHandle) -> F) {
        if let Some(daemon) = &self.daemon {
            drop(daemon.set.spawn_local(work(daemon.jobs.clone())));
        }
    }

    /// A call, which may be given up; it ends with the daemon.
    fn call(&self, leaves: Option<u64>, work: impl Future<Output = ()> + 'static) {
        let Some(daemon) = &self.daemon else { return };
        let call = daemon.set.spawn_local(work);
        if let Some(turns) = leaves {
            tokio::task::spawn_local(async move {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                if turns.is_multiple_of(3) {
                    sleep(Duration::from_millis(turns)).await;
                }
                call.abort();
            });
        }
    }

    fn run(&self, id: u64, content: u64, leaves: Option<u64>) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let request = request(&self.schedule, id, content);
        let asked = oracle.borrow_mut().run_asked();
        self.call(leaves, async move {
            let job = request.id.clone();
            let answer = jobs.run(request).await;
            oracle.borrow_mut().observe(&jobs.all());
            oracle.borrow_mut().run_answered(asked, id, content, &answer, jobs.status(&job).ok().as_ref());
        });
    }

    fn finish(&self, id: u64, leaves: Option<u64>) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let job = job_id(id);
        let asked = oracle.borrow_mut().finish_asked(id, jobs.status(&job).ok().as_ref());
        self.call(leaves, async move {
            let answer = jobs.finish(&job).await;
            oracle.borrow_mut().observe(&jobs.all());
            let there = jobs.status(&job).ok();
            oracle.borrow_mut().finish_answered(asked, id, &answer, there.as_ref());
        });
    }

    fn cancel(&self, id: u64) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let job = job_id(id);
        let before = jobs.status(&job).ok();
        oracle.borrow_mut().cancel_asked(id, before.as_ref());
        self.call(None, async move {
            let answer = jobs.cancel(&job).await;
            let after = jobs.status(&job).ok();
            oracle.borrow_mut().cancel_answered(id, before.as_ref(), &answer, after.as_ref());
        });
    }

    fn follow(&self, id: u64, from: u64, leaves: Option<u64>) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let job = job_id(id);
        let Ok(status) = jobs.status(&job) else { return };
        let offset = oracle.borrow().seen(id, status.registered) * from / 3;
        let follower = oracle.borrow_mut().follow_asked(id, status.registered, leaves.is_some());
        self.call(None, async move {
            let mut cursor = match jobs.follow_logs(&job, offset) {
                Ok(cursor) => cursor,
                Err(refusal) => return oracle.borrow_mut().follow_refused(follower, offset, &refusal),
            };
            let mut at = offset;
            let mut pieces = 0;
            loop {
                if leaves.is_some_and(|most| pieces >= most) {
                    return;
                }
                pieces += 1;
                match cursor.next().await {
                    Ok(Some(bytes)) => {
                        oracle.borrow_mut().read(follower, at, &bytes);
                        at += bytes.len() as u64;
                    }
                    Ok(None) => {
                        return oracle.borrow_mut().read_to_end(
                            follower,
                            at,
                            jobs.status(&job).ok().as_ref(),
                        );
                    }
                    Err(refusal) => return oracle.borrow_mut().follow_refused(follower, at, &refusal),
                }
            }
        });
    }

    fn follow_steps(&self, id: u64) {
        let Some(daemon) = &self.daemon else { return };
        let (jobs, oracle) = (daemon.jobs.clone(), Rc::clone(&self.oracle));
        let job = job_id(id);
        let Ok(status) = jobs.status(&job) else { return };
        let registered = status.registered;
        self.call(None, async move {
            let mut cursor = match jobs.follow_steps(&job) {
                Ok(cursor) => cursor,
                Err(refusal) => return oracle.borrow_mut().steps_refused(id, registered, &refusal),
            };
            let mut at = 0;
            loop {
                match cursor.next().await {
                    Ok(Some(result)) => oracle.borrow_mut().step_read(id, registered, at, &result),
                    Ok(None) => return oracle.borrow_mut().steps_end(id, registered, at),
                    Err(refusal) => return oracle.borrow_mut().steps_refused(id, registered, &refusal),
                }
                at += 1;
            }
        });
    }

    /// Everything comes to its end: all jobs are finished, nothing of them is left, all slots are free.
    async fn close(&mut self) {
        self.armed.iter().for_each(::fail::remove);
        if self.is_paused {
            self.is_paused = false;
            self.operate(|jobs| async move { jobs.resume().await });
        }
        self.oracle.borrow_mut().note("the end: every id is finished".into());
        self.pass(Duration::from_mins(2)).await;
        self.check_alive().await;
        let Some(daemon) = &self.daemon else { return };
        let jobs = daemon.jobs.clone();
        let oracle = Rc::clone(&self.oracle);
        for id in 0..crate::schedule::IDS {
            self.finish(id, None);
        }
        self.pass(Duration::from_mins(5)).await;
        let left = jobs.all().len();
        if left > 0 {
            self.wrong(format!("{left} jobs are registered after every id was finished: {:?}", jobs.all()));
        }
        oracle.borrow_mut().all_finished();
        self.slots(&jobs).await;
        self.pass(Duration::from_mins(2)).await;
        if !jobs.all().is_empty() {
            self.wrong("jobs of the last round are left");
        }
        if let Some(keeper) = living() {
            let held = keeper.borrow().holds();
            if held > 0 {
                self.wrong(format!("the keeper holds {held} jobs that nobody knows"));
            }
        }
        let alive: u32 = self.account.borrow().alive.values().sum();
        if alive > 0 {
            self.wrong(format!("{alive} processes are left"));
        }
        self.check_disk();
    }

    /// As many jobs as there are slots run at once, and no more.
    async fn slots(&self, jobs: &JobsHandle) {
        let slots = match (self.max_running, self.schedule.per_project) {
            (0, Some(most)) => most,
            (0, None) => 3,
            (most, Some(project)) => most.min(project),
            (most, None) => most,
        };
        let most = slots + self.schedule.max_queued.min(1);
        let Some(daemon) = &self.daemon else { return };
        for number in 0..most {
            let (jobs, request) = (jobs.clone(), long_request(number));
            drop(daemon.set.spawn_local(async move { jobs.run(request).await }));
        }
        self.pass(Duration::from_secs(20)).await;
        let running = jobs.all().iter().filter(|job| job.start_time.is_some()).count() as u64;
        let expected =
            if self.max_running == 0 && self.schedule.per_project.is_none() { most } else { slots };
        if running != expected {
            self.wrong(format!("{running} jobs run where {expected} slots are free: {:?}", jobs.all()));
        }
        for number in 0..most {
            let (jobs, id) = (jobs.clone(), JobId::parse(&format!("last-{number}")).unwrap());
            drop(daemon.set.spawn_local(async move { jobs.finish(&id).await }));
        }
    }

    fn check_disk(&self) {
        for folder in ["jobs", "broken"] {
            let path = self.folder.join("state").join(folder);
            let names: Vec<_> =
                std::fs::read_dir(path).into_iter().flatten().map(|e| e.unwrap().file_name()).collect();
            if !names.is_empty() {
                self.wrong(format!("{folder} is not empty: {names:?}"));
            }
        }
    }

    fn verdict(&self) -> Verdict {
        Verdict {
            wrongs: self.wrongs.borrow().clone(),
            trace: self.oracle.borrow().trace(),
            passed: self.dawn.elapsed(),
        }
    }
}

pub(crate) fn job_id(id: u64) -> JobId {
    JobId::parse(&format!("job-{id}")).unwrap()
}

fn request(schedule: &Schedule, id: u64, content: u64) -> RunRequest {
    let (programs, timeout) = &schedule.requests[id as usize][content as usize];
    let steps: Vec<_> = programs
        .iter()
        .enumerate()
        .map(|(at, program)| format!("{{name: s{at}, script: '{}'}}", program.text()))
        .collect();
    new_request(job_id(id), format!("[{}]", steps.join(", ")), content, *timeout)
}

fn long_request(number: u64) -> RunRequest {
    let id = JobId::parse(&format!("last-{number}")).unwrap();
    new_request(id, "[{name: s, script: 'sim 999 1 10000000 0 0 1 0'}]".into(), 0, None)
}

fn new_request(id: JobId, steps: String, content: u64, timeout: Option<Duration>) -> RunRequest {
    RunRequest {
        id,
        digest: [content as u8 + 1; 32],
        size: steps.len(),
        labels: (String::new(), String::new()),
        variables: variables::Request::default(),
        steps,
        file: None,
        inputs: IndexMap::new(),
        timeout,
        cancel_grace: None,
        limits: step_runner::model::Limits::default(),
    }
}

/// An answer in a few words.
pub(crate) fn words(answer: &Result<(), Refusal>) -> String {
    match answer {
        Ok(()) => "OK".into(),
        Err(refusal) => refusal.reason.word().into(),
    }
}
