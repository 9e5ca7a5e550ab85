//! `race [--ids N] [--seed N]`: many simultaneous calls with one id start one job (faults.md rows 48 to 50). Of many
//! daemons on one socket only one serves (rows 51 and 52).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use step_runner::pb::v1;
use tonic::Code;

use crate::arguments::Arguments;
use crate::client::{Client, Stub, dial_patiently};
use crate::daemon::{Daemon, Scene, check_stop};
use crate::follower::LONGEST_JOB;
use crate::random::Random;
use crate::starters;
use crate::verdict::{Check, Misses, Shown};

const IDS: u64 = 1000;
const SMALL: u64 = 20;
const RUNS: usize = 50;
const FINISHES: usize = 10;
/// Number of calls that follow the job or ask for its state before, during and after its life.
const WATCHERS: usize = 9;
const CONNECTIONS: usize = 25;
/// Number of ids at a time.
const PARALLEL: u64 = 4;

struct Proof {
    scene: Scene,
    client: Client,
    stubs: Vec<Stub>,
    misses: Misses,
    next: AtomicU64,
    ids: u64,
    calls: AtomicU64,
    random: Random,
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let ids = arguments.number("ids", if small { SMALL } else { IDS });
    let seed = arguments.seed();
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let raced = runtime.block_on(prove(ids, seed))?;
    let started = starters::prove(arguments.number("points", if small { 2 } else { 20 }))?;
    Ok(format!("seed {seed}: {raced}; {started}"))
}

async fn prove(ids: u64, seed: u64) -> Shown {
    let scene = Scene::new("race");
    let daemon = Daemon::start(&scene)?;
    let mut stubs = Vec::new();
    for _ in 0..CONNECTIONS {
        stubs.push(dial_patiently(&scene.socket()).await?);
    }
    let proof = Arc::new(Proof {
        client: Client::new(&scene.socket()),
        scene,
        stubs,
        misses: Misses::default(),
        next: AtomicU64::new(0),
        ids,
        calls: AtomicU64::new(0),
        random: Random::new(seed),
    });
    let slots: Vec<_> = (0..PARALLEL).map(|_| tokio::spawn(slot(Arc::clone(&proof)))).collect();
    for slot in slots {
        slot.await.map_err(|error| error.to_string())?;
    }
    let mut proof = Arc::into_inner(proof).ok_or("a task holds the scene")?;
    proof.stubs.clear();
    let stopped = tokio::task::block_in_place(|| check_stop(&proof.scene, daemon));
    proof.misses.check("the end", stopped);
    let calls = proof.calls.load(Ordering::Relaxed);
    let verdict = proof.misses.verdict(format!(
        "{ids} ids, {RUNS} racing Runs and {FINISHES} racing Finishes each, {calls} calls: each job ran once, late \
         duplicates ran nothing"
    ));
    if verdict.is_err() {
        proof.scene.keep();
    }
    verdict
}

async fn slot(proof: Arc<Proof>) {
    loop {
        let number = proof.next.fetch_add(1, Ordering::Relaxed);
        if number >= proof.ids || proof.misses.count() >= 20 {
            return;
        }
        let shown = one_id(&proof, number).await;
        proof.misses.check(&format!("id race-{number}"), shown);
    }
}

/// Returns a job that records that it ran.
fn request(id: &str, ran: &Path, word: &str) -> v1::RunRequest {
    let script = format!("echo {word} >> {}", ran.display());
    let steps = serde_json::json!([{ "name": "note", "script": script }]).to_string();
    v1::RunRequest { id: id.to_owned(), steps, ..v1::RunRequest::default() }
}

