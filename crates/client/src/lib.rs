//! A client of the daemon: starts jobs, follows them through broken connections, and finishes them.
//!
//! Owns addresses, connections, and the policy of repeats; [`net`] is beside that: where the socket is, and who listens
//! on it. The crate may use `model`, `proto` and `process` of the project. It has no part of the daemon, so a program
//! that depends on it compiles neither actors nor fetching.
//!
//! The client repeats every call by one policy (`retry.rs`): within the limits of [`Options`] it waits out a
//! broken connection and a restarting or full daemon. A call ends with the answer or with an [`Error`], which says if
//! the job is lost, refused, or only out of reach.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use step_runner_client::model::JobId;
//! use step_runner_client::{Client, Event, Request};
//!
//! let client = Client::connect("ssh://ci@build7/run/step-runner.sock".parse()?).await?;
//! let id = JobId::parse("42")?;
//! client.run(&Request::new(id.clone(), "- {name: hello, script: echo hello}")).await?;
//!
//! let mut log = client.follow(&id, 0);
//! let status = loop {
//!     match log.next().await? {
//!         Event::Log(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
//!         Event::Unfinished(_) => {} // not asked for
//!         Event::End(status) => break status,
//!     }
//! };
//! client.finish(&id).await?;
//! assert_eq!(status.exit_code, 0);
//! # Ok(())
//! # }
//! ```
//!
//! [`Client::run_and_follow`] does all this in one call.

/// Includes the page about clients, so that its example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/integrate/client.md")]
struct Page;

mod address;
mod diagnosis;
mod dial;
mod error;
mod follow;
pub mod net;
mod request;
mod retry;
mod run;
mod steps;
mod stream;

pub use address::{Address, AddressError, Connector, ConnectorKind};
pub use diagnosis::Diagnosis;
pub use dial::DialError;
pub use error::{Error, Loss};
pub use follow::{Event, Follow};
pub use request::{Request, RequestLimits};
pub use retry::Absence;
pub use steps::FollowSteps;

// Types in the interface of the client: ids, and the messages of the service.
pub use step_runner_model as model;
pub use step_runner_proto::v1;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tonic::transport::Channel;

use dial::Dialed;
use retry::{Attempts, Call, CallFailure};
use step_runner_model::JobId;
use step_runner_proto::v1::step_runner_client::StepRunnerClient;

/// Deadline of one attempt of a call that answers at once (service.md §7.1).
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// Deadline of one attempt of Finish. Removing a running job takes its grace period. An attempt that exceeds the
/// deadline is repeated and joins the same removal (service.md §3.4).
const FINISH_DEADLINE: Duration = Duration::from_mins(1);

/// Limit on reaching the daemon again to remove a job whose end is known. Only the removal depends on it, and in the
/// end the daemon removes ended jobs by itself.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(10);

/// Time limits of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Limit on repeating the first connection, and calls that the daemon refuses for now.
    pub connect_timeout: Duration,
    /// Limit on restoring a connection that worked before, counted from the first failure after the last good byte.
    pub reconnect_timeout: Duration,
}

/// Uses the limits of connectors.md §5.
impl Default for Options {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(30), reconnect_timeout: Duration::from_mins(5) }
    }
}

/// A client of one daemon. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<ClientShared>,
}

#[derive(Debug)]
struct ClientShared {
    address: Address,
    options: Options,
    line: Mutex<ConnectionSlot>,
}

/// The present connection. `made` counts connections: a call that saw an old one break must not discard a newer one
/// made by another call.
#[derive(Debug, Default)]
struct ConnectionSlot {
    made: u64,
    present: Option<Dialed>,
}

/// A connection, as one call uses it.
struct CallConnection {
    number: u64,
    stub: StepRunnerClient<Channel>,
}

