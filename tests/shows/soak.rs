//! `soak [--minutes N] [--parallel N] [--seed N]`: runs mixed jobs under all faults at once. In the first part daemon
//! and keeper are killed and the disk runs full. In the second part they are only stopped sometimes, and their memory
//! is watched. In the end nothing must be left that was not there at the beginning.

mod weather;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::client::Client;
use crate::crash::no_process;
use crate::daemon::{Daemon, PATIENCE, Scene, check_stop};
use crate::flow_work::FlowWork;
use crate::follower::{Followed, LONGEST_JOB, Mood, follow_in_moods, follow_steps};
use crate::proc::{self, Holdings};
use crate::random::Random;
use crate::verdict::{Check, Misses, Shown};
use crate::work::{self, End, Expected, Treatment, Work};
use weather::{Disk, Mark, Weather};

const MINUTES: f64 = 10.0;
const SMALL: f64 = 0.08;
const PARALLEL: u64 = 10;

/// Fraction of the time in which processes are killed.
const STORMY: f64 = 0.6;

/// Shortest duration for which the growth of memory is checked. In shorter runs caches still fill.
const JUDGED: Duration = Duration::from_mins(10);

/// Most growth of memory in the part without kills: the last quarter relative to the second one.
const MAX_GROWTH: f64 = 1.1;

/// Bytes by which the size of the state can differ, because process ids and times are written as text.
const STATE_SLACK: u64 = 4096;

const OPTIONS: &[&str] = &[
    "--max-running=6",
    "--max-queued=3",
    "--cancel-grace=300ms",
    "--stale-after=5s",
    "--stale-floor=5s",
    "--reap-interval=1s",
];

#[derive(Default)]
struct Figures {
    jobs: AtomicU64,
    natural: AtomicU64,
    cut: AtomicU64,
    interrupted: AtomicU64,
    on_full_disk: AtomicU64,
    vanished: AtomicU64,
    clients_killed: AtomicU64,
    bytes: AtomicU64,
    streams: AtomicU64,
}

struct Soak {
    scene: Scene,
    client: Client,
    weather: Arc<Weather>,
    misses: Misses,
    figures: Figures,
    stop: AtomicBool,
    next: AtomicU64,
    random: Random,
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let minutes = arguments.fraction("minutes", if small { SMALL } else { MINUTES });
    let time = Duration::from_secs_f64(minutes * 60.0);
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(prove(time, arguments.number("parallel", PARALLEL), arguments.seed()))
}

