//! Client of the daemon: start jobs, follow them through broken lines, end them.
//!
//! Every call may be repeated, and is, after one policy (`client/retry.rs`): a line that breaks, a daemon that restarts
//! and a daemon that is full are waited for within the limits of [`Options`]. What comes out is either the answer or an
//! [`Error`] that says whether the job is lost, refused, or merely out of reach.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use step_runner::client::{Client, Event, Request};
//! use step_runner::model::JobId;
//!
//! let client = Client::connect("ssh://ci@build7/run/step-runner.sock".parse()?).await?;
//! let id = JobId::parse("42")?;
//! client.run(&Request::new(id.clone(), "- {name: hello, script: echo hello}")).await?;
//!
//! let mut log = client.follow(&id, 0);
//! let status = loop {
//!     match log.next().await? {
//!         Event::Log(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
//!         Event::End(status) => break status,
//!     }
//! };
//! client.finish(&id).await?;
//! assert_eq!(status.exit_code, 0);
//! # Ok(())
//! # }
//! ```
//!
//! [`Client::run_and_follow`] does all of it at once.

/// The page about clients, so that its example compiles.
#[cfg(doctest)]
#[doc = include_str!("../docs/client.md")]
struct Page;

mod address;
mod diagnosis;
mod dial;
mod error;
mod follow;
mod request;
mod retry;
mod run;
mod steps;
mod stream;

pub use address::{Address, AddressError, Connector, ConnectorKind};
pub use diagnosis::{Diagnosis, Meaning};
pub use dial::DialError;
pub use error::Error;
pub use follow::{Event, Follow};
pub use request::{Limits, Request};
pub use retry::Absence;
pub use steps::FollowSteps;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tonic::transport::Channel;

use crate::model::JobId;
use crate::pb::v1;
use crate::pb::v1::step_runner_client::StepRunnerClient;
use dial::Dialed;
use retry::{Attempts, Call, CallFailure};

/// Deadline of one attempt of a call that answers at once (service.md §7.1).
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// Deadline of one attempt of Finish: the removal of a job that runs takes its grace, and an attempt that runs out is
/// repeated and joins the same removal (service.md §3.4).
const FINISH_DEADLINE: Duration = Duration::from_mins(1);

/// How patient a client is.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the first connection, and a daemon that refuses for now, are tried again.
    pub connect_timeout: Duration,
    /// How long a line that worked before is made anew, counted from its first failure after the last good byte.
    pub reconnect_timeout: Duration,
}

/// The limits of connectors.md §5.
impl Default for Options {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(30), reconnect_timeout: Duration::from_mins(5) }
    }
}

/// A client of one daemon. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    address: Address,
    options: Options,
    line: Mutex<LineSlot>,
}

/// The present connection. `made` counts the connections, so that a call which saw an old one break does not throw away
/// the new one that another call has made since.
#[derive(Debug, Default)]
struct LineSlot {
    made: u64,
    present: Option<Dialed>,
}

/// One connection, as a call uses it.
struct Line {
    number: u64,
    stub: StepRunnerClient<Channel>,
}

