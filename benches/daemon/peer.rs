//! This program beside another server of `proto.StepRunner`, in turn.
//!
//! `STEP_RUNNER_PEER` is the command of the other server, its words separated by spaces. `{dir}` in it stands for a private
//! folder, which is `TMPDIR` too; the server listens at `{dir}/step-runner.sock`. Without the variable nothing is measured.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use step_runner::pb::compatible::messages::{
    CloseRequest, CloseResponse, FollowLogsRequest, Job, RunRequest, RunResponse, StatusRequest,
    StatusResponse,
};
use step_runner::pb::v1::{FollowLogsResponse, step_result};
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::daemon::{CALLS_PER_CONNECTION, connect, end, environment, program, runtime};
use super::jobs::AT_ONCE;
use super::machine::PROGRAM;
use super::report::{Aim, Report, median};
use super::{Failure, Size};

/// Measurements of each server.
const ROUNDS: usize = 5;

/// Longest wait for a server's first answer.
const START_TIME: Duration = Duration::from_secs(20);

/// Figures of one server in one round.
struct Figures {
    jobs_per_second: f64,
    /// Processor time of the server in microseconds.
    cpu_a_job: f64,
    /// Median time of a job from Run to the end of its log, in microseconds.
    latency: f64,
}

pub(crate) fn measure(report: &mut Report, size: Size) -> Result<(), Failure> {
    let Some(peer) = std::env::var_os("STEP_RUNNER_PEER") else { return Ok(()) };
    let peer = peer.into_string().map_err(|_| "STEP_RUNNER_PEER is not UTF-8")?;
    let peer: Vec<String> = peer.split_whitespace().map(str::to_owned).collect();
    let ours = program().into_os_string().into_string().map_err(|_| "STEP_RUNNER_BIN is not UTF-8")?;
    let ours = [ours, "serve".into(), "--socket".into(), "{dir}/step-runner.sock".into()];
    let runtime = runtime()?;
    for at_once in AT_ONCE {
        let count = size.pick(200.max(at_once), 1_000.max(at_once * 4));
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for _ in 0..size.pick(1, ROUNDS) {
            own.push(runtime.block_on(round(&ours, at_once, count))?);
            others.push(runtime.block_on(round(&peer, at_once, count))?);
        }
        compare(report, at_once, &own, &others);
    }
    Ok(())
}

fn compare(report: &mut Report, at_once: usize, own: &[Figures], others: &[Figures]) {
    let values = |figures: &[Figures], of: fn(&Figures) -> f64| figures.iter().map(of).collect::<Vec<_>>();
    let mut add = |what: &str, unit: &str, of: fn(&Figures) -> f64, aim| {
        let (own, others) = (values(own, of), values(others, of));
        let name = format!("beside the peer, {at_once} at once, {what}");
        report.samples(&name, own.clone(), unit, Aim::Open);
        report.samples(&format!("{name}, peer"), others.clone(), unit, Aim::Open);
        report.figure(&format!("{name}, ratio"), median(own) / median(others), "×", aim);
    };
    add("jobs", "jobs/s", |figures| figures.jobs_per_second, Aim::AtLeast(1.2));
    add("server", "µs CPU a job", |figures| figures.cpu_a_job, Aim::Open);
    if at_once == 1 {
        add("one job", "µs", |figures| figures.latency, Aim::AtMost(0.85));
    }
}

