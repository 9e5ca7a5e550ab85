//! `volume [--scale F] [--all] [--seed N]`: large logs, byte for byte. Steps write bytes with a known digest; followers
//! extract the bytes from the log and compare. Some followers disconnect, also within lines, and resume at their
//! offset. `--all` uses 64 followers for every shape. The scale multiplies the number of bytes.

use std::time::{Duration, Instant};

use step_runner::pb::v1;
use tokio::task::JoinSet;
use tonic::Code;

use crate::arguments::Arguments;
use crate::client::{self, Client};
use crate::daemon::{Daemon, Scene, check_stop};
use crate::joined::Joined;
use crate::proc;
use crate::random::Random;
use crate::verdict::{Check, Shown};
use crate::writer::{Pace, Writing};

/// Large enough for the headers of every shape.
const LOG_LIMIT: &str = "2147000000";
/// Longest message (service.md §3.2).
const MAX_MESSAGE: usize = 64 << 10;
/// Most memory in KiB that daemon and keeper can each use, whatever the volume.
const MEMORY: u64 = 64 << 10;
const MANY: usize = 64;
const SMALL_SCALE: f64 = 1.0 / 256.0;
/// Average number of disconnects of a follower.
const CUTS: u64 = 64;
/// Longest wait for a job.
const PATIENCE: Duration = Duration::from_mins(30);

/// A shape of output.
struct Shape {
    name: &'static str,
    /// Bytes of a line with its line feed. 0: one line without line feed.
    width: usize,
    bytes: u64,
}

/// Each header has 32 bytes, so the logs are 544 MiB, 384 MiB, 1.03 GiB and 256.1 MiB long.
const SHAPES: &[Shape] = &[
    Shape { name: "lines of 1 byte and a line feed", width: 2, bytes: 32 << 20 },
    Shape { name: "lines of 64 bytes", width: 64, bytes: 256 << 20 },
    Shape { name: "lines of 1 KiB", width: 1 << 10, bytes: 1 << 30 },
    Shape { name: "one line without a line feed", width: 0, bytes: 256 << 20 },
];

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let scale = arguments.fraction("scale", if small { SMALL_SCALE } else { 1.0 });
    let seed = arguments.seed();
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let mut figures = vec![format!("scale {scale}, seed {seed}")];
    for (number, shape) in SHAPES.iter().enumerate() {
        let many = number == 0 || arguments.flag("all");
        for followers in std::iter::once(1).chain(many.then_some(MANY)) {
            let mut scene = Scene::new("volume");
            let writing = Writing {
                width: shape.width,
                bytes: scaled(shape, scale),
                seed: seed ^ number as u64,
                pace: Pace::Varied,
                report: scene.path("report"),
            };
            let proof = Proof { scene: &scene, writing, followers, seed };
            match runtime.block_on(proof.prove()) {
                Ok(shown) => {
                    figures.push(format!("{}, {followers} followers and a cut one: {shown}", shape.name));
                }
                Err(miss) => {
                    scene.keep();
                    return Err(format!(
                        "{}, {followers} followers: {miss}; {}",
                        shape.name,
                        figures.join("\n  ")
                    ));
                }
            }
        }
    }
    Ok(figures.join("\n  "))
}

/// Returns the scaled size: a whole number of lines, at least one block.
fn scaled(shape: &Shape, scale: f64) -> u64 {
    let bytes = (shape.bytes as f64 * scale) as u64;
    bytes.next_multiple_of(64 << 10)
}

struct Proof<'a> {
    scene: &'a Scene,
    writing: Writing,
    followers: usize,
    seed: u64,
}

