//! Hostile jobs, ten at a time: first each known shape by itself, then random rounds until the time is over. Status
//! must be answered all the time. In the end every job must have ended, and memory must have shrunk again.

use std::path::Path;
use std::time::{Duration, Instant};

use step_runner::pb::v1;
use tonic::Code;

use super::good::Asker;
use super::groups;
use super::shape::{self, Maker, SHAPES};
use super::{P99, War};
use crate::client::{Client, dial_patiently};
use crate::daemon::{Daemon, Scene};
use crate::random::Random;
use crate::verdict::{Check, Misses};

/// Number of concurrent jobs.
const AT_A_TIME: usize = 10;
/// Longest time from a Run to the end of a hostile job: the job's time limit plus the time for masking.
const LONGEST: Duration = Duration::from_mins(5);
/// Memory in KiB that a round can leave in daemon and keeper after its jobs were removed.
const LEFT: u64 = 64 << 10;
/// Divisor of sizes in the small proof.
const SMALL_SCALE: usize = 16;

/// Returns the request of a job of a round, from its number and its id.
type MakeRequest = Box<dyn Fn(usize, &str) -> v1::RunRequest + Send + Sync>;

/// One round of jobs.
struct Round {
    name: String,
    requests: MakeRequest,
    /// Command that repeats the round.
    again: String,
}

/// Runs all rounds: the shapes, and as many random ones as there is time for.
pub(super) async fn run(war: &War, scene: &Scene, daemon: &Daemon, misses: &Misses) -> Check {
    let maker = Maker { scale: if war.is_small { SMALL_SCALE } else { 1 } };
    let folder = scene.path("work");
    shape::write_functions(&folder).map_err(|error| error.to_string())?;
    let client = Client::new(&scene.socket());
    let good = super::good::Reader::start(scene, &client, "good").await?;
    // Baseline for all rounds, taken once the good job has started.
    let before = super::memory(scene, daemon);
    for (at, name) in SHAPES.iter().enumerate() {
        let folder = folder.clone();
        let requests = move |_: usize, id: &str| maker.shape(at, id, &folder);
        let again = "scripts/hostile --only jobs --minutes 0".to_owned();
        let round = Round { name: (*name).into(), requests: Box::new(requests), again };
        fight(war, scene, daemon, &client, round, before, misses).await?;
    }
    let until = Instant::now() + war.made_up;
    let mut seed = war.seed;
    loop {
        let round = made_up(maker, seed, &folder);
        fight(war, scene, daemon, &client, round, before, misses).await?;
        seed += 1;
        if Instant::now() >= until {
            break;
        }
    }
    std::fs::write(scene.path("stop"), "").map_err(|error| error.to_string())?;
    misses.check("the good client beside hostile jobs", good.finish(&client).await);
    // A process without any mark ends with the last job whose step ran when it began: with the good one at the latest
    // (docs/operate/threat-model.md).
    let escaped = groups::escaped();
    if !escaped.is_empty() {
        misses.add(format!("processes {escaped:?} have outlived all jobs"));
    }
    Ok(())
}

fn made_up(maker: Maker, seed: u64, folder: &Path) -> Round {
    let folder = folder.to_owned();
    let requests =
        move |at: usize, id: &str| maker.made_up(id, &mut Random::new(seed).fork(at as u64 + 1), &folder);
    let again = format!("scripts/hostile --only jobs --minutes 0 --seed {seed}");
    Round { name: format!("seed {seed}"), requests: Box::new(requests), again }
}

async fn fight(
    war: &War,
    scene: &Scene,
    daemon: &Daemon,
    client: &Client,
    round: Round,
    before: [u64; 2],
    misses: &Misses,
) -> Check {
    let Round { name, requests, again } = round;
    let begun = Instant::now();
    let label = name.clone();
    let requests = tokio::task::spawn_blocking(move || {
        // Each id is used once, because a repeated request of a finished job starts nothing.
        let id = |at: usize| format!("hostile-{}-{at}", label.replace(' ', "-"));
        (0..AT_A_TIME).map(|at| requests(at, &id(at))).collect::<Vec<_>>()
    });
    let requests = requests.await.map_err(|error| error.to_string())?;
    let asker = Asker::start(scene).await?;
    let jobs: Vec<_> =
        requests.into_iter().map(|request| tokio::spawn(job(client.clone(), request))).collect();
    let (mut refused, mut ended) = (0, 0);
    for job in jobs {
        match job.await.map_err(|error| error.to_string())? {
            Ok(true) => ended += 1,
            Ok(false) => refused += 1,
            Err(miss) => misses.add(format!("{name}: {miss}; again: {again}")),
        }
    }
    let times = asker.stop(misses, &name).await;
    let after = war.calm_within(scene, daemon, before, LEFT).await;
    let left = [after[0].saturating_sub(before[0]), after[1].saturating_sub(before[1])];
    println!(
        "  {name}: {ended} jobs ended, {refused} refused, in {:.1?}; Status {times}; daemon +{} KiB, keeper +{} KiB",
        begun.elapsed(),
        left[0],
        left[1]
    );
    if war.judges_time && times.p99 >= P99 {
        misses.add(format!("{name}: Status took {times}; again: {again}"));
    }
    let processes = super::processes(scene, daemon);
    for ((who, pid), left) in ["daemon", "keeper"].into_iter().zip(processes).zip(left) {
        if !war.is_small && left >= LEFT {
            // What the memory is used for, to find the cause.
            let map = scene.path(&format!("{}-{who}.smaps", name.replace(' ', "-")));
            std::fs::copy(format!("/proc/{}/smaps", pid.unwrap_or_default()), &map).ok();
            let begun = Instant::now();
            let later = war.calm_within(scene, daemon, before, LEFT).await;
            misses.add(format!(
                "{name}: the {who} kept {left} KiB ({later:?} KiB {:.1?} later, see {}); again: {again}",
                begun.elapsed(),
                map.display()
            ));
        }
    }
    Ok(())
}

/// Runs one job to its end and removes it. Returns `false` if it was permanently refused.
async fn job(client: Client, request: v1::RunRequest) -> Check<bool> {
    let id = request.id.clone();
    let until = Instant::now() + LONGEST;
    loop {
        let mut stub = dial_patiently(client.socket()).await?;
        match stub.run(request.clone()).await {
            Ok(_) => break,
            Err(status) => match status.code() {
                Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => return Ok(false),
                Code::ResourceExhausted if Instant::now() < until => {}
                _ => return Err(format!("Run of {id}: {status}")),
            },
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    drop(request);
    client.ended(&id, LONGEST).await?;
    client.finish(&id).await.map(|()| true)
}
