//! `followers [--stall SECONDS] [--rounds N] [--untimed]`: followers that stop reading do not slow down other calls on
//! their connection, or the job (service.md §3.2; faults.md §3, fact 1).

use std::time::{Duration, Instant};

use step_runner::pb::v1;
use tonic::transport::Endpoint;

use crate::arguments::Arguments;
use crate::client::{self, Client, Stub};
use crate::daemon::{Daemon, Scene, check_stop};
use crate::follower::LONGEST_JOB;
use crate::joined::Joined;
use crate::stalled::{self, Crowd};
use crate::verdict::{Check, Shown};
use crate::writer::{Pace, Writing};

const STALL: u64 = 60;
const SMALL_STALL: u64 = 2;
/// Long enough for messages of one short line each to use up a client's message budget, and too short to fill the
/// windows of the streams.
const ALL_STALL: Duration = Duration::from_secs(9);
/// Bytes of a line of the step, its line feed included.
const WIDTH: usize = 60;
/// Time between two calls beside the stalled followers.
const BETWEEN: Duration = Duration::from_secs(1);
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Lowest accepted speed of a writer with stalled followers, relative to its speed without them.
const LEAST: f64 = 0.9;

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let stall = arguments.number("stall", if small { SMALL_STALL } else { STALL }).max(1);
    let least = if arguments.judges_time(small) { LEAST } else { 0.0 };
    let full = Crowd { followers: 1000, bytes: 256 << 20, rounds: 5, least };
    let tiny = Crowd { followers: 200, bytes: 8 << 20, rounds: 1, least };
    let mut crowd = if small { tiny } else { full };
    crowd.rounds = arguments.number("rounds", crowd.rounds);
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let one = Stall {
        name: "one",
        followers: 1,
        endpoint: Endpoint::from_static("http://shows"),
        every: Duration::from_millis(1),
        time: Duration::from_secs(stall),
    };
    // As many small messages as one connection can carry: one each 20 ms on each of its streams but one.
    let all = Stall {
        name: "all",
        followers: 99,
        endpoint: stalled::endpoint(),
        every: Duration::from_millis(20),
        time: ALL_STALL,
    };
    let mut figures = Vec::new();
    for stall in [one, all] {
        figures.push(with_daemon("stall", |scene, daemon| runtime.block_on(stall.prove(scene, daemon)))?);
    }
    let many = with_daemon("crowd", |scene, daemon| runtime.block_on(stalled::prove(scene, daemon, &crowd)))?;
    figures.push(many);
    Ok(figures.join("\n  "))
}

fn with_daemon(name: &str, proof: impl FnOnce(&Scene, &Daemon) -> Shown) -> Shown {
    let mut scene = Scene::new(name);
    let shown = Daemon::start(&scene).and_then(|daemon| {
        let shown = proof(&scene, &daemon)?;
        check_stop(&scene, daemon).map(|()| shown)
    });
    if shown.is_err() {
        scene.keep();
    }
    shown
}

/// Followers on one connection that do not read while a step prints short lines, then read on.
struct Stall {
    name: &'static str,
    followers: usize,
    endpoint: Endpoint,
    /// Time between two lines.
    every: Duration,
    /// Time for which nothing is read.
    time: Duration,
}

impl Stall {
    async fn prove(&self, scene: &Scene, daemon: &Daemon) -> Shown {
        let writing = Writing {
            width: WIDTH,
            bytes: (self.time.as_millis() / self.every.as_millis()) as u64 * WIDTH as u64,
            seed: crate::random::fresh(),
            pace: Pace::Lines { every: self.every, gates: Vec::new() },
            report: scene.path(&format!("report-{}", self.name)),
        };
        let id = self.name;
        let mut stub = client::dial_with(&scene.socket(), self.endpoint.clone()).await?;
        stub.run(writing.job(id)?).await.map_err(|status| format!("Run: {status}"))?;
        let mut stalled = Vec::new();
        for number in 0..self.followers {
            let failed = |status: tonic::Status| format!("{id}: follower {number}: {status}");
            let request =
                v1::FollowLogsRequest { id: id.into(), offset: 0, ..v1::FollowLogsRequest::default() };
            let mut stream = stub.follow_logs(request).await.map_err(failed)?.into_inner();
            let first = stream.message().await.map_err(failed)?.unwrap_or_default();
            let mut joined = Joined::new();
            joined.push(&first.data)?;
            stalled.push((stream, joined));
        }
        let (calls, slowest, log_bytes) = self.wait(&mut stub).await?;
        let written = writing.report()?.sha256;
        let mut messages = 0;
        for (mut stream, mut joined) in stalled {
            while let Some(message) =
                stream.message().await.map_err(|s| format!("{id}: after the stall: {s}"))?
            {
                joined.push(&message.data)?;
                messages += 1;
            }
            if i64::try_from(joined.read) != Ok(log_bytes) {
                return Err(format!("{id}: {} bytes came, Status says {log_bytes}", joined.read));
            }
            let found = joined.finish(true)?;
            if found != written {
                return Err(format!("{id}: the log joins to {found}, written was {written}"));
            }
        }
        stub.finish(v1::FinishRequest { id: id.into() })
            .await
            .map_err(|status| format!("Finish: {status}"))?;
        Ok(format!(
            "{} stalled for {:?} at a line of {WIDTH} bytes each {:?}: {calls} calls on the same connection, the slowest \
             {slowest:.1?}; then {log_bytes} bytes each, all equal, in {messages} messages; daemon peak {} KiB",
            self.followers,
            self.time,
            self.every,
            crate::proc::peak_memory(daemon.pid())
        ))
    }

    /// Calls Status until the time is over and the job has ended, so that no more output comes. Returns the number of
    /// calls, the slowest one, and the length of the log.
    async fn wait(&self, stub: &mut Stub) -> Check<(u64, Duration, i64)> {
        let begun = Instant::now();
        let (mut calls, mut slowest) = (0, Duration::ZERO);
        loop {
            tokio::time::sleep(BETWEEN).await;
            let asked = Instant::now();
            let request = v1::StatusRequest { id: self.name.into() };
            let answer = tokio::time::timeout(CALL_DEADLINE, stub.status(request)).await;
            let answer =
                answer.map_err(|_| format!("{}: no answer after {:.1?}", self.name, begun.elapsed()))?;
            let answer =
                answer.map_err(|s| format!("{}: Status after {:.1?}: {s}", self.name, begun.elapsed()))?;
            slowest = slowest.max(asked.elapsed());
            calls += 1;
            let status = answer.into_inner().jobs.pop().ok_or("Status without the job")?;
            if status.finished && begun.elapsed() >= self.time {
                return Ok((calls, slowest, status.log_bytes));
            }
            if begun.elapsed() > LONGEST_JOB + self.time {
                return Err(format!("the job does not end: {status:?}"));
            }
        }
    }
}

/// Waits until the job's log has this many bytes.
pub(crate) async fn printed(client: &Client, id: &str, bytes: u64) -> Check {
    let until = Instant::now() + LONGEST_JOB;
    while Instant::now() < until {
        match client.status(id).await? {
            Some(status) if status.log_bytes.unsigned_abs() >= bytes => return Ok(()),
            Some(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            None => return Err(format!("{id} is unknown")),
        }
    }
    Err(format!("{id} does not print {bytes} bytes"))
}
