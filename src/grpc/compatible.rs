//! The compatible service `proto.StepRunner`, as GitLab Runner calls it (service.md §4). It differs from the canonical
//! service: variables are not expanded and do not become environment, a job may be run again after Close, and the
//! message of a failed job ends in the exit status of the process that failed it.

use indexmap::IndexMap;
use prost::Message;
use tonic::{Request, Response, Status};

use super::calls::{Digested, JobCalls, Messages, StreamTerms, call, digested};
use super::deadline::Deadline;
use super::encode::{shorten_messages, timestamp};
use super::peer::Caller;
use super::{plain_log, validate};
use crate::actors::view::JobStatus;
use crate::config::JobLogFormat;
use crate::failpoint;
use crate::model::{EndClass, JobId, JobState, Refusal, ResourceLimits};
use crate::pb::compatible::messages::guesses::{self, CancelRequest, ErrorKind, StatusError};
use crate::pb::compatible::messages::{
    CancelResponse, CloseRequest, CloseResponse, FollowLogsRequest, Job, RunResponse, StatusRequest,
    StatusResponse,
};
use crate::pb::compatible::service::step_runner_server::StepRunner;
use crate::pb::compatible::{RunRequest, messages};
use crate::pb::v1::{FollowLogsResponse, FollowStepsRequest, FollowStepsResponse, step_result};
use crate::pb::without_facts;
use crate::request::{JobPart, Masking, RequestLabels, Run, RunEnvironment};

/// The service; clones share the jobs.
#[derive(Clone)]
pub(crate) struct Service(pub(super) JobCalls);

#[tonic::async_trait]
impl StepRunner for Service {
    type FollowStepsStream = Messages<FollowStepsResponse>;
    type FollowLogsStream = Messages<FollowLogsResponse>;

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        let (deadline, caller) = (Deadline::of(&request), Caller::of_request(&request));
        let RunRequest { certain, guessed } = request.into_inner();
        let id = certain.id.clone();
        call(deadline, &id, async {
            failpoint::hit("grpc::run");
            let id = validate::job_id(&id)?;
            let Digested { digest, size, request } = digested(certain).await?;
            let own = id.clone();
            let format = self.0.job_log_format();
            self.0
                .run(caller, &id, &digest, size, move || run_request(own, digest, request, guessed, format))
                .await?;
            Ok(RunResponse {})
        })
        .await
    }

    async fn follow_logs(
        &self,
        request: Request<FollowLogsRequest>,
    ) -> Result<Response<Self::FollowLogsStream>, Status> {
        let (deadline, terms) = (Deadline::of(&request), StreamTerms::of(&request));
        let FollowLogsRequest { id, offset } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::follow_logs");
            self.0.follow_compatible_logs(&id, offset, terms)
        })
        .await
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let deadline = Deadline::of(&request);
        let StatusRequest { id } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::status");
            Ok(statuses(self.0.states(&id)?))
        })
        .await
    }

    async fn close(&self, request: Request<CloseRequest>) -> Result<Response<CloseResponse>, Status> {
        let deadline = Deadline::of(&request);
        let CloseRequest { id } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::finish");
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
        let FollowStepsRequest { id, events: _ } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::follow_steps");
            let message = |result| FollowStepsResponse {
                result: Some(without_facts(result)),
                ..FollowStepsResponse::default()
            };
            self.0.follow_steps(&id, deadline, message)
        })
        .await
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let deadline = Deadline::of(&request);
        let CancelRequest { id } = request.into_inner();
        call(deadline, &id, async {
            failpoint::hit("grpc::cancel");
            self.0.cancel(&id, false).await?;
            Ok(CancelResponse {})
        })
        .await
    }
}

/// Checks the shape of a request to run a job. The caller has checked its id.
pub(super) fn run_request(
    id: JobId,
    digest: [u8; 32],
    certain: messages::RunRequest,
    guessed: guesses::RunRequest,
    log_format: JobLogFormat,
) -> Result<Run, Refusal> {
    let size = certain.encoded_len();
    let messages::RunRequest { id: _, work_dir, env, job, steps } = certain;
    let guesses::RunRequest { timeout, graceful_exit_timeout } = guessed;
    let job = job.map(|Job { variables, build_dir }| JobPart {
        variables: variables.into_iter().map(validate::variable).collect(),
        build_dir,
        ..JobPart::default()
    });
    let origin = plain_log::origin(log_format, job.as_ref().map_or(&[][..], |job: &JobPart| &job.variables));
    Ok(Run {
        id,
        digest,
        size,
        origin,
        labels: RequestLabels::default(),
        environment: RunEnvironment {
            work_dir,
            env: env.into_iter().collect(),
            job,
            masking: Masking::default(),
        },
        steps: validate::steps(steps)?,
        file: None,
        inputs: IndexMap::default(),
        timeout: guessed_time(timeout),
        cancel_grace: guessed_time(graceful_exit_timeout),
        cleanup_timeout: None,
        errexit: false,
        trace_sections: false,
        limits: ResourceLimits::default(),
    })
}

/// Reads a time with a guessed field number. A value not above zero must be another field and is ignored.
fn guessed_time(time: Option<prost_types::Duration>) -> Option<std::time::Duration> {
    time?.try_into().ok().filter(|time: &std::time::Duration| !time.is_zero())
}

/// Makes one answer with the states of jobs. It holds each message twice.
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
        is_defect,
        cancel_cause: _,
        message,
        start_time,
        end_time,
        log_bytes: _,
        steps_done: _,
        allowed_failures: _,
        cpu_time: _,
        peak_memory: _,
        current: _,
        queue_position: _,
        is_paused: _,
        usage: _,
    } = status;
    let error =
        error_kind(state, is_defect).map(|kind| StatusError { message: message.clone(), kind: kind.into() });
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

/// Returns the error class of a job that ended without success.
const fn error_kind(state: JobState, is_defect: bool) -> Option<ErrorKind> {
    match state {
        JobState::Queued | JobState::Running | JobState::Cancelling | JobState::Ended(EndClass::Success) => {
            None
        }
        JobState::Ended(EndClass::Failure) if is_defect => Some(ErrorKind::Internal),
        JobState::Ended(EndClass::Failure) => Some(ErrorKind::StepFailure),
        JobState::Ended(EndClass::Interrupted) => Some(ErrorKind::Internal),
        JobState::Ended(EndClass::Cancelled) => Some(ErrorKind::Cancelled),
        JobState::Ended(EndClass::Timeout) => Some(ErrorKind::Timeout),
    }
}
