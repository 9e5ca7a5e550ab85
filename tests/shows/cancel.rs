//! `cancel [--trees N] [--grace TIME] [--cgroup on|off] [--parallel N] [--seed N] [--untimed]`: ends jobs at random
//! moments. Their process trees ignore SIGTERM, leave their group, or fork in a loop (faults.md rows 2 to 4). No
//! process outlives the answer, which comes within the grace plus a tenth of a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use step_runner::pb::v1;

use crate::arguments::Arguments;
use crate::client::Client;
use crate::daemon::{Daemon, PATIENCE, Scene, check_stop};
use crate::follower::follow_log;
use crate::random::Random;
use crate::tree::{self, Kind, Tree};
use crate::verdict::{Check, Misses, Shown, percentile};

const TREES: u64 = 1000;
const SMALL: u64 = 24;
const PARALLEL: u64 = 8;
const GRACE: &str = "200ms";

/// Time beyond the grace that 99 of 100 ends can take.
const SLACK: Duration = Duration::from_millis(100);

/// Longest time from the start of a job, or from the completion of its tree, to its end, in microseconds.
const LATEST: u64 = 300_000;

struct Proof {
    scene: Scene,
    client: Client,
    misses: Misses,
    trees: u64,
    next: AtomicU64,
    random: Random,
    /// Number of trees that were complete when they were ended.
    stood: AtomicU64,
    survivors: AtomicU64,
    /// Time from the call to the end of the job.
    took: Mutex<Vec<(Duration, Kind)>>,
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let modes: &[&str] = match arguments.text("cgroup") {
        None => &["on", "off"],
        Some("on") => &["on"],
        Some("off") => &["off"],
        Some(other) => return Err(format!("--cgroup: {other:?} is neither on nor off")),
    };
    let grace = arguments.text("grace").unwrap_or(GRACE);
    let grace = millis(grace).ok_or_else(|| format!("--grace: {grace:?} is no time such as 200ms"))?;
    let mut figures = Vec::new();
    for &mode in modes {
        if mode == "on" && step_runner::process::cgroup::writable_group().is_err() {
            crate::parts::skipped("cancel --cgroup on", "writable cgroup v2");
            continue;
        }
        let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        figures.push(runtime.block_on(prove(arguments, mode, grace, small))?);
    }
    Ok(figures.join("; "))
}

fn millis(text: &str) -> Option<Duration> {
    text.strip_suffix("ms")?.parse().ok().map(Duration::from_millis)
}

async fn prove(arguments: &Arguments, mode: &str, grace: Duration, small: bool) -> Shown {
    let seed = arguments.seed();
    let trees = arguments.number("trees", if small { SMALL } else { TREES });
    let scene = Scene::new("cancel");
    tree::prepare(&scene.path("work"));
    let cancel_grace = format!("--cancel-grace={}ms", grace.as_millis());
    let daemon = Daemon::start_with(&scene, &["--cgroup", mode, &cancel_grace])?;
    let proof = Arc::new(Proof {
        client: Client::new(&scene.socket()),
        scene,
        misses: Misses::default(),
        trees,
        next: AtomicU64::new(0),
        random: Random::new(seed),
        stood: AtomicU64::new(0),
        survivors: AtomicU64::new(0),
        took: Mutex::default(),
    });
    let parallel = arguments.number("parallel", PARALLEL);
    let slots: Vec<_> = (0..parallel).map(|_| tokio::spawn(slot(Arc::clone(&proof)))).collect();
    for slot in slots {
        slot.await.map_err(|error| error.to_string())?;
    }
    let proof = Arc::into_inner(proof).ok_or("a task holds the scene")?;
    let Proof { mut scene, misses, stood, survivors, took, .. } = proof;
    let stopped = tokio::task::block_in_place(|| check_stop(&scene, daemon));
    misses.check("the end", stopped);
    let mut took = took.into_inner();
    took.sort_by_key(|(took, _)| *took);
    let at = |percent| percentile(&took, percent).ok_or("no tree was ended");
    let ((p50, _), (p99, _), (max, slowest)) = (at(50)?, at(99)?, at(100)?);
    let stood = stood.into_inner();
    if 2 * stood < trees {
        misses.add(format!(
            "only {stood} of {trees} trees stood when they were ended: the rest proves nothing"
        ));
    }
    if arguments.judges_time(small) && p99 > grace + SLACK {
        misses.add(format!("99 of 100 ends take up to {p99:?}, more than {:?}", grace + SLACK));
    }
    let verdict = misses.verdict(format!(
        "cgroup {mode}, seed {seed}: {trees} trees of processes, {stood} of which stood when they were ended, \
         survivors {}, from the call to the end p50 {p50:?}, p99 \
         {p99:?}, max {max:?} ({slowest:?}) with a grace of {grace:?}",
        survivors.into_inner(),
    ));
    if verdict.is_err() {
        scene.keep();
    }
    verdict
}

async fn slot(proof: Arc<Proof>) {
    loop {
        let number = proof.next.fetch_add(1, Ordering::Relaxed);
        if number >= proof.trees || proof.misses.count() >= 20 {
            return;
        }
        let mut random = proof.random.fork(number);
        let kind = Kind::any(&mut random);
        let shown = one_tree(&proof, &format!("tree-{number}"), kind, &mut random).await;
        proof.misses.check(&format!("tree-{number} ({kind:?})"), shown);
    }
}

async fn one_tree(proof: &Proof, id: &str, kind: Kind, random: &mut Random) -> Check {
    let client = &proof.client;
    let mut tree = Tree::new(&proof.scene.path("work"), id, kind);
    let steps = serde_json::json!([{ "name": "tree", "script": tree.script }]).to_string();
    client.run(&v1::RunRequest { id: id.into(), steps, ..v1::RunRequest::default() }).await?;
    let log = tokio::spawn(follow_log(client.clone(), id.to_owned()));
    // One tree in four is ended before it is complete.
    if !random.one_in(4) {
        let until = Instant::now() + PATIENCE;
        while !tree.stands() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    tokio::time::sleep(random.micros(LATEST)).await;
    proof.stood.fetch_add(u64::from(tree.stands()), Ordering::Relaxed);
    let begun = Instant::now();
    if random.one_in(2) {
        client.finish(id).await?;
    } else {
        client.cancel(id).await?;
        log.await.map_err(|error| error.to_string())??;
    }
    proof.took.lock().push((begun.elapsed(), kind));
    let gone = tree.is_gone()?;
    if !gone {
        proof.survivors.fetch_add(1, Ordering::Relaxed);
    }
    client.finish(id).await?;
    if gone { Ok(()) } else { Err("processes outlive the job".into()) }
}