async fn prove(time: Duration, parallel: u64, seed: u64) -> Shown {
    let scene = Scene::new("soak");
    work::prepare(&scene);
    let disk = Disk::mount(&scene).map(Arc::new);
    if disk.is_none() {
        crate::parts::skipped("soak: a full disk", "tmpfs that can be mounted");
    }
    let daemon = Daemon::start_with(&scene, OPTIONS)?;
    let random = Random::new(seed);
    let soak = Arc::new(Soak {
        client: Client::new(&scene.socket()),
        scene,
        weather: Arc::default(),
        misses: Misses::default(),
        figures: Figures::default(),
        stop: AtomicBool::new(false),
        next: AtomicU64::new(0),
        random: random.clone(),
    });
    // These jobs create what stays for good: threads, spare cgroups, remembered ids.
    for _ in 0..3 {
        one(&soak, false).await;
    }
    proc::say_if_uncounted("soak", daemon.pid());
    let before = Rest::of(&soak, &daemon);
    let weathered = weather(&soak, disk.as_ref(), daemon, random.fork(1 << 40), time, parallel).await;
    let (daemon, memory) = match weathered {
        Ok(weathered) => weathered,
        Err(miss) => return Err(format!("the weather: {miss}")),
    };
    if time >= JUDGED && memory.iter().any(|memory| memory.growth() > MAX_GROWTH) {
        soak.misses.add(format!("memory grows: {memory:?}"));
    }
    let settled = settle(&soak, &daemon, before).await;
    soak.misses.check("what is left", settled);
    let soak = Arc::into_inner(soak).ok_or("a task holds the scene")?;
    let stopped = tokio::task::block_in_place(|| check_stop(&soak.scene, daemon));
    soak.misses.check("the end", stopped);
    let Soak { mut scene, weather, misses, figures, .. } = soak;
    let n = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    let verdict = misses.verdict(format!(
        "seed {seed}: {} jobs in {time:?}: {} to their own end, {} cut, {} interrupted, {} met a full disk, {} left to the \
         reaper; faults: {} daemons and {} keepers killed, {} stops, {} times a full disk, {} clients killed; {} bytes over \
         {} streams; mismatches {}; memory without kills: {}; descriptors and disk as at the start",
        n(&figures.jobs),
        n(&figures.natural),
        n(&figures.cut),
        n(&figures.interrupted),
        n(&figures.on_full_disk),
        n(&figures.vanished),
        n(&weather.daemon_kills),
        n(&weather.keeper_kills),
        n(&weather.stops),
        n(&weather.full),
        n(&figures.clients_killed),
        n(&figures.bytes),
        n(&figures.streams),
        misses.count(),
        memory.map(|memory| memory.to_string()).join(", "),
    ));
    if verdict.is_err() {
        scene.keep();
    }
    drop(disk);
    verdict
}

/// Runs jobs through both parts. Returns the daemon that serves in the end, and the memory of daemon and keeper.
async fn weather(
    soak: &Arc<Soak>,
    disk: Option<&Arc<Disk>>,
    daemon: Daemon,
    mut random: Random,
    time: Duration,
    parallel: u64,
) -> Check<(Daemon, [Memory; 2])> {
    let stormy = Instant::now() + time.mul_f64(STORMY);
    let slots: Vec<_> = (0..parallel).map(|_| tokio::spawn(slot(Arc::clone(soak)))).collect();
    let floods = disk.map(|disk| {
        tokio::spawn(weather::floods(Arc::clone(disk), Arc::clone(&soak.weather), random.fork(1), stormy))
    });
    let (scene, skies) = (&soak.scene, &soak.weather);
    let mut stormed = weather::storm(scene, OPTIONS, daemon, skies, &mut random, true, stormy).await;
    if let Some(floods) = floods {
        floods.await.map_err(|error| error.to_string())?;
    }
    let mut memory = [Memory::new("daemon"), Memory::new("keeper")];
    if let Ok(daemon) = stormed {
        let pid = daemon.pid();
        let end = Instant::now() + time.mul_f64(1.0 - STORMY);
        let calm = weather::storm(scene, OPTIONS, daemon, skies, &mut random, false, end);
        let watched = watch(soak, pid, &mut memory, end);
        stormed = tokio::join!(calm, watched).0;
    }
    soak.stop.store(true, Ordering::Relaxed);
    for slot in slots {
        slot.await.map_err(|error| error.to_string())?;
    }
    Ok((stormed?, memory))
}

/// Resident memory of one process over time, in KiB.
#[derive(Debug)]
struct Memory {
    name: &'static str,
    samples: Vec<u64>,
}

impl Memory {
    const fn new(name: &'static str) -> Self {
        Self { name, samples: Vec::new() }
    }

    fn mean(samples: &[u64]) -> f64 {
        samples.iter().sum::<u64>() as f64 / samples.len().max(1) as f64
    }

    /// Returns the means of the second and the last quarter.
    fn ends(&self) -> (f64, f64) {
        let quarter = self.samples.len() / 4;
        let part = |from: usize| Self::mean(&self.samples[quarter * from..quarter * (from + 1)]);
        (part(1), part(3))
    }

