//! Bad requests are refused with the codes and reasons that all services share (service.md §3.6).

use prost::Message;
use step_runner::pb::compatible::messages::{Job, RunRequest, RunResponse};
use step_runner::pb::v1::Variable;
use tonic::Code;

use super::{NAMES, Peer, Whole, from_runner, variable, with_job};
use crate::support::{Daemon, Setup, refused};

const STEPS: &str = r#"[{"name": "s", "script": "true"}]"#;

#[tokio::test]
async fn ids_offsets_and_unknown_jobs_are_refused_by_every_call() {
    let daemon = Daemon::start();
    for name in NAMES {
        let peer = Peer::named(&daemon, name).await;
        for id in ["", "../x", "a/b", "-a", &"a".repeat(129)] {
            refused(peer.try_run(from_runner(id, STEPS)).await, Code::InvalidArgument, "invalid_id");
            refused(peer.try_log(id, 0).await, Code::InvalidArgument, "invalid_id");
            refused(peer.try_close(id).await, Code::InvalidArgument, "invalid_id");
            refused(peer.try_cancel(id).await, Code::InvalidArgument, "invalid_id");
            if !id.is_empty() {
                refused(peer.jobs(id).await, Code::InvalidArgument, "invalid_id");
            }
        }
        refused(peer.try_log("1", 0).await, Code::NotFound, "unknown_job");
        refused(peer.try_cancel("1").await, Code::NotFound, "unknown_job");
        refused(peer.jobs("1").await, Code::NotFound, "unknown_job");
        peer.run("known", "true").await;
        peer.ended("known").await;
        refused(peer.try_log("known", -1).await, Code::InvalidArgument, "offset_negative");
        refused(peer.try_log("known", i64::MIN).await, Code::InvalidArgument, "offset_negative");
        refused(peer.try_log("known", i64::MAX).await, Code::OutOfRange, "offset_past_end");
        peer.close("known").await;
    }
}

#[tokio::test]
async fn requests_that_cannot_be_run_are_refused_and_leave_nothing() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let key = |key: &str| with_job(from_runner("1", STEPS), vec![variable(key, "x")]);
    let file = Variable { file: true, ..variable("../x", "x") };
    let dir = |build_dir: &str| Job { build_dir: build_dir.into(), ..Job::default() };
    let plain = || from_runner("1", STEPS);
    std::fs::write(daemon.file("plain"), "").unwrap();
    let plain_file = daemon.file("plain").join("below");
    for (request, code, reason) in [
        (from_runner("1", "["), Code::InvalidArgument, "malformed_steps"),
        (from_runner("1", "[{name: a}]"), Code::InvalidArgument, "malformed_steps"),
        (RunRequest { steps: String::new(), ..plain() }, Code::InvalidArgument, "malformed_steps"),
        (RunRequest { steps: " ".repeat((16 << 20) + 1), ..plain() }, Code::InvalidArgument, "too_large"),
        (key(""), Code::InvalidArgument, "invalid_variable"),
        (key("A=B"), Code::InvalidArgument, "invalid_variable"),
        (with_job(plain(), vec![file]), Code::InvalidArgument, "invalid_variable"),
        (with_job(plain(), vec![variable("A", "\0")]), Code::InvalidArgument, "invalid_variable"),
        (
            RunRequest { env: [(String::new(), String::new())].into(), ..plain() },
            Code::InvalidArgument,
            "invalid_variable",
        ),
        (RunRequest { work_dir: "relative".into(), ..plain() }, Code::InvalidArgument, "invalid_path"),
        (RunRequest { job: Some(dir("also/relative")), ..plain() }, Code::InvalidArgument, "invalid_path"),
        (
            RunRequest { work_dir: plain_file.to_str().unwrap().into(), ..plain() },
            Code::FailedPrecondition,
            "not_writable",
        ),
    ] {
        refused(peer.try_run(request).await, code, reason);
    }
    assert!(peer.jobs("").await.unwrap().is_empty() && daemon.folders().is_empty());
}

#[tokio::test]
async fn errors_in_the_steps_of_the_runner_have_their_places() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let text = refused(
        peer.try_run(from_runner("1", "\n- name: a\n  scrip: x\n- func: ./b\n")).await,
        Code::InvalidArgument,
        "malformed_steps",
    );
    assert!(text.contains("<steps>:5:") && text.contains("<steps>:6:"), "{text}");
}

#[tokio::test]
async fn what_is_no_message_is_refused_by_every_call() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    for bytes in
        [&b"\xff\xff\xff\xff"[..], b"\x0a\x7f", b"\x0a\x02\xff\xfe", b"\x08\x01", b"\x2a\x02\x0a\x7f"]
    {
        let whole = Whole(bytes.to_vec());
        refused(peer.call::<_, RunResponse>("Run", whole).await, Code::InvalidArgument, "malformed_request");
    }
    for method in ["Status", "Close", "Cancel"] {
        let whole = Whole(b"\x0a\x02\xff\xfe".to_vec());
        refused(peer.call::<_, RunResponse>(method, whole).await, Code::InvalidArgument, "malformed_request");
    }
    let unknown = peer.call::<_, RunResponse>("Nothing", Whole::default()).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_and_the_connection_goes_on() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let huge = RunRequest { steps: "#".repeat(33 << 20), ..RunRequest::default() };
    assert!(huge.encoded_len() > 32 << 20);
    refused(peer.try_run(huge).await, Code::InvalidArgument, "too_large");
    peer.run("1", "true").await;
}

#[tokio::test]
async fn what_is_refused_for_now_is_refused_so() {
    let daemon = Setup::new().option("max-jobs", "1").start();
    let peer = Peer::of(&daemon).await;
    peer.run("1", "true").await;
    let second = peer.try_run(from_runner("2", STEPS)).await;
    refused(second, Code::ResourceExhausted, "too_many_jobs");
}
