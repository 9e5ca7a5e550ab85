//! Limits of requests.

use std::collections::BTreeMap;

use crate::support::{Daemon, Setup, patiently, refused, request, script};
use step_runner::pb::v1::{self, RunRequest};
use tonic::Code;

#[tokio::test]
async fn every_limit_has_its_reason() {
    let daemon = Setup::new().option("max-jobs", "2").option("max-followers", "3").start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.run("2", "true").await;
    let full = client.try_run(request("3", &script("true"))).await;
    let status = full.clone().unwrap_err();
    assert!(tonic_types::StatusExt::get_details_retry_info(&status).is_some(), "it says when to come back");
    refused(full, Code::ResourceExhausted, "too_many_jobs");
    client.finish("2").await;
    client.run("3", "true").await;
    let mut followers = Vec::new();
    for _ in 0..3 {
        followers.push(client.follow("1", 0).await);
    }
    refused(client.try_follow("1", 0).await, Code::ResourceExhausted, "too_many_followers");
    followers.clear();
    // Followers that disconnected no longer count.
    let room = async { while client.try_follow("1", 0).await.is_err() {} };
    patiently("room for a follower", room).await;
}

#[tokio::test]
async fn contents_over_their_limits_are_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let steps = script("true");
    let long = request("1", &format!("# {}\n[]", "x".repeat(16 << 20)));
    refused(client.try_run(long).await, Code::InvalidArgument, "too_large");
    let env: BTreeMap<String, String> = (0..4_097).map(|n| (format!("V{n}"), String::new())).collect();
    let many = RunRequest { env, ..request("1", &steps) };
    refused(client.try_run(many).await, Code::InvalidArgument, "too_large");
    let env = BTreeMap::from([("A".to_owned(), "x".repeat(131_070))]);
    let wide = RunRequest { env, ..request("1", &steps) };
    refused(client.try_run(wide).await, Code::InvalidArgument, "too_large");
    let env = BTreeMap::from([("A".to_owned(), "x".repeat(131_069))]);
    client.try_run(RunRequest { env, ..request("fits", &steps) }).await.unwrap();
    assert_eq!(client.ended("fits").await.exit_code, 0);
    let phrases = (0..4_097).map(|n| format!("phrase-{n}")).collect();
    let masking = Some(v1::Masking { phrases, token_prefixes: vec![] });
    let secretive = RunRequest { masking, ..request("1", &steps) };
    refused(client.try_run(secretive).await, Code::InvalidArgument, "too_large");
    let job = Some(v1::Job::default());
    let env = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
    let both = RunRequest { job, env, ..request("1", &steps) };
    refused(client.try_run(both).await, Code::InvalidArgument, "job_and_env");
    client.finish("fits").await;
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn fault_107_names_that_every_result_holds_are_short() {
    const MOST: usize = 4 << 10;
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let step = |name: &str| format!("[{{name: {name}, script: 'true'}}]");
    let text = refused(
        client.try_run(request("long", &step(&"n".repeat(MOST + 1)))).await,
        Code::InvalidArgument,
        "malformed_steps",
    );
    assert!(text.contains("a step name of 4097 bytes is too long: at most 4096 are allowed"), "{text}");
    let file = RunRequest { file: "f".repeat(MOST + 1), ..request("file", &script("true")) };
    refused(client.try_run(file).await, Code::InvalidArgument, "too_large");
    // The longest names: a client with default limits gets every result.
    let steps: Vec<String> =
        (0..1_000).map(|n| format!("{{name: s{n}_{}, script: 'true'}}", "n".repeat(MOST - 10))).collect();
    let file = "f".repeat(MOST);
    let run = RunRequest { file, ..request("many", &format!("[{}]", steps.join(",\n"))) };
    client.try_run(run).await.unwrap();
    client.ended("many").await;
    assert_eq!(client.steps("many").await.len(), 1_001);
}
