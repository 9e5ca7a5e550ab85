//! `crash [--keeper | --both | --run | --syscalls | --records] [--jobs flow] [--points N] [--parallel N] [--seed N]`: runs jobs while
//! their daemon, keeper, or both are killed with SIGKILL repeatedly (service.md §6.4, faults.md rows 41 and 42).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::arguments::Arguments;
use crate::client::Client;
use crate::daemon::{Daemon, PATIENCE, Scene, check_stop};
use crate::flow_work::FlowWork;
use crate::follower::{LONGEST_JOB, follow_log, follow_steps};
use crate::killer::{self, Target};
use crate::proc;
use crate::random::Random;
use crate::verdict::{Check, Misses, Shown};
use crate::work::{self, End, Expected, Treatment, Work};

const POINTS: u64 = 500;
const SMALL: u64 = 8;
const PARALLEL: u64 = 8;

#[derive(Default)]
struct Figures {
    jobs: AtomicU64,
    natural: AtomicU64,
    cut: AtomicU64,
    interrupted: AtomicU64,
    bytes: AtomicU64,
    streams: AtomicU64,
}

/// State shared by the clients of one proof.
struct Proof {
    scene: Arc<Scene>,
    client: Client,
    misses: Misses,
    figures: Figures,
    target: Target,
    /// The jobs use the keys of control flow.
    is_flow: bool,
    stop: AtomicBool,
    next: AtomicU64,
    random: Random,
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let is_flow = match arguments.text("jobs") {
        None => false,
        Some("flow") => true,
        Some(other) => return Err(format!("--jobs {other}: known is flow")),
    };
    if arguments.flag("syscalls") {
        return crate::syscalls::crash(arguments, is_flow, small);
    }
    if arguments.flag("records") {
        return crate::records::run(arguments, small);
    }
    if arguments.flag("run") {
        return crate::crash_run::run(arguments, small);
    }
    let target = match (arguments.flag("keeper"), arguments.flag("both")) {
        (_, true) => Target::Both,
        (true, false) => Target::Keeper,
        (false, false) => Target::Daemon,
    };
    let points = arguments.number("points", if small { SMALL } else { POINTS });
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(prove(target, is_flow, arguments, points))
}

async fn prove(target: Target, is_flow: bool, arguments: &Arguments, points: u64) -> Shown {
    let (parallel, seed) = (arguments.number("parallel", PARALLEL), arguments.seed());
    let mut scene = Scene::new("crash");
    work::prepare(&scene);
    let daemon = Daemon::start(&scene)?;
    let random = Random::new(seed);
    let shared = Arc::new(scene);
    let proof = Arc::new(Proof {
        client: Client::new(&shared.socket()),
        scene: Arc::clone(&shared),
        misses: Misses::default(),
        figures: Figures::default(),
        target,
        is_flow,
        stop: AtomicBool::new(false),
        next: AtomicU64::new(0),
        random: random.clone(),
    });
    let slots: Vec<_> = (0..parallel).map(|_| tokio::spawn(slot(Arc::clone(&proof)))).collect();
    let killed =
        killer::kill(Arc::clone(&shared), proof.client.clone(), daemon, target, points, random.fork(1 << 40))
            .await;
    proof.stop.store(true, Ordering::Relaxed);
    for slot in slots {
        slot.await.map_err(|error| error.to_string())?;
    }
    let kills = match killed {
        Ok((daemon, kills)) => {
            let stopping = Arc::clone(&shared);
            let stopped = tokio::task::spawn_blocking(move || check_stop(&stopping, daemon)).await;
            proof.misses.check("the end", stopped.map_err(|error| error.to_string())?);
            kills
        }
        Err(miss) => {
            proof.misses.add(format!("the killer: {miss}"));
            killer::Kills::default()
        }
    };
    let verdict = {
        let Figures { jobs, natural, cut, interrupted, bytes, streams } = &proof.figures;
        let n = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        if target != Target::Daemon && points >= 20 && n(interrupted) == 0 {
            proof.misses.add("no job was interrupted: the kills hit nothing".into());
        }
        proof.misses.verdict(format!(
            "{target:?} seed {seed}: {} daemon kills ({} in calls, {} in starts), {} keeper kills, {} jobs: {} to their own \
             end, {} cancelled or finished in the middle, {} interrupted; {} bytes followed over {} streams, 0 lost, 0 \
             doubled, 0 changed; slowest start {:?}",
            kills.daemons,
            kills.in_calls,
            kills.in_starts,
            kills.keepers,
            n(jobs),
            n(natural),
            n(cut),
            n(interrupted),
            n(bytes),
            n(streams),
            kills.slowest_start,
        ))
    };
    drop(proof);
    if verdict.is_err() {
        scene = Arc::into_inner(shared).ok_or("a task holds the scene")?;
        scene.keep();
    }
    verdict
}

/// Runs one job after another until the killer is done.
async fn slot(proof: Arc<Proof>) {
    while !proof.stop.load(Ordering::Relaxed) && proof.misses.count() < 20 {
        let number = proof.next.fetch_add(1, Ordering::Relaxed);
        let mut random = proof.random.fork(number);
        let id = format!("job-{number}");
        let work: Box<dyn Expected> = if proof.is_flow {
            Box::new(FlowWork::new(&proof.scene, &id, &mut random))
        } else {
            Box::new(Work::new(&proof.scene, &id, &mut random, true))
        };
        let shown = one_job(&proof, &*work, &mut random).await;
        if shown.is_err() {
            keep_log(&proof, &id).await;
        }
        proof.misses.check(&format!("{id} ({:?})", work.treatment()), shown);
        proof.figures.jobs.fetch_add(1, Ordering::Relaxed);
    }
}

