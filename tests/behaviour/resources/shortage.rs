//! No process or memory is left for the keeper or for a step.

use crate::support::user::{self, Place, command_as};
use crate::support::{Daemon, Setup, is_root, kill, refused, request, script};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use step_runner::pb::v1::{self, RunRequest, State};
use tonic::Code;

/// Sets the soft limit of a process's address space.
fn limit_memory(pid: i32, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    rustix::process::prlimit(Pid::from_raw(pid), Resource::As, limit).unwrap();
}

/// Sets the soft limit on processes for `pid`. It runs as that process's user, because root can lack the right.
fn limit_processes(user: u32, pid: i32, soft: Option<u64>) {
    let maximum = rustix::process::getrlimit(Resource::Nproc).maximum;
    let soft = soft.or(maximum).map_or("unlimited".to_owned(), |soft| soft.to_string());
    let mut command = command_as(user, "prlimit");
    command.args([format!("--pid={pid}"), format!("--nproc={soft}:")]);
    assert!(command.status().unwrap().success());
}

/// Starts a daemon as a user without other processes, so that the limit on processes per user can be reached.
fn lonely() -> (u32, Place, Daemon) {
    lonely_with(|setup| setup)
}

fn lonely_with(options: impl FnOnce(Setup) -> Setup) -> (u32, Place, Daemon) {
    let user = user::lonely();
    let place = Place::of(user);
    let daemon = options(place.setup()).start_in(place.path());
    (user, place, daemon)
}

#[tokio::test]
async fn fault_15_a_run_without_a_process_for_its_keeper_is_refused_for_now() {
    if !is_root("fault_15_a_run_without_a_process_for_its_keeper_is_refused_for_now") {
        return;
    }
    let (user, _place, daemon) = lonely();
    let client = daemon.client().await;
    limit_processes(user, daemon.pid(), Some(1));
    for id in ["1", "2"] {
        let answer = client.try_run(request(id, &script("echo x"))).await;
        let status = answer.clone().unwrap_err();
        assert!(
            tonic_types::StatusExt::get_details_retry_info(&status).is_some(),
            "it says when to come back"
        );
        refused(answer, Code::ResourceExhausted, "keeper_unavailable");
    }
    // A large request is checked on another thread. That works although no new thread can be made.
    let large = format!("# {}\n{}", "x".repeat(100_000), script("echo x"));
    refused(client.try_run(request("3", &large)).await, Code::ResourceExhausted, "keeper_unavailable");
    assert!(client.jobs().await.is_empty() && daemon.folders().is_empty(), "nothing is left behind");
    limit_processes(user, daemon.pid(), None);
    assert_eq!(client.run_to_end("1", &script("echo x")).await.exit_code, 0);
    assert_eq!(client.run_to_end("3", &large).await.exit_code, 0);
}

#[tokio::test]
async fn fault_15_a_waiting_job_waits_on_while_no_process_can_be_had_for_its_keeper() {
    if !is_root("fault_15_a_waiting_job_waits_on_while_no_process_can_be_had_for_its_keeper") {
        return;
    }
    let (user, _place, daemon) = lonely_with(|setup| setup.option("max-running", "1"));
    let client = daemon.client().await;
    client.run("runs", "echo on; while :; do sleep 0.1; done").await;
    client.prints("runs", "on").await;
    for id in ["waits", "unwanted", "closed"] {
        client.run(id, "echo x").await;
    }
    limit_processes(user, daemon.pid(), Some(1));
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    assert_eq!(client.ended("runs").await.state(), State::Interrupted);
    // These jobs have not started, so their ends need no keeper.
    client.cancel("unwanted").await;
    let status = client.ended("unwanted").await;
    assert_eq!((status.state(), status.exit_code), (State::Cancelled, -2), "{status:?}");
    client.finish("closed").await;
    assert_eq!(client.status("waits").await.state(), State::Queued);
    limit_processes(user, daemon.pid(), None);
    assert_eq!(client.ended("waits").await.exit_code, 0);
    assert_eq!(client.output("waits").await, "x\n");
}

#[tokio::test]
async fn fault_15_a_step_without_a_process_is_a_failure_that_says_so() {
    if !is_root("fault_15_a_step_without_a_process_is_a_failure_that_says_so") {
        return;
    }
    let (user, _place, daemon) = lonely();
    let client = daemon.client().await;
    client.run("beside", "echo on; while :; do read -r line < /dev/null; sleep 0.1; done").await;
    client.prints("beside", "on").await;
    let keeper = daemon.keeper_pid().unwrap();
    limit_processes(user, keeper, Some(1));
    let status = client.run_to_end("1", &script("echo x")).await;
    assert_eq!((status.state(), status.exit_code), (State::Failure, -1), "{status:?}");
    assert!(status.message.contains("exec: resource: cannot start a process (fork): "), "{}", status.message);
    let phrases = (0..2_000).map(|n| format!("phrase-{n}")).collect();
    let masking = Some(v1::Masking { phrases, token_prefixes: vec![] });
    client.try_run(RunRequest { masking, ..request("2", &script("echo x")) }).await.unwrap();
    assert_eq!(client.ended("2").await.exit_code, -1, "its phrases need no thread");
    limit_processes(user, keeper, None);
    assert_eq!(client.run_to_end("3", &script("echo x")).await.exit_code, 0);
    assert_eq!(client.status("beside").await.state(), State::Running);
    assert_eq!(daemon.keeper_pid(), Some(keeper));
}

#[tokio::test]
async fn fault_15_a_keeper_without_memory_costs_its_own_jobs_only() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    assert_eq!(client.run_to_end("before", &script("echo x")).await.exit_code, 0);
    limit_memory(daemon.keeper_pid().unwrap(), Some(1 << 20));
    for id in ["1", "2"] {
        match client.try_run(request(id, &script("echo x"))).await {
            // Either the step fails for lack of memory, or the keeper itself has none.
            Ok(()) => drop(client.reaches(id, "it ends", |status| status.finished).await),
            answer => drop(refused(answer, Code::ResourceExhausted, "keeper_unavailable")),
        }
    }
    if let Some(keeper) = daemon.keeper_pid() {
        limit_memory(keeper, None);
    }
    assert_eq!(client.run_to_end("after", &script("echo x")).await.exit_code, 0);
    assert_eq!(client.status("before").await.exit_code, 0);
}