impl Client {
    /// Connects to the daemon at `address`. Waits for a daemon that is not there yet.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), step_runner_client::Error> {
    /// let client = step_runner_client::Client::connect("/tmp/step-runner.sock".parse()?).await?;
    /// for job in client.jobs().await? {
    ///     println!("{} finished: {}", job.id, job.finished);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(address: Address) -> Result<Self, Error> {
        Self::connect_with(address, Options::default()).await
    }

    /// Connects like [`Client::connect`], with other time limits.
    pub async fn connect_with(address: Address, options: Options) -> Result<Self, Error> {
        let shared = ClientShared { address, options, line: Mutex::default() };
        let client = Self { shared: Arc::new(shared) };
        let mut attempts = client.attempts(Call::Connect, None, client.shared.options.connect_timeout);
        loop {
            match client.line(attempts.patience()).await {
                Ok(_) => return Ok(client),
                Err(error) => tokio::time::sleep(attempts.after(error.into())?).await,
            }
        }
    }

    /// Returns the daemon's address.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Registers a job. The call is repeated until the daemon answers; the same id starts the job only once (service.md
    /// §3.1). [`Error::OtherContent`] if another request has registered this id before.
    pub async fn run(&self, request: &Request) -> Result<(), Error> {
        self.register(Call::Run, request).await
    }

    /// Registers a job like [`Client::run`], but returns [`Error::TryLater`] at once if the daemon refuses for now: for
    /// callers with a pace and a limit of their own.
    pub async fn try_run(&self, request: &Request) -> Result<(), Error> {
        self.register(Call::TryRun, request).await
    }

    async fn register(&self, call: Call, request: &Request) -> Result<(), Error> {
        let id = request.id();
        self.call(call, Some(id), || {
            let message = with_deadline(request.message(), CALL_DEADLINE);
            move |mut stub: StepRunnerClient<Channel>| async move { stub.run(message).await }
        })
        .await
        .and_then(|answer| {
            if answer.other_content { Err(Error::OtherContent { id: id.clone() }) } else { Ok(()) }
        })
    }

    /// Returns the state of one job; [`Error::Lost`] for an unknown id.
    pub async fn status(&self, id: &JobId) -> Result<v1::Status, Error> {
        let answer = self.states(Call::Status, Some(id)).await?;
        answer.jobs.into_iter().find(|job| job.id == id.as_str()).ok_or_else(|| {
            let loss = Loss::Other("the daemon does not list it".to_owned());
            Error::Lost { id: id.clone(), loss }
        })
    }

    /// Returns the states of all jobs, ordered by time of registration.
    pub async fn jobs(&self) -> Result<Vec<v1::Status>, Error> {
        Ok(self.states(Call::Status, None).await?.jobs)
    }

    /// Returns the states of all jobs as [`Self::jobs`] does, with what could not be removed of jobs.
    pub async fn overview(&self) -> Result<v1::StatusResponse, Error> {
        self.states(Call::Status, None).await
    }

    async fn states(&self, call: Call, id: Option<&JobId>) -> Result<v1::StatusResponse, Error> {
        let name = id.map(ToString::to_string).unwrap_or_default();
        self.call(call, id, || {
            let message = with_deadline(v1::StatusRequest { id: name.clone() }, CALL_DEADLINE);
            move |mut stub: StepRunnerClient<Channel>| async move { stub.status(message).await }
        })
        .await
    }

    /// Stops a job gently; its result and log stay (service.md §3.5).
    pub async fn cancel(&self, id: &JobId) -> Result<(), Error> {
        self.cancel_with(id, false).await
    }

    /// Ends a job at once, without grace and cleanup; its result and log stay (flow.md §3.1).
    pub async fn cancel_at_once(&self, id: &JobId) -> Result<(), Error> {
        self.cancel_with(id, true).await
    }

    async fn cancel_with(&self, id: &JobId, force: bool) -> Result<(), Error> {
        self.call(Call::Cancel, Some(id), || {
            let message = with_deadline(v1::CancelRequest { id: id.to_string(), force }, CALL_DEADLINE);
            move |mut stub: StepRunnerClient<Channel>| async move { stub.cancel(message).await }
        })
        .await
        .map(drop)
    }

    /// Stops a running job and removes all its data. An unknown id is no error (service.md §3.4).
    pub async fn finish(&self, id: &JobId) -> Result<(), Error> {
        self.finish_within(id, self.patience(Call::Finish)).await
    }

    /// Removes a job whose end the caller knows. Waits less long than [`Client::finish`] for a daemon that is out of
    /// reach.
    pub async fn remove_ended(&self, id: &JobId) -> Result<(), Error> {
        self.finish_within(id, self.patience(Call::Finish).min(REMOVAL_PATIENCE)).await
    }

    async fn finish_within(&self, id: &JobId, limit: Duration) -> Result<(), Error> {
        self.call_within(limit, Call::Finish, Some(id), || {
            let message = with_deadline(v1::FinishRequest { id: id.to_string() }, FINISH_DEADLINE);
            move |mut stub: StepRunnerClient<Channel>| async move { stub.finish(message).await }
        })
        .await
        .map(drop)
    }

    /// Follows the log of a job from byte `offset` to its end: every byte exactly once, then the final status.
    pub fn follow(&self, id: &JobId, offset: u64) -> Follow {
        Follow::new(self.clone(), id.clone(), offset)
    }

    /// Follows the results of a job's steps: each exactly once, the whole tree last.
    pub fn follow_steps(&self, id: &JobId) -> FollowSteps {
        FollowSteps::new(self.clone(), id.clone())
    }

    /// Repeats a call until it is answered, refused, or out of time. `prepare` builds one attempt.
    async fn call<T, A, F>(&self, call: Call, id: Option<&JobId>, prepare: impl Fn() -> A) -> Result<T, Error>
    where
        A: FnOnce(StepRunnerClient<Channel>) -> F,
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        self.call_within(self.patience(call), call, id, prepare).await
    }

    /// Makes a call like [`Client::call`], with another limit.
    async fn call_within<T, A, F>(
        &self,
        limit: Duration,
        call: Call,
        id: Option<&JobId>,
        prepare: impl Fn() -> A,
    ) -> Result<T, Error>
    where
        A: FnOnce(StepRunnerClient<Channel>) -> F,
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let mut attempts = self.attempts(call, id, limit);
        loop {
            let failure = match self.line(attempts.patience()).await {
                Ok(line) => match prepare()(line.stub).await {
                    Ok(response) => return Ok(response.into_inner()),
                    Err(status) => self.broken(line.number, status).await,
                },
                Err(error) => error.into(),
            };
            tokio::time::sleep(attempts.after(failure)?).await;
        }
    }

    /// Run belongs to reaching the daemon; the other calls concern an existing job.
    fn patience(&self, call: Call) -> Duration {
        match call {
            Call::Connect | Call::Run | Call::TryRun => self.shared.options.connect_timeout,
            _ => self.shared.options.reconnect_timeout,
        }
    }

    fn attempts(&self, call: Call, id: Option<&JobId>, limit: Duration) -> Attempts {
        Attempts::new(call, self.shared.address.clone(), id.cloned(), limit)
    }

    /// Returns the present connection, or makes a new one within `patience`.
    async fn line(&self, patience: Duration) -> Result<CallConnection, DialError> {
        let mut slot = self.shared.line.lock().await;
        let channel = if let Some(present) = &slot.present {
            present.channel.clone()
        } else {
            let dialed = dial::dial(&self.shared.address, patience).await?;
            slot.made += 1;
            slot.present.insert(dialed).channel.clone()
        };
        Ok(CallConnection { number: slot.made, stub: StepRunnerClient::new(channel) })
    }

    /// Classifies a failed call, and discards the connection if it broke.
    async fn broken(&self, number: u64, status: tonic::Status) -> CallFailure {
        let mut failure = CallFailure::from(status);
        if let CallFailure::Line(message) = &mut failure {
            let mut slot = self.shared.line.lock().await;
            if slot.made == number
                && let Some(lost) = slot.present.take()
            {
                message.push_str(&diagnosis::last_lines(&lost.stderr_tail.bytes()));
            }
        }
        failure
    }
}

fn with_deadline<T>(message: T, deadline: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(deadline);
    request
}
