//! A scripted daemon, and a relay that breaks connections to it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use step_runner::pb::details::{self, Details};
use step_runner::pb::v1;
use step_runner::pb::v1::step_runner_server::{StepRunner, StepRunnerServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

/// Bytes per message of a followed log.
const PIECE: usize = 4096;

/// Script of the daemon, and a record of its calls.
#[derive(Default)]
pub(crate) struct Script {
    /// Jobs by id.
    pub jobs: BTreeMap<String, Job>,
    /// Jobs that the next Runs register, whatever their ids.
    pub next: Option<Job>,
    /// Errors that the next Runs are answered with before any Run succeeds.
    pub run_failures: VecDeque<Status>,
    /// The next Run registers its job, but its answer is cut off.
    pub cut_run: bool,
    /// The registered jobs were started by other requests.
    pub other_content: bool,
    /// The next log streams end without an error this many bytes early.
    pub early_ends: VecDeque<usize>,
    /// Run requests, in order.
    pub runs: Vec<v1::RunRequest>,
    /// Number of jobs started: Runs of ids that were not registered.
    pub starts: usize,
    /// Offsets that followers asked for.
    pub offsets: Vec<i32>,
    /// Error that every Finish is answered with; it then removes nothing.
    pub finish_failure: Option<Status>,
    /// Ids given to Cancel and Finish.
    pub cancelled: Vec<String>,
    pub finished: Vec<String>,
    /// Jobs that ended and were forgotten, and since when.
    pub remembered: HashMap<String, String>,
}

/// A job. It has ended unless `running` is set.
#[derive(Clone, Default)]
pub(crate) struct Job {
    pub log: Vec<u8>,
    pub results: Vec<v1::StepResult>,
    pub exit_code: i32,
    pub message: String,
    /// The job has not ended yet; a cancel ends it.
    pub running: bool,
    /// A cancel does not end the job.
    pub stubborn: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Daemon {
    pub script: Arc<Mutex<Script>>,
    /// Cuts all connections of the relay.
    pub cut: Arc<Notify>,
    /// Notified when a running job has ended.
    ended: Arc<Notify>,
}

type Answer<T> = Result<Response<T>, Status>;
type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

impl Daemon {
    pub(crate) fn with_job(id: &str, job: Job) -> Self {
        let daemon = Self::default();
        daemon.script.lock().unwrap().jobs.insert(id.to_owned(), job);
        daemon
    }

    /// Serves on `path` until the handle is aborted.
    pub(crate) fn serve(&self, path: &Path) -> JoinHandle<()> {
        drop(std::fs::remove_file(path));
        let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
        let server = tonic::transport::Server::builder().add_service(StepRunnerServer::new(self.clone()));
        tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() })
    }

    fn job(&self, id: &str) -> Result<Job, Status> {
        let script = self.script.lock().unwrap();
        script.jobs.get(id).cloned().ok_or_else(|| match script.remembered.get(id) {
            Some(at) => refusal(Code::NotFound, "unknown_job", "finished", &[("finished_at", at)]),
            None => refusal(Code::NotFound, "unknown_job", "no job with this id is registered", &[]),
        })
    }
}

/// Returns the messages of FollowSteps. Each step of the job's own list begins where the log announces it, and ends where the
/// next one begins.
fn messages(results: &[v1::StepResult], log: &[u8], with_events: bool) -> Vec<v1::FollowStepsResponse> {
    let time = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let places: Vec<i64> = memchr::memmem::find_iter(log, " 00O Running step name=")
        .map(|at| memchr::memrchr(b'\n', &log[..at]).map_or(0, |end| end as i64 + 1))
        .collect();
    let place = |at: usize| places.get(at).copied().unwrap_or(log.len() as i64);
    let told = |call, result, log_bytes| {
        let event =
            v1::StepEvent { call, parent: 0, result: Some(result), log_bytes, stream: 1, member: false };
        v1::FollowStepsResponse { event: Some(event), log_bytes, result: None }
    };
    let running = |result: &v1::StepResult| v1::StepResult {
        step: result.step.clone(),
        number: result.number,
        status: v1::step_result::Status::Running.into(),
        start_time: time(1),
        ..v1::StepResult::default()
    };
    let mut all = Vec::new();
    for (at, result) in results.iter().enumerate() {
        if with_events {
            let is_root = result.step.is_none();
            let call = if is_root { 0 } else { at as u32 + 1 };
            let end_time = result.end_time.or(time(2));
            let ended = v1::StepResult { sub_step_results: Vec::new(), end_time, ..result.clone() };
            if at == 0 {
                all.push(told(0, running(&v1::StepResult::default()), 0));
            }
            if !is_root {
                all.push(told(call, running(result), place(at)));
            }
            all.push(told(call, ended, if is_root { log.len() as i64 } else { place(at + 1) }));
        }
        all.push(v1::FollowStepsResponse { result: Some(result.clone()), ..Default::default() });
    }
    if with_events {
        all.push(v1::FollowStepsResponse { log_bytes: log.len() as i64, ..Default::default() });
    }
    all
}

