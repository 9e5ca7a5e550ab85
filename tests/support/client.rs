//! A client that speaks plain gRPC to a daemon, without retries.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{PATIENCE, contains, logs, patiently, request, script};
use hyper_util::rt::TokioIo;
use step_runner::pb::v1::step_runner_client::StepRunnerClient;
use step_runner::pb::v1::{self, RunRequest, Status};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

/// A plain client with its own connection.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) calls: StepRunnerClient<Channel>,
    pub(crate) channel: Channel,
}

impl Client {
    pub(crate) async fn connect(socket: &Path) -> Self {
        let path = socket.to_owned();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://any.example");
        let channel = endpoint.connect_with_connector(connector).await.unwrap();
        let calls = StepRunnerClient::new(channel.clone()).max_decoding_message_size(64 << 20);
        Self { calls, channel }
    }

    pub(crate) async fn try_run(&self, request: RunRequest) -> Result<(), tonic::Status> {
        patiently("Run", self.calls.clone().run(request)).await.map(drop)
    }

    /// Returns the answer to a Run that must succeed.
    pub(crate) async fn answer_to_run(&self, request: RunRequest) -> v1::RunResponse {
        patiently("Run", self.calls.clone().run(request)).await.unwrap().into_inner()
    }

    /// Runs one script.
    pub(crate) async fn run(&self, id: &str, text: &str) {
        self.run_steps(id, &script(text)).await;
    }

    pub(crate) async fn run_steps(&self, id: &str, steps: &str) {
        self.try_run(request(id, steps)).await.unwrap();
    }

    pub(crate) async fn try_status(&self, id: &str) -> Result<Status, tonic::Status> {
        let request = v1::StatusRequest { id: id.to_owned() };
        let response = patiently("Status", self.calls.clone().status(request)).await?.into_inner();
        assert_eq!(response.jobs.len(), 1);
        Ok(response.jobs[0].clone())
    }

    pub(crate) async fn status(&self, id: &str) -> Status {
        self.try_status(id).await.unwrap()
    }

    /// Returns the states of all jobs.
    pub(crate) async fn jobs(&self) -> Vec<Status> {
        let request = v1::StatusRequest { id: String::new() };
        patiently("Status", self.calls.clone().status(request)).await.unwrap().into_inner().jobs
    }

    /// Returns the answer of Status for all jobs.
    pub(crate) async fn overview(&self) -> v1::StatusResponse {
        let request = v1::StatusRequest { id: String::new() };
        patiently("Status", self.calls.clone().status(request)).await.unwrap().into_inner()
    }

    pub(crate) async fn try_cancel(&self, id: &str) -> Result<(), tonic::Status> {
        let request = v1::CancelRequest { id: id.to_owned(), force: false };
        patiently("Cancel", self.calls.clone().cancel(request)).await.map(drop)
    }

    pub(crate) async fn cancel(&self, id: &str) {
        self.try_cancel(id).await.unwrap();
    }

    pub(crate) async fn try_finish(&self, id: &str) -> Result<(), tonic::Status> {
        let request = v1::FinishRequest { id: id.to_owned() };
        patiently("Finish", self.calls.clone().finish(request)).await.map(drop)
    }

    pub(crate) async fn finish(&self, id: &str) {
        self.try_finish(id).await.unwrap();
    }

    pub(crate) async fn try_follow(&self, id: &str, offset: i32) -> Result<Follow, tonic::Status> {
        let request = v1::FollowLogsRequest { id: id.to_owned(), offset, ..v1::FollowLogsRequest::default() };
        let stream = patiently("FollowLogs", self.calls.clone().follow_logs(request)).await?.into_inner();
        Ok(Follow { stream, bytes: Vec::new() })
    }

    pub(crate) async fn follow(&self, id: &str, offset: i32) -> Follow {
        self.try_follow(id, offset).await.unwrap()
    }

    /// Returns the whole log, once the job has ended.
    pub(crate) async fn log(&self, id: &str) -> Vec<u8> {
        self.follow(id, 0).await.rest().await.unwrap()
    }

    /// Returns the current log of a job, which can still run.
    pub(crate) async fn log_so_far(&self, id: &str) -> Vec<u8> {
        let len = self.status(id).await.log_bytes as usize;
        let mut follow = self.follow(id, 0).await;
        while follow.bytes.len() < len {
            follow.next().await.unwrap();
        }
        follow.bytes
    }

    /// Returns the stdout of the steps.
    pub(crate) async fn output(&self, id: &str) -> String {
        String::from_utf8(logs::source(&self.log(id).await, "01O")).unwrap()
    }

    /// Follows the job to its end. Asserts that Status then agrees with the stream.
    pub(crate) async fn ended(&self, id: &str) -> Status {
        let log = self.log(id).await;
        let status = self.status(id).await;
        assert!(status.finished, "the stream ended before the job: {status:?}");
        assert_eq!(status.log_bytes, log.len() as i64);
        assert!(status.end_time.is_some());
        status
    }

    /// Runs the steps to their end.
    pub(crate) async fn run_to_end(&self, id: &str, steps: &str) -> Status {
        self.run_steps(id, steps).await;
        self.ended(id).await
    }

    /// Waits for a state of the job and returns it.
    pub(crate) async fn reaches(&self, id: &str, what: &str, reached: impl Fn(&Status) -> bool) -> Status {
        let start = Instant::now();
        loop {
            let status = self.status(id).await;
            if reached(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "waited too long until {what}: {status:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the job's log holds `text`.
    pub(crate) async fn prints(&self, id: &str, text: &str) {
        self.follow(id, 0).await.until(text).await;
    }

    pub(crate) async fn try_steps(&self, id: &str) -> Result<Vec<v1::StepResult>, tonic::Status> {
        let request = v1::FollowStepsRequest { id: id.to_owned(), events: false };
        let mut stream =
            patiently("FollowSteps", self.calls.clone().follow_steps(request)).await?.into_inner();
        let mut results = Vec::new();
        while let Some(message) = patiently("a step", stream.message()).await? {
            results.push(message.result.unwrap());
        }
        Ok(results)
    }

    /// Returns all results of an ended job. The last one is the root.
    pub(crate) async fn steps(&self, id: &str) -> Vec<v1::StepResult> {
        self.try_steps(id).await.unwrap()
    }
}

/// A follower of a log.
pub(crate) struct Follow {
    stream: Streaming<v1::FollowLogsResponse>,
    /// Bytes received so far.
    pub(crate) bytes: Vec<u8>,
}

impl Follow {
    /// Receives the next message. Returns its length, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<usize>, tonic::Status> {
        let Some(message) = patiently("a piece of the log", self.stream.message()).await? else {
            return Ok(None);
        };
        assert!(!message.data.is_empty(), "an empty message");
        assert!(message.data.len() <= 64 << 10, "a message of {} bytes", message.data.len());
        self.bytes.extend_from_slice(&message.data);
        Ok(Some(message.data.len()))
    }

    /// Reads on until the log holds `text`.
    pub(crate) async fn until(&mut self, text: &str) {
        while !contains(&self.bytes, text) {
            let more = self.next().await.unwrap();
            assert!(
                more.is_some(),
                "the log ended without {text:?}:\n{}",
                String::from_utf8_lossy(&self.bytes)
            );
        }
    }

    /// Reads to the end of the log. Returns all bytes.
    pub(crate) async fn rest(mut self) -> Result<Vec<u8>, tonic::Status> {
        while self.next().await?.is_some() {}
        Ok(self.bytes)
    }
}
