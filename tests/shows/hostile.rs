//! `hostile [--seconds N] [--minutes N] [--seed N] [--untimed]`: runs hostile clients, one kind after the other and
//! then all at once. Meanwhile a good client asks for Status and follows a job (faults.md rows 54–57, 64). Then runs
//! hostile jobs, ten at a time, for the given minutes (row 76). Memory and time that they cost are bounded. Last come jobs
//! that leave what cannot be removed (row 98), for the same time.

mod attack;
#[path = "../support/frames.rs"]
mod frames;
mod good;
mod groups;
mod removal;
mod rounds;
mod shape;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit};

use crate::arguments::Arguments;
use crate::client::Client;
use crate::daemon::{Daemon, Scene, check_stop};
use crate::followers::printed;
use crate::proc;
use crate::verdict::{Check, Misses, Shown};
use attack::{ATTACKS, Attack, Field, Tally};
use good::{Asker, Reader, script};

const SECONDS: u64 = 10;
/// Minutes of random jobs.
const MINUTES: f64 = 1.0;
/// Duration of an attack in the small proof.
const SMALL: Duration = Duration::from_millis(200);
/// Memory in KiB that an attack can leave behind, and use while it lasts (faults.md row 56).
const GROWTH: u64 = 16 << 10;
/// Bound on the time of a Status call beside any attack (faults.md row 55).
const P99: Duration = Duration::from_millis(100);
/// Most processor time, in percent, that an idle daemon without free descriptors can use (faults.md row 54).
const IDLE_CPU: f64 = 5.0;
/// Kernel clock ticks per second.
const TICKS: f64 = 100.0;
/// Longest time after an attack until its memory must be released.
const CALM: Duration = Duration::from_secs(10);
/// Size of the log that the deaf followers follow.
const DEEP: u64 = 4 << 20;

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let seconds = Duration::from_secs(arguments.number("seconds", SECONDS).max(1));
    let war = War {
        time: if small { SMALL } else { seconds },
        made_up: if small {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(60.0 * arguments.fraction("minutes", MINUTES))
        },
        is_small: small,
        judges_time: arguments.judges_time(small),
        seed: arguments.seed(),
    };
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    println!("hostile: seed {}", war.seed);
    let misses = Misses::default();
    let proofs = [
        ("attacks", attacks as Proof, &[][..]),
        ("descriptors", descriptors, &[]),
        ("jobs", jobs, &[]),
        ("removal", removal, &["--reap-interval=1s"]),
    ];
    // With a seed for random jobs, `--only` repeats just these.
    let wanted = |name: &str| arguments.text("only").is_none_or(|only| only == name);
    for (name, proof, options) in proofs.into_iter().filter(|(name, ..)| wanted(name)) {
        let mut scene = Scene::new("hostile");
        let before = misses.count();
        let shown = Daemon::start_with(&scene, options).and_then(|daemon| {
            runtime.block_on(proof(&war, &scene, &daemon, &misses))?;
            check_stop(&scene, daemon)
        });
        misses.check(name, shown);
        if misses.count() > before {
            scene.keep();
        }
    }
    misses.verdict(format!(
        "{} attacks of {:?} each, and all at once; hostile jobs for {:?}",
        ATTACKS.len(),
        war.time,
        war.made_up
    ))
}

type Running<'a> = std::pin::Pin<Box<dyn Future<Output = Check> + 'a>>;
type Proof = for<'a> fn(&'a War, &'a Scene, &'a Daemon, &'a Misses) -> Running<'a>;

struct War {
    time: Duration,
    /// Time for random jobs.
    made_up: Duration,
    is_small: bool,
    judges_time: bool,
    seed: u64,
}