    fn growth(&self) -> f64 {
        let (early, late) = self.ends();
        late / early.max(1.0)
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (early, late) = self.ends();
        write!(f, "{} {early:.0} -> {late:.0} KiB", self.name)
    }
}

/// Samples the memory of both until `until`.
async fn watch(soak: &Soak, daemon: u32, memory: &mut [Memory; 2], until: Instant) {
    let pause = (until.saturating_duration_since(Instant::now()) / 200).max(Duration::from_millis(20));
    while Instant::now() < until {
        let pids = [Some(daemon), soak.scene.keeper()];
        for (memory, pid) in memory.iter_mut().zip(pids) {
            memory.samples.extend(pid.map(|pid| proc::memory(pid).0));
        }
        tokio::time::sleep(pause).await;
    }
}

/// Resources of an idle daemon and its keeper.
#[derive(Debug)]
struct Rest {
    descriptors: [usize; 2],
    state: u64,
}

impl Rest {
    fn of(soak: &Soak, daemon: &Daemon) -> Self {
        let descriptors = |pid: Option<u32>| pid.map_or(0, |pid| Holdings::of(pid).descriptors);
        let size = |path: &std::path::PathBuf| path.symlink_metadata().map_or(0, |found| found.len());
        let files = proc::tree(&soak.scene.state());
        Self {
            descriptors: [descriptors(Some(daemon.pid())), descriptors(soak.scene.keeper())],
            state: files.iter().filter(|path| path.is_file()).map(size).sum(),
        }
    }

    fn is_at_most(&self, other: &Self) -> bool {
        self.state <= other.state + STATE_SLACK
            && self.descriptors.iter().zip(other.descriptors).all(|(now, then)| *now <= then)
    }
}

