//! What the calls of all services have in common: their deadline, what a panic in them means, and the jobs they share
//! (service.md §1).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures_util::{FutureExt, Stream, StreamExt};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

use super::deadline::{Deadline, Deadlined};
use super::{encode, status, validate};
use crate::actors::handle::{JobsHandle, LARGE_REQUEST, RunRequest};
use crate::actors::view::JobStatus;
use crate::model::{JobId, Reason, Refusal};
use crate::pb::v1;

/// A boxed stream of responses.
pub(super) type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The jobs as every service sees them; clones share them.
#[derive(Clone)]
pub(super) struct Calls {
    jobs: JobsHandle,
    stopping: CancellationToken,
}

/// Runs a call within its deadline; a panic in it is a defect that ends this call only.
pub(super) async fn call<T>(
    deadline: Deadline,
    work: impl Future<Output = Result<T, Refusal>> + Send,
) -> Result<Response<T>, Status> {
    let guarded = AssertUnwindSafe(work).catch_unwind();
    match deadline.limit(guarded).await {
        None => Err(Deadline::status()),
        Some(Ok(Ok(answer))) => Ok(Response::new(answer)),
        Some(Ok(Err(refusal))) => Err(status::status(&refusal)),
        Some(Err(_panic)) => Err(status::status(&status::defect())),
    }
}

/// Digest of all that was asked: equal requests have equal bytes, since maps are encoded in order. That of a large
/// request is made on a thread of its own: it takes as long as hundreds of small calls.
pub(super) async fn digested<M: Message + 'static>(request: M) -> Result<([u8; 32], M), Refusal> {
    let digest = |request: &M| Sha256::digest(request.encode_to_vec()).into();
    if request.encoded_len() <= LARGE_REQUEST {
        return Ok((digest(&request), request));
    }
    tokio::task::spawn_blocking(move || (digest(&request), request))
        .await
        .map_err(|error| Refusal::new(Reason::Internal, error.to_string()))
}

impl Calls {
    /// `stopping` ends the streams that are still open.
    pub(super) const fn new(jobs: JobsHandle, stopping: CancellationToken) -> Self {
        Self { jobs, stopping }
    }

    /// Registers a job, unless its id is registered; only then `request` is asked for.
    pub(super) async fn run(
        &self,
        id: &JobId,
        digest: &[u8; 32],
        request: impl FnOnce() -> Result<RunRequest, Refusal>,
    ) -> Result<(), Refusal> {
        if !self.jobs.is_registered(id, digest) {
            self.jobs.run(request()?).await?;
        }
        self.jobs.kept().await
    }

    /// The log of the job `id` from byte `offset` on.
    pub(super) fn follow_logs(
        &self,
        id: &str,
        offset: i64,
        deadline: Deadline,
    ) -> Result<Messages<v1::FollowLogsResponse>, Refusal> {
        let id = validate::job_id(id)?;
        let cursor = self.jobs.follow_logs(&id, validate::offset(offset)?)?;
        let messages = futures_util::stream::try_unfold(cursor, |mut cursor| async {
            Ok(cursor.next().await?.map(|data| (encode::log_piece(data), cursor)))
        })
        .map(|next: Result<_, Refusal>| next.map_err(|refusal| status::status(&refusal)));
        Ok(Box::pin(Deadlined::new(messages, deadline, self.stopping.clone())))
    }

    /// The step results of the job `id`, each made a message of the service.
    pub(super) fn follow_steps<T: 'static>(
        &self,
        id: &str,
        deadline: Deadline,
        message: fn(v1::StepResult) -> T,
    ) -> Result<Messages<T>, Refusal> {
        let cursor = self.jobs.follow_steps(&validate::job_id(id)?)?;
        let messages = futures_util::stream::try_unfold(cursor, |mut cursor| async {
            Ok(cursor.next().await?.map(|bytes| (bytes, cursor)))
        })
        .map(move |next: Result<_, Refusal>| {
            let stored = next.and_then(|bytes| encode::stored_result(&bytes));
            stored.map(message).map_err(|refusal| status::status(&refusal))
        });
        Ok(Box::pin(Deadlined::new(messages, deadline, self.stopping.clone())))
    }

    /// The states of the job `id`, or of all if it is empty.
    pub(super) fn states(&self, id: &str) -> Result<Vec<JobStatus>, Refusal> {
        match id {
            "" => Ok(self.jobs.all()),
            id => Ok(vec![self.jobs.status(&validate::job_id(id)?)?]),
        }
    }

    /// Stops the job `id` and keeps it.
    pub(super) async fn cancel(&self, id: &str) -> Result<(), Refusal> {
        self.jobs.cancel(&validate::job_id(id)?).await
    }

    /// Ends the job `id` and removes it.
    pub(super) async fn finish(&self, id: &str) -> Result<(), Refusal> {
        self.jobs.finish(&validate::job_id(id)?).await
    }
}