fn attacks<'a>(war: &'a War, scene: &'a Scene, daemon: &'a Daemon, misses: &'a Misses) -> Running<'a> {
    Box::pin(async move {
        let client = Client::new(&scene.socket());
        let stop = scene.path("stop");
        let deep = format!(
            "head -c {DEEP} /dev/zero | tr '\\0' x | fold; until [ -e {} ]; do sleep 0.1; done",
            stop.display()
        );
        client.run(&script("deep", &deep)).await?;
        printed(&client, "deep", DEEP).await?;
        let reader = Reader::start(scene, &client, "good").await?;
        for attack in ATTACKS {
            war.wage(scene, daemon, &client, attack.name, &[attack], misses).await?;
        }
        let all: Vec<_> = ATTACKS.iter().collect();
        war.wage(scene, daemon, &client, "all at once", &all, misses).await?;
        std::fs::write(&stop, "").map_err(|error| error.to_string())?;
        misses.check("the good client", reader.finish(&client).await);
        let ended = client.ended("deep", crate::follower::LONGEST_JOB).await?;
        if ended.exit_code != 0 {
            misses.add(format!("a job was disturbed: {ended:?}"));
        }
        client.finish("deep").await
    })
}

fn jobs<'a>(war: &'a War, scene: &'a Scene, daemon: &'a Daemon, misses: &'a Misses) -> Running<'a> {
    Box::pin(rounds::run(war, scene, daemon, misses))
}

fn removal<'a>(war: &'a War, scene: &'a Scene, _: &'a Daemon, misses: &'a Misses) -> Running<'a> {
    Box::pin(removal::run(war, scene, misses))
}

/// Returns the process ids of the daemon and its keeper.
fn processes(scene: &Scene, daemon: &Daemon) -> [Option<u32>; 2] {
    [Some(daemon.pid()), scene.keeper()]
}

/// Returns the memory of the daemon and its keeper in KiB.
fn memory(scene: &Scene, daemon: &Daemon) -> [u64; 2] {
    processes(scene, daemon).map(|pid| pid.map_or(0, |pid| proc::memory(pid).0))
}