/// Waits until the reaper has removed all abandoned jobs, and resources are as at the start.
async fn settle(soak: &Soak, daemon: &Daemon, before: Rest) -> Check {
    let until = Instant::now() + PATIENCE;
    loop {
        let jobs = soak.client.all().await?;
        let now = Rest::of(soak, daemon);
        if jobs.is_empty() && now.is_at_most(&before) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{} jobs, {now:?}, at the start {before:?}", jobs.len()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn slot(soak: Arc<Soak>) {
    while !soak.stop.load(Ordering::Relaxed) && soak.misses.count() < 20 {
        one(&soak, true).await;
    }
}

/// Runs one job. With `any` it can be one that its client abandons.
async fn one(soak: &Soak, any: bool) {
    let number = soak.next.fetch_add(1, Ordering::Relaxed);
    let mut random = soak.random.fork(number);
    let id = format!("job-{number}");
    let vanishes = any && random.one_in(12);
    let treatment = match random.below(10) {
        // An abandoned job must end by itself.
        0 | 1 if !vanishes => Treatment::Cancel,
        2 if !vanishes => Treatment::Finish,
        3 => Treatment::TimeOut,
        _ => Treatment::Wait,
    };
    let work: Box<dyn Expected> = if !vanishes && random.one_in(4) {
        Box::new(FlowWork::new(&soak.scene, &id, &mut random))
    } else {
        Box::new(Work::treated(&soak.scene, &id, &mut random, treatment))
    };
    let shown = if vanishes {
        soak.figures.vanished.fetch_add(1, Ordering::Relaxed);
        soak.client.run(work.request()).await
    } else {
        one_job(soak, &*work, &mut random).await
    };
    soak.misses.check(&format!("{id} ({:?})", work.treatment()), shown);
    soak.figures.jobs.fetch_add(1, Ordering::Relaxed);
}

async fn one_job(soak: &Soak, work: &dyn Expected, random: &mut Random) -> Check {
    let client = &soak.client;
    let id = work.request().id.as_str();
    let mark = soak.weather.mark();
    client.run(work.request()).await?;
    let mut moods = random.fork(2);
    let mood = move || match moods.below(400) {
        0 => Mood::Leave,
        1 => Mood::Stall(moods.micros(500_000)),
        _ => Mood::Read,
    };
    let log = tokio::spawn(follow_in_moods(client.clone(), id.to_owned(), mood));
    let steps = tokio::spawn(follow_steps(client.clone(), id.to_owned()));
    if random.one_in(4) {
        kill_a_client(soak, id, random).await;
    }
    if matches!(work.treatment(), Treatment::Cancel | Treatment::Finish) {
        tokio::time::sleep(random.micros(1_500_000)).await;
    }
    match work.treatment() {
        Treatment::Wait | Treatment::TimeOut => {}
        Treatment::Cancel => client.cancel(id).await?,
        Treatment::Finish => client.finish(id).await?,
    }
    let followed = log.await.map_err(|error| error.to_string())??;
    let seen = if work.treatment() == Treatment::Finish {
        soak.figures.cut.fetch_add(1, Ordering::Relaxed);
        // Finish ends its stream of results too.
        steps.abort();
        work.check_seen(&followed.bytes, soak.weather.interrupted(mark))
    } else {
        let results = steps.await.map_err(|error| error.to_string())?;
        ended(soak, work, mark, &followed, results).await
    };
    if seen.is_err() {
        std::fs::write(soak.scene.path(&format!("{id}.log")), &followed.bytes).unwrap();
    }
    seen?;
    no_process(id).await?;
    client.finish(id).await?;
    if let Some(status) = client.status(id).await? {
        return Err(format!("after Finish Status says {status:?}"));
    }
    soak.figures.bytes.fetch_add(followed.bytes.len() as u64, Ordering::Relaxed);
    soak.figures.streams.fetch_add(followed.streams as u64, Ordering::Relaxed);
    work::check_files(&soak.scene, id)
}

/// Checks the end of a job.
async fn ended(
    soak: &Soak,
    work: &dyn Expected,
    mark: Mark,
    followed: &Followed,
    results: Check<Vec<step_runner::pb::v1::StepResult>>,
) -> Check {
    if followed.gone {
        return Err("unknown before it was finished".into());
    }
    let id = work.request().id.as_str();
    let status = soak.client.ended(id, LONGEST_JOB).await?;
    if status.log_bytes as usize != followed.bytes.len() {
        return Err(format!(
            "Status says {} bytes of log, {} were received",
            status.log_bytes,
            followed.bytes.len()
        ));
    }
    if soak.weather.was_full(mark) {
        // The steps could not write either, so the job can have failed anywhere. Its output must still be right as far
        // as it goes.
        soak.figures.on_full_disk.fetch_add(1, Ordering::Relaxed);
        return work.check_seen(&followed.bytes, soak.weather.interrupted(mark));
    }
    let (end, figure) = match (work.treatment(), status.exit_code) {
        (Treatment::Wait, code) if code == work.code() => (End::Natural, &soak.figures.natural),
        (Treatment::Cancel, -2) | (Treatment::TimeOut, -3) => (End::Cut, &soak.figures.cut),
        (_, -4) if soak.weather.interrupted(mark) => (End::Cut, &soak.figures.interrupted),
        (_, code) => return Err(format!("exit code {code}, expected {}: {}", work.code(), status.message)),
    };
    figure.fetch_add(1, Ordering::Relaxed);
    work.check_log(&followed.bytes, end, status.exit_code)?;
    work.check_steps(&results?, end)?;
    work.check_ran(&soak.scene, end, status.exit_code)
}

/// Starts a client that follows the job, and kills it.
async fn kill_a_client(soak: &Soak, id: &str, random: &mut Random) {
    let address = format!("unix:{}", soak.scene.socket().display());
    let mut command = soak.scene.command(&["follow", id, "--address", &address]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    tokio::time::sleep(random.micros(300_000)).await;
    child.kill().unwrap();
    child.wait().unwrap();
    soak.figures.clients_killed.fetch_add(1, Ordering::Relaxed);
}