/// Saves the log of a job that failed a check.
async fn keep_log(proof: &Proof, id: &str) {
    if let Ok(Ok(followed)) =
        tokio::time::timeout(Duration::from_secs(5), follow_log(proof.client.clone(), id.to_owned())).await
    {
        std::fs::write(proof.scene.path(&format!("{id}.log")), followed.bytes).ok();
    }
}

async fn one_job(proof: &Proof, work: &dyn Expected, random: &mut Random) -> Check {
    let client = &proof.client;
    let id = work.request().id.as_str();
    client.run(work.request()).await?;
    let log = tokio::spawn(follow_log(client.clone(), id.to_owned()));
    let steps = tokio::spawn(follow_steps(client.clone(), id.to_owned()));
    match work.treatment() {
        Treatment::Wait | Treatment::TimeOut => {}
        Treatment::Cancel => {
            tokio::time::sleep(random.micros(1_500_000)).await;
            client.cancel(id).await?;
        }
        Treatment::Finish => {
            tokio::time::sleep(random.micros(1_500_000)).await;
            client.finish(id).await?;
            return finished_in_the_middle(proof, work, log).await;
        }
    }
    let followed = log.await.map_err(|error| error.to_string())??;
    let results = steps.await.map_err(|error| error.to_string())??;
    if followed.gone {
        return Err("unknown before it was finished".into());
    }
    // The stream ends only after Status reports the end.
    let status = client.status(id).await?.ok_or("unknown before it was finished")?;
    if !status.finished {
        return Err(format!("its log has ended, but Status says {status:?}"));
    }
    let length = followed.bytes.len() as u64;
    if status.log_bytes as u64 != length {
        return Err(format!("Status says {} bytes of log, {length} were received", status.log_bytes));
    }
    let again = follow_log(client.clone(), id.to_owned()).await?;
    crate::log::check_equal("the log read again", &again.bytes, &followed.bytes)?;
    let end = how_it_ended(proof, work, status.exit_code)?;
    work.check_log(&followed.bytes, end, status.exit_code)?;
    work.check_steps(&results, end)?;
    work.check_ran(&proof.scene, end, status.exit_code)?;
    no_process(id).await?;
    let again = client.ended(id, LONGEST_JOB).await?;
    if again.exit_code != status.exit_code
        || again.end_time != status.end_time
        || again.start_time != status.start_time
    {
        return Err(format!("Status has changed from {status:?} to {again:?}"));
    }
    client.finish(id).await?;
    gone(proof, work).await?;
    proof.figures.bytes.fetch_add(length, Ordering::Relaxed);
    proof.figures.streams.fetch_add(followed.streams as u64, Ordering::Relaxed);
    Ok(())
}

/// Checks that the job could end this way, and counts it.
fn how_it_ended(proof: &Proof, work: &dyn Expected, exit_code: i32) -> Check<End> {
    let (end, figure) = match (work.treatment(), exit_code) {
        (Treatment::Wait, code) if code == work.code() => (End::Natural, &proof.figures.natural),
        (Treatment::Cancel, -2) => (End::Cut, &proof.figures.cut),
        (_, -4) if proof.target != Target::Daemon => (End::Cut, &proof.figures.interrupted),
        (_, code) => return Err(format!("exit code {code}, expected {}", work.code())),
    };
    figure.fetch_add(1, Ordering::Relaxed);
    Ok(end)
}

/// Checks a job that was finished while it ran.
async fn finished_in_the_middle(
    proof: &Proof,
    work: &dyn Expected,
    log: tokio::task::JoinHandle<Check<crate::follower::Followed>>,
) -> Check {
    gone(proof, work).await?;
    no_process(&work.request().id).await?;
    let followed = log.await.map_err(|error| error.to_string())??;
    work.check_seen(&followed.bytes, proof.target != Target::Daemon)?;
    work.check_ran(&proof.scene, End::Cut, 0)?;
    proof.figures.cut.fetch_add(1, Ordering::Relaxed);
    proof.figures.bytes.fetch_add(followed.bytes.len() as u64, Ordering::Relaxed);
    Ok(())
}

async fn gone(proof: &Proof, work: &dyn Expected) -> Check {
    if let Some(status) = proof.client.status(&work.request().id).await? {
        return Err(format!("after Finish Status says {status:?}"));
    }
    work::check_files(&proof.scene, &work.request().id)
}

/// Checks that no process of job `id` is left.
pub(crate) async fn no_process(id: &str) -> Check {
    let entry = format!("SHOWS_JOB={id}");
    let find = move || {
        let found = proc::with_environment(&entry);
        if found.is_empty() {
            return Ok(());
        }
        let shown = proc::describe(&found);
        match proc::wait_until(PATIENCE, || found.iter().all(|&pid| !proc::lives(pid))) {
            Some(after) if after < Duration::from_secs(5) => Ok(()),
            _ => Err(format!("processes outlive the job: {shown}")),
        }
    };
    tokio::task::spawn_blocking(find).await.map_err(|error| error.to_string())?
}