impl Proof<'_> {
    async fn prove(&self) -> Shown {
        let daemon = Daemon::start_with(self.scene, &["--log-limit", LOG_LIMIT])?;
        let client = Client::new(&self.scene.socket());
        let id = "volume";
        client.run(&self.writing.job(id)?).await?;
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for number in 0..=self.followers {
            let cuts = (number == self.followers).then(|| Random::new(self.seed));
            let follower = Follower {
                client: client.clone(),
                id,
                log_bytes: self.log_bytes(),
                joined: Joined::new(),
                streams: 0,
            };
            tasks.spawn(tokio::time::timeout(PATIENCE, follower.follow(cuts)));
        }
        let mut followed = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let done = done.map_err(|error| error.to_string())?;
            followed.push(done.map_err(|_| "a follower does not come to the end")??);
        }
        let took = begun.elapsed();
        let keeper = self.scene.keeper().ok_or("there is no keeper")?;
        let peaks = [daemon.pid(), keeper].map(peak_memory);
        let status = client.ended(id, PATIENCE).await?;
        if status.exit_code != 0 {
            return Err(format!("exit code {}: {}", status.exit_code, status.message));
        }
        let log_bytes = u64::try_from(status.log_bytes).map_err(|error| error.to_string())?;
        let streams = followed.iter().map(|follower| follower.streams).max().unwrap_or_default();
        for follower in followed {
            self.judge(follower, log_bytes)?;
        }
        check_ends(&client, id, log_bytes).await?;
        client.finish(id).await?;
        drop(client);
        tokio::task::block_in_place(|| check_stop(self.scene, daemon))?;
        let figures = format!(
            "{} bytes as a log of {log_bytes} in {took:.1?}, {:.0} MB/s to each; the cut one took {streams} streams; peak memory: daemon {} KiB, keeper {} KiB",
            self.writing.bytes,
            log_bytes as f64 / 1e6 / took.as_secs_f64(),
            peaks[0],
            peaks[1]
        );
        if peaks.iter().any(|&peak| peak == 0 || peak > MEMORY) {
            Err(format!("more memory than {MEMORY} KiB: {figures}"))
        } else {
            Ok(figures)
        }
    }

    /// Returns the length of the log without the daemon's entries. Only a guess for output without lines.
    fn log_bytes(&self) -> u64 {
        self.writing.bytes + self.writing.bytes.checked_div(self.writing.width as u64).unwrap_or(0) * 32
    }

    fn judge(&self, follower: Follower, log_bytes: u64) -> Check {
        let joined = follower.joined;
        if joined.read != log_bytes {
            return Err(format!("{} bytes came, Status says {log_bytes}", joined.read));
        }
        let has_lines = self.writing.width > 0;
        if has_lines && joined.read != self.log_bytes() + joined.said {
            let expected = self.log_bytes();
            return Err(format!(
                "{} bytes of log and {} of the daemon, expected {expected}",
                joined.read, joined.said
            ));
        }
        let (streams, entries) = (follower.streams, joined.entries);
        let (found, written) = (joined.finish(has_lines)?, self.writing.report()?.sha256);
        if found == written {
            Ok(())
        } else {
            Err(format!("{entries} entries over {streams} streams join to {found}, written was {written}"))
        }
    }
}

/// Returns the peak memory in KiB. The pages of a program that is built for debugging are several times those of a released
/// one, and are not counted.
fn peak_memory(pid: u32) -> u64 {
    let program = if cfg!(debug_assertions) { proc::file_memory(pid) } else { 0 };
    proc::peak_memory(pid).saturating_sub(program)
}

/// Checks that following from the end of the log returns nothing, and from beyond it an error.
async fn check_ends(client: &Client, id: &str, log_bytes: u64) -> Check {
    let mut stub = client::dial(client.socket()).await?;
    let offset = i32::try_from(log_bytes).map_err(|error| error.to_string())?;
    let mut follow = async |offset| {
        let mut stream = stub
            .follow_logs(v1::FollowLogsRequest { id: id.into(), offset, ..v1::FollowLogsRequest::default() })
            .await?
            .into_inner();
        stream.message().await
    };
    match follow(offset).await {
        Ok(None) => {}
        other => return Err(format!("at the end of the log: {other:?}")),
    }
    match follow(offset + 1).await {
        Err(status) if status.code() == Code::OutOfRange => Ok(()),
        other => Err(format!("behind the end of the log: {other:?}")),
    }
}

/// A follower with its own connection.
struct Follower {
    client: Client,
    id: &'static str,
    /// Approximate length of the log.
    log_bytes: u64,
    joined: Joined,
    /// Number of streams opened.
    streams: u64,
}

impl Follower {
    /// Follows to the end of the log. With `cuts` it disconnects and resumes.
    async fn follow(mut self, mut cuts: Option<Random>) -> Check<Self> {
        let mut stub = client::dial(self.client.socket()).await?;
        loop {
            let stay = cuts.as_mut().map(|random| random.below(2 * self.log_bytes / CUTS));
            if self.stream(&mut stub, stay).await? {
                return Ok(self);
            }
            if cuts.as_mut().is_some_and(|random| random.one_in(2)) {
                stub = client::dial(self.client.socket()).await?;
            }
        }
    }

    /// Follows one stream. Returns `true` at the end of the log. Leaves the stream after `stay` bytes.
    async fn stream(&mut self, stub: &mut client::Stub, stay: Option<u64>) -> Check<bool> {
        self.streams += 1;
        let offset = i32::try_from(self.joined.read).map_err(|error| error.to_string())?;
        let failed = |status: tonic::Status| format!("FollowLogs from {offset}: {status}");
        let request =
            v1::FollowLogsRequest { id: self.id.into(), offset, ..v1::FollowLogsRequest::default() };
        let mut stream = stub.follow_logs(request).await.map_err(failed)?.into_inner();
        let mut left = stay;
        while let Some(v1::FollowLogsResponse { data, .. }) = stream.message().await.map_err(failed)? {
            check_message(&data)?;
            let taken = left.map_or(data.len(), |left| data.len().min(left as usize));
            self.joined.push(&data[..taken])?;
            left = left.map(|left| left - taken as u64);
            if left == Some(0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Checks that a message is not empty, not too long, and made of whole lines unless a line is longer.
fn check_message(data: &[u8]) -> Check {
    if data.is_empty() || data.len() > MAX_MESSAGE {
        return Err(format!("a message of {} bytes", data.len()));
    }
    let whole = data.last() == Some(&b'\n') || memchr::memchr(b'\n', data).is_none();
    if whole { Ok(()) } else { Err(format!("a message of {} bytes ends within a line", data.len())) }
}
