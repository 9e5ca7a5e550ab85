//! `load [--jobs N] [--concurrency C]`: many short jobs leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use step_runner::pb::v1;
use step_runner::threads;
use tokio::sync::Semaphore;

use crate::arguments::Arguments;
use crate::client::{Client, Stub, dial_patiently};
use crate::daemon::{Daemon, Scene, check_stop};
use crate::follower::LONGEST_JOB;
use crate::log::Sources;
use crate::proc::{self, Holdings};
use crate::verdict::{Check, Misses, Shown};

const JOBS: u64 = 5000;
const CONCURRENCY: u64 = 1000;
const SMALL: u64 = 100;
/// Number of connections. Each carries at most 100 unary calls at a time (service.md §1.1).
const CONNECTIONS: usize = 32;
/// Number of concurrent jobs before the counting begins.
const WARM: u64 = 64;
/// Longest time until descriptors are closed after the work.
const SETTLE: Duration = Duration::from_mins(1);
/// Most threads of a daemon: the pool for blocking work, the one that serves, and a few others.
const MOST_THREADS: usize = threads::ALL + 4;

struct Proof {
    client: Client,
    stubs: Vec<Stub>,
    misses: Misses,
    most: AtomicU64,
    unfinished: AtomicU64,
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let jobs = arguments.number("jobs", if small { SMALL } else { JOBS });
    let concurrency = arguments.number("concurrency", if small { SMALL } else { CONCURRENCY });
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(prove(jobs, concurrency))
}

async fn prove(jobs: u64, concurrency: u64) -> Shown {
    let mut scene = Scene::new("load");
    let daemon = Daemon::start(&scene)?;
    let mut stubs = Vec::new();
    for _ in 0..CONNECTIONS {
        stubs.push(dial_patiently(&scene.socket()).await?);
    }
    let proof = Arc::new(Proof {
        client: Client::new(&scene.socket()),
        stubs,
        misses: Misses::default(),
        most: AtomicU64::new(0),
        unfinished: AtomicU64::new(0),
    });
    // Creates the threads, connections and spare cgroups that stay.
    let mut warm = tokio::task::JoinSet::new();
    for number in 0..WARM {
        let proof = Arc::clone(&proof);
        warm.spawn(async move { one_job(&proof, "warm", number).await });
    }
    while let Some(done) = warm.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    proof.most.store(0, Ordering::Relaxed);
    let keeper = scene.keeper().ok_or("there is no keeper")?;
    let pids = [("daemon", daemon.pid()), ("keeper", keeper)];
    tokio::time::sleep(Duration::from_millis(500)).await;
    proc::say_if_uncounted("load", keeper);
    let before = pids.map(|(_, pid)| (Holdings::of(pid), proc::memory(pid)));
    let begun = Instant::now();
    let room = Arc::new(Semaphore::new(concurrency as usize));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..jobs {
        let permit = Arc::clone(&room).acquire_owned().await.map_err(|error| error.to_string())?;
        let proof = Arc::clone(&proof);
        tasks.spawn(async move {
            let shown = one_job(&proof, "load", number).await;
            proof.misses.check(&format!("job {number}"), shown);
            drop(permit);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| error.to_string())?;
    }
    let took = begun.elapsed();
    let mut figures = Vec::new();
    for ((name, pid), (holdings, memory)) in pids.into_iter().zip(before) {
        let settled = tokio::task::block_in_place(|| {
            // Threads for blocking work stay once they exist.
            let allowed = Holdings { threads: holdings.threads.max(MOST_THREADS), ..holdings };
            proc::wait_until(SETTLE, || Holdings::of(pid).is_at_most(allowed))
        });
        let (now, memory_now) = (Holdings::of(pid), proc::memory(pid));
        if settled.is_none() {
            proof.misses.add(format!("{name}: {holdings:?} before, {now:?} after"));
        }
        figures.push(format!(
            "{name}: {} threads, {} descriptors before and {}, {} after; RSS {} -> {} KiB, PSS {} -> {} KiB",
            holdings.threads,
            holdings.descriptors,
            now.threads,
            now.descriptors,
            memory.0,
            memory_now.0,
            memory.1,
            memory_now.1
        ));
    }
    let left = proof.client.all().await?;
    if !left.is_empty() {
        proof.misses.add(format!("{} jobs are left", left.len()));
    }
    let proof = Arc::into_inner(proof).ok_or("a task holds the connections")?;
    let Proof { stubs, misses, most, .. } = proof;
    drop(stubs);
    let stopped = tokio::task::block_in_place(|| check_stop(&scene, daemon));
    misses.check("the end", stopped);
    let verdict = misses.verdict(format!(
        "{jobs} jobs in {took:.1?}, {:.0} jobs/s, at most {} unfinished at once; {}",
        jobs as f64 / took.as_secs_f64(),
        most.into_inner(),
        figures.join("; ")
    ));
    if verdict.is_err() {
        scene.keep();
    }
    verdict
}

async fn one_job(proof: &Proof, kind: &str, number: u64) -> Check {
    let id = format!("{kind}-{number}");
    let mut stub = proof.stubs[number as usize % proof.stubs.len()].clone();
    let text = format!("output of {id}");
    let steps = serde_json::json!({ "exec": { "command": ["/bin/echo", text] } }).to_string();
    let failed = |what: &str, status: tonic::Status| format!("{what}: {status}");
    let request = v1::RunRequest { id: id.clone(), steps, ..v1::RunRequest::default() };
    let unfinished = proof.unfinished.fetch_add(1, Ordering::Relaxed) + 1;
    proof.most.fetch_max(unfinished, Ordering::Relaxed);
    stub.run(request).await.map_err(|status| failed("Run", status))?;
    if number.is_multiple_of(2) {
        let followed = tokio::time::timeout(LONGEST_JOB, log(&mut stub, &id)).await;
        let log =
            followed.map_err(|_| "its log does not end")?.map_err(|status| failed("FollowLogs", status))?;
        let sources = Sources::read(&log)?;
        crate::log::check_equal("stdout", sources.of(*b"01O"), format!("{text}\n").as_bytes())?;
    }
    let until = Instant::now() + LONGEST_JOB;
    let status = loop {
        let asked = stub
            .status(v1::StatusRequest { id: id.clone() })
            .await
            .map_err(|status| failed("Status", status))?;
        match asked.into_inner().jobs.pop() {
            Some(status) if status.finished => break status,
            Some(_) if Instant::now() < until => tokio::time::sleep(Duration::from_millis(200)).await,
            other => return Err(format!("it does not end: {other:?}")),
        }
    };
    if status.exit_code != 0 {
        return Err(format!("exit code {}: {}", status.exit_code, status.message));
    }
    stub.finish(v1::FinishRequest { id }).await.map_err(|status| failed("Finish", status))?;
    proof.unfinished.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

async fn log(stub: &mut Stub, id: &str) -> Result<Vec<u8>, tonic::Status> {
    let mut stream = stub
        .follow_logs(v1::FollowLogsRequest { id: id.into(), offset: 0, ..v1::FollowLogsRequest::default() })
        .await?
        .into_inner();
    let mut log = Vec::new();
    while let Some(message) = stream.message().await? {
        log.extend_from_slice(&message.data);
    }
    Ok(log)
}
