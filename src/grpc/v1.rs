//! The canonical service `steprunner.v1.StepRunner` (service.md §2, §3).

use tonic::{Request, Response, Status};

use super::calls::{Calls, Messages, call, digested};
use super::deadline::Deadline;
use super::{encode, validate};
use crate::failpoint;
use crate::pb::v1::step_runner_server::StepRunner;
use crate::pb::v1::{
    CancelRequest, CancelResponse, FinishRequest, FinishResponse, FollowLogsRequest, FollowLogsResponse,
    FollowStepsRequest, FollowStepsResponse, RunRequest, RunResponse, StatusRequest, StatusResponse,
};

/// The service; clones share the jobs.
#[derive(Clone)]
pub(crate) struct Service(pub(super) Calls);

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
            let (digest, request) = digested(request).await?;
            self.0.run(&id, &digest, || validate::run_request(id.clone(), digest, request)).await?;
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
            self.0.follow_steps(&id, deadline, |result| FollowStepsResponse { result: Some(result) })
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
            self.0.follow_logs(&id, offset.into(), deadline)
        })
        .await
    }

    async fn finish(&self, request: Request<FinishRequest>) -> Result<Response<FinishResponse>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::finish");
            let FinishRequest { id } = request.into_inner();
            self.0.finish(&id).await?;
            Ok(FinishResponse {})
        })
        .await
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::status");
            let StatusRequest { id } = request.into_inner();
            Ok(encode::statuses(self.0.states(&id)?))
        })
        .await
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::cancel");
            let CancelRequest { id } = request.into_inner();
            self.0.cancel(&id).await?;
            Ok(CancelResponse {})
        })
        .await
    }
}