/// Makes the refusal of a daemon, with its details.
pub(crate) fn refusal(code: Code, reason: &str, text: &str, facts: &[(&str, &str)]) -> Status {
    let metadata = facts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    details::status(code, reason, text, Details { metadata, ..Details::default() })
}

#[tonic::async_trait]
impl StepRunner for Daemon {
    async fn run(&self, request: Request<v1::RunRequest>) -> Answer<v1::RunResponse> {
        let request = request.into_inner();
        let (cut, other_content) = {
            let mut script = self.script.lock().unwrap();
            script.runs.push(request.clone());
            if let Some(failure) = script.run_failures.pop_front() {
                return Err(failure);
            }
            // A Run of such an id is treated as a repetition of the same request.
            let is_over = script.remembered.contains_key(&request.id);
            if !is_over && !script.jobs.contains_key(&request.id) {
                script.starts += 1;
                if let Some(job) = script.next.clone() {
                    script.jobs.insert(request.id, job);
                }
            }
            (std::mem::take(&mut script.cut_run), script.other_content)
        };
        if cut {
            self.cut.notify_waiters();
            std::future::pending::<()>().await;
        }
        Ok(Response::new(v1::RunResponse { other_content, finished_at: None }))
    }

    type FollowStepsStream = Stream<v1::FollowStepsResponse>;

    async fn follow_steps(
        &self,
        request: Request<v1::FollowStepsRequest>,
    ) -> Answer<Self::FollowStepsStream> {
        let v1::FollowStepsRequest { id, events } = request.into_inner();
        let job = self.job(&id)?;
        let messages = messages(&job.results, &job.log, events).into_iter().map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    type FollowLogsStream = Stream<v1::FollowLogsResponse>;

    async fn follow_logs(&self, request: Request<v1::FollowLogsRequest>) -> Answer<Self::FollowLogsStream> {
        let v1::FollowLogsRequest { id, offset, .. } = request.into_inner();
        let job = self.job(&id)?;
        let mut script = self.script.lock().unwrap();
        script.offsets.push(offset);
        let start = usize::try_from(offset).unwrap();
        if start > job.log.len() {
            let facts = [("offset", offset.to_string()), ("log_bytes", job.log.len().to_string())];
            let facts = facts.each_ref().map(|(key, value)| (*key, value.as_str()));
            return Err(refusal(Code::OutOfRange, "offset_past_end", "past the end", &facts));
        }
        let end = job.log.len() - script.early_ends.pop_front().unwrap_or(0).min(job.log.len() - start);
        let pieces: Vec<_> = job.log[start..end].chunks(PIECE).map(Bytes::copy_from_slice).collect();
        let messages = pieces
            .into_iter()
            .map(|data| Ok(v1::FollowLogsResponse { data, ..v1::FollowLogsResponse::default() }));
        let (running, ended) = (job.running, Arc::clone(&self.ended));
        let rest = futures_util::stream::once(async move {
            if running {
                ended.notified().await;
            }
        });
        let rest = futures_util::StreamExt::filter_map(rest, |()| async { None });
        Ok(Response::new(Box::pin(tokio_stream::StreamExt::chain(tokio_stream::iter(messages), rest))))
    }

    async fn finish(&self, request: Request<v1::FinishRequest>) -> Answer<v1::FinishResponse> {
        let mut script = self.script.lock().unwrap();
        script.finished.push(request.into_inner().id);
        script.finish_failure.clone().map_or_else(|| Ok(Response::new(v1::FinishResponse {})), Err)
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let id = request.into_inner().id;
        let job = |id: &str, job: &Job| v1::Status {
            id: id.to_owned(),
            finished: !job.running,
            exit_code: job.exit_code,
            message: job.message.clone(),
            state: match (job.running, job.exit_code) {
                (true, _) => v1::State::Running,
                (false, 0) => v1::State::Success,
                (false, -2) => v1::State::Cancelled,
                (false, _) => v1::State::Failure,
            } as i32,
            log_bytes: job.log.len() as i64,
            ..Default::default()
        };
        let jobs = if id.is_empty() {
            let script = self.script.lock().unwrap();
            script.jobs.iter().map(|(id, found)| job(id, found)).collect()
        } else {
            vec![job(&id, &self.job(&id)?)]
        };
        Ok(Response::new(v1::StatusResponse { jobs, ..Default::default() }))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Answer<v1::CancelResponse> {
        let id = request.into_inner().id;
        self.job(&id)?;
        let mut script = self.script.lock().unwrap();
        if let Some(job) = script.jobs.get_mut(&id).filter(|job| job.running && !job.stubborn) {
            (job.running, job.exit_code) = (false, -2);
            self.ended.notify_waiters();
        }
        script.cancelled.push(id);
        Ok(Response::new(v1::CancelResponse {}))
    }
}

/// A relay whose connections break: each ends without a message after the next number of bytes from the daemon.
pub(crate) struct Relay {
    pub path: PathBuf,
    pub connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
    cut: Arc<Notify>,
}

impl Relay {
    /// Listens on `path`. `limits` returns the number of bytes to pass before each cut.
    pub(crate) fn start(
        path: PathBuf,
        daemon_path: PathBuf,
        cut: Arc<Notify>,
        mut limits: impl FnMut() -> usize + Send + 'static,
    ) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (counter, all) = (Arc::clone(&connections), Arc::clone(&cut));
        let task = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
                let (limit, daemon_path, cut) = (limits(), daemon_path.clone(), Arc::clone(&cut));
                tokio::spawn(async move {
                    let Ok(far) = UnixStream::connect(daemon_path).await else { return };
                    tokio::select! {
                        () = pass(near, far, limit) => {}
                        () = cut.notified() => {}
                    }
                });
            }
        });
        Self { path, connections, task, cut: all }
    }
}

