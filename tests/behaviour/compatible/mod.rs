//! The compatible service and the first draft, with the real program (service.md §4, §5).

mod bad_input;
mod draft;
mod plain_log;
mod proxied;
mod rules;
mod shared;

use crate::support::{Daemon, patiently};
use http::uri::PathAndQuery;
use prost::Message;
use step_runner::pb::compatible::messages::guesses::{self, CancelRequest, ErrorKind};
use step_runner::pb::compatible::messages::{
    CancelResponse, CloseRequest, CloseResponse, FollowLogsRequest, Job, RunRequest, RunResponse,
    StatusRequest, StatusResponse,
};
use step_runner::pb::v1::step_result::Status as StepStatus;
use step_runner::pb::v1::{self, FollowLogsResponse, FollowStepsRequest, FollowStepsResponse};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// Package names of the compatible service.
const NAMES: [&str; 2] = ["proto", "step"];

/// Returns the request that GitLab Runner makes of a `run` list: an empty interface, and a definition with only that
/// list.
fn from_runner(id: &str, run: &str) -> RunRequest {
    RunRequest { id: id.into(), steps: format!("{{}}\n---\nrun: {run}\n"), ..RunRequest::default() }
}

fn with_job(request: RunRequest, variables: Vec<v1::Variable>) -> RunRequest {
    RunRequest { job: Some(Job { variables, build_dir: String::new() }), ..request }
}

fn variable(key: &str, value: &str) -> v1::Variable {
    v1::Variable { key: key.into(), value: value.into(), file: false, masked: false }
}

fn masked(key: &str, value: &str) -> v1::Variable {
    v1::Variable { masked: true, ..variable(key, value) }
}

/// A client of the service under one of its names.
#[derive(Clone)]
struct Peer {
    channel: Channel,
    package: &'static str,
}

impl Peer {
    async fn of(daemon: &Daemon) -> Self {
        Self::named(daemon, "proto").await
    }

    async fn named(daemon: &Daemon, package: &'static str) -> Self {
        Self { channel: daemon.client().await.channel, package }
    }

    fn path(&self, method: &str) -> PathAndQuery {
        format!("/{}.StepRunner/{method}", self.package).parse().unwrap()
    }

    async fn call<A, B>(&self, method: &str, request: A) -> Result<B, Status>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let codec = ProstCodec::<A, B>::default();
        let answer = patiently(method, grpc.unary(Request::new(request), self.path(method), codec)).await;
        answer.map(tonic::Response::into_inner)
    }

    async fn stream<A, B>(&self, method: &str, request: A) -> Result<Streaming<B>, Status>
    where
        A: Message + Send + Sync + 'static,
        B: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let codec = ProstCodec::<A, B>::default();
        let answer =
            patiently(method, grpc.server_streaming(Request::new(request), self.path(method), codec)).await;
        answer.map(tonic::Response::into_inner)
    }

    async fn try_run(&self, request: RunRequest) -> Result<(), Status> {
        self.call::<_, RunResponse>("Run", request).await.map(drop)
    }

    /// Runs a request with these bytes as the fields whose numbers we have guessed.
    async fn run_with(&self, request: RunRequest, guessed: &[u8]) {
        // Concatenated protobuf messages are read as one merged message.
        let bytes = [&request.encode_to_vec(), guessed].concat();
        self.call::<_, RunResponse>("Run", Whole(bytes)).await.unwrap();
    }

    async fn run(&self, id: &str, script: &str) {
        let run = serde_json::json!([{"name": "s", "script": script}]);
        self.try_run(from_runner(id, &run.to_string())).await.unwrap();
    }

    async fn try_close(&self, id: &str) -> Result<(), Status> {
        self.call::<_, CloseResponse>("Close", CloseRequest { id: id.into() }).await.map(drop)
    }

    async fn close(&self, id: &str) {
        self.try_close(id).await.unwrap();
    }

    async fn try_cancel(&self, id: &str) -> Result<(), Status> {
        self.call::<_, CancelResponse>("Cancel", CancelRequest { id: id.into() }).await.map(drop)
    }

    async fn jobs(&self, id: &str) -> Result<Vec<guesses::Status>, Status> {
        let answer = self.call::<_, StatusResponse>("Status", StatusRequest { id: id.into() }).await?;
        Ok(answer.jobs)
    }

    async fn status(&self, id: &str) -> guesses::Status {
        let mut jobs = self.jobs(id).await.unwrap();
        assert_eq!(jobs.len(), 1);
        jobs.remove(0)
    }

    async fn try_log(&self, id: &str, offset: i64) -> Result<Vec<u8>, Status> {
        let request = FollowLogsRequest { id: id.into(), offset };
        let mut stream = self.stream::<_, FollowLogsResponse>("FollowLogs", request).await?;
        let mut log = Vec::new();
        while let Some(message) = patiently("the log", stream.message()).await? {
            log.extend_from_slice(&message.data);
        }
        Ok(log)
    }

    /// Returns the whole log, once the job has ended.
    async fn log(&self, id: &str) -> Vec<u8> {
        self.try_log(id, 0).await.unwrap()
    }

    /// Follows the job to its end. Returns its state, kind of error, and message.
    async fn ended(&self, id: &str) -> (StepStatus, Option<ErrorKind>, String) {
        self.log(id).await;
        let status = self.status(id).await;
        assert!(status.end_time.is_some(), "the stream ended before the job: {status:?}");
        if let Some(error) = &status.error {
            assert_eq!(error.message, status.message);
        }
        (status.status(), status.error.as_ref().map(guesses::StatusError::kind), status.message)
    }

    async fn steps(&self, id: &str) -> Vec<v1::StepResult> {
        let request = FollowStepsRequest { id: id.into(), events: false };
        let mut stream = self.stream::<_, FollowStepsResponse>("FollowSteps", request).await.unwrap();
        let mut results = Vec::new();
        while let Some(message) = patiently("a step", stream.message()).await.unwrap() {
            results.push(message.result.unwrap());
        }
        results
    }
}

/// A message that is already encoded.
#[derive(Clone, Debug, Default)]
struct Whole(Vec<u8>);

impl Message for Whole {
    fn encode_raw(&self, buf: &mut impl prost::bytes::BufMut) {
        buf.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: prost::encoding::WireType,
        buf: &mut impl prost::bytes::Buf,
        ctx: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        prost::encoding::skip_field(wire_type, tag, buf, ctx)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
