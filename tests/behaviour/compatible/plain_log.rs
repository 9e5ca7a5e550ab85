//! Logs without headers, for Runners that add headers themselves (service.md §4.2).

use step_runner::pb::compatible::messages::RunRequest;
use tonic::Code;

use super::{Peer, from_runner, variable, with_job};
use crate::support::{Daemon, Setup, contains, logs};

/// Returns a job as a Runner of this version sends it. It prints to both streams, lines that continue, and a last line
/// without end.
fn job(id: &str, runner: &str) -> RunRequest {
    let run = serde_json::json!([
        {"name": "a", "script": "echo one"},
        {"name": "b", "script": "echo two >&2"},
        {"name": "c", "script": "printf ' 10%%\\r'; printf ' 20%%\\r\\n'; printf end"},
    ]);
    with_job(from_runner(id, &run.to_string()), vec![variable("CI_RUNNER_VERSION", runner)])
}

const TEXT: &str =
    "Running step name=a\none\nRunning step name=b\ntwo\nRunning step name=c\n 10%\r 20%\r\nend\n";

fn text(log: &[u8]) -> &str {
    std::str::from_utf8(log).unwrap()
}

#[tokio::test]
async fn a_runner_before_19_reads_no_headers_and_everybody_else_does() {
    let daemon = Daemon::start();
    let (peer, client) = (Peer::of(&daemon).await, daemon.client().await);
    for (id, runner, plain) in
        [("1", "17.9.3", true), ("2", "18.11.2", true), ("3", "19.0.0", false), ("4", "", false)]
    {
        peer.try_run(job(id, runner)).await.unwrap();
        let log = peer.log(id).await;
        // The canonical service always sends headers.
        let framed = client.log(id).await;
        assert!(contains(&logs::source(&framed, "01O"), "20%"));
        if plain {
            assert_eq!(text(&log), TEXT);
        } else {
            assert_eq!(text(&log), text(&framed));
        }
    }
}

#[tokio::test]
async fn offsets_count_the_bytes_without_headers_also_after_a_crash() {
    let mut daemon = Daemon::start();
    Peer::of(&daemon).await.try_run(job("1", "18.0.0")).await.unwrap();
    Peer::of(&daemon).await.log("1").await;
    for crash in [false, true] {
        if crash {
            daemon.kill();
            daemon.restart();
        }
        let peer = Peer::of(&daemon).await;
        for offset in 0..=TEXT.len() {
            assert_eq!(
                text(&peer.try_log("1", offset as i64).await.unwrap()).as_bytes(),
                &TEXT.as_bytes()[offset..]
            );
        }
        let past_end = peer.try_log("1", TEXT.len() as i64 + 1).await.unwrap_err();
        assert_eq!(past_end.code(), Code::OutOfRange, "{past_end}");
        assert_eq!(peer.try_log("1", -1).await.unwrap_err().code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_job_that_outlives_the_daemon_keeps_its_format() {
    let mut daemon = Daemon::start();
    let run = serde_json::json!([
        {"name": "s", "script": "echo on; while [ ! -e go ]; do sleep 0.01; done; echo off"}
    ]);
    let request = with_job(from_runner("1", &run.to_string()), vec![variable("CI_RUNNER_VERSION", "18.0.0")]);
    let work_dir = daemon.file("work").to_str().unwrap().to_owned();
    Peer::of(&daemon).await.try_run(RunRequest { work_dir, ..request }).await.unwrap();
    daemon.client().await.prints("1", "on").await;
    daemon.kill();
    daemon.restart_with(Setup::new().option("job-log-format", "framed"));
    std::fs::write(daemon.file("work/go"), "").unwrap();
    assert_eq!(text(&Peer::of(&daemon).await.log("1").await), "Running step name=s\non\noff\n");
}

#[tokio::test]
async fn a_follower_of_a_running_job_is_told_at_once_that_its_offset_is_too_large() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let run = serde_json::json!([{"name": "s", "script": "echo on; while :; do sleep 0.01; done"}]);
    let request = with_job(from_runner("1", &run.to_string()), vec![variable("CI_RUNNER_VERSION", "18.0.0")]);
    peer.try_run(request).await.unwrap();
    daemon.client().await.prints("1", "on").await;
    let past_end = peer.try_log("1", 1_000).await.unwrap_err();
    assert_eq!(past_end.code(), Code::OutOfRange, "{past_end}");
    assert!(past_end.message().contains("at 23"), "{past_end}");
}

#[tokio::test]
async fn the_setting_wins_over_the_version() {
    for (option, value, runner, plain) in [
        ("job-log-format", "plain", "19.4.0", true),
        ("log-format", "plain", "19.4.0", true),
        ("job-log-format", "framed", "17.9.3", false),
        ("log-format", "framed", "17.9.3", false),
        ("log-format", "auto", "17.9.3", true),
        ("log-format", "json", "19.4.0", false),
    ] {
        let daemon = Setup::new().option(option, value).start();
        let peer = Peer::of(&daemon).await;
        peer.try_run(job("1", runner)).await.unwrap();
        assert_eq!(text(&peer.log("1").await) == TEXT, plain, "{option} {value} {runner}");
    }
}

#[tokio::test]
async fn with_the_setting_jobs_of_other_services_have_no_headers_either() {
    let daemon = Setup::new().option("job-log-format", "plain").start();
    let client = daemon.client().await;
    client.run("1", "echo hello").await;
    client.ended("1").await;
    assert_eq!(text(&Peer::of(&daemon).await.log("1").await), "Running step name=s\nhello\n");
}

#[tokio::test]
async fn a_long_log_is_the_same_text_from_every_offset() {
    let daemon = Daemon::start();
    let peer = Peer::of(&daemon).await;
    let run = serde_json::json!([{"name": "s", "script": "seq 300000"}]).to_string();
    let request = with_job(from_runner("1", &run), vec![variable("CI_RUNNER_VERSION", "18.0.0")]);
    peer.try_run(request).await.unwrap();
    let expected: String = std::iter::once("Running step name=s\n".to_owned())
        .chain((1..=300_000).map(|number| format!("{number}\n")))
        .collect();
    assert!(text(&peer.log("1").await) == expected);
    for offset in [1, 4_095, 65_536, 1_000_001, expected.len() - 1] {
        assert!(
            text(&peer.try_log("1", offset as i64).await.unwrap()).as_bytes()
                == &expected.as_bytes()[offset..],
            "{offset}"
        );
    }
}
