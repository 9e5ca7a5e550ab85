//! Requests without a message, and requests that announce much and send little (faults.md rows 104, 105).

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::HeaderMap;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::prefix;
use crate::support::{Daemon, patiently, refused, request, script};

/// All calls that have one message as request.
const CALLS: [(&str, &[&str]); 6] = [
    ("steprunner.v1.StepRunner", &["Run", "FollowLogs", "FollowSteps", "Finish", "Cancel", "Status"]),
    ("StepRunner", &["Run", "FollowLogs", "FollowSteps", "Finish", "Cancel", "Status"]),
    ("proto.StepRunner", &["Run", "FollowLogs", "FollowSteps", "Close", "Cancel", "Status"]),
    ("step.StepRunner", &["Run", "FollowLogs", "FollowSteps", "Close", "Cancel", "Status"]),
    ("steprunner.v0.StepRunner", &["Run", "Follow", "Cancel"]),
    ("grpc.health.v1.Health", &["Check", "Watch"]),
];

/// Opens a connection on which calls are made frame by frame.
async fn connect(socket: &Path) -> SendRequest<Bytes> {
    let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Begins a call. `is_whole`: its body is empty, which its headers say.
async fn begin(
    sender: &SendRequest<Bytes>,
    path: &str,
    is_whole: bool,
) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
    let call = http::Request::post(format!("http://x{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let mut sender = sender.clone().ready().await.unwrap();
    sender.send_request(call, is_whole).unwrap()
}

/// Reads an answer to its end. Returns its status.
async fn status(answer: h2::client::ResponseFuture) -> Status {
    let (head, mut body) = answer.await.unwrap().into_parts();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data.unwrap().len()).unwrap();
    }
    let trailers: HeaderMap = body.trailers().await.unwrap().unwrap_or(head.headers);
    Status::from_header_map(&trailers).unwrap()
}

#[tokio::test]
async fn fault_104_a_call_without_a_message_is_malformed_in_every_service() {
    let daemon = Daemon::start();
    let sender = connect(&daemon.socket).await;
    for (service, methods) in CALLS {
        for method in methods {
            for (what, is_whole, body) in [
                ("headers alone", true, &b""[..]),
                ("an empty body", false, b""),
                ("two messages", false, &[0; 10]),
            ] {
                let (answer, mut sending) = begin(&sender, &format!("/{service}/{method}"), is_whole).await;
                if !is_whole {
                    sending.send_data(Bytes::copy_from_slice(body), true).unwrap();
                }
                let status = patiently("an answer", status(answer)).await;
                let told = format!("{service}/{method}, {what}: {status:?}");
                assert_eq!(status.code(), Code::InvalidArgument, "{told}");
                assert!(status.message().starts_with("malformed_request: it has "), "{told}");
                let info = status.get_details_error_info().unwrap_or_else(|| panic!("{told}"));
                assert_eq!(
                    (info.reason.as_str(), info.domain.as_str()),
                    ("malformed_request", "step-runner")
                );
            }
        }
    }
    // An empty message is a request.
    let (answer, mut sending) = begin(&sender, "/steprunner.v1.StepRunner/Status", false).await;
    sending.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
    assert_eq!(patiently("an answer", status(answer)).await.code(), Code::Ok);
}

#[tokio::test]
async fn fault_105_lengths_that_are_only_announced_take_no_room() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let sender = connect(&daemon.socket).await;
    let mut open = Vec::new();
    for _ in 0..50 {
        let (answer, mut sending) = begin(&sender, "/steprunner.v1.StepRunner/Run", false).await;
        sending.send_data([prefix(0, 32 << 20), vec![0; 10]].concat().into(), false).unwrap();
        open.push((answer, sending));
    }
    let mut large = request("large", &script("true"));
    large.env.insert("A".into(), "x".repeat(100 << 10));
    client.try_run(large).await.unwrap();
    assert_eq!(client.ended("large").await.exit_code, 0);
}

#[tokio::test]
async fn fault_57_large_requests_have_room_for_some_at_a_time() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let sender = connect(&daemon.socket).await;
    let hold = async || {
        let (answer, mut sending) = begin(&sender, "/steprunner.v1.StepRunner/Run", false).await;
        let missing = 30 << 10;
        sending
            .send_data([prefix(0, 32 << 20), vec![0; (32 << 20) - missing]].concat().into(), false)
            .unwrap();
        (answer, sending)
    };
    let mut held = [hold().await, hold().await];
    let large = || {
        let mut run = request("large", &script("true"));
        run.env.insert("A".into(), "x".repeat(100 << 10));
        run
    };
    // The bytes of the other requests are on their way. A repeated Run is OK.
    loop {
        let tried = client.try_run(large()).await;
        if tried.is_err() {
            refused(tried, Code::ResourceExhausted, "queue_full");
            break;
        }
        for other in &mut held {
            // Its last bytes may have found no room, because this request had it.
            if tokio::time::timeout(Duration::ZERO, &mut other.0).await.is_ok() {
                *other = hold().await;
            }
        }
    }
    // Small requests need no room. A call that is given up leaves its own.
    assert_eq!(client.run_to_end("small", &script("true")).await.exit_code, 0);
    drop((held, sender));
    loop {
        match client.try_run(large()).await {
            Ok(()) => break,
            refusal => drop(refused(refusal, Code::ResourceExhausted, "queue_full")),
        }
    }
    assert_eq!(client.ended("large").await.exit_code, 0);
}
