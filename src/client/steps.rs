//! Following step results through broken lines: each exactly once (connectors.md §6.4).

use tokio::time::Instant;
use tonic::Streaming;

use super::follow::STEADY;
use super::retry::{Attempts, Call, CallFailure};
use super::{Client, Error};
use crate::model::JobId;
use crate::pb::v1;

/// Follows the results of one job. Dropping it leaves the job alone.
///
/// ```no_run
/// # async fn example(client: step_runner::client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let id = step_runner::model::JobId::parse("42")?;
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
    /// Results handed on.
    received: usize,
    /// Results of the present stream that were handed on before it was opened: the server replays them.
    to_skip: usize,
    /// The root, always the last message, has been handed on.
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
        Self { client, id, received: 0, to_skip: 0, complete: false, attempts, pause: None, open: None }
    }

    /// The next result; the root, without a step, is the last one; then `None`. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<v1::StepResult>, Error> {
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
                Ok(Some(v1::FollowStepsResponse { result: Some(result) })) => {
                    if self.to_skip > 0 {
                        self.to_skip -= 1;
                        continue;
                    }
                    self.attempts.succeeded();
                    self.received += 1;
                    self.complete = is_root(&result);
                    return Ok(Some(result));
                }
                Ok(Some(_)) => {}
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
        match line.stub.follow_steps(v1::FollowStepsRequest { id: self.id.to_string() }).await {
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

/// The root has no step, or one without a name (service.md §3.3).
fn is_root(result: &v1::StepResult) -> bool {
    result.step.as_ref().is_none_or(|step| step.name.is_empty())
}
