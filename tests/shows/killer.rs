//! Kills at random moments: between calls, right after the start of a call, and while a daemon starts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::Client;
use crate::daemon::{Daemon, Scene};
use crate::proc;
use crate::random::Random;
use crate::verdict::Check;

/// Processes to kill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Daemon,
    Keeper,
    Both,
}

/// Numbers of kills, and the longest time until the daemon served again.
#[derive(Default)]
pub(crate) struct Kills {
    pub(crate) daemons: u64,
    pub(crate) keepers: u64,
    pub(crate) in_calls: u64,
    pub(crate) in_starts: u64,
    pub(crate) slowest_start: Duration,
}

/// Kills `points` times. Returns the daemon that serves in the end.
pub(crate) async fn kill(
    scene: Arc<Scene>,
    client: Client,
    mut daemon: Daemon,
    target: Target,
    points: u64,
    mut random: Random,
) -> Check<(Daemon, Kills)> {
    let mut kills = Kills::default();
    while kills.daemons.max(kills.keepers) < points {
        if random.one_in(3) {
            // Kills shortly after a call was sent.
            let called = tokio::time::timeout(Duration::from_millis(400), client.calling.notified()).await;
            kills.in_calls += u64::from(called.is_ok());
            tokio::time::sleep(random.micros(4_000)).await;
        } else {
            tokio::time::sleep(random.micros(300_000)).await;
        }
        if target != Target::Daemon {
            // Interrupted jobs end soon, so give the next ones time to make progress.
            tokio::time::sleep(random.micros(600_000)).await;
        }
        let keeper_first = random.one_in(2);
        if target == Target::Keeper || target == Target::Both && keeper_first {
            kills.keepers += u64::from(kill_keeper(&scene));
        }
        if target != Target::Keeper {
            daemon.kill()?;
            kills.daemons += 1;
            if target == Target::Both && !keeper_first {
                kills.keepers += u64::from(kill_keeper(&scene));
            }
            daemon = Daemon::spawn(&scene);
            while random.one_in(5) && kills.daemons < points {
                std::thread::sleep(random.micros(30_000));
                daemon.kill()?;
                kills.daemons += 1;
                kills.in_starts += 1;
                daemon = Daemon::spawn(&scene);
            }
            let begun = Instant::now();
            let ready = tokio::task::spawn_blocking(move || daemon.wait_ready().map(|_| daemon));
            daemon = ready.await.map_err(|error| error.to_string())??;
            kills.slowest_start = kills.slowest_start.max(begun.elapsed());
        }
    }
    Ok((daemon, kills))
}

/// Returns `false` if no keeper runs.
fn kill_keeper(scene: &Scene) -> bool {
    match scene.keeper().filter(|&pid| proc::lives(pid)) {
        Some(pid) => {
            proc::kill(pid, Signal::KILL);
            true
        }
        None => false,
    }
}
