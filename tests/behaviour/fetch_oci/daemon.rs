//! Steps with functions from a registry.

use serde_json::json;
use step_runner::pb::v1::State;

use super::{image, tar, zstd};
use crate::support::registry::{
    DockerRegistry, PASSWORD, STEP_LAYER, Scripted, USER, docker_config, response,
};
use crate::support::{Client, Daemon, PATIENCE, Setup, contains, until};

/// Returns the files of a function that runs its own program, which prints `word`.
fn function(folder: &str, word: &str) -> Vec<(&'static str, Vec<u8>)> {
    let definition = "spec:\n---\nexec: {command: ['${{ func_dir }}/run']}\n";
    let program = format!("#!/bin/sh\necho {word} $(dirname \"$0\" | grep -c /cache/oci/)\n");
    let (definition_path, program_path) = (format!("{folder}func.yml"), format!("{folder}run"));
    let files =
        [(definition_path.as_str(), 0o644, definition), (program_path.as_str(), 0o755, program.as_str())];
    vec![(STEP_LAYER, zstd(&tar(&files)))]
}

/// Starts a daemon with a new state folder, so that its cache is empty.
fn daemon() -> Daemon {
    Setup::new().env("NO_PROXY", "*").start()
}

/// Runs a job with one step, which must fail. Returns the job's message.
async fn failure(client: &Client, id: &str, func: &str) -> String {
    let status = client.run_to_end(id, &json!([{"name": "a", "func": func}]).to_string()).await;
    assert_eq!(State::try_from(status.state), Ok(State::Failure), "{status:?}");
    let log = client.log(id).await;
    assert!(contains(&log, "<steps>:1:"), "the position is in the log: {}", String::from_utf8_lossy(&log));
    status.message
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_runs_from_each_form_of_reference() {
    let Some(registry) = tokio::task::block_in_place(DockerRegistry::start) else { return };
    let push = |tag: &str, folder: &str, word: &str| {
        tokio::task::block_in_place(|| registry.push("g/echo", tag, &function(folder, word)))
    };
    let digest = push("1", "", "root");
    push("latest", "reverse/", "deep");
    let address = &registry.address;
    let daemon = daemon();
    let client = daemon.client().await;
    let steps = json!([
        {"name": "tag", "func": format!("{address}/g/echo:1")},
        {"name": "digest", "func": format!("{address}/g/echo@{digest}")},
        {"name": "sub_path", "func": format!("{address}/g/echo reverse")},
        {"name": "file", "func": format!("{address}/g/echo:latest reverse/func.yml")},
        {"name": "long", "func": {"oci": {"registry": address, "repository": "g/echo", "tag": "", "dir": "/reverse"}}},
        {"name": "pinned", "func": {"oci": {"registry": address, "repository": "g/echo", "tag": digest}}},
    ]);
    let status = client.run_to_end("1", &steps.to_string()).await;
    assert_eq!(State::try_from(status.state), Ok(State::Success), "{status:?}");
    assert_eq!(client.output("1").await, "root 1\nroot 1\ndeep 1\ndeep 1\ndeep 1\nroot 1\n");

    push("1", "", "moved");
    let steps = json!([{"name": "a", "func": format!("{address}/g/echo:1")}]);
    client.run_to_end("2", &steps.to_string()).await;
    assert_eq!(client.output("2").await, "moved 1\n", "a tag is looked up on every load");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_step_may_export_the_credentials() {
    let Some(registry) = tokio::task::block_in_place(DockerRegistry::start_protected) else { return };
    tokio::task::block_in_place(|| registry.push("g/echo", "1", &function("", "in")));
    let func = format!("{}/g/echo:1", registry.address);
    let daemon = daemon();
    let client = daemon.client().await;
    let export = |password: &str| {
        let config = docker_config(&registry.address, USER, password);
        let line = json!({"name": "DOCKER_AUTH_CONFIG", "value": config});
        format!("echo '{line}' > ${{{{export_file}}}}")
    };
    let steps = |password: &str| {
        json!([{"name": "login", "script": export(password)}, {"name": "a", "func": func}]).to_string()
    };
    let status = client.run_to_end("good", &steps(PASSWORD)).await;
    assert_eq!(State::try_from(status.state), Ok(State::Success), "{status:?}");
    assert_eq!(client.output("good").await, "in 1\n");

    // The image is now in the cache, but a job without valid credentials still cannot use it.
    let status = client.run_to_end("wrong", &steps("hunter2")).await;
    assert!(status.message.contains("refuses the credentials"), "{}", status.message);
    assert!(!contains(&client.log("wrong").await, "hunter2"));
    assert!(failure(&client, "none", &func).await.contains("asks for credentials"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_fails_the_step_and_no_other_job() {
    let Some(registry) = tokio::task::block_in_place(DockerRegistry::start) else { return };
    let mut escape = tar(&[("xx/canary", 0o644, "bad")]);
    escape[..2].copy_from_slice(b"..");
    let sum: u32 =
        escape[..148].iter().chain(&escape[156..512]).map(|&byte| u32::from(byte)).sum::<u32>() + 256;
    escape[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tokio::task::block_in_place(|| {
        registry.push("bad", "escape", &[(STEP_LAYER, zstd(&escape))]);
        registry.push("bad", "nothing", &[(STEP_LAYER, zstd(&tar(&[("readme", 0o644, "x")])))]);
        registry.push_index("bad", "platform", &[("plan9/mips", registry.push("bad", "mips", &image("x")))]);
    });
    let failing = Scripted::start(|_| response("503 Service Unavailable", "", b""));
    let daemon = daemon();
    let client = daemon.client().await;
    let wait = daemon.file("go");
    client
        .run("other", &format!("until [ -e {} ]; do sleep 0.05; done; echo untouched", wait.display()))
        .await;

    let address = &registry.address;
    for (id, func, says) in [
        ("escape", format!("{address}/bad:escape"), "../canary"),
        ("platform", format!("{address}/bad:platform"), "plan9/mips"),
        ("gone", format!("{address}/bad:2"), "no such repository or tag"),
        ("file", format!("{address}/bad:nothing"), "func.yml"),
        ("failing", format!("{}/echo:1", failing.address), "status 503"),
        ("closed", "127.0.0.1:1/echo:1".to_owned(), "cannot be reached"),
    ] {
        let message = failure(&client, id, &func).await;
        assert!(message.contains(says), "{id}: {message}");
    }
    std::fs::write(wait, "").unwrap();
    assert_eq!(State::try_from(client.ended("other").await.state), Ok(State::Success));
    assert_eq!(client.output("other").await, "untouched\n");
    let state = crate::support::tree(&daemon.state_dir());
    assert!(!state.keys().any(|path| path.ends_with("canary")), "{:?}", state.keys());
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_112_a_cancel_ends_the_wait_for_another_try() {
    let (asked, was_asked) = std::sync::mpsc::channel();
    let registry = Scripted::start(move |_| {
        asked.send(()).ok();
        response("503 Service Unavailable", "Retry-After: 90\r\n", b"")
    });
    let daemon = daemon();
    let client = daemon.client().await;
    let steps = json!([{"name": "a", "func": format!("{}/echo:1", registry.address)}]);
    client.run_steps("1", &steps.to_string()).await;
    tokio::task::block_in_place(|| was_asked.recv_timeout(PATIENCE)).unwrap();
    let begin = std::time::Instant::now();
    client.cancel("1").await;
    let status = client.ended("1").await;
    assert_eq!(State::try_from(status.state), Ok(State::Cancelled), "{status:?}");
    assert!(begin.elapsed() < std::time::Duration::from_secs(45), "it waited for the next try");
    assert_eq!(registry.heads().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_112_the_operators_log_says_that_a_read_is_tried_again() {
    let bad = response("503 Service Unavailable", "", b"");
    let registry = Scripted::failing_first("/manifests/", vec![bad], |_| response("404 Not Found", "", b""));
    let daemon = daemon();
    let client = daemon.client().await;
    let message = failure(&client, "1", &format!("{}/echo:1", registry.address)).await;
    assert!(message.contains("no such repository"), "{message}");
    let line = format!(
        "fetching: the registry failed (status 503): trying again in 0.5 s from=\"{}/echo:1\" job=1",
        registry.address
    );
    until("the operator's log has the line", || daemon.said().contains(&line)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_112_the_log_of_a_builtin_says_that_a_read_is_tried_again() {
    let bad = response("502 Bad Gateway", "", b"");
    let registry = Scripted::failing_first("/manifests/", vec![bad], |_| response("404 Not Found", "", b""));
    let daemon = daemon();
    let client = daemon.client().await;
    let inputs = json!({"registry": registry.address, "repository": "echo", "tag": "1"});
    let steps = json!([{"name": "f", "func": "builtin://step/oci/fetch", "inputs": inputs}]);
    client.run_to_end("1", &steps.to_string()).await;
    let (log, line) =
        (client.log("1").await, "warning: step f: the registry failed (status 502): trying again");
    assert!(contains(&log, line), "{}", String::from_utf8_lossy(&log));
}
