//! Starts a daemon for the benchmark and calls it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use step_runner::pb::v1::step_runner_client::StepRunnerClient;
use step_runner::pb::v1::{FinishRequest, FollowLogsRequest, Masking, RunRequest, StatusRequest};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use super::Failure;

/// Time after which a daemon that does not end is killed.
const END_TIME: Duration = Duration::from_secs(20);

/// Calls at a time on one connection: below the daemon's limit of 100.
pub(crate) const CALLS_PER_CONNECTION: usize = 50;

/// A running daemon with default settings. Dropping it ends the daemon.
pub(crate) struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// Starts a daemon and waits until it is ready.
    pub(crate) fn start() -> Result<Self, Failure> {
        let daemon = Self::launch(Stdio::piped())?;
        Ok(daemon)
    }

    fn launch(stderr: Stdio) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let mut child = Command::new(program())
            .env_clear()
            .envs(environment())
            .arg("serve")
            .arg("--socket")
            .arg(folder.path().join("s"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .map_err(|error| format!("cannot start STEP_RUNNER_BIN: {error}"))?;
        let mut marker = String::new();
        if let Some(stderr) = child.stderr.take() {
            let mut stderr = BufReader::new(stderr);
            stderr.read_line(&mut marker)?;
            // The daemon's log goes through a pipe, as with a service manager.
            std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
        }
        if !marker.contains("is listening on socket") {
            return Err(format!("the daemon did not start: {marker}").into());
        }
        Ok(Self { child, folder })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the keeper's process id once the first job has started it.
    pub(crate) fn keeper_pid(&self) -> Option<u32> {
        let text = std::fs::read(self.folder.path().join("s.state/keeper.json")).ok()?;
        let identity: serde_json::Value = serde_json::from_slice(&text).ok()?;
        identity.get("pid")?.as_u64().and_then(|pid| u32::try_from(pid).ok())
    }

    /// Returns the processor time that daemon and keeper have used on their main threads, which do all work on jobs.
    pub(crate) fn cpu_seconds(&self) -> Result<f64, Failure> {
        let mut nanoseconds = 0.0;
        for pid in [Some(self.pid()), self.keeper_pid()].into_iter().flatten() {
            let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
            nanoseconds += text.split(' ').next().ok_or("no number")?.parse::<f64>()?;
        }
        Ok(nanoseconds / 1e9)
    }

    /// Returns how often threads of the daemon, and of the keeper, have slept: each time, something had to wake them.
    pub(crate) fn wakes(&self) -> Result<[f64; 2], Failure> {
        let keeper = self.keeper_pid().ok_or("no keeper")?;
        Ok([wakes_of(self.pid())?, wakes_of(keeper)?])
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Opens `count` connections.
    pub(crate) async fn connect(&self, count: usize) -> Result<Vec<Client>, Failure> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(Client::connect(&self.socket()).await?);
        }
        Ok(clients)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn wakes_of(pid: u32) -> Result<f64, Failure> {
    let mut wakes = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        wakes += line.ok_or("no such line")?.trim().parse::<f64>()?;
    }
    Ok(wakes)
}

/// Returns the environment of a server that is measured. Each job holds a copy of it, so the figures must not depend on
/// the shell.
pub(crate) fn environment() -> impl Iterator<Item = (&'static str, OsString)> {
    ["HOME", "LANG", "PATH", "TMPDIR"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)))
}

/// Returns the program to measure.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("STEP_RUNNER_BIN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/release/step-runner"),
        PathBuf::from,
    )
}

/// Asks a server to end, and waits until it has.
pub(crate) fn end(server: &mut Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(server.id() as i32) {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
    }
    let until = Instant::now() + END_TIME;
    while matches!(server.try_wait(), Ok(None)) {
        if Instant::now() > until {
            server.kill().ok();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Connects to the socket of a server.
pub(crate) async fn connect(socket: &Path) -> Result<Channel, Failure> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Ok(Endpoint::from_static("http://bench").connect_with_connector(connector).await?)
}

/// A client with one connection.
#[derive(Clone)]
pub(crate) struct Client(StepRunnerClient<Channel>);

impl Client {
    pub(crate) async fn connect(socket: &Path) -> Result<Self, Failure> {
        Ok(Self(StepRunnerClient::new(connect(socket).await?)))
    }

    pub(crate) async fn run(&mut self, id: &str, steps: &str, phrases: Vec<String>) -> Result<(), Failure> {
        let masking = Masking { phrases, ..Masking::default() };
        let request = RunRequest {
            id: id.to_owned(),
            steps: steps.to_owned(),
            masking: Some(masking),
            ..RunRequest::default()
        };
        self.0.run(request).await?;
        Ok(())
    }

    /// Reads the log of a job to its end. Returns the number of bytes.
    pub(crate) async fn follow(&mut self, id: &str) -> Result<usize, Failure> {
        let request = FollowLogsRequest { id: id.to_owned(), offset: 0, unfinished: false };
        let mut log = self.0.follow_logs(request).await?.into_inner();
        let mut bytes = 0;
        while let Some(message) = log.message().await? {
            bytes += message.data.len();
        }
        Ok(bytes)
    }

    pub(crate) async fn status(&mut self, id: &str) -> Result<usize, Failure> {
        Ok(self.0.status(StatusRequest { id: id.to_owned() }).await?.into_inner().jobs.len())
    }

    /// Returns the number of jobs that ended with an exit code other than 0.
    pub(crate) async fn failures(&mut self) -> Result<usize, Failure> {
        let jobs = self.0.status(StatusRequest { id: String::new() }).await?.into_inner().jobs;
        Ok(jobs.iter().filter(|job| job.finished && job.exit_code != 0).count())
    }

    pub(crate) async fn finish(&mut self, id: &str) -> Result<(), Failure> {
        self.0.finish(FinishRequest { id: id.to_owned() }).await?;
        Ok(())
    }
}

/// Finishes all of `ids`. This is not part of any measurement.
pub(crate) async fn finish_all(clients: &[Client], ids: &[String]) -> Result<(), Failure> {
    let mut tasks = tokio::task::JoinSet::new();
    let share = ids.len().div_ceil(clients.len() * 4).max(1);
    for (chunk, client) in ids.chunks(share).zip(clients.iter().cycle()) {
        let (chunk, mut client) = (chunk.to_vec(), client.clone());
        tasks.spawn(async move {
            for id in chunk {
                client.finish(&id).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Makes a runtime for clients with one thread, so that the clients use as little of the machine as possible.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