impl Relay {
    /// Ends the relay and all its connections, and removes the socket.
    pub(crate) async fn stop(self) {
        self.task.abort();
        drop(self.task.await);
        std::fs::remove_file(&self.path).unwrap();
        self.cut.notify_waiters();
    }
}

async fn pass(near: UnixStream, far: UnixStream, limit: usize) {
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let up = async { drop(tokio::io::copy(&mut near_read, &mut far_write).await) };
    let down = async {
        let mut left = limit;
        let mut buffer = vec![0; 1 << 16];
        while left > 0 {
            let room = left.min(buffer.len());
            let Ok(length @ 1..) = far_read.read(&mut buffer[..room]).await else { return };
            if near_write.write_all(&buffer[..length]).await.is_err() {
                return;
            }
            left -= length;
        }
        // Lets the bytes that passed arrive before the connection is cut.
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    tokio::select! {
        () = down => {}
        () = up => {}
    }
}

/// Returns a pseudo-random sequence that is the same every time.
pub(crate) fn numbers(mut state: u64) -> impl FnMut() -> u64 + Send {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Returns one entry of a log.
pub(crate) fn entry(source: &str, body: &str) -> Vec<u8> {
    format!("2026-11-20T10:00:00.123456Z {source} {body}\n").into_bytes()
}

/// Returns the results of a job with the steps `names`. The last one failed if `code` is not 0.
pub(crate) fn results(names: &[&str], code: i32) -> Vec<v1::StepResult> {
    use v1::step_result::{ExecResult, Status};
    let last = names.len().saturating_sub(1);
    let status = |bad| if bad { Status::Failure } else { Status::Success } as i32;
    let mut all: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| v1::StepResult {
            step: Some(v1::Step { name: (*name).to_owned(), ..Default::default() }),
            status: status(index == last && code != 0),
            exec_result: Some(ExecResult {
                command: vec!["sh".into(), "-c".into(), format!("exit {code}")],
                work_dir: "/w".into(),
                exit_code: if index == last { code } else { 0 },
            }),
            ..Default::default()
        })
        .collect();
    all.push(v1::StepResult {
        status: status(code != 0),
        sub_step_results: all.clone(),
        ..Default::default()
    });
    all
}
