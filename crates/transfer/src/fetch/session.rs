//! The daemon's dialogue with one worker. Dropping it kills the worker at once. The folder is removed only when the
//! worker is certainly dead.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::RetryNotice;
use super::cache::Temporary;
use super::disk_space::{DiskSpace, DiskSpaceError};
use super::order::{Answer, Order, Progress, Stats, WorkerMessage};
use super::permits::WorkerPermit;
use step_runner_core::job::event::FetchFailure;
use step_runner_lang::diagnostic::Class;
use step_runner_model::ExitStatus;
use step_runner_model::error::Chain;
use step_runner_process::worker::{MAX_CPU_SECONDS, MAX_FILE, Program, Worker};
use step_runner_web::retry::VERSION_LIMIT;

/// Longest transfer. A silent server ends one much earlier; this limit is for a server that is slow for ever.
const TRANSFER_LIMIT: Duration = Duration::from_mins(30);

/// Longest reason for another try that is told, in characters.
const LONGEST_REASON: usize = 300;

/// Longest line of a worker in bytes. A server's data may have taken the worker over.
const MAX_LINE: u64 = 64 << 10;

/// A worker under way.
pub(super) struct Session<'a> {
    running: Guard,
    input: pipe::Sender,
    output: BufReader<pipe::Receiver>,
    /// Deadline of the current phase, and the phase's time limit.
    deadline: (Instant, Duration),
    disk_space: Arc<DiskSpace>,
    /// Source of the fetch, for messages.
    origin: String,
    retried: &'a RetryNotice,
}

/// A worker, its folder and its place, which end together.
struct Running {
    worker: Worker,
    folder: Temporary,
    permit: WorkerPermit,
}

impl Running {
    /// Waits for the worker's end, passes its status to `tell`, frees its place, then removes its folder. Blocks.
    fn end(self, tell: impl FnOnce(io::Result<ExitStatus>)) {
        let Self { worker, folder, permit } = self;
        tell(worker.reap());
        drop(permit);
        drop(folder);
    }
}

/// Kills the running worker when dropped.
struct Guard(Option<Running>);

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(running) = self.0.take() else { return };
        running.worker.kill();
        let end = |status: io::Result<ExitStatus>| {
            if let Err(error) = status {
                tracing::warn!(error = %Chain(&error), "cannot wait for a process that fetched");
            }
        };
        // Without a runtime the daemon itself is ending, and the worker dies with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(move || running.end(end)));
        }
    }
}

impl<'a> Session<'a> {
    /// Starts a worker that fetches from `origin`. Call it on the thread of the daemon's actors (see
    /// [`Worker::start`]).
    pub(super) fn start(
        program: &Program,
        folder: Temporary,
        permit: WorkerPermit,
        disk_space: Arc<DiskSpace>,
        origin: String,
        retried: &'a RetryNotice,
    ) -> io::Result<Self> {
        let (worker, input, output) = Worker::start(program)?;
        let running = Guard(Some(Running { worker, folder, permit }));
        let (input, output) = (
            pipe::Sender::from_owned_fd(input.into())?,
            BufReader::new(pipe::Receiver::from_owned_fd(output.into())?),
        );
        let deadline = in_time(VERSION_LIMIT);
        Ok(Self { running, input, output, deadline, disk_space, origin, retried })
    }

    /// Sends the order. Returns the version that the remote names.
    pub(super) async fn resolve(&mut self, order: &Order) -> Result<String, FetchFailure> {
        self.tell(order).await?;
        match self.listen().await? {
            WorkerMessage::Resolved(version) => Ok(version),
            WorkerMessage::Failed(failure) => Err(failure),
            WorkerMessage::Progress(_) | WorkerMessage::Retry(_) | WorkerMessage::Done(_) => {
                Err(self.nonsense())
            }
        }
    }

    /// Has the worker fill the tree of [`Self::folder`].
    pub(super) async fn transfer(&mut self) -> Result<Stats, FetchFailure> {
        self.disk_space.make(0).await.map_err(|e| self.no_room(&e))?;
        self.deadline = in_time(TRANSFER_LIMIT);
        let into = self.folder().map(Temporary::tree).unwrap_or_default();
        self.tell(&Answer { into }).await?;
        match self.listen().await? {
            WorkerMessage::Done(stats) => Ok(stats),
            WorkerMessage::Failed(failure) => Err(failure),
            WorkerMessage::Progress(_) | WorkerMessage::Retry(_) | WorkerMessage::Resolved(_) => {
                Err(self.nonsense())
            }
        }
    }

    pub(super) fn folder(&self) -> Option<&Temporary> {
        self.running.0.as_ref().map(|running| &running.folder)
    }

