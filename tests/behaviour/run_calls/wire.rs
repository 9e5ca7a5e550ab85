//! The service below the level of messages: deadlines, raw bytes, service names, health.

use crate::support::{Client, Daemon, refused, request, script};
use step_runner::pb::v1::{self, State};
use tonic::{Code, Request};

#[tokio::test]
async fn deadlines_of_callers_are_honoured() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let mut follow =
        Request::new(v1::FollowLogsRequest { id: "1".into(), offset: 0, ..v1::FollowLogsRequest::default() });
    follow.metadata_mut().insert("grpc-timeout", "3S".parse().unwrap());
    let mut stream = client.calls.clone().follow_logs(follow).await.unwrap().into_inner();
    let over = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended well"),
            Err(status) => break status,
        }
    };
    assert_eq!(over.code(), Code::DeadlineExceeded);
    let mut run = Request::new(request("late", &script("true")));
    run.metadata_mut().insert("grpc-timeout", "1n".parse().unwrap());
    let late = client.calls.clone().run(run).await.unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
    refused(client.try_status("late").await, Code::NotFound, "unknown_job");
    assert_eq!(client.jobs().await.len(), 1);
}

/// Codec that sends and receives plain bytes.
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut tonic::codec::EncodeBuf<'_>) -> Result<(), tonic::Status> {
        bytes::BufMut::put_slice(to, &item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn decode(&mut self, from: &mut tonic::codec::DecodeBuf<'_>) -> Result<Option<Vec<u8>>, tonic::Status> {
        let len = bytes::Buf::remaining(from);
        Ok(Some(bytes::Buf::copy_to_bytes(from, len).to_vec()))
    }
}

async fn raw(client: &Client, path: &'static str, message: Vec<u8>) -> Result<Vec<u8>, tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(client.channel.clone());
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(path);
    grpc.unary(Request::new(message), path, Raw).await.map(tonic::Response::into_inner)
}

fn run_bytes(id: &str, steps: &str) -> Vec<u8> {
    prost::Message::encode_to_vec(&request(id, steps))
}

#[tokio::test]
async fn the_service_answers_under_its_bare_name() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    raw(&client, "/StepRunner/Run", run_bytes("1", &script("echo bare"))).await.unwrap();
    assert_eq!(client.ended("1").await.exit_code, 0);
    assert_eq!(client.output("1").await, "bare\n");
    let unknown = raw(&client, "/steprunner.v1.StepRunner/Nothing", vec![]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    let unknown = raw(&client, "/other.Service/Run", vec![]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
}

#[tokio::test]
async fn health_is_served() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    for service in ["", "steprunner.v1.StepRunner", "StepRunner"] {
        // HealthCheckRequest { 1 service }, HealthCheckResponse { 1 status: SERVING = 1 }.
        let mut message = vec![0x0a, service.len() as u8];
        message.extend_from_slice(service.as_bytes());
        let answer = raw(&client, "/grpc.health.v1.Health/Check", message).await.unwrap();
        assert_eq!(answer, [0x08, 0x01], "{service}");
    }
    let unknown = raw(&client, "/grpc.health.v1.Health/Check", b"\x0a\x01x".to_vec()).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

#[tokio::test]
async fn unknown_fields_are_tolerated() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let mut message = run_bytes("1", &script("echo known"));
    // Field 900, varint; field 901, bytes; field 902, a group that is closed.
    message.extend_from_slice(&[0xa0, 0x38, 0x01, 0xaa, 0x38, 0x02, b'h', b'i', 0xb3, 0x38, 0xb4, 0x38]);
    raw(&client, "/steprunner.v1.StepRunner/Run", message).await.unwrap();
    assert_eq!(client.ended("1").await.exit_code, 0);
}

#[tokio::test]
async fn fault_57_what_is_no_message_is_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("beside", "echo on; exec sleep 600").await;
    let nested: Vec<u8> = (0..10_000).flat_map(|_| [0xb3_u8, 0x38]).collect();
    let messages = [
        b"\xff\xff\xff\xff".to_vec(),
        b"\x0a\x7f".to_vec(),
        b"\x0a\x02\xff\xfe".to_vec(),
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec(),
        b"\x0d".to_vec(),
        nested,
    ];
    for method in ["Run", "Status", "Finish", "Cancel"] {
        for message in &messages {
            let path: &'static str =
                Box::leak(format!("/steprunner.v1.StepRunner/{method}").into_boxed_str());
            let result = raw(&client, path, message.clone()).await;
            refused(result, Code::InvalidArgument, "malformed_request");
        }
    }
    assert_eq!(client.status("beside").await.state(), State::Running);
}

#[tokio::test]
async fn fault_57_a_request_that_is_too_large_is_refused_and_the_daemon_lives() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("beside", "echo on; exec sleep 600").await;
    client.prints("beside", "on").await;
    let large = raw(&client, "/steprunner.v1.StepRunner/Run", vec![0; (32 << 20) + 1]).await;
    refused(large, Code::InvalidArgument, "too_large");
    let client = daemon.client().await;
    assert_eq!(client.status("beside").await.state(), State::Running);
    assert_eq!(client.jobs().await.len(), 1);
}
