//! The canonical service `steprunner.v1.StepRunner` (service.md §2, §3).

use tonic::{Request, Response, Status};

use super::calls::{Digested, JobCalls, Messages, StreamTerms, call, digested};
use super::deadline::Deadline;
use super::peer::Caller;
use super::{encode, validate};
use crate::actors::handle::Registered;
use crate::failpoint;
use crate::pb::v1::step_runner_server::StepRunner;
use crate::pb::v1::{
    CancelRequest, CancelResponse, FinishRequest, FinishResponse, FollowLogsRequest, FollowLogsResponse,
    FollowStepsRequest, FollowStepsResponse, RunRequest, RunResponse, StatusRequest, StatusResponse,
};

/// The service; clones share the jobs.
#[derive(Clone)]
pub(crate) struct Service(pub(super) JobCalls);

#[tonic::async_trait]
impl StepRunner for Service {
    type FollowStepsStream = Messages<FollowStepsResponse>;
    type FollowLogsStream = Messages<FollowLogsResponse>;

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        let (deadline, caller) = (Deadline::of(&request), Caller::of_request(&request));
        let request = request.into_inner();
        let id = request.id.clone();
        call(deadline, &id, async {
            failpoint::hit("grpc::run");
            let id = validate::job_id(&id)?;
            let Digested { digest, size, request } = digested(request).await?;
            let own = id.clone();
            let registered = self
                .0
                .run(caller, &id, &digest, size, move || validate::run_request(own, digest, request))
                .await?;
            Ok(RunResponse {
                other_content: registered == Registered::OtherContent,
                finished_at: match registered {
                    Registered::FinishedAt(at) => Some(encode::timestamp(at)),
                    Registered::Same | Registered::OtherContent => None,
                },
            })
        })
        .await
    }

    async fn follow_steps(
        &self,
        request: Request<FollowStepsRequest>,
    ) -> Result<Response<Self::FollowStepsStream>, Status> {
        let deadline = Deadline::of(&request);
        let FollowStepsRequest { id, events } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::follow_steps");
            if events {
                return self.0.follow_events(&id, deadline);
            }
            let message =
                |result| FollowStepsResponse { result: Some(result), ..FollowStepsResponse::default() };
            self.0.follow_steps(&id, deadline, message)
        })
        .await
    }

    async fn follow_logs(
        &self,
        request: Request<FollowLogsRequest>,
    ) -> Result<Response<Self::FollowLogsStream>, Status> {
        let (deadline, terms) = (Deadline::of(&request), StreamTerms::of(&request));
        let FollowLogsRequest { id, offset, unfinished } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::follow_logs");
            self.0.follow_logs(&id, offset.into(), unfinished, terms)
        })
        .await
    }

    async fn finish(&self, request: Request<FinishRequest>) -> Result<Response<FinishResponse>, Status> {
        let deadline = Deadline::of(&request);
        let FinishRequest { id } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::finish");
            self.0.finish(&id).await?;
            Ok(FinishResponse {})
        })
        .await
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let deadline = Deadline::of(&request);
        let StatusRequest { id } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::status");
            Ok(encode::statuses(self.0.full_states(&id).await?, self.0.left_over(&id)))
        })
        .await
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let deadline = Deadline::of(&request);
        let CancelRequest { id, force } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::cancel");
            self.0.cancel(&id, force).await?;
            Ok(CancelResponse {})
        })
        .await
    }
}
