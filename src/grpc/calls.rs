//! The parts that the calls of all services share: deadline, handling of panics, and access to the jobs
//! (service.md §1).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use futures_util::{FutureExt, Stream, StreamExt};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::accept::MemoryShare;
use super::deadline::{Deadline, Deadlined};
use super::peer::Caller;
use super::plain_log::{self, PlainLog};
use super::sizes::LARGE_REQUEST;
use super::{encode, status, validate};
use crate::actors::handle::{JobsHandle, Registered};
use crate::actors::left_over::LeftOver;
use crate::actors::stored::StoredKind;
use crate::actors::trace_sink::TracePart;
use crate::actors::view::JobStatus;
use crate::config::JobLogFormat;
use crate::model::{JobId, Reason, Refusal};
use crate::pb::v1;
use crate::request::Run;
use crate::threads::{self, Work};

/// A boxed stream of responses.
pub(super) type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The jobs as seen by every service. Clones share them.
#[derive(Clone)]
pub(super) struct JobCalls {
    jobs: JobsHandle,
    stopping: CancellationToken,
}

/// Separates messages while pieces of logs are small: after each it is pending once. Otherwise the library would join
/// ready messages up to 32 KiB and hold them for each follower.
fn apart<S: Stream>(messages: S, share: MemoryShare) -> impl Stream<Item = S::Item> {
    let (mut messages, mut is_due) = (Box::pin(messages), false);
    futures_util::stream::poll_fn(move |cx| {
        if std::mem::take(&mut is_due) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = messages.as_mut().poll_next(cx);
        is_due = matches!(next, Poll::Ready(Some(_))) && share.is_limited();
        next
    })
}

/// Deadline and memory share of a call that returns a stream.
pub(super) struct StreamTerms {
    deadline: Deadline,
    share: MemoryShare,
}

impl StreamTerms {
    /// Reads the terms of a request.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        let share = request.extensions().get().cloned().unwrap_or_default();
        Self { deadline: Deadline::of(request), share }
    }
}

/// Runs a call about the job `id` within its deadline. A panic in it is a defect that ends only this call.
pub(super) async fn call<T>(
    deadline: Deadline,
    id: &str,
    work: impl Future<Output = Result<T, Refusal>> + Send,
) -> Result<Response<T>, Status> {
    let guarded = AssertUnwindSafe(work).catch_unwind();
    match deadline.limit(guarded).await {
        None => Err(status::of_job(id, &Deadline::over())),
        Some(Ok(Ok(answer))) => Ok(Response::new(answer)),
        Some(Ok(Err(refusal))) => Err(status::of_job(id, &refusal)),
        Some(Err(_panic)) => Err(status::of_job(id, &status::defect())),
    }
}

/// A request with its digest.
pub(super) struct Digested<M> {
    pub(super) digest: [u8; 32],
    /// Encoded length in bytes.
    pub(super) size: usize,
    pub(super) request: M,
}

/// Computes the digest of a request. Maps are encoded in order, so equal requests have equal bytes. A large request is
/// digested on another thread, as it takes as long as hundreds of small calls.
pub(super) async fn digested<M: Message + 'static>(request: M) -> Result<Digested<M>, Refusal> {
    let size = request.encoded_len();
    let digested = move || {
        let digest = Sha256::digest(request.encode_to_vec()).into();
        Digested { digest, size, request }
    };
    if size <= LARGE_REQUEST {
        return Ok(digested());
    }
    threads::run(Work::Requests, digested).await.map_err(|error| Refusal::caused(Reason::Internal, &error))
}

impl JobCalls {
    /// Makes the calls on `jobs`. Cancelling `stopping` ends open streams.
    pub(super) const fn new(jobs: JobsHandle, stopping: CancellationToken) -> Self {
        Self { jobs, stopping }
    }

    /// Registers a job. Calls `request` only if the id is not registered yet; `size` is the request's length in bytes.
    pub(super) async fn run(
        &self,
        caller: Option<Caller>,
        id: &JobId,
        digest: &[u8; 32],
        size: usize,
        request: impl FnOnce() -> Result<Run, Refusal> + Send + 'static,
    ) -> Result<Registered, Refusal> {
        let mut registered = self.jobs.registered(id, digest);
        if registered.is_none() {
            let begun = Instant::now();
            let request = if size > LARGE_REQUEST {
                let read = threads::run(Work::Requests, request).await;
                read.map_err(|error| Refusal::caused(Reason::Internal, &error))?
            } else {
                request()
            };
            let mut request = request?;
            request.labels.peer = caller.map(|caller| caller.to_string());
            request.labels.received = Some(begun);
            self.jobs.run(request).await?;
            // A repeated request of a job that was already finished starts nothing.
            registered = self.jobs.registered(id, digest);
            registered = registered.or_else(|| self.jobs.finished_at(id).map(Registered::FinishedAt));
        }
        self.jobs.kept().await?;
        Ok(registered.unwrap_or(Registered::Same))
    }

