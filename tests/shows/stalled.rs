//! Many followers that have stopped reading do not slow their job down.
//!
//! First the step writes enough to fill every window and buffer on the way to each follower. Once the daemon is idle,
//! all followers are stalled; then the writer itself measures the time of the remaining output.

use std::time::{Duration, Instant};

use step_runner::pb::v1;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::client::{self, Client, Stub};
use crate::daemon::{Daemon, Scene};
use crate::follower::LONGEST_JOB;
use crate::followers::printed;
use crate::proc;
use crate::verdict::{Check, Shown, percentile};
use crate::writer::{Pace, Writing};

/// Followers on one connection. It could carry ten times as many streams (service.md §1.1).
const PER_CONNECTION: usize = 100;
/// Bytes of one stream that a client buffers before it reads on. The daemon holds a message and a send buffer besides.
const STREAM_WINDOW: u32 = 64 << 10;
/// Large enough for all streams of a connection, so that none stalls another.
const CONNECTION_WINDOW: u32 = 7 << 20;
/// Bytes written before the timed part.
const FIRST: u64 = 1 << 20;
/// The daemon counts as idle when it has used no processor time for this long.
const REST: Duration = Duration::from_millis(300);

/// The number of stalled followers, and the bound on their cost.
pub(crate) struct Crowd {
    pub(crate) followers: usize,
    /// Bytes written in each round.
    pub(crate) bytes: u64,
    /// Number of pairs of rounds, with and without the followers.
    pub(crate) rounds: u64,
    /// Lowest accepted speed with followers, relative to the speed without, as the median of the pairs. 0: not checked.
    pub(crate) least: f64,
}

/// Returns settings for connections on which stalled followers leave room for other calls.
pub(crate) fn endpoint() -> Endpoint {
    Endpoint::from_static("http://shows")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

type Follower = Streaming<v1::FollowLogsResponse>;

struct Proof<'a> {
    scene: &'a Scene,
    pid: u32,
    client: Client,
    stubs: Vec<Stub>,
    crowd: &'a Crowd,
}

pub(crate) async fn prove(scene: &Scene, daemon: &Daemon, crowd: &Crowd) -> Shown {
    let mut stubs = Vec::new();
    for _ in 0..crowd.followers.div_ceil(PER_CONNECTION) {
        stubs.push(client::dial_with(&scene.socket(), endpoint()).await?);
    }
    let proof = Proof { scene, pid: daemon.pid(), client: Client::new(&scene.socket()), stubs, crowd };
    // This round warms up caches and memory.
    proof.round("warm", 0).await?;
    let before = proc::memory(proof.pid).0;
    let mut ratios = Vec::new();
    let mut speeds = (Vec::new(), Vec::new());
    for round in 0..crowd.rounds {
        let (with, without) = if round % 2 == 0 {
            let without = proof.round(&format!("without-{round}"), 0).await?;
            (proof.round(&format!("with-{round}"), crowd.followers).await?, without)
        } else {
            let with = proof.round(&format!("with-{round}"), crowd.followers).await?;
            (with, proof.round(&format!("without-{round}"), 0).await?)
        };
        ratios.push(with / without);
        speeds.0.push(format!("{with:.0}"));
        speeds.1.push(format!("{without:.0}"));
    }
    ratios.sort_by(f64::total_cmp);
    let [worst, median, best] = [1, 50, 100].map(|percent| percentile(&ratios, percent).unwrap_or(0.0));
    let peak = proc::peak_memory(proof.pid);
    let figures = format!(
        "{} stalled followers on {} connections: the writer at {} MB/s with them and {} without, pairs {median:.3} in the middle, \
         {worst:.3} to {best:.3}; daemon RSS {before} KiB before, {peak} at most, {} after: {} KiB for each follower",
        crowd.followers,
        proof.stubs.len(),
        speeds.0.join(", "),
        speeds.1.join(", "),
        proc::memory(proof.pid).0,
        peak.saturating_sub(before) / crowd.followers.max(1) as u64,
    );
    if median >= crowd.least { Ok(figures) } else { Err(format!("less than {}: {figures}", crowd.least)) }
}

impl Proof<'_> {
    /// Returns the writer's speed in MB/s beside this number of stalled followers.
    async fn round(&self, id: &str, followers: usize) -> Check<f64> {
        let go = self.scene.path(&format!("go-{id}"));
        let writing = Writing {
            width: 1 << 10,
            bytes: FIRST + self.crowd.bytes,
            seed: 1,
            pace: Pace::Fast { first: FIRST, go: go.clone() },
            report: self.scene.path(&format!("report-{id}")),
        };
        self.client.run(&writing.job(id)?).await?;
        printed(&self.client, id, FIRST).await?;
        let mut stalled = Vec::new();
        for number in 0..followers {
            stalled.push(self.follow(id, number).await?);
        }
        self.rest().await?;
        std::fs::write(&go, "").map_err(|error| error.to_string())?;
        let status = self.client.ended(id, LONGEST_JOB).await?;
        if status.exit_code != 0 {
            return Err(format!("{id}: exit code {}: {}", status.exit_code, status.message));
        }
        if let Some((stream, read)) = stalled.pop() {
            read_on(stream, read, status.log_bytes.unsigned_abs()).await?;
        }
        drop(stalled);
        self.client.finish(id).await?;
        Ok(self.crowd.bytes as f64 / 1e6 / writing.report()?.took.as_secs_f64())
    }

    /// Starts a follower and reads its first message. Returns it and the message's length.
    async fn follow(&self, id: &str, number: usize) -> Check<(Follower, u64)> {
        let mut stub = self.stubs[number / PER_CONNECTION].clone();
        let failed = |status: tonic::Status| format!("{id}: follower {number}: {status}");
        let request = v1::FollowLogsRequest { id: id.into(), offset: 0, ..v1::FollowLogsRequest::default() };
        let mut stream = stub.follow_logs(request).await.map_err(failed)?.into_inner();
        let first =
            stream.message().await.map_err(failed)?.ok_or(format!("{id}: follower {number}: no log"))?;
        Ok((stream, first.data.len() as u64))
    }

    async fn rest(&self) -> Check {
        let until = Instant::now() + LONGEST_JOB;
        let mut ticks = proc::ticks(self.pid);
        while Instant::now() < until {
            tokio::time::sleep(REST).await;
            let now = proc::ticks(self.pid);
            if now == ticks {
                return Ok(());
            }
            ticks = now;
        }
        Err("the daemon does not come to rest beside stalled followers".into())
    }
}

/// Checks that a stalled follower receives the rest of the log.
async fn read_on(mut stream: Follower, mut read: u64, log_bytes: u64) -> Check {
    while let Some(message) = stream.message().await.map_err(|status| format!("after the stall: {status}"))? {
        read += message.data.len() as u64;
    }
    if read == log_bytes {
        Ok(())
    } else {
        Err(format!("{read} bytes came after the stall, Status says {log_bytes}"))
    }
}
