//! Bytes of output per second from a step's process to clients. Only the bytes of the process count, not what framing
//! adds.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use super::daemon::{Client, Daemon};
use super::machine;
use super::report::{Aim, Report};
use super::{Failure, Size};

/// First argument that makes this program act as the step: it writes and exits.
pub(crate) const WRITE_MODE: &str = "--write";

/// Maximum size of one write of the step, in bytes.
const BLOCK: usize = 64 << 10;

/// Number of connections that many followers share.
const CONNECTIONS: usize = 4;

/// Writes `bytes` bytes in lines of `line` bytes, at most [`BLOCK`] at a time.
pub(crate) fn write(bytes: &str, line: &str) -> ExitCode {
    let (Ok(bytes), Ok(line)) = (bytes.parse::<usize>(), line.parse::<usize>()) else {
        return ExitCode::FAILURE;
    };
    let text: Vec<u8> = b"compiling crate 17 of 240: warning, unused variable `x` at src/lib.rs:42 "
        .iter()
        .copied()
        .cycle()
        .take(line.saturating_sub(1))
        .chain([b'\n'])
        .collect();
    let block: Vec<u8> = text.iter().copied().cycle().take(BLOCK / line.max(1) * line.max(1)).collect();
    let (mut left, mut out) = (bytes, std::io::stdout().lock());
    while left > 0 {
        let part = block.get(..left.min(block.len())).unwrap_or_default();
        if out.write_all(part).is_err() {
            return ExitCode::FAILURE;
        }
        left -= part.len();
    }
    ExitCode::SUCCESS
}

struct Case {
    line: usize,
    phrases: usize,
    followers: usize,
    megabytes: usize,
    aim: Aim,
}

pub(crate) fn measure(report: &mut Report, size: Size) -> Result<(), Failure> {
    let pipe = machine::pipe_speed(size.pick(256, 2_048))?;
    report.figure("cat through a pipe", pipe, "MB/s", Aim::Open);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (one, many) = (size.pick(32, 384), size.pick(4, 24));
    let case = |line, phrases, followers, aim| {
        let megabytes = if followers == 1 { one } else { many };
        Case { line, phrases, followers, megabytes, aim }
    };
    let cases = [
        case(64, 0, 1, Aim::AtLeast(240.0)),
        case(64, 100, 1, Aim::Open),
        case(1_024, 0, 1, Aim::AtLeast(800.0)),
        case(1_024, 100, 1, Aim::Open),
        case(64, 0, 64, Aim::Open),
        case(1_024, 0, 64, Aim::AtLeast(1_500.0)),
    ];
    for case in cases {
        let Case { line, phrases, followers, aim, .. } = case;
        let speed = runtime.block_on(speed(&case))?;
        let name = format!("log, lines of {line} B, {phrases} phrases, {followers} followers");
        report.figure(&name, speed, "MB/s in all", aim);
    }
    Ok(())
}

/// Returns the megabytes per second that all followers together receive.
async fn speed(case: &Case) -> Result<f64, Failure> {
    let Case { line, phrases, followers, megabytes, .. } = *case;
    let daemon = Daemon::start()?;
    let clients = daemon.connect(followers.min(CONNECTIONS)).await?;
    let mut first = clients.first().ok_or("no client")?.clone();
    warm_up(&mut first).await?;
    let program = std::env::current_exe()?;
    let bytes = megabytes * 1_000_000;
    let steps = format!(
        r#"{{"exec": {{"command": ["{}", "{WRITE_MODE}", "{bytes}", "{line}"]}}}}"#,
        program.display()
    );
    let phrases =
        (0..phrases).map(|n| format!("secret-value-{n:04}-{:08x}", n * 2_654_435_761_usize)).collect();
    let began = Instant::now();
    first.run("log", &steps, phrases).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for client in clients.iter().cycle().take(followers) {
        let mut client = client.clone();
        tasks.spawn(async move { client.follow("log").await });
    }
    while let Some(read) = tasks.join_next().await {
        let read = read??;
        if read < bytes {
            return Err(format!("a follower got {read} bytes of {bytes}").into());
        }
    }
    Ok((bytes * followers) as f64 / 1e6 / began.elapsed().as_secs_f64())
}

/// Runs a first job, which starts the keeper.
async fn warm_up(client: &mut Client) -> Result<(), Failure> {
    client.run("first", r#"{"exec": {"command": ["/bin/true"]}}"#, Vec::new()).await?;
    client.follow("first").await?;
    Ok(())
}
