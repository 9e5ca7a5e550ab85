//! Calls the service through the generated stub. Like a patient client, it repeats a call with the same content while
//! no daemon runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use step_runner::pb::v1;
use step_runner::pb::v1::step_runner_client::StepRunnerClient;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::verdict::Check;

/// Time for which a call is repeated.
const PATIENCE: Duration = Duration::from_mins(2);

/// Pause before a repetition.
const PAUSE: Duration = Duration::from_millis(5);

/// Longest single attempt.
const ATTEMPT: Duration = Duration::from_mins(1);

pub(crate) type Stub = StepRunnerClient<Channel>;

/// Makes one connection, which is not re-established.
pub(crate) async fn dial(socket: &Path) -> Result<Stub, String> {
    dial_with(socket, Endpoint::from_static("http://shows")).await
}

/// Like [`dial`], with other settings.
pub(crate) async fn dial_with(socket: &Path, endpoint: Endpoint) -> Result<Stub, String> {
    let mut stream =
        Some(TokioIo::new(UnixStream::connect(socket).await.map_err(|error| error.to_string())?));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take();
        async move { stream.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected)) }
    });
    let channel = endpoint.connect_with_connector(connector).await;
    channel.map(StepRunnerClient::new).map_err(|error| error.to_string())
}

/// Repeats [`dial`] until a daemon answers.
pub(crate) async fn dial_patiently(socket: &Path) -> Check<Stub> {
    let until = Instant::now() + PATIENCE;
    loop {
        match dial(socket).await {
            Ok(stub) => return Ok(stub),
            Err(error) if Instant::now() > until => return Err(format!("no daemon: {error}")),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// True if the status is an answer of the daemon, not a broken connection.
pub(crate) fn is_answer(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::DataLoss
        | Code::PermissionDenied
        | Code::Unimplemented
        | Code::Aborted => true,
        Code::Internal => status.message().starts_with("internal"),
        _ => false,
    }
}

/// A client for one scene. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Client {
    socket: PathBuf,
    /// Notified before each call. The killer waits for it.
    pub(crate) calling: std::sync::Arc<tokio::sync::Notify>,
}

impl Client {
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), calling: std::sync::Arc::default() }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    async fn repeat<T, F>(&self, what: &str, attempt: impl Fn(Stub) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let until = Instant::now() + PATIENCE;
        loop {
            let failure = match dial(&self.socket).await {
                Ok(stub) => match tokio::time::timeout(ATTEMPT, attempt(stub)).await {
                    Ok(Ok(response)) => return Ok(response.into_inner()),
                    Ok(Err(status)) if is_answer(&status) => return Err(status),
                    Ok(Err(status)) => format!("{:?} {}", status.code(), status.message()),
                    Err(_) => "no answer".to_owned(),
                },
                Err(error) => error,
            };
            if Instant::now() > until {
                return Err(Status::unknown(format!("{what} in vain: {failure}")));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(crate) async fn run(&self, request: &v1::RunRequest) -> Check {
        self.calling.notify_waiters();
        let ran = self.repeat("Run", |mut stub| {
            let request = request.clone();
            async move { stub.run(request).await }
        });
        ran.await.map(drop).map_err(|status| format!("Run: {status}"))
    }

    pub(crate) async fn finish(&self, id: &str) -> Check {
        self.calling.notify_waiters();
        let finished = self.repeat("Finish", |mut stub| async move {
            stub.finish(v1::FinishRequest { id: id.into() }).await
        });
        finished.await.map(drop).map_err(|status| format!("Finish: {status}"))
    }

    pub(crate) async fn cancel(&self, id: &str) -> Check {
        self.calling.notify_waiters();
        let asked = self.repeat("Cancel", |mut stub| async move {
            stub.cancel(v1::CancelRequest { id: id.into(), force: false }).await
        });
        asked.await.map(drop).map_err(|status| format!("Cancel: {status}"))
    }

    /// Returns `None` if there is no such job.
    pub(crate) async fn status(&self, id: &str) -> Check<Option<v1::Status>> {
        let asked = self.repeat("Status", |mut stub| async move {
            stub.status(v1::StatusRequest { id: id.into() }).await
        });
        match asked.await {
            Ok(response) => Ok(response.jobs.into_iter().find(|job| job.id == id)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(format!("Status: {status}")),
        }
    }

    /// Returns the states of all jobs.
    pub(crate) async fn all(&self) -> Check<Vec<v1::Status>> {
        let asked =
            self.repeat("Status", |mut stub| async move { stub.status(v1::StatusRequest::default()).await });
        asked.await.map(|response| response.jobs).map_err(|status| format!("Status: {status}"))
    }

    /// Polls Status until the job has ended.
    pub(crate) async fn ended(&self, id: &str, limit: Duration) -> Check<v1::Status> {
        let until = Instant::now() + limit;
        loop {
            match self.status(id).await? {
                Some(status) if status.finished => return Ok(status),
                Some(status) if Instant::now() > until => {
                    return Err(format!("{id} has not ended after {limit:?}: {status:?}"));
                }
                Some(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                None => return Err(format!("{id} is unknown before it was finished")),
            }
        }
    }
}
