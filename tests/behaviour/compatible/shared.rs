//! One job used through several services (service.md §1).

use step_runner::pb::v1::State;
use step_runner::pb::v1::step_result::Status as StepStatus;

use super::{NAMES, Peer};
use crate::compatible::draft::Draft;
use crate::support::{Daemon, contains, refused, request, script};

const LASTING: &str = "echo on; trap 'echo off; exit' TERM; while :; do sleep 0.01; done";

#[tokio::test]
async fn a_job_of_one_service_is_a_job_of_all() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let [one, two] = NAMES;
    let (one, two) = (Peer::named(&daemon, one).await, Peer::named(&daemon, two).await);
    let draft = Draft::of(&daemon).await;
    // The job is started, followed, cancelled and ended through different services.
    one.run("1", LASTING).await;
    client.prints("1", "on").await;
    two.try_cancel("1").await.unwrap();
    assert!(contains(&client.log("1").await, "off"));
    assert_eq!(draft.follow("1").await.unwrap().len(), 2);
    client.finish("1").await;
    assert!(one.jobs("").await.unwrap().is_empty());

    client.run("2", LASTING).await;
    client.cancel("2").await;
    assert_eq!(one.ended("2").await.0, StepStatus::Cancelled);
    draft.cancel("2").await.unwrap();

    draft.ci_job("3", &format!("script: {}", serde_json::json!(LASTING))).await.unwrap();
    client.prints("3", "on").await;
    client.cancel("3").await;
    assert_eq!(two.ended("3").await.0, StepStatus::Cancelled);
    two.close("3").await;
    assert!(client.jobs().await.is_empty());
}

#[tokio::test]
async fn a_registered_id_is_not_started_again_by_another_service() {
    let daemon = Daemon::start();
    let (client, peer) = (daemon.client().await, Peer::of(&daemon).await);
    let count = daemon.file("count");
    let text = format!("echo run >> {}", count.display());
    client.run("1", &text).await;
    client.ended("1").await;
    peer.run("1", &text).await;
    Draft::of(&daemon).await.ci_job("1", &format!("script: {text:?}")).await.unwrap();
    assert_eq!(std::fs::read_to_string(&count).unwrap(), "run\n");
}

#[tokio::test]
async fn runs_of_one_id_through_all_services_at_once_start_one_job() {
    let daemon = Daemon::start();
    let (client, peer, draft) = (daemon.client().await, Peer::of(&daemon).await, Draft::of(&daemon).await);
    let count = daemon.file("count");
    let text = format!("echo run >> {}", count.display());
    for round in 1..=10 {
        let id = format!("job-{round}");
        let ci_job = format!("script: {text:?}");
        let (canonical, (), drafted) = tokio::join!(
            client.try_run(request(&id, &script(&text))),
            peer.run(&id, &text),
            draft.ci_job(&id, &ci_job),
        );
        canonical.and(drafted).unwrap();
        assert_eq!(client.ended(&id).await.state(), State::Success);
        assert_eq!(std::fs::read_to_string(&count).unwrap(), "run\n".repeat(round));
    }
}

#[tokio::test]
async fn health_knows_every_name() {
    let daemon = Daemon::start();
    let health = Peer { package: "grpc.health.v1", ..Peer::of(&daemon).await };
    for service in [
        "",
        "steprunner.v1.StepRunner",
        "StepRunner",
        "proto.StepRunner",
        "step.StepRunner",
        "steprunner.v0.StepRunner",
    ] {
        // Other message types work here: each request and answer has one field of the same type, so the encoding is the
        // same.
        let answer: Result<i32, _> = health.check(service).await;
        assert_eq!(answer.unwrap(), 1, "{service}");
    }
    let unknown = health.check("proto.Other").await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    refused(Peer::of(&daemon).await.jobs("1").await, tonic::Code::NotFound, "unknown_job");
}

impl Peer {
    async fn check(&self, service: &str) -> Result<i32, tonic::Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<String, i32>::default();
        let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let answer = grpc.unary(tonic::Request::new(service.to_owned()), path, codec).await;
        answer.map(tonic::Response::into_inner)
    }
}