async fn one_id(proof: &Proof, number: u64) -> Check {
    let id = format!("race-{number}");
    let ran = proof.scene.path(&format!("ran/{id}"));
    let first = request(&id, &ran, "first");
    let all_at_once = number % 2 == 1;
    let mut random = proof.random.fork(number);
    let late = |proof: &Proof, random: &mut Random| {
        race(proof, WATCHERS, |stub| watch(stub, id.clone(), random.below(3)))
    };
    let mut runs = race(proof, RUNS, |mut stub| {
        let request = first.clone();
        async move { stub.run(request).await.map(drop) }
    });
    let watchers = late(proof, &mut random);
    if all_at_once {
        runs.extend(finishes(proof, &id));
    }
    join(runs).await?;
    join(watchers).await?;
    if !all_at_once {
        if number.is_multiple_of(4) {
            let ended = proof.client.ended(&id, LONGEST_JOB).await?;
            if ended.exit_code != 0 {
                return Err(format!("exit code {}: {}", ended.exit_code, ended.message));
            }
            ran_is(&ran, &["first"])?;
        }
        let finishes = finishes(proof, &id);
        join(late(proof, &mut random)).await?;
        join(finishes).await?;
    }
    proof.client.finish(&id).await?;
    unknown(proof, &id).await?;
    let so_far = lines(&ran);
    if so_far.len() > 1 {
        return Err(format!("the job ran {} times", so_far.len()));
    }
    if !all_at_once {
        // Late duplicates of a job that has already been finished.
        join(race(proof, 3, |mut stub| {
            let request = first.clone();
            async move { stub.run(request).await.map(drop) }
        }))
        .await?;
        unknown(proof, &id).await?;
        if lines(&ran) != so_far {
            return Err("a late duplicate ran".into());
        }
    }
    let other = request(&id, &ran, "second");
    join(race(proof, 5, |mut stub| {
        let request = other.clone();
        async move { stub.run(request).await.map(drop) }
    }))
    .await?;
    let ended = proof.client.ended(&id, LONGEST_JOB).await?;
    let seconds = lines(&ran).iter().filter(|line| *line == "second").count();
    if ended.exit_code != 0 || seconds != 1 {
        return Err(format!("another job under the id: exit code {}, ran {seconds} times", ended.exit_code));
    }
    join(finishes(proof, &id)).await?;
    unknown(proof, &id).await
}

fn finishes(proof: &Proof, id: &str) -> Vec<Call> {
    race(proof, FINISHES, |mut stub| {
        let id = id.to_owned();
        async move { stub.finish(v1::FinishRequest { id }).await.map(drop) }
    })
}

type Call = tokio::task::JoinHandle<Result<(), tonic::Status>>;

/// Starts `count` calls over all connections.
fn race<F>(proof: &Proof, count: usize, mut call: impl FnMut(Stub) -> F) -> Vec<Call>
where
    F: Future<Output = Result<(), tonic::Status>> + Send + 'static,
{
    proof.calls.fetch_add(count as u64, Ordering::Relaxed);
    (0..count).map(|at| tokio::spawn(call(proof.stubs[at % proof.stubs.len()].clone()))).collect()
}

/// Follows the job's log or results, or asks for its state, as `which` selects. The call can come before the job,
/// during it, during its removal, or after it.
async fn watch(mut stub: Stub, id: String, which: u64) -> Result<(), tonic::Status> {
    let seen = match which {
        0 => match stub
            .follow_logs(v1::FollowLogsRequest { id, offset: 0, ..v1::FollowLogsRequest::default() })
            .await
        {
            Ok(stream) => to_the_end(stream.into_inner()).await,
            Err(status) => Err(status),
        },
        1 => match stub.follow_steps(v1::FollowStepsRequest { id, events: false }).await {
            Ok(stream) => to_the_end(stream.into_inner()).await,
            Err(status) => Err(status),
        },
        _ => stub.status(v1::StatusRequest { id }).await.map(drop),
    };
    seen.or_else(|status| if status.code() == Code::NotFound { Ok(()) } else { Err(status) })
}

async fn to_the_end<T>(mut stream: tonic::Streaming<T>) -> Result<(), tonic::Status> {
    while stream.message().await?.is_some() {}
    Ok(())
}

async fn join(calls: Vec<Call>) -> Check {
    for call in calls {
        let answered = tokio::time::timeout(LONGEST_JOB, call).await.map_err(|_| "a call got no answer")?;
        answered.map_err(|error| error.to_string())?.map_err(|status| format!("a call failed: {status}"))?;
    }
    Ok(())
}

async fn unknown(proof: &Proof, id: &str) -> Check {
    match proof.client.status(id).await? {
        None => Ok(()),
        Some(status) => Err(format!("after Finish Status says {status:?}")),
    }
}

fn lines(ran: &Path) -> Vec<String> {
    std::fs::read_to_string(ran).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn ran_is(ran: &Path, expected: &[&str]) -> Check {
    let found = lines(ran);
    if found == expected { Ok(()) } else { Err(format!("ran {found:?}, expected {expected:?}")) }
}
