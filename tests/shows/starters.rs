//! Twenty daemons started at once on one path: one serves, the others report that and exit (service.md §1).

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::daemon::{PATIENCE, Scene};
use crate::proc;
use crate::verdict::{Check, Misses, Shown};

const STARTERS: usize = 20;

pub(crate) fn prove(rounds: u64) -> Shown {
    let mut scene = Scene::new("starters");
    let misses = Misses::default();
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        match one_round(&scene, round) {
            Ok(took) => slowest = slowest.max(took),
            Err(miss) => misses.add(format!("round {round}: {miss}")),
        }
    }
    let verdict = misses.verdict(format!("{rounds} rounds of {STARTERS} starters on one path: one served each time, the last other gave up after {slowest:?}"));
    if verdict.is_err() {
        scene.keep();
    }
    verdict
}

/// Runs one round. In odd rounds each daemon has its own state folder, so only the lock of the socket decides. In half
/// of the rounds the winner is killed, so that the next round finds its socket.
fn one_round(scene: &Scene, round: u64) -> Check<Duration> {
    let begun = Instant::now();
    let own_state = round % 2 == 1;
    let mut starters: Vec<Child> = (0..STARTERS).map(|at| start(scene, at, own_state)).collect();
    let mut ended: Vec<(usize, ExitStatus)> = Vec::new();
    let one_left = proc::wait_until(PATIENCE, || {
        for (at, child) in starters.iter_mut().enumerate() {
            if !ended.iter().any(|(known, _)| *known == at)
                && let Some(status) = child.try_wait().unwrap()
            {
                ended.push((at, status));
            }
        }
        ended.len() >= STARTERS - 1
    });
    let took = begun.elapsed();
    let winner = (0..STARTERS).find(|at| !ended.iter().any(|(known, _)| known == at));
    let judged = match (one_left, winner) {
        (None, _) => Err(format!("only {} of {STARTERS} gave up", ended.len())),
        (_, None) => Err("none serves".to_owned()),
        (Some(_), Some(winner)) => judge(scene, winner, &ended),
    };
    for (at, mut child) in starters.into_iter().enumerate() {
        if round % 4 < 2 && winner == Some(at) && judged.is_ok() {
            proc::kill(child.id(), Signal::TERM);
            let ended = proc::wait_until(PATIENCE, || child.try_wait().unwrap().is_some());
            ended.ok_or("the winner did not end on SIGTERM")?;
            if scene.socket().exists() {
                return Err("the socket was left after a graceful end".into());
            }
        } else {
            child.kill().ok();
            child.wait().unwrap();
        }
    }
    judged.map(|()| took)
}

fn said(scene: &Scene, at: usize) -> String {
    std::fs::read_to_string(scene.path(&format!("starter-{at}"))).unwrap_or_default()
}

fn start(scene: &Scene, at: usize, own_state: bool) -> Child {
    let mut command = scene.command(&["serve", "--socket"]);
    command.arg(scene.socket());
    if own_state {
        command.arg("--state-dir").arg(scene.path(&format!("state-{at}")));
    }
    let said = File::create(scene.path(&format!("starter-{at}"))).unwrap();
    command.stdout(Stdio::null()).stderr(said).spawn().unwrap()
}

fn judge(scene: &Scene, winner: usize, ended: &[(usize, ExitStatus)]) -> Check {
    let path = scene.socket();
    let refusal = format!("already serving on {}", path.display());
    for (at, status) in ended {
        let said = said(scene, *at);
        if status.code() != Some(1) || !said.contains(&refusal) {
            return Err(format!("starter {at} ended with {status}: {said:?}"));
        }
    }
    if proc::wait_until(PATIENCE, || said(scene, winner).contains("step-runner is listening on socket"))
        .is_none()
    {
        return Err(format!("the winner does not serve: {:?}", said(scene, winner)));
    }
    let socket = std::fs::symlink_metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !socket.file_type().is_socket() {
        return Err("the socket is none".into());
    }
    let answered = scene.command(&["status", "--socket"]).arg(&path).stderr(Stdio::null()).output();
    match answered {
        Ok(output) if output.status.success() => Ok(()),
        other => Err(format!("the winner does not answer: {other:?}")),
    }
}