impl Client {
    /// Connects to the daemon at `address`, waiting for one that is not there yet.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), step_runner::client::Error> {
    /// let client = step_runner::client::Client::connect("/tmp/step-runner.sock".parse()?).await?;
    /// for job in client.jobs().await? {
    ///     println!("{} finished: {}", job.id, job.finished);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(address: Address) -> Result<Self, Error> {
        Self::connect_with(address, Options::default()).await
    }

    /// As [`Client::connect`], with limits of the caller's choice.
    pub async fn connect_with(address: Address, options: Options) -> Result<Self, Error> {
        let shared = Shared { address, options, line: Mutex::default() };
        let client = Self { shared: Arc::new(shared) };
        let mut attempts = client.attempts(Call::Connect, None, client.shared.options.connect_timeout);
        loop {
            match client.line(attempts.patience()).await {
                Ok(_) => return Ok(client),
                Err(error) => tokio::time::sleep(attempts.after(error.into())?).await,
            }
        }
    }

    /// Where the daemon is.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Registers a job. Repeated with the same id until the daemon has answered, which starts it once (service.md §3.1).
    pub async fn run(&self, request: &Request) -> Result<(), Error> {
        let id = request.id();
        self.call(Call::Run, Some(id), || {
            let message = with_deadline(request.message(), CALL_DEADLINE);
            move |mut stub: StepRunnerClient<Channel>| async move { stub.run(message).await }
        })
        .await
        .map(drop)
    }

    /// State of one job. An unknown id is [`Error::Lost`].
    pub async fn status(&self, id: &JobId) -> Result<v1::Status, Error> {
        let jobs = self.states(Call::Status, Some(id)).await?;
        jobs.into_iter()
            .find(|job| job.id == id.as_str())
            .ok_or_else(|| Error::Lost { id: id.clone(), message: "the daemon does not list it".to_owned() })
    }

    /// States of all jobs, ordered by time of registration.
    pub async fn jobs(&self) -> Result<Vec<v1::Status>, Error> {
        self.states(Call::Status, None).await
    }

    async fn states(&self, call: Call, id: Option<&JobId>) -> Result<Vec<v1::Status>, Error> {
        let name = id.map(ToString::to_string).unwrap_or_default();
        let response = self
            .call(call, id, || {
                let message = with_deadline(v1::StatusRequest { id: name.clone() }, CALL_DEADLINE);
                move |mut stub: StepRunnerClient<Channel>| async move { stub.status(message).await }
            })
            .await?;
        Ok(response.jobs)
    }

    /// Stops a job gently; its result and log stay (service.md §3.5).
    pub async fn cancel(&self, id: &JobId) -> Result<(), Error> {
        self.call(Call::Cancel, Some(id), || {
            let message = with_deadline(v1::CancelRequest { id: id.to_string() }, CALL_DEADLINE);
            move |mut stub: StepRunnerClient<Channel>| async move { stub.cancel(message).await }
        })
        .await
        .map(drop)
    }

    /// Stops a job if it runs and removes everything of it. An unknown id is fine (service.md §3.4).
    pub async fn finish(&self, id: &JobId) -> Result<(), Error> {
        self.call(Call::Finish, Some(id), || {
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

    /// Makes a call until it is answered, gives up, or is refused. `prepare` builds one attempt.
    async fn call<T, A, F>(&self, call: Call, id: Option<&JobId>, prepare: impl Fn() -> A) -> Result<T, Error>
    where
        A: FnOnce(StepRunnerClient<Channel>) -> F,
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let mut attempts = self.attempts(call, id, self.patience(call));
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

    /// Run is part of getting through to the daemon; every other call concerns a job that exists.
    fn patience(&self, call: Call) -> Duration {
        match call {
            Call::Connect | Call::Run => self.shared.options.connect_timeout,
            _ => self.shared.options.reconnect_timeout,
        }
    }

    fn attempts(&self, call: Call, id: Option<&JobId>, limit: Duration) -> Attempts {
        Attempts::new(call, self.shared.address.clone(), id.cloned(), limit)
    }

    /// The present connection, or a new one, made within `patience`.
    async fn line(&self, patience: Duration) -> Result<Line, DialError> {
        let mut slot = self.shared.line.lock().await;
        let channel = if let Some(present) = &slot.present {
            present.channel.clone()
        } else {
            let dialed = dial::dial(&self.shared.address, patience).await?;
            slot.made += 1;
            slot.present.insert(dialed).channel.clone()
        };
        Ok(Line { number: slot.made, stub: StepRunnerClient::new(channel) })
    }

    /// Judges a failed call and forgets the connection if that is what failed.
    async fn broken(&self, number: u64, status: tonic::Status) -> CallFailure {
        let mut failure = CallFailure::from(status);
        if let CallFailure::Line(message) = &mut failure {
            let mut slot = self.shared.line.lock().await;
            if slot.made == number
                && let Some(lost) = slot.present.take()
            {
                message.push_str(&diagnosis::last_lines(&lost.said.bytes()));
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