/// Runs `count` jobs in a fresh server, `at_once` at a time: Run, FollowLogs to its end, Status, Close.
async fn round(command: &[String], at_once: usize, count: usize) -> Result<Figures, Failure> {
    let server = Server::start(command)?;
    let mut clients = vec![server.client().await?];
    for _ in 1..at_once.div_ceil(CALLS_PER_CONNECTION) {
        clients.push(Client(Grpc::new(connect(&server.socket()).await?)));
    }
    let first = clients.first().ok_or("no client")?.clone();
    first.clone().job("first", &server).await?;
    let used = server.cpu_seconds()?;
    let (server, next) = (Arc::new(server), Arc::new(AtomicUsize::new(0)));
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for client in clients.iter().cycle().take(at_once) {
        let (mut client, next, server) = (client.clone(), Arc::clone(&next), Arc::clone(&server));
        tasks.spawn(async move {
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, Failure>(times);
                }
                times.push(client.job(&format!("job-{number}"), &server).await?.as_secs_f64() * 1e6);
            }
        });
    }
    let mut times = Vec::with_capacity(count);
    while let Some(done) = tasks.join_next().await {
        times.extend(done??);
    }
    let jobs_per_second = count as f64 / began.elapsed().as_secs_f64();
    let cpu_a_job = (server.cpu_seconds()? - used) / count as f64 * 1e6;
    Ok(Figures { jobs_per_second, cpu_a_job, latency: median(times) })
}

/// A running server. Dropping it ends it.
struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(command: &[String]) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let place = folder.path().to_str().ok_or("TMPDIR is not UTF-8")?;
        let mut words = command.iter().map(|word| word.replace("{dir}", place));
        let child = Command::new(words.next().ok_or("STEP_RUNNER_PEER is empty")?)
            .args(words)
            .env_clear()
            .envs(environment())
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start {command:?}: {error}"))?;
        Ok(Self { child, folder })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("step-runner.sock")
    }

    /// Connects as soon as the server answers.
    async fn client(&self) -> Result<Client, Failure> {
        let until = Instant::now() + START_TIME;
        loop {
            match connect(&self.socket()).await {
                Ok(channel) => return Ok(Client(Grpc::new(channel))),
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Returns the processor time of the server, and of its keeper if it has one, in steps of 10 ms.
    fn cpu_seconds(&self) -> Result<f64, Failure> {
        let identity = std::fs::read(self.folder.path().join("step-runner.sock.state/keeper.json"));
        let identity = identity.ok().and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
        let keeper = identity.and_then(|identity| identity.get("pid")?.as_u64());
        let mut ticks = 0.0;
        for pid in [Some(self.child.id().into()), keeper].into_iter().flatten() {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
            // Behind the name, which may hold anything: fields 14 and 15 count what ended threads have used too.
            let (_, fields) = text.rsplit_once(") ").ok_or("no name")?;
            for time in fields.split(' ').skip(11).take(2) {
                ticks += time.parse::<f64>()?;
            }
        }
        Ok(ticks / 100.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A client of `proto.StepRunner`.
#[derive(Clone)]
struct Client(Grpc<Channel>);

impl Client {
    /// Runs one job. Returns the time from Run to the end of its log.
    async fn job(&mut self, id: &str, server: &Server) -> Result<Duration, Failure> {
        let build_dir = server.folder.path().to_string_lossy().into_owned();
        let run = RunRequest {
            id: id.to_owned(),
            work_dir: build_dir.clone(),
            job: Some(Job { build_dir, ..Job::default() }),
            steps: format!("spec: {{}}\n---\nexec:\n  command: [{PROGRAM}]\n"),
            ..RunRequest::default()
        };
        let began = Instant::now();
        let _: RunResponse = self.unary("/proto.StepRunner/Run", run).await?;
        self.0.ready().await?;
        let path = PathAndQuery::from_static("/proto.StepRunner/FollowLogs");
        let request = tonic::Request::new(FollowLogsRequest { id: id.to_owned(), ..Default::default() });
        let codec = ProstCodec::<FollowLogsRequest, FollowLogsResponse>::default();
        let mut log = self.0.server_streaming(request, path, codec).await?.into_inner();
        while log.message().await?.is_some() {}
        let took = began.elapsed();
        let status: StatusResponse =
            self.unary("/proto.StepRunner/Status", StatusRequest { id: id.to_owned() }).await?;
        if !status.jobs.iter().any(|job| job.status() == step_result::Status::Success) {
            return Err(format!("job {id} did not succeed: {status:?}").into());
        }
        let _: CloseResponse =
            self.unary("/proto.StepRunner/Close", CloseRequest { id: id.to_owned() }).await?;
        Ok(took)
    }

    async fn unary<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        self.0.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        let answer =
            self.0.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }
}
