//! Faults at random moments: daemon and keeper are killed or stopped, or the disk is full for a while.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::daemon::{Daemon, PATIENCE, Scene};
use crate::proc;
use crate::random::Random;
use crate::verdict::Check;

/// Size of the disk: the space that a daemon keeps free, and the logs of the jobs.
const DISK: &str = "size=160m,mode=0700";

/// A counter for a condition that begins and ends. It is odd while the condition lasts.
#[derive(Default)]
struct Spell(AtomicU64);

impl Spell {
    fn turn(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// True if the condition was present at any time since the counter was `then`.
    fn since(&self, then: u64) -> bool {
        then % 2 == 1 || self.now() != then
    }
}

/// State of the counters when a job begins. It tells later which faults the job can have met.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    keeper: u64,
    disk: u64,
}

#[derive(Default)]
pub(crate) struct Weather {
    keeper: Spell,
    disk: Spell,
    pub(crate) daemon_kills: AtomicU64,
    pub(crate) keeper_kills: AtomicU64,
    pub(crate) stops: AtomicU64,
    pub(crate) full: AtomicU64,
}

impl Weather {
    pub(crate) fn mark(&self) -> Mark {
        Mark { keeper: self.keeper.now(), disk: self.disk.now() }
    }

    /// True if a keeper was killed since `mark`.
    pub(crate) fn interrupted(&self, mark: Mark) -> bool {
        self.keeper.since(mark.keeper)
    }

    /// True if the disk was full at some time since `mark`.
    pub(crate) fn was_full(&self, mark: Mark) -> bool {
        self.disk.since(mark.disk)
    }
}

/// A small file system for the state.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Mounts it. Returns `None` if that is not possible.
    pub(crate) fn mount(scene: &Scene) -> Option<Self> {
        let path = scene.state();
        fs::create_dir(&path).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(&path).output();
        if mount.is_ok_and(|mount| mount.status.success()) {
            return Some(Self(path));
        }
        fs::remove_dir(&path).unwrap();
        None
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        let chunk = vec![1; 1 << 20];
        while file.write_all(&chunk).is_ok() {}
        // Fills the rest of the last page.
        while file.write_all(&[1; 64]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.filler()).ok();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// Fills the disk at random times until `until`.
pub(crate) async fn floods(disk: Arc<Disk>, weather: Arc<Weather>, mut random: Random, until: Instant) {
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(300) + random.micros(6_000_000)).await;
        if Instant::now() >= until {
            return;
        }
        weather.disk.turn();
        weather.full.fetch_add(1, Ordering::Relaxed);
        let full = Arc::clone(&disk);
        tokio::task::spawn_blocking(move || full.fill()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100) + random.micros(1_500_000)).await;
        disk.free();
        weather.disk.turn();
    }
}

/// Kills and stops daemon and keeper until `until`. Without `kills` it only stops them. Returns the daemon that serves
/// in the end.
pub(crate) async fn storm(
    scene: &Scene,
    options: &[&str],
    mut daemon: Daemon,
    weather: &Weather,
    random: &mut Random,
    kills: bool,
    until: Instant,
) -> Check<Daemon> {
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50) + random.micros(1_000_000)).await;
        match random.below(8) {
            0..=2 if kills => {
                daemon.kill()?;
                weather.daemon_kills.fetch_add(1, Ordering::Relaxed);
                if random.one_in(3) {
                    kill_keeper(scene, weather);
                }
                daemon = restart(scene, options, weather).await?;
            }
            3 if kills => kill_keeper(scene, weather),
            4 | 5 => stop(daemon.pid(), weather, random).await,
            _ => {
                if let Some(keeper) = keeper(scene) {
                    stop(keeper, weather, random).await;
                }
            }
        }
    }
    Ok(daemon)
}

/// Starts a daemon and waits until it serves. While the disk is full it can refuse to start, so this retries.
async fn restart(scene: &Scene, options: &[&str], weather: &Weather) -> Check<Daemon> {
    let begun = Instant::now();
    loop {
        let mark = weather.mark();
        let mut daemon = Daemon::spawn_with(scene, options);
        let ready = tokio::task::spawn_blocking(move || daemon.wait_ready().map(|_| daemon)).await.unwrap();
        match ready {
            Ok(daemon) => return Ok(daemon),
            Err(_) if weather.was_full(mark) && begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the pid of the scene's living keeper. The pid in its file can belong to another process if the keeper is
/// dead.
fn keeper(scene: &Scene) -> Option<u32> {
    let folder = scene.state();
    let is_ours = |pid: &u32| proc::with_argument(folder.to_str().unwrap()).contains(pid);
    scene.keeper().filter(is_ours)
}

fn kill_keeper(scene: &Scene, weather: &Weather) {
    let Some(pid) = keeper(scene) else { return };
    weather.keeper.turn();
    weather.keeper_kills.fetch_add(1, Ordering::Relaxed);
    proc::kill(pid, Signal::KILL);
    proc::wait_until(PATIENCE, || !proc::lives(pid));
    weather.keeper.turn();
}

async fn stop(pid: u32, weather: &Weather, random: &mut Random) {
    weather.stops.fetch_add(1, Ordering::Relaxed);
    proc::kill(pid, Signal::STOP);
    tokio::time::sleep(random.micros(400_000)).await;
    proc::kill(pid, Signal::CONT);
}