    /// Streams the log of the job `id` from byte `offset` on, with its unfinished lines if they are asked for.
    pub(super) fn follow_logs(
        &self,
        id: &str,
        offset: i64,
        unfinished: bool,
        StreamTerms { deadline, share }: StreamTerms,
    ) -> Result<Messages<v1::FollowLogsResponse>, Refusal> {
        let (id, offset) = (validate::job_id(id)?, validate::offset(offset)?);
        let cursor = if unfinished {
            self.jobs.follow_live_logs(&id, offset)?
        } else {
            self.jobs.follow_logs(&id, offset)?
        };
        let messages =
            futures_util::stream::try_unfold((cursor, share.clone()), |(mut cursor, share)| async {
                let next = cursor.next_part(|| share.piece()).await?;
                Ok(next.map(|part| (encode::log_part(part), (cursor, share))))
            });
        let messages = apart(messages, share);
        Ok(Box::pin(Deadlined::new(messages, id, deadline, self.stopping.clone())))
    }

    /// Streams the log of the job `id` as compatible clients see it, from byte `offset` of that form on.
    pub(super) fn follow_compatible_logs(
        &self,
        id: &str,
        offset: i64,
        terms: StreamTerms,
    ) -> Result<Messages<v1::FollowLogsResponse>, Refusal> {
        let job = validate::job_id(id)?;
        if !plain_log::is_plain(self.jobs.origin(&job)?, self.jobs.job_log_format()) {
            return self.follow_logs(id, offset, false, terms);
        }
        let StreamTerms { deadline, share } = terms;
        let offset = validate::offset(offset)?;
        let log = PlainLog::new(self.jobs.follow_logs(&job, 0)?, offset);
        let messages = futures_util::stream::try_unfold((log, share.clone()), |(mut log, share)| async {
            let next = log.next(|| share.piece()).await?;
            Ok(next.map(|data| (encode::log_piece(data), (log, share))))
        });
        let messages = apart(messages, share);
        Ok(Box::pin(Deadlined::new(messages, job, deadline, self.stopping.clone())))
    }

    /// Returns the setting `job_log_format`.
    pub(super) fn job_log_format(&self) -> JobLogFormat {
        self.jobs.job_log_format()
    }

    /// Streams the step results of the job `id`, each converted by `message`.
    pub(super) fn follow_steps<T: 'static>(
        &self,
        id: &str,
        deadline: Deadline,
        message: fn(v1::StepResult) -> T,
    ) -> Result<Messages<T>, Refusal> {
        let id = validate::job_id(id)?;
        let cursor = self.jobs.follow_steps(&id)?;
        let messages = futures_util::stream::try_unfold(cursor, move |mut cursor| async move {
            loop {
                let Some(bytes) = cursor.next().await? else { return Ok(None) };
                if matches!(encode::stored_kind(&bytes), StoredKind::Event) {
                    continue;
                }
                if let Some(result) = stored(bytes).await?.and_then(|message| message.result) {
                    return Ok(Some((result, cursor)));
                }
            }
        })
        .map(move |next: Result<_, Refusal>| next.map(message));
        Ok(Box::pin(Deadlined::new(messages, id, deadline, self.stopping.clone())))
    }

    /// Streams the step results and events of the job `id`, with marks of how far the events are complete.
    pub(super) fn follow_events(
        &self,
        id: &str,
        deadline: Deadline,
    ) -> Result<Messages<v1::FollowStepsResponse>, Refusal> {
        let id = validate::job_id(id)?;
        let cursor = self.jobs.follow_events(&id)?;
        let messages = futures_util::stream::try_unfold(cursor, move |mut cursor| async move {
            loop {
                let message = match cursor.next().await? {
                    None => return Ok(None),
                    Some(TracePart::Stored(bytes)) => stored(bytes).await?,
                    Some(TracePart::Mark(log_bytes)) => Some(encode::mark(log_bytes)),
                };
                if let Some(message) = message {
                    return Ok(Some((message, cursor)));
                }
            }
        });
        Ok(Box::pin(Deadlined::new(messages, id, deadline, self.stopping.clone())))
    }

    /// Returns the state of the job `id`, or of all jobs if it is empty.
    pub(super) fn states(&self, id: &str) -> Result<Vec<JobStatus>, Refusal> {
        match id {
            "" => Ok(self.jobs.all()),
            id => Ok(vec![self.jobs.status(&validate::job_id(id)?)?]),
        }
    }

    /// Returns states with places in the queue and the present use of resources.
    pub(super) async fn full_states(&self, id: &str) -> Result<Vec<JobStatus>, Refusal> {
        let mut jobs = self.states(id)?;
        self.jobs.place(&mut jobs).await;
        self.jobs.read_usages(&mut jobs).await;
        Ok(jobs)
    }

    /// Returns what could not be removed of jobs and the number of all such things, if all jobs are asked for.
    pub(super) fn left_over(&self, id: &str) -> (Vec<LeftOver>, usize) {
        if id.is_empty() { self.jobs.left_over() } else { Default::default() }
    }

    /// Stops the job `id` and keeps it; with `force` at once.
    pub(super) async fn cancel(&self, id: &str, force: bool) -> Result<(), Refusal> {
        self.jobs.cancel(&validate::job_id(id)?, force).await
    }

    /// Ends the job `id` and removes it.
    pub(super) async fn finish(&self, id: &str) -> Result<(), Refusal> {
        self.jobs.finish(&validate::job_id(id)?).await
    }
}

/// Decodes a stored message, on another thread if it is large.
async fn stored(bytes: Vec<u8>) -> Result<Option<v1::FollowStepsResponse>, Refusal> {
    if bytes.len() <= LARGE_REQUEST {
        return encode::stored(&bytes);
    }
    let read = threads::run(Work::Requests, move || encode::stored(&bytes)).await;
    read.map_err(|error| Refusal::caused(Reason::Internal, &error))?
}
