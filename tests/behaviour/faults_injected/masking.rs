//! A new secret that cannot be masked ends its job: nothing more of the job runs (masking.md §7).

use step_runner::pb::v1::State;

use crate::support::{Daemon, Setup, contains};

/// Returns steps that call a function which returns a secret, and then print it.
fn steps(daemon: &Daemon) -> String {
    let function = daemon.file("secret");
    std::fs::create_dir(&function).unwrap();
    let text = r#"spec: {outputs: {key: {type: string, sensitive: true}}}
---
exec:
  command: [sh, -c, 'echo "{\"name\":\"key\",\"value\":\"canary-canary\"}" > "$1"', sh, "${{ output_file }}"]
"#;
    std::fs::write(function.join("func.yml"), text).unwrap();
    let shown = daemon.file("shown");
    serde_json::json!([
        {"name": "a", "func": function},
        {"name": "b", "script": format!("echo ${{{{steps.a.outputs.key}}}} | tee {}", shown.display())},
    ])
    .to_string()
}

fn refusing(daemon: &str) -> Daemon {
    let add = "keeper::compile::add=1*return->off";
    Setup::new().env("FAILPOINTS", daemon).env("KEEPER_FAILPOINTS", add).start()
}

/// Asserts that the job has failed and that the secret is nowhere.
async fn is_kept_secret(daemon: &Daemon) {
    let client = daemon.client().await;
    let status = client.ended("1").await;
    assert_eq!((status.state(), status.exit_code), (State::Failure, -1), "{status:?}");
    let expected = "a value marked sensitive cannot be masked: masking: 1 phrases";
    assert!(status.message.starts_with(expected), "{status:?}");
    let log = client.log("1").await;
    assert!(contains(&log, &format!("00E job failed: {expected}")), "{}", String::from_utf8_lossy(&log));
    assert!(!contains(&log, "canary") && !contains(&log, "name=b"), "{}", String::from_utf8_lossy(&log));
    assert!(!format!("{status:?} {:?}", client.steps("1").await).contains("canary"));
    assert!(!daemon.file("shown").exists(), "the next step has run");
}

#[tokio::test]
async fn fault_38_a_job_whose_keeper_cannot_mask_a_secret_ends_before_its_next_step() {
    let mut daemon = refusing("");
    let steps = steps(&daemon);
    daemon.client().await.run_steps("1", &steps).await;
    is_kept_secret(&daemon).await;
    daemon.kill();
    daemon.restart_with(Setup::new());
    is_kept_secret(&daemon).await;
}

#[tokio::test]
async fn fault_38_who_takes_up_a_job_that_could_not_be_masked_ends_it_too() {
    // The job's actor dies at the end of the job, or the daemon dies.
    let daemon = refusing("actors::job::end=1*panic->off");
    let steps_of = steps(&daemon);
    daemon.client().await.run_steps("1", &steps_of).await;
    is_kept_secret(&daemon).await;
    let mut daemon = refusing("actors::job::end=return(KILL)");
    let steps_of = steps(&daemon);
    daemon.client().await.run_steps("1", &steps_of).await;
    daemon.wait();
    daemon.restart_with(Setup::new());
    is_kept_secret(&daemon).await;
}
