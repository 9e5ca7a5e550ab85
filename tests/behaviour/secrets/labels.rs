//! Texts of a request in refusals and in the operator's log (faults.md row 109).

use step_runner::pb::v1::{self, RunRequest};
use tonic_types::StatusExt as _;

use super::{CANARY, secret};
use crate::support::{Daemon, Setup, request, script, until};

/// Returns a request that has a secret, with this job and working directory.
fn with(id: &str, change: impl FnOnce(&mut v1::Job)) -> RunRequest {
    let mut run = secret(id, &script("true"));
    change(run.job.as_mut().unwrap());
    run
}

#[tokio::test]
async fn fault_109_a_refusal_of_a_place_names_its_field_and_no_secret() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    std::fs::write(daemon.file("file"), "").unwrap();
    // Places that nobody can make: below a file, and where the kernel makes files itself.
    let places = [format!("/proc/{CANARY}"), format!("{}/{CANARY}/x", daemon.file("file").display())];
    for place in &places {
        let mut run = secret("1", &script("true"));
        run.job.as_mut().unwrap().variables.retain(|variable| !variable.file);
        let in_build_dir = {
            let mut run = run.clone();
            run.job.as_mut().unwrap().build_dir.clone_from(place);
            run
        };
        let with_file = with("1", |job| job.build_dir.clone_from(place));
        let in_work_dir = RunRequest { work_dir: place.clone(), ..run };
        for (run, field) in
            [(in_build_dir, "job.build_dir"), (with_file, "job.build_dir"), (in_work_dir, "work_dir")]
        {
            let status = client.try_run(run).await.unwrap_err();
            let told = format!("{status:?} {:?}", status.get_error_details());
            assert!(status.message().starts_with("not_writable: "), "{told}");
            assert!(status.message().contains("[MASKED]") && !told.contains(CANARY), "{told}");
            let info = status.get_details_error_info().unwrap();
            assert_eq!(info.metadata.get("field").map(String::as_str), Some(field), "{told}");
        }
    }
    assert!(!daemon.said().contains(CANARY), "{}", daemon.said());
}

#[tokio::test]
async fn fault_109_labels_in_the_operators_log_hold_no_secret() {
    let daemon = Setup::new().option("max-running", "1").start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    let waits = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    client.try_run(request("first", &script(&waits))).await.unwrap();
    let variable =
        |key: &str, value: String| v1::Variable { key: key.into(), value, ..v1::Variable::default() };
    let labelled = with("second", |job| {
        job.job_id = format!("job-{CANARY}");
        job.pipeline_id = format!("pipeline-{CANARY}");
        job.variables.push(variable("CI_SERVER_URL", format!("https://user:{CANARY}@host")));
        job.variables.push(variable("CI_PROJECT_ID", format!("project-{CANARY}")));
    });
    client.try_run(labelled).await.unwrap();
    std::fs::write(&go, "").unwrap();
    client.ended("second").await;
    until("the wait is told", || daemon.said().contains("the job had to wait and starts now")).await;
    let said = daemon.said();
    assert!(!said.contains(CANARY), "{said}");
    for label in ["ci_job=\"job-[MASKED]\"", "pipeline=\"pipeline-[MASKED]\"", "project=\"project-[MASKED]\""]
    {
        assert!(said.contains(label), "{label}: {said}");
    }
}
