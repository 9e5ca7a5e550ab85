//! Secrets that a step returns, that an expression makes of others, or that a reference holds (language.md §11.5, §12).

use std::fs;
use std::path::Path;

use serde_json::json;
use step_runner::pb::v1::{self, RunRequest, State};

use super::{CANARY, secret, told};
use crate::support::{Daemon, Setup, contains, kill, request, tree, until};

#[tokio::test]
async fn fault_38_files_of_a_step_go_when_it_ends_and_when_daemon_and_keeper_die() {
    let mut daemon = Setup::new().start();
    let client = daemon.client().await;
    let held = |daemon: &Daemon| {
        let mut all = tree(&daemon.state_dir());
        // A file variable is there as long as the job runs.
        let is_of_step = |path: &Path| {
            let inside = path.strip_prefix(daemon.state_dir()).unwrap();
            inside.components().any(|part| part.as_os_str() == "tmp")
        };
        all.retain(|path, bytes| is_of_step(path) && contains(bytes, CANARY));
        all
    };
    let exports = "echo '{\"name\":\"X\",\"value\":\"'$WORD'\"}' > ${{ export_file }}";
    let go = daemon.file("go");
    let waits = format!("echo on; until [ -e {} ]; do sleep 0.02; done; {exports}; echo wrote", go.display());
    let steps = json!([
        {"name": "first", "script": exports},
        {"name": "second", "script": format!("{waits}; exec sleep 600")},
    ]);
    client.try_run(secret("1", &steps.to_string())).await.unwrap();
    client.prints("1", "on").await;
    until("the files of the first step are gone", || held(&daemon).is_empty()).await;
    fs::write(&go, "").unwrap();
    client.prints("1", "wrote").await;
    assert_ne!(held(&daemon).len(), 0, "the second step has written it");
    daemon.kill();
    kill(daemon.keeper_pid().unwrap(), rustix::process::Signal::KILL);
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await.state(), State::Interrupted);
    until("the files of the second step are gone", || held(&daemon).is_empty()).await;
    until("the operator is told", || daemon.said().contains("job ended with the processes that ran it"))
        .await;
}

#[tokio::test]
async fn fault_38_numbers_made_of_a_secret_and_credentials_of_references_are_hidden() {
    let daemon = Setup::new().start();
    let client = daemon.client().await;
    let run = async |id: &str, steps: serde_json::Value| {
        let pin = v1::Variable { key: "PIN".into(), value: "0012345678".into(), file: false, masked: true };
        let job = Some(v1::Job { variables: vec![pin], ..v1::Job::default() });
        client.try_run(RunRequest { job, ..request(id, &steps.to_string()) }).await.unwrap();
        client.ended(id).await;
        told(&client, id).await
    };
    let function = daemon.file("function");
    fs::create_dir(&function).unwrap();
    fs::write(
        function.join("func.yml"),
        format!("spec: {{inputs: {{word: {{type: string, sensitive: true, default: {CANARY}}}}}}}\n---\nexec: {{command: [echo, ok]}}\n"),
    )
    .unwrap();
    for (id, steps, secret) in [
        (
            "text",
            json!([{"name": "a", "script": "echo pin=${{ num(vars.PIN) }} ${{ num(vars.PIN) * 2 }}"}]),
            "2345678",
        ),
        ("twice", json!([{"name": "a", "script": "echo pin=${{ num(vars.PIN) * 2 }}"}]), "24691356"),
        ("default", json!([{"name": "a", "func": function, "inputs": {"word": "other"}}]), CANARY),
        (
            "registry",
            json!([{"name": "a", "func": {"oci": {"registry": format!("https://u:{CANARY}@127.0.0.1:9"), "repository": "p", "tag": "v"}}}]),
            CANARY,
        ),
        (
            "git",
            json!([{"name": "a", "func": {"git": {"url": format!("https://u:{CANARY}#x@127.0.0.1:9/p"), "rev": "v"}}}]),
            CANARY,
        ),
    ] {
        let told = run(id, steps).await;
        assert!(!told.contains(secret), "{id}: {told}");
    }
    assert!(!daemon.said().contains(CANARY), "{}", daemon.said());
}
