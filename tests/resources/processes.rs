//! Crowds of processes.

use std::time::Instant;

use super::{CROWD, holds, limited, processes, run_limited};
use crate::support::user::{Place, lonely};
use crate::support::{Daemon, SOON, contains, is_root, logs, processes_with, script, until};
use step_runner::model::LimitName;
use step_runner::pb::v1::State;

#[tokio::test]
async fn fault_06_without_groups_the_limit_of_the_user_bounds_processes() {
    if !is_root("fault_06_without_groups_the_limit_of_the_user_bounds_processes") {
        return;
    }
    let place = Place::of(lonely());
    let setup = place.setup().option("cgroup", "off");
    let daemon = setup.start_in(place.path());
    let client = daemon.client().await;
    let status = run_limited(&client, "1", CROWD, processes(30)).await;
    assert_eq!(status.state(), State::Failure, "{status:?}");
    assert!(!contains(&client.log("1").await, "all"));
    let status = run_limited(&client, "2", "true; (true); (true)", processes(30)).await;
    assert_eq!(status.exit_code, 0, "{status:?}");
}

#[tokio::test]
async fn fault_06_a_fork_bomb_ends_as_a_failed_job_and_by_finish() {
    if !holds("fault_06_a_fork_bomb_ends_as_a_failed_job_and_by_finish", &[LimitName::Processes]) {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let mark = format!("bomb-{}", std::process::id());
    let bomb = format!("echo on; bomb() {{ : {mark}; bomb | bomb & }}; bomb; sleep 600; : {mark}");
    client.try_run(limited("bomb", &script(&bomb), processes(64))).await.unwrap();
    client.prints("bomb", "on").await;
    until("it has grown", || processes_with(&mark).len() >= 32).await;
    for _ in 0..20 {
        let asked = Instant::now();
        assert_eq!(client.status("bomb").await.state(), State::Running);
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        assert!(processes_with(&mark).len() <= 64);
    }
    assert_eq!(client.run_to_end("other", &script("(echo x)")).await.exit_code, 0);
    client.finish("bomb").await;
    assert_eq!(processes_with(&mark), Vec::<i32>::new());
    // One that ends by itself says why.
    let status = run_limited(&client, "crowd", CROWD, processes(16)).await;
    assert_eq!(status.state(), State::Failure);
    let message = &status.message;
    assert!(message.contains("resource: the job has reached its limit of 16 processes"), "{message}");
    assert!(message.ends_with(&format!("exec: exit status {}", status.exit_code)), "{message}");
    assert!(contains(&client.log("crowd").await, "job failed: step \"s\": resource: "));
}

#[tokio::test]
async fn fault_06_a_step_that_copes_with_refused_processes_succeeds_with_a_warning() {
    let name = "fault_06_a_step_that_copes_with_refused_processes_succeeds_with_a_warning";
    if !holds(name, &[LimitName::Processes]) {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let text = format!("sh -c \"{}\" || true", CROWD.replace("exec sh -c ", "").replace(['\'', '"'], ""));
    let text = text.replace('$', "\\$");
    let status = run_limited(&client, "1", &text, processes(12)).await;
    assert_eq!((status.state(), status.exit_code), (State::Success, 0), "{status:?}");
    let said = logs::daemon_lines(&client.log("1").await);
    assert!(said.iter().any(|line| line.starts_with("warning: step s: processes were refused")), "{said:?}");
}
