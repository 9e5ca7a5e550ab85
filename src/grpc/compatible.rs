//! The compatible service `proto.StepRunner`, as GitLab Runner calls it (service.md §4). Where it differs from the
//! canonical one: variables are not expanded and are no environment, a job may be run again after it was closed, and a
//! failure says in the end of its message with which exit code.

use indexmap::IndexMap;
use prost::Message;
use tonic::{Request, Response, Status};

use super::calls::{Calls, Messages, call, digested};
use super::deadline::Deadline;
use super::encode::{shorten_messages, timestamp};
use super::validate;
use crate::actors::handle;
use crate::actors::view::JobStatus;
use crate::failpoint;
use crate::model::{EndClass, JobId, JobState, Limits, Refusal};
use crate::pb::compatible::messages::guesses::{self, CancelRequest, ErrorKind, StatusError};
use crate::pb::compatible::messages::{
    CancelResponse, CloseRequest, CloseResponse, FollowLogsRequest, Job, RunResponse, StatusRequest,
    StatusResponse,
};
use crate::pb::compatible::service::step_runner_server::StepRunner;
use crate::pb::compatible::{RunRequest, messages};
use crate::pb::v1::{FollowLogsResponse, FollowStepsRequest, FollowStepsResponse, step_result};
use crate::store::Origin;
use crate::variables;

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
            let RunRequest { certain, guessed } = request.into_inner();
            let id = validate::job_id(&certain.id)?;
            let (digest, certain) = digested(certain).await?;
            self.0.run(&id, &digest, || run_request(id.clone(), digest, certain, guessed)).await?;
            Ok(RunResponse {})
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
            self.0.follow_logs(&id, offset, deadline)
        })
        .await
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::status");
            let StatusRequest { id } = request.into_inner();
            Ok(statuses(self.0.states(&id)?))
        })
        .await
    }

    async fn close(&self, request: Request<CloseRequest>) -> Result<Response<CloseResponse>, Status> {
        let deadline = Deadline::of(&request);
        call(deadline, async {
            failpoint::hit("grpc::finish");
            let CloseRequest { id } = request.into_inner();
            self.0.finish(&id).await?;
            Ok(CloseResponse {})
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

/// A request to run a job, its shape checked; its id was checked before.
pub(super) fn run_request(
    id: JobId,
    digest: [u8; 32],
    certain: messages::RunRequest,
    guessed: guesses::RunRequest,
) -> Result<handle::RunRequest, Refusal> {
    let size = certain.encoded_len();
    let messages::RunRequest { id: _, work_dir, env, job, steps } = certain;
    let guesses::RunRequest { timeout, graceful_exit_timeout } = guessed;
    let job = job.map(|Job { variables, build_dir }| variables::JobPart {
        variables: variables.into_iter().map(validate::variable).collect(),
        build_dir,
        token_prefixes: Vec::new(),
    });
    Ok(handle::RunRequest {
        id,
        digest,
        size,
        origin: Origin::Proto,
        labels: Default::default(),
        variables: variables::Request {
            work_dir,
            env: env.into_iter().collect(),
            job,
            masking: variables::Masking::default(),
        },
        steps: validate::steps(steps)?,
        file: None,
        inputs: IndexMap::default(),
        timeout: guessed_time(timeout),
        cancel_grace: guessed_time(graceful_exit_timeout),
        limits: Limits::default(),
    })
}

/// A time whose field is guessed: what is no time above zero is something else.
fn guessed_time(time: Option<prost_types::Duration>) -> Option<std::time::Duration> {
    time?.try_into().ok().filter(|time: &std::time::Duration| !time.is_zero())
}

/// States of jobs in one answer, which holds each message twice.
fn statuses(jobs: Vec<JobStatus>) -> StatusResponse {
    let mut answer = StatusResponse { jobs: jobs.into_iter().map(status).collect() };
    let len = answer.encoded_len();
    shorten_messages(len, &mut answer.jobs, |job| {
        let error = job.error.as_mut().map(|error| &mut error.message);
        error.into_iter().chain([&mut job.message]).collect()
    });
    answer
}

fn status(status: JobStatus) -> guesses::Status {
    let JobStatus {
        id,
        registered: _,
        state,
        exit_code: _,
        message,
        start_time,
        end_time,
        log_bytes: _,
        steps_done: _,
        cpu_time: _,
        peak_memory: _,
    } = status;
    let error =
        error_kind(state, &message).map(|kind| StatusError { message: message.clone(), kind: kind.into() });
    guesses::Status {
        id: id.to_string(),
        message,
        status: step_status(state).into(),
        start_time: start_time.map(timestamp),
        end_time: end_time.map(timestamp),
        error,
    }
}

const fn step_status(state: JobState) -> step_result::Status {
    match state {
        JobState::Queued => step_result::Status::Unspecified,
        JobState::Running | JobState::Cancelling => step_result::Status::Running,
        JobState::Ended(EndClass::Success) => step_result::Status::Success,
        JobState::Ended(EndClass::Failure | EndClass::Interrupted) => step_result::Status::Failure,
        JobState::Ended(EndClass::Cancelled | EndClass::Timeout) => step_result::Status::Cancelled,
    }
}

/// Class of the error of a job that ended without success.
fn error_kind(state: JobState, message: &str) -> Option<ErrorKind> {
    match state {
        JobState::Queued | JobState::Running | JobState::Cancelling | JobState::Ended(EndClass::Success) => {
            None
        }
        // What the machine of a job says of a defect begins so.
        JobState::Ended(EndClass::Failure) if message.starts_with("internal: ") => Some(ErrorKind::Internal),
        JobState::Ended(EndClass::Failure) => Some(ErrorKind::StepFailure),
        JobState::Ended(EndClass::Interrupted) => Some(ErrorKind::Internal),
        JobState::Ended(EndClass::Cancelled) => Some(ErrorKind::Cancelled),
        JobState::Ended(EndClass::Timeout) => Some(ErrorKind::Timeout),
    }
}