    async fn tell(&mut self, what: &impl serde::Serialize) -> Result<(), FetchFailure> {
        let mut line = serde_json::to_vec(what).map_err(|_| self.nonsense())?;
        line.push(b'\n');
        match timeout_at(self.deadline.0, self.input.write_all(&line)).await {
            Ok(Ok(())) => Ok(()),
            // Its last message or its exit status says why it does not listen.
            Ok(Err(_)) => match self.listen().await? {
                WorkerMessage::Failed(failure) => Err(failure),
                _ => Err(self.nonsense()),
            },
            Err(_) => Err(self.late()),
        }
    }

    /// Returns the worker's next message. Handles progress and further tries itself.
    async fn listen(&mut self) -> Result<WorkerMessage, FetchFailure> {
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut self.output).take(MAX_LINE);
            match timeout_at(self.deadline.0, bounded.read_until(b'\n', &mut line)).await {
                Err(_) => return Err(self.late()),
                Ok(Err(_) | Ok(0)) => return Err(self.died().await),
                Ok(Ok(_)) => {}
            }
            match serde_json::from_slice(&line) {
                Ok(WorkerMessage::Progress(Progress { bytes, total })) => {
                    tracing::debug!(bytes, total, "fetching");
                    let more = total.unwrap_or(0).saturating_sub(bytes);
                    self.disk_space.make(more).await.map_err(|e| self.no_room(&e))?;
                }
                Ok(WorkerMessage::Retry(why)) => {
                    let why: String = why.chars().take(LONGEST_REASON).collect();
                    (self.retried)(&self.origin, &why);
                }
                Ok(WorkerMessage::Failed(failure)) => return Ok(WorkerMessage::Failed(failure)),
                Ok(message) => return Ok(message),
                Err(_) => return Err(self.nonsense()),
            }
        }
    }

    /// Returns why the worker closed its output without a last message, by its exit status.
    async fn died(&mut self) -> FetchFailure {
        let Some(running) = self.running.0.take() else { return self.nonsense() };
        let (tell, told) = oneshot::channel();
        drop(spawn_blocking(move || running.end(|status| drop(tell.send(status)))));
        let (class, why) = match told.await {
            Ok(Ok(status)) => cause(status),
            Ok(Err(_)) | Err(_) => (Class::Fetch, "the process that fetches is lost: try again".to_owned()),
        };
        self.failure(class, &why)
    }

    fn nonsense(&self) -> FetchFailure {
        self.failure(Class::Fetch, "the process that fetches did not answer as it should: please report it")
    }

    fn late(&self) -> FetchFailure {
        let minutes = self.deadline.1.as_secs() / 60;
        if self.deadline.1 == VERSION_LIMIT {
            let why =
                format!("the server did not say within {minutes} minutes which version it is: try again");
            return self.failure(Class::Fetch, &why);
        }
        let why = format!(
            "the transfer took longer than {minutes} minutes: try again, or make the function smaller"
        );
        self.failure(Class::Limit, &why)
    }

    fn no_room(&self, why: &DiskSpaceError) -> FetchFailure {
        let class = match why {
            DiskSpaceError::Full { .. } => Class::Limit,
            DiskSpaceError::Unknown(_) => Class::Fetch,
        };
        self.failure(class, &why.to_string())
    }

    fn failure(&self, class: Class, why: &str) -> FetchFailure {
        FetchFailure { class, message: format!("cannot fetch {}: {why}", self.origin) }
    }
}

/// Returns the deadline after `limit`, with `limit`.
fn in_time(limit: Duration) -> (Instant, Duration) {
    (Instant::now() + limit, limit)
}

/// Explains the exit of a worker that we did not kill.
fn cause(status: ExitStatus) -> (Class, String) {
    match status {
        ExitStatus::Signal(signal) if i32::from(signal) == libc::SIGXFSZ => {
            (Class::Limit, format!("it has a file of more than {} MiB: make that file smaller", MAX_FILE >> 20))
        }
        ExitStatus::Signal(signal) if i32::from(signal) == libc::SIGABRT => (
            Class::Limit,
            "reading it took more memory than a transfer may have: make the function smaller".to_owned(),
        ),
        ExitStatus::Signal(signal) if i32::from(signal) == libc::SIGXCPU => (
            Class::Limit,
            format!("reading it took more than {MAX_CPU_SECONDS} s of processor time: make the function smaller"),
        ),
        ExitStatus::Signal(signal) if i32::from(signal) == libc::SIGKILL => (
            Class::Limit,
            "the process that fetches was killed from outside, as the system does when memory runs out: give the job \
             more memory"
                .to_owned(),
        ),
        ExitStatus::Signal(_) => {
            (Class::Fetch, format!("the process that fetches died ({status}): please report it"))
        }
        ExitStatus::Code(code) => {
            (Class::Fetch, format!("the process that fetches gave up with code {code}: please report it"))
        }
    }
}
