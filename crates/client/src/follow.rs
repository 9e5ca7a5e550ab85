//! Follows a log through broken connections: every byte exactly once, then the final status (connectors.md §6).

use std::time::Duration;

use bytes::Bytes;
use step_runner_model::JobId;
use step_runner_proto::v1;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Streaming;

use super::retry::{Attempts, Call, CallFailure};
use super::{Absence, Client, Error, Loss};

/// Age from which a stream counts as a success even without data: when it breaks, the time limit for reconnecting
/// starts again.
pub(super) const STEADY: Duration = Duration::from_secs(10);

/// An item of a followed log.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The next bytes of the log, never empty.
    Log(Bytes),
    /// An unfinished line; only after [`Follow::with_unfinished`]. It is the line's entry so far (docs/spec/logs.md §1),
    /// without a line feed. It replaces the one before of the same source, is no part of the log, and is void once an
    /// entry of its source follows.
    Unfinished(Bytes),
    /// The job has ended and its whole log was delivered.
    End(Box<v1::Status>),
}

/// Follows one log. Dropping it does not affect the job.
///
/// ```no_run
/// # async fn example(client: step_runner_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use step_runner_client::Event;
///
/// let id = step_runner_client::model::JobId::parse("42")?;
/// // 1000 bytes are on disk already, from an earlier run of this program.
/// let mut log = client.follow(&id, 1000);
/// while let Event::Log(bytes) = log.next().await? {
///     // append them, then remember log.offset()
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Follow {
    client: Client,
    id: JobId,
    offset: u64,
    attempts: Attempts,
    absence: watch::Sender<Option<Absence>>,
    /// Earliest next attempt. Kept here so that dropping a `next` future does not shorten the pause.
    pause: Option<Instant>,
    state: FollowState,
    unfinished: bool,
}

#[derive(Debug)]
enum FollowState {
    /// No stream. The next one opens at the offset.
    Closed,
    /// Bytes come through connection number `line`.
    Open { stream: Box<Streaming<v1::FollowLogsResponse>>, line: u64, since: Instant },
    /// The stream ended well. Its length must be compared with the status.
    Complete,
}

impl Follow {
    pub(super) fn new(client: Client, id: JobId, offset: u64) -> Self {
        let limit = client.shared.options.reconnect_timeout;
        let attempts = client.attempts(Call::FollowLogs, Some(&id), limit);
        Self {
            client,
            id,
            offset,
            attempts,
            absence: watch::Sender::new(None),
            pause: None,
            state: FollowState::Closed,
            unfinished: false,
        }
    }

    /// Asks for unfinished lines too: [`Event::Unfinished`]. An older daemon sends none.
    #[must_use]
    pub fn with_unfinished(self) -> Self {
        Self { unfinished: true, ..self }
    }

    /// Watches for the daemon's absence: `Some` while attempts fail.
    pub fn absence(&self) -> watch::Receiver<Option<Absence>> {
        self.absence.subscribe()
    }

    /// Bytes of the log delivered, including those before the start.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next bytes, or the end. Cancel-safe: dropping the future loses nothing. A call after the end or
    /// after an error asks for the job's state again.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(until) = self.pause {
                tokio::time::sleep_until(until).await;
                self.pause = None;
            }
            match &mut self.state {
                FollowState::Closed => self.open().await?,
                FollowState::Open { stream, line, since } => match stream.message().await {
                    Ok(Some(message)) if !message.unfinished.is_empty() => {
                        return Ok(Event::Unfinished(message.unfinished));
                    }
                    Ok(Some(message)) if message.data.is_empty() => {}
                    Ok(Some(message)) => {
                        self.attempts.succeeded();
                        self.offset += message.data.len() as u64;
                        return Ok(Event::Log(message.data));
                    }
                    Ok(None) => self.state = FollowState::Complete,
                    Err(status) => {
                        let (line, steady) = (*line, since.elapsed() >= STEADY);
                        self.state = FollowState::Closed;
                        if steady {
                            self.attempts.succeeded();
                        }
                        let failure = self.client.broken(line, status).await;
                        self.fail(failure)?;
                    }
                },
                FollowState::Complete => {
                    if let Some(status) = self.compare().await? {
                        return Ok(Event::End(Box::new(status)));
                    }
                }
            }
        }
    }

    async fn open(&mut self) -> Result<(), Error> {
        let Ok(offset) = i32::try_from(self.offset) else {
            let message = format!("no log is {} bytes long", self.offset);
            return Err(Error::Lost { id: self.id.clone(), loss: Loss::Other(message) });
        };
        let mut line = match self.client.line(self.attempts.patience()).await {
            Ok(line) => line,
            Err(error) => return self.fail(error.into()),
        };
        let request = v1::FollowLogsRequest { id: self.id.to_string(), offset, unfinished: self.unfinished };
        match line.stub.follow_logs(request).await {
            Ok(response) => {
                let stream = Box::new(response.into_inner());
                self.state = FollowState::Open { stream, line: line.number, since: Instant::now() };
                self.absence.send_replace(None);
                Ok(())
            }
            Err(status) => {
                let failure = self.client.broken(line.number, status).await;
                self.fail(failure)
            }
        }
    }

    /// Compares the length with the job's status: a stream can end well although its tail was dropped (connectors.md
    /// §6.3).
    async fn compare(&mut self) -> Result<Option<v1::Status>, Error> {
        let status = self.client.status(&self.id).await?;
        let missing = match log_length(&status) {
            Some(length) if self.offset > length => {
                let message = format!("{} bytes came of a log of {length} bytes", self.offset);
                return Err(Error::Lost { id: self.id.clone(), loss: Loss::Other(message) });
            }
            Some(length) => self.offset < length,
            None => false,
        };
        if status.finished && !missing {
            return Ok(Some(status));
        }
        self.state = FollowState::Closed;
        self.fail(CallFailure::Line("the log stream ended early".to_owned()))?;
        Ok(None)
    }

    fn fail(&mut self, failure: CallFailure) -> Result<(), Error> {
        let delay = self.attempts.after(failure).map_err(|error| match error {
            Error::OutOfReach { id, address, message, .. } => {
                Error::OutOfReach { id, address, offset: self.offset, message }
            }
            error => error,
        })?;
        self.absence.send_replace(self.attempts.absence());
        self.pause = Some(Instant::now() + delay);
        Ok(())
    }
}

/// Returns the log's length of an ended job. A daemon without our protocol additions sends neither state nor length.
fn log_length(status: &v1::Status) -> Option<u64> {
    if !status.finished || status.state() == v1::State::Unspecified {
        return None;
    }
    u64::try_from(status.log_bytes).ok()
}