impl War {
    /// Runs one attack, or several at a time, and checks what they cost.
    async fn wage(
        &self,
        scene: &Scene,
        daemon: &Daemon,
        client: &Client,
        name: &str,
        attacks: &[&Attack],
        misses: &Misses,
    ) -> Check {
        let before = memory(scene, daemon);
        let field = Arc::new(Field {
            socket: scene.socket(),
            job: "deep".into(),
            stop: AtomicBool::new(false),
            seed: self.seed,
        });
        let asker = Asker::start(scene).await?;
        let threads: Vec<_> = attacks
            .iter()
            .flat_map(|attack| (0..attack.threads).map(|thread| (attack.run, thread)))
            .map(|(run, thread)| {
                let field = Arc::clone(&field);
                std::thread::spawn(move || run(&field, thread))
            })
            .collect();
        let until = Instant::now() + self.time;
        let mut peak = before;
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for (peak, now) in peak.iter_mut().zip(memory(scene, daemon)) {
                *peak = now.max(*peak);
            }
        }
        // A client that connects now is served too.
        misses.check(name, crate::client::dial_patiently(&scene.socket()).await.map(drop));
        field.stop.store(true, Ordering::Relaxed);
        let mut tally = Tally::default();
        for thread in threads {
            match tokio::task::spawn_blocking(move || thread.join()).await {
                Ok(Ok(one)) => tally.add(one),
                _ => misses.add(format!("{name}: the attacker died")),
            }
        }
        let times = asker.stop(misses, name).await;
        for id in attack::leftovers() {
            if client.status(&id).await?.is_some() {
                client.finish(&id).await?;
            }
        }
        // Attacks with the same allowance share it. Different allowances add up.
        let held: BTreeSet<u64> = attacks.iter().map(|attack| attack.may_hold).collect();
        let allowed = held.into_iter().sum::<u64>() + GROWTH;
        let after = self.calm(scene, daemon, before).await;
        let grown = |now: [u64; 2]| [now[0].saturating_sub(before[0]), now[1].saturating_sub(before[1])];
        let (peak, after) = (grown(peak), grown(after));
        println!(
            "  {name}: {} connections, {} ended by the daemon, {} batches; Status {}; daemon +{} KiB at most, +{} after; \
             keeper +{} at most, +{} after",
            tally.connections, tally.ended, tally.batches, times, peak[0], after[0], peak[1], after[1]
        );
        let must_end = |attack: &&Attack| attack.ended_after.is_some_and(|after| self.time > after);
        if attacks.iter().any(must_end) && tally.ended == 0 {
            misses.add(format!("{name}: no connection was ended"));
        }
        if self.judges_time && times.p99 >= P99 {
            misses.add(format!("{name}: Status took {times}"));
        }
        for (who, peak, after) in [("daemon", peak[0], after[0]), ("keeper", peak[1], after[1])] {
            if peak >= allowed {
                misses.add(format!("{name}: the {who} took {peak} KiB, at most {allowed} are allowed"));
            }
            if after >= GROWTH {
                misses.add(format!("{name}: the {who} kept {after} KiB"));
            }
        }
        Ok(())
    }

    /// Returns the memory once the daemon has released what the attack used.
    async fn calm(&self, scene: &Scene, daemon: &Daemon, before: [u64; 2]) -> [u64; 2] {
        self.calm_within(scene, daemon, before, GROWTH).await
    }

    /// Like [`Self::calm`], with another bound on the growth in KiB.
    async fn calm_within(&self, scene: &Scene, daemon: &Daemon, before: [u64; 2], growth: u64) -> [u64; 2] {
        let until = Instant::now() + CALM;
        loop {
            let now = memory(scene, daemon);
            let is_back = now.iter().zip(before).all(|(now, before)| *now < before + growth);
            if is_back || Instant::now() > until {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Opens more connections than there are descriptors. Each sends bytes, so that none is dropped as silent.
fn descriptors<'a>(war: &'a War, scene: &'a Scene, daemon: &'a Daemon, misses: &'a Misses) -> Running<'a> {
    Box::pin(async move {
        const LIMIT: u64 = 64;
        let client = Client::new(&scene.socket());
        let reader = Reader::start(scene, &client, "good").await?;
        let asker = Asker::start(scene).await?;
        // The job above has started the keeper, so only the daemon runs out of descriptors.
        let pid = i32::try_from(daemon.pid()).ok().and_then(Pid::from_raw);
        let limit = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
        rustix::process::prlimit(pid, Resource::Nofile, limit).map_err(|error| error.to_string())?;
        let mut callers = Vec::new();
        for _ in 0..120 {
            let wire = call(&scene.socket()).map_err(|error| error.to_string())?;
            wire.patience(Duration::from_millis(200)).ok();
            callers.push(wire);
        }
        let refused = || callers.iter().filter(|wire| is_closed(&wire.stream)).count();
        // The daemon closes the excess connections one after the other.
        let turned = proc::wait_until(crate::daemon::PATIENCE, || refused() >= 120 - LIMIT as usize);
        if turned.is_none() {
            misses.add(format!("only {} of 120 callers were turned away at {LIMIT} descriptors", refused()));
        }
        let (ticks, begun) = (proc::ticks(daemon.pid()), Instant::now());
        let idle = asker.pause();
        tokio::time::sleep(war.time.max(Duration::from_millis(500))).await;
        let spent = (proc::ticks(daemon.pid()) - ticks) as f64 / TICKS;
        let cpu = 100.0 * spent / begun.elapsed().as_secs_f64();
        drop(idle);
        let count = refused();
        drop(callers);
        let times = asker.stop(misses, "descriptors").await;
        println!(
            "  descriptors: 120 callers at {LIMIT} descriptors, {count} turned away; {cpu:.1} % of a processor; Status {times}"
        );
        if war.judges_time && cpu >= IDLE_CPU {
            misses.add(format!(
                "{cpu:.1} % of a processor without a descriptor, at most {IDLE_CPU} are allowed"
            ));
        }
        std::fs::write(scene.path("stop"), "").map_err(|error| error.to_string())?;
        misses.check("the good client", reader.finish(&client).await);
        Ok(())
    })
}

/// Connects and sends the first bytes. A caller that has already been turned away cannot send them, which is no failure:
/// [`is_closed`] counts it.
fn call(socket: &Path) -> io::Result<frames::Wire> {
    let mut wire = frames::Wire::silent(socket)?;
    match wire
        .send(frames::PREFACE)
        .and_then(|()| wire.send(&frames::frame(frames::kind::SETTINGS, 0, 0, &[])))
    {
        Err(error) if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Err(error)
        }
        _ => Ok(wire),
    }
}

fn is_closed(stream: &UnixStream) -> bool {
    let mut bytes = [0; 4 << 10];
    stream.set_nonblocking(true).ok();
    loop {
        match std::io::Read::read(&mut &*stream, &mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}
