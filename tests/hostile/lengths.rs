//! Requests that announce much and send little (faults.md row 105).

use std::path::Path;

use bytes::Bytes;
use h2::client::SendRequest;
use tonic::Code;

use super::prefix;
use super::support::{Daemon, refused, request, script};

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
    let mut held = Vec::new();
    for _ in 0..2 {
        let (answer, mut sending) = begin(&sender, "/steprunner.v1.StepRunner/Run", false).await;
        let missing = 30 << 10;
        sending
            .send_data([prefix(0, 32 << 20), vec![0; (32 << 20) - missing]].concat().into(), false)
            .unwrap();
        held.push((answer, sending));
    }
    let large = || {
        let mut run = request("large", &script("true"));
        run.env.insert("A".into(), "x".repeat(100 << 10));
        run
    };
    // The bytes of the other requests are on their way. A repeated Run is OK.
    loop {
        if let Err(status) = client.try_run(large()).await {
            refused(Err::<(), _>(status), Code::ResourceExhausted, "queue_full");
            break;
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
