//! Follows step results through broken connections: each exactly once (connectors.md §6.4).

use step_runner_model::JobId;
use step_runner_proto::v1;
use tokio::time::Instant;
use tonic::Streaming;

use super::follow::STEADY;
use super::retry::{Attempts, Call, CallFailure};
use super::{Client, Error};

/// Follows the results of one job. Dropping it does not affect the job.
///
/// ```no_run
/// # async fn example(client: step_runner_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let id = step_runner_client::model::JobId::parse("42")?;
/// let mut results = client.follow_steps(&id);
/// while let Some(result) = results.next().await? {
///     match result.step {
///         Some(step) => println!("step {} has ended", step.name),
///         None => println!("the job has ended, {} steps", result.sub_step_results.len()),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FollowSteps {
    client: Client,
    id: JobId,
    /// True to request events, too.
    events: bool,
    /// Number of results and events delivered.
    received: usize,
    /// Number of them to skip in the current stream: the server sends those already delivered again.
    to_skip: usize,
    /// True once the root, always the last message, was delivered.
    complete: bool,
    attempts: Attempts,
    pause: Option<Instant>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    stream: Box<Streaming<v1::FollowStepsResponse>>,
    line: u64,
    since: Instant,
}

impl FollowSteps {
    pub(super) fn new(client: Client, id: JobId) -> Self {
        let limit = client.shared.options.reconnect_timeout;
        let attempts = client.attempts(Call::FollowSteps, Some(&id), limit);
        Self {
            client,
            id,
            events: false,
            received: 0,
            to_skip: 0,
            complete: false,
            attempts,
            pause: None,
            open: None,
        }
    }

    /// Also requests events and marks, which [`Self::next_message`] returns. An older daemon sends only results.
    #[must_use]
    pub const fn with_events(mut self) -> Self {
        self.events = true;
        self
    }

    /// Returns the next result. The last one is the root, which has no step. After it, returns `None`. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<v1::StepResult>, Error> {
        while let Some(message) = self.next_message().await? {
            if let Some(result) = message.result {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }

    /// Returns the next message: a result or, if they were requested, an event or a mark. The last one has the root's result.
    /// After it, returns `None`. Cancel-safe.
    pub async fn next_message(&mut self) -> Result<Option<v1::FollowStepsResponse>, Error> {
        while !self.complete {
            if let Some(until) = self.pause {
                tokio::time::sleep_until(until).await;
                self.pause = None;
            }
            let Some(open) = &mut self.open else {
                self.open().await?;
                continue;
            };
            let (line, steady) = (open.line, open.since.elapsed() >= STEADY);
            match open.stream.message().await {
                Ok(Some(message)) => {
                    let is_mark = message.result.is_none() && message.event.is_none();
                    if !is_mark && self.to_skip > 0 {
                        self.to_skip -= 1;
                        continue;
                    }
                    // A mark may be older than what was skipped; it holds all the same.
                    self.attempts.succeeded();
                    self.received += usize::from(!is_mark);
                    self.complete = message.result.as_ref().is_some_and(is_root);
                    return Ok(Some(message));
                }
                Ok(None) => self.fail(CallFailure::Line("the stream of results ended early".to_owned()))?,
                Err(status) => {
                    if steady {
                        self.attempts.succeeded();
                    }
                    let failure = self.client.broken(line, status).await;
                    self.fail(failure)?;
                }
            }
        }
        Ok(None)
    }

    async fn open(&mut self) -> Result<(), Error> {
        let mut line = match self.client.line(self.attempts.patience()).await {
            Ok(line) => line,
            Err(error) => return self.fail(error.into()),
        };
        let request = v1::FollowStepsRequest { id: self.id.to_string(), events: self.events };
        match line.stub.follow_steps(request).await {
            Ok(response) => {
                self.to_skip = self.received;
                let stream = Box::new(response.into_inner());
                self.open = Some(Open { stream, line: line.number, since: Instant::now() });
                Ok(())
            }
            Err(status) => {
                let failure = self.client.broken(line.number, status).await;
                self.fail(failure)
            }
        }
    }

    fn fail(&mut self, failure: CallFailure) -> Result<(), Error> {
        self.open = None;
        let delay = self.attempts.after(failure)?;
        self.pause = Some(Instant::now() + delay);
        Ok(())
    }
}

/// True for the root: no step, or one without a name (service.md §3.3). A message about a running job has this form
/// too, but its status is `RUNNING`.
fn is_root(result: &v1::StepResult) -> bool {
    result.status() != v1::step_result::Status::Running
        && result.step.as_ref().is_none_or(|step| step.name.is_empty())
}
