//! Makes the calls of the Runner's client, in their order, through `steps proxy` (service.md §4.2, connectors.md §1).

use std::process::{Child, Command, Stdio};

use hyper_util::rt::TokioIo;
use step_runner::pb::compatible::messages::RunRequest;
use step_runner::pb::compatible::messages::guesses::ErrorKind;
use step_runner::pb::v1::step_result::Status as StepStatus;
use tokio::net::unix::pipe::{Receiver, Sender};
use tonic::transport::Endpoint;

use super::{Peer, from_runner};
use crate::support::{Daemon, contains, until};

/// A client behind its own proxy, as a runner starts it.
struct Proxied {
    peer: Peer,
    proxy: Child,
}

impl Proxied {
    async fn dial(daemon: &Daemon) -> Self {
        let mut proxy = Command::new(env!("CARGO_BIN_EXE_step-runner"))
            .args(["steps", "proxy", "--socket"])
            .arg(&daemon.socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // In some executors nobody reads stderr.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let from = Receiver::from_owned_fd(proxy.stdout.take().unwrap().into()).unwrap();
        let to = Sender::from_owned_fd(proxy.stdin.take().unwrap().into()).unwrap();
        let mut pipes = Some(TokioIo::new(tokio::io::join(from, to)));
        // The connection is made once and never again.
        let connector = tower::service_fn(move |_| {
            let pipes = pipes.take().ok_or_else(|| std::io::Error::other("the line is used up"));
            async move { pipes }
        });
        let endpoint = Endpoint::from_static("http://any.example");
        let channel = endpoint.connect_with_connector(connector).await.unwrap();
        Self { peer: Peer { channel, package: "proto" }, proxy }
    }

    /// Closes the connection and waits for the proxy to end.
    async fn hang_up(self) {
        let Self { peer, mut proxy } = self;
        drop(peer);
        until("the proxy ends", || proxy.try_wait().unwrap().is_some()).await;
    }
}

#[tokio::test]
async fn run_follow_status_close() {
    let daemon = Daemon::start();
    let line = Proxied::dial(&daemon).await;
    line.peer.run("42", "echo out; echo err >&2; exit 9").await;
    let log = line.peer.log("42").await;
    assert!(contains(&log, "out") && contains(&log, "err"));
    let (status, kind, message) = line.peer.ended("42").await;
    assert_eq!((status, kind), (StepStatus::Failure, Some(ErrorKind::StepFailure)));
    assert!(message.ends_with("exit status 9"), "{message}");
    line.peer.close("42").await;
    assert!(daemon.folders().is_empty());
    line.hang_up().await;
}

#[tokio::test]
async fn cancel_comes_from_another_connection_and_the_log_ends_normally() {
    let daemon = Daemon::start();
    let line = Proxied::dial(&daemon).await;
    line.peer.run("42", "trap 'echo bye; exit 1' TERM; echo on; while :; do sleep 0.01; done").await;
    let follower = line.peer.clone();
    let log = tokio::spawn(async move { follower.log("42").await });
    daemon.client().await.prints("42", "on").await;
    let other = Proxied::dial(&daemon).await;
    other.peer.try_cancel("42").await.unwrap();
    other.hang_up().await;
    assert!(contains(&log.await.unwrap(), "bye"));
    let (status, kind, _) = line.peer.ended("42").await;
    assert_eq!((status, kind), (StepStatus::Cancelled, Some(ErrorKind::Cancelled)));
    line.peer.close("42").await;
    line.hang_up().await;
}

#[tokio::test]
async fn a_line_that_is_cut_leaves_the_job_to_the_next_one() {
    let daemon = Daemon::start();
    let line = Proxied::dial(&daemon).await;
    let run = serde_json::json!([{"name": "s", "script": "echo on; while [ ! -e go ]; do sleep 0.01; done; echo end"}]);
    let work_dir = daemon.file("work").to_str().unwrap().to_owned();
    line.peer.try_run(RunRequest { work_dir, ..from_runner("42", &run.to_string()) }).await.unwrap();
    daemon.client().await.prints("42", "on").await;
    line.hang_up().await;
    std::fs::write(daemon.file("work/go"), "").unwrap();
    let line = Proxied::dial(&daemon).await;
    assert!(contains(&line.peer.log("42").await, "end"));
    line.peer.close("42").await;
}
