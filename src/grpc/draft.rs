//! The first draft of the service, `steprunner.v0.StepRunner` (service.md §5). Translates its requests to the terms of
//! the canonical service.

mod ci_job;
mod listed;

use indexmap::IndexMap;
use prost::Message;
use tonic::{Request, Response, Status};

use super::calls::{Digested, JobCalls, Messages, call, digested};
use super::deadline::Deadline;
use super::peer::Caller;
use super::validate;
use crate::ci::plan::Plan;
use crate::failpoint;
use crate::model::{JobId, Reason, Refusal, ResourceLimits};
use crate::pb::v0::run_request::JobOneof;
use crate::pb::v0::step_runner_server::StepRunner;
use crate::pb::v0::{
    CancelRequest, CancelResponse, FollowRequest, FollowResponse, RunRequest, RunResponse, Steps,
};
use crate::pb::without_facts;
use crate::request::{JobPart, RequestLabels, RequestOrigin, Run, RunEnvironment};

/// The service; clones share the jobs.
#[derive(Clone)]
pub(crate) struct Service(pub(super) JobCalls);

#[tonic::async_trait]
impl StepRunner for Service {
    type FollowStream = Messages<FollowResponse>;

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        let (deadline, caller) = (Deadline::of(&request), Caller::of_request(&request));
        let request = request.into_inner();
        let id = request.id.clone();
        call(deadline, &id, async {
            failpoint::hit("grpc::run");
            let id = validate::job_id(&id)?;
            let Digested { digest, size, request } = digested(request).await?;
            let own = id.clone();
            self.0.run(caller, &id, &digest, size, move || run_request(own, digest, request)).await?;
            Ok(RunResponse {})
        })
        .await
    }

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let deadline = Deadline::of(&request);
        let FollowRequest { id } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::follow_steps");
            let message = |result| FollowResponse { result: Some(without_facts(result)) };
            self.0.follow_steps(&id, deadline, message)
        })
        .await
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let deadline = Deadline::of(&request);
        let CancelRequest { id } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::finish");
            self.0.finish(&id).await?;
            Ok(CancelResponse {})
        })
        .await
    }
}

/// Checks the shape of a request to run a job. The caller has checked its id.
pub(super) fn run_request(id: JobId, digest: [u8; 32], request: RunRequest) -> Result<Run, Refusal> {
    let size = request.encoded_len();
    let RunRequest { id: _, job_oneof } = request;
    let (steps, plan) = match job_oneof {
        None => {
            let text = "neither ci_job nor steps is set: set one of them";
            return Err(Refusal::new(Reason::MalformedSteps, text));
        }
        Some(JobOneof::Steps(Steps { steps })) => (listed::text(steps)?, None),
        Some(JobOneof::CiJob(text)) => {
            let mut plan = ci_job::planned(&validate::steps(text)?)?;
            (std::mem::take(&mut plan.steps), Some(plan))
        }
    };
    let file = plan.is_some().then(|| ci_job::PLANNED.to_owned());
    let timeout = plan.as_ref().and_then(|plan| plan.timeout);
    let cleanup_timeout = plan.as_ref().map(|plan| plan.cleanup_timeout);
    let (inputs, job) = match plan {
        Some(Plan { inputs, variables, .. }) => {
            (ci_job::values(inputs), Some(JobPart { variables, ..Default::default() }))
        }
        None => (IndexMap::default(), None),
    };
    Ok(Run {
        id,
        digest,
        size,
        origin: RequestOrigin::V0,
        labels: RequestLabels::default(),
        environment: RunEnvironment { job, ..Default::default() },
        steps: validate::steps(steps)?,
        file,
        inputs,
        timeout,
        cancel_grace: None,
        cleanup_timeout,
        errexit: false,
        trace_sections: false,
        limits: ResourceLimits::default(),
    })
}
