//! The canonical service `steprunner.v1.StepRunner` (service.md §2, §3).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures_util::{FutureExt, Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::deadline::{Deadline, Deadlined};
use super::{encode, status, validate};
use crate::actors::handle::JobsHandle;
use crate::failpoint;
use crate::model::Refusal;
use crate::pb::v1::step_runner_server::StepRunner;
use crate::pb::v1::{
    CancelRequest, CancelResponse, FinishRequest, FinishResponse, FollowLogsRequest, FollowLogsResponse,
    FollowStepsRequest, FollowStepsResponse, RunRequest, RunResponse, StatusRequest, StatusResponse,
};

/// The service; clones share the jobs.
#[derive(Clone)]
pub(crate) struct Service {
    jobs: JobsHandle,
    stopping: CancellationToken,
}

impl Service {
    /// `stopping` ends the streams that are still open.
    pub(crate) const fn new(jobs: JobsHandle, stopping: CancellationToken) -> Self {
        Self { jobs, stopping }
    }
}

/// A boxed stream of responses.
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Runs a call within its deadline; a panic in it is a defect that ends this call only.
async fn call<T>(
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

#[tonic::async_trait]
impl StepRunner for Service {
    type FollowStepsStream = Messages<FollowStepsResponse>;
    type FollowLogsStream = Messages<FollowLogsResponse>;

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::run");
            let request = request.into_inner();
            let id = validate::job_id(&request.id)?;
            let (digest, request) = validate::digested(request).await?;
            if !self.jobs.is_registered(&id, &digest) {
                self.jobs.run(validate::run_request(id, digest, request)?).await?;
            }
            self.jobs.kept().await?;
            Ok(RunResponse {})
        })
        .await
    }

    async fn follow_steps(
        &self,
        request: Request<FollowStepsRequest>,
    ) -> Result<Response<Self::FollowStepsStream>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::follow_steps");
            let FollowStepsRequest { id } = request.into_inner();
            let cursor = self.jobs.follow_steps(&validate::job_id(&id)?)?;
            let messages = futures_util::stream::try_unfold(cursor, |mut cursor| async {
                Ok(cursor.next().await?.map(|bytes| (bytes, cursor)))
            })
            .map(|next: Result<_, Refusal>| {
                let bytes = next.map_err(|refusal| status::status(&refusal))?;
                encode::stored_result(&bytes).map_err(|refusal| status::status(&refusal))
            });
            Ok(Box::pin(Deadlined::new(messages, deadline, self.stopping.clone())) as Self::FollowStepsStream)
        })
        .await
    }

    async fn follow_logs(
        &self,
        request: Request<FollowLogsRequest>,
    ) -> Result<Response<Self::FollowLogsStream>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::follow_logs");
            let FollowLogsRequest { id, offset } = request.into_inner();
            let id = validate::job_id(&id)?;
            let cursor = self.jobs.follow_logs(&id, validate::offset(offset)?)?;
            let messages = futures_util::stream::try_unfold(cursor, |mut cursor| async {
                Ok(cursor.next().await?.map(|data| (encode::log_piece(data), cursor)))
            })
            .map(|next: Result<_, Refusal>| next.map_err(|refusal| status::status(&refusal)));
            Ok(Box::pin(Deadlined::new(messages, deadline, self.stopping.clone())) as Self::FollowLogsStream)
        })
        .await
    }

    async fn finish(&self, request: Request<FinishRequest>) -> Result<Response<FinishResponse>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::finish");
            let FinishRequest { id } = request.into_inner();
            self.jobs.finish(&validate::job_id(&id)?).await?;
            Ok(FinishResponse {})
        })
        .await
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::status");
            let StatusRequest { id } = request.into_inner();
            let jobs = match id.as_str() {
                "" => self.jobs.all(),
                id => vec![self.jobs.status(&validate::job_id(id)?)?],
            };
            Ok(encode::statuses(jobs))
        })
        .await
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::cancel");
            let CancelRequest { id } = request.into_inner();
            self.jobs.cancel(&validate::job_id(&id)?).await?;
            Ok(CancelResponse {})
        })
        .await
    }
}
