//! `crash --run`: kills `step-runner run` with SIGKILL while its jobs have child processes. Its keeper does not wait
//! for another daemon: it ends the job, removes the private folder, and exits (service.md §6.4, `keeper_wait` 0).

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::arguments::Arguments;
use crate::daemon::{PATIENCE, Scene};
use crate::proc;
use crate::random::Random;
use crate::verdict::{Check, Misses, Shown};

const POINTS: u64 = 100;
const SMALL: u64 = 2;

/// A job with children that end on SIGTERM, that ignore it, and that leave their process group.
const JOB: &str = r#"run:
  - name: leaves
    script: |
      sleep 1000 &
      setsid sleep 1001 &
      (trap '' TERM; sleep 1002; sleep 1003) &
      echo ready > "$SHOWS_READY"
  - name: goes_on
    script: |
      i=0
      while [ $i -lt 100000 ]; do echo "line $i"; i=$((i+1)); sleep 0.01; done
"#;

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let points = arguments.number("points", if small { SMALL } else { POINTS });
    let seed = arguments.seed();
    let mut random = Random::new(seed);
    let misses = Misses::default();
    let (mut slowest, mut in_step) = (Duration::ZERO, 0);
    for point in 0..points {
        let mut scene = Scene::new("run");
        match kill_one(&scene, &mut random) {
            Ok((took, ready)) => {
                slowest = slowest.max(took);
                in_step += u64::from(ready);
            }
            Err(miss) => {
                misses.add(format!("point {point}: {miss}"));
                scene.keep();
            }
        }
    }
    misses.verdict(format!(
        "run seed {seed}: {points} kills of `run`, {in_step} of them with children running; no process and no folder left, \
         the last after {slowest:?}"
    ))
}

/// Kills one `run`. Returns the time until nothing was left, and true if the first step had ended before the kill.
fn kill_one(scene: &Scene, random: &mut Random) -> Check<(Duration, bool)> {
    let (file, ready) = (scene.path("job.yml"), scene.path("ready"));
    fs::write(&file, JOB).unwrap();
    let spawned = scene
        .command(&["run", "--quiet"])
        .arg(&file)
        .env("SHOWS_READY", &ready)
        .current_dir(scene.path("work"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child: Child = spawned.map_err(|error| error.to_string())?;
    if random.one_in(3) {
        // Kills it during its start.
        std::thread::sleep(random.micros(200_000));
    } else {
        if proc::wait_until(PATIENCE, || ready.exists()).is_none() {
            child.kill().ok();
            return Err("the job did not start".into());
        }
        std::thread::sleep(random.micros(100_000));
    }
    let is_ready = ready.exists();
    if let Some(status) = child.try_wait().unwrap() {
        return Err(format!("`run` had ended by itself with {status}"));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The keeper's environment is empty, but its arguments name the private folder.
    let folder = scene.path("tmp");
    let tag = folder.to_str().unwrap().to_owned();
    let left = || [proc::with_environment(&scene.tag), proc::with_argument(&tag)].concat();
    // If it is killed before the keeper starts, nobody can remove its folder.
    let had_keeper = is_ready || !proc::with_argument(&tag).is_empty();
    let gone = || left().is_empty() && (!had_keeper || proc::tree(&folder).is_empty());
    let took = proc::wait_until(PATIENCE, gone);
    let Some(took) = took else {
        let left = left();
        let miss = format!(
            "after {PATIENCE:?}: processes {}, files {:?}",
            proc::describe(&left),
            proc::tree(&folder)
        );
        for pid in left {
            proc::kill(pid, rustix::process::Signal::KILL);
        }
        return Err(miss);
    };
    Ok((took, is_ready))
}
