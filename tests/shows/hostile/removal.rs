//! Jobs that leave what file systems refuse to remove: folders without bits, immutable files, mounts, files of other users,
//! odd names. A Finish says OK only of a job that is gone, and once the obstacles are cleared nothing is left.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use futures_util::future::join_all;
use step_runner::pb::v1;
use tonic::Code;

use super::War;
use super::good::script;
use crate::client::{Client, dial_patiently};
use crate::daemon::{PATIENCE, Scene};
use crate::follower::LONGEST_JOB;
use crate::proc;
use crate::random::Random;
use crate::verdict::{Check, Misses};

/// Jobs of a round.
const AT_A_TIME: usize = 10;

/// Maximum number of obstacles of a job.
const MOST: u64 = 6;

/// Obstacles that a daemon clears by itself. Each is made in a folder of its own.
const OWN: [&str; 7] = [
    "mkdir -p d/e; touch d/e/f; chmod 0 d/e; chmod 500 d",
    "mkdir -p d; touch d/f; chmod 000 d/f; chmod 111 .",
    "touch \"$(printf 'a\\nb')\" ./-x .1 \"$(printf '\\377\\376')\"; mkdir -p .2/.3; touch .2/.3/f",
    "touch $(head -c 255 /dev/zero | tr '\\0' n); mkfifo pipe; ln -s / link; ln -s self self",
    "for i in $(seq 300); do mkdir d && cd d || break; done; touch f",
    "seq 2000 | xargs touch",
    "mkdir d; touch d/f; unshare -m sh -c 'mount --bind d d && mount -o remount,bind,ro d'",
];

/// Obstacles that only [`clear`] removes, where the rights are there to make them.
const HARD: [&str; 7] = [
    "mkdir -p d/e; touch d/e/f d/a d/z; chattr +i d/e/f",
    "echo x > f; chattr +a f",
    "mkdir -p d/e; touch d/f; chattr +i d",
    "mkdir -p d/m; mount -t tmpfs none d/m && touch d/m/f",
    "mkdir d; touch d/f; mount --bind d d && mount -o remount,bind,ro d",
    "mkdir d; touch d/f; chown 12345 d d/f",
    "touch f; mount --bind f f",
];

/// Runs rounds of such jobs: one in the small proof, else as many as there is time for.
pub(super) async fn run(war: &War, scene: &Scene, misses: &Misses) -> Check {
    let client = Client::new(&scene.socket());
    let until = Instant::now() + war.made_up;
    let mut seed = war.seed;
    loop {
        round(scene, &client, seed, misses).await?;
        seed += 1;
        if Instant::now() >= until {
            break;
        }
    }
    println!("  removal: {} rounds of {AT_A_TIME} jobs", seed - war.seed);
    Ok(())
}

async fn round(scene: &Scene, client: &Client, seed: u64, misses: &Misses) -> Check {
    let random = Random::new(seed);
    let jobs = (0..AT_A_TIME).map(|number| {
        let mut random = random.fork(number as u64);
        let is_hard = random.one_in(2);
        let id = format!("removal-{seed}-{number}");
        let steps = script(&id, &obstacles(&mut random, is_hard));
        async move { (leave(client, &id, &steps).await, id, is_hard) }
    });
    let mut refused = Vec::new();
    for (finished, id, is_hard) in join_all(jobs).await {
        match finished {
            Ok(true) => {}
            Ok(false) if is_hard => refused.push(id),
            Ok(false) => misses.add(format!("{id} (seed {seed}): Finish was refused without need")),
            Err(miss) => misses.add(format!("{id} (seed {seed}): {miss}")),
        }
    }
    clear(&scene.state());
    for id in refused {
        client.finish(&id).await?;
    }
    let jobs = scene.state().join("jobs");
    if proc::wait_until(PATIENCE, || proc::tree(&jobs).is_empty()).is_none() {
        misses.add(format!("seed {seed}: left although nothing stands in the way: {:?}", proc::tree(&jobs)));
    }
    Ok(())
}

/// Returns a script that makes obstacles. The commands that lack rights fail, and the script goes on.
fn obstacles(random: &mut Random, is_hard: bool) -> String {
    let last = random.below(MOST);
    let obstacle = |number| {
        let all = if is_hard && random.one_in(2) { &HARD } else { &OWN };
        let obstacle = all[random.below(all.len() as u64) as usize];
        format!("(mkdir o{number} && cd o{number} && {{ {obstacle}; }}) 2>/dev/null\n")
    };
    (0..=last).map(obstacle).collect::<String>() + "exit 0\n"
}

/// Runs a job and finishes it once. False if the Finish was refused and the job is served as before.
async fn leave(client: &Client, id: &str, request: &v1::RunRequest) -> Check<bool> {
    client.run(request).await?;
    client.ended(id, LONGEST_JOB).await?;
    let mut stub = dial_patiently(client.socket()).await?;
    let finished = tokio::time::timeout(PATIENCE, stub.finish(v1::FinishRequest { id: id.into() })).await;
    let finished = finished.map_err(|_| format!("Finish did not answer within {PATIENCE:?}"))?;
    let is_known = client.status(id).await?.is_some();
    match finished {
        Ok(_) if is_known => Err("Finish said OK, and the job is still there".into()),
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::Unavailable && is_known => Ok(false),
        Err(status) => {
            Err(format!("Finish: {status}; the job is {}", if is_known { "there" } else { "gone" }))
        }
    }
}

/// Removes what only root can make, and what root alone can remove.
fn clear(state: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // The latest mount first: it can be inside of an earlier one.
    for at in mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)) {
        // A blank or the like is written as an octal number there; none is in the names of obstacles that are mounted on.
        if Path::new(at).starts_with(state) {
            Command::new("umount").arg(at).status().ok();
        }
    }
    Command::new("chattr").args(["-f", "-R", "-i", "-a"]).arg(state).status().ok();
}
