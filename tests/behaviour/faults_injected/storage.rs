//! Faults of the state folder, injected at the exact system call that fails (faults.md rows 25–28).

use std::time::Instant;

use rustix::process::Signal;
use step_runner::pb::v1::{Job, RunRequest, State, Variable};
use tonic::Code;

use crate::support::{
    Daemon, OwnSleep, SOON, Setup, kill, logs, numbered, patiently, refused, request, script, until,
};

/// Starts a daemon with failpoints for itself and for its keeper.
fn failing(daemon: &str, keeper: &str) -> Daemon {
    Setup::new().env("FAILPOINTS", daemon).env("KEEPER_FAILPOINTS", keeper).start()
}

#[tokio::test]
async fn fault_26_a_job_whose_record_finds_no_space_is_refused_and_leaves_nothing() {
    for point in ["store::folder::make", "store::record::write"] {
        for error in ["ENOSPC", "EDQUOT"] {
            let daemon = failing(&format!("{point}=1*off->1*return({error})->off"), "");
            let client = daemon.client().await;
            client.run_to_end("before", &script("echo served")).await;
            let folders = daemon.folders();
            let answer = client.try_run(request("1", &script("echo two"))).await;
            refused(answer, Code::ResourceExhausted, "disk_full");
            assert_eq!(daemon.folders(), folders, "{point}: something was left");
            assert!(client.try_status("1").await.is_err());
            // Runs the same request again, now with space.
            assert_eq!(client.run_to_end("1", &script("echo two")).await.state(), State::Success);
            assert_eq!(client.output("before").await, "served\n");
        }
    }
}

#[tokio::test]
async fn fault_26_a_run_that_is_refused_because_its_probe_stays_leaves_nothing() {
    // The first name that a daemon removes is that of the probe in the folder for file variables.
    let daemon = failing("files::unlink=1*return(ENOMEM)->off", "");
    let client = daemon.client().await;
    let build = daemon.file("work/build");
    let variable = Variable { key: "CERT".into(), value: "text".into(), file: true, ..Variable::default() };
    let job =
        Job { build_dir: build.to_str().unwrap().to_owned(), variables: vec![variable], ..Job::default() };
    let asked = RunRequest { job: Some(job), ..request("1", &script("cat $CERT")) };
    refused(client.try_run(asked.clone()).await, Code::ResourceExhausted, "keeper_unavailable");
    assert!(!daemon.file("work/build.tmp").exists());
    client.try_run(asked).await.unwrap();
    assert_eq!(client.output("1").await, "text\n");
}

#[tokio::test]
async fn fault_117_a_run_whose_record_the_device_lost_is_refused_and_leaves_nothing() {
    // The daemon writes a record of its own first.
    let daemon = failing("files::kept=1*off->1*return(7)->off", "");
    let client = daemon.client().await;
    let refused = client.try_run(request("1", &script("echo ran"))).await.unwrap_err();
    assert!(refused.message().contains("the device has 7 of the "), "{refused:?}");
    assert_eq!(daemon.folders(), Vec::<String>::new());
    assert_eq!(client.run_to_end("1", &script("echo ran")).await.state(), State::Success);
}

#[tokio::test]
async fn fault_28_writes_that_take_one_byte_or_are_interrupted_lose_and_double_nothing() {
    let short = "files::write_part=return(1)";
    let interrupted = "files::write=1%return(EINTR)";
    let again = "files::write=20%return(EAGAIN)";
    for (daemon, keeper) in [(short, short), (interrupted, interrupted), (again, "")] {
        let mut daemon = failing(daemon, keeper);
        let client = daemon.client().await;
        assert_eq!(client.run_to_end("1", &script("seq 1 500")).await.state(), State::Success);
        let log = client.log("1").await;
        assert_eq!(client.output("1").await, numbered(500, ""));
        let steps = client.steps("1").await;
        daemon.kill();
        daemon.restart();
        let client = daemon.client().await;
        assert_eq!(client.log("1").await, log);
        assert_eq!(client.steps("1").await, steps);
    }
}

/// Returns the number of bytes that the log reports as lost.
fn lost(log: &[u8]) -> usize {
    let lines = logs::daemon_lines(log);
    let losses = lines.iter().filter_map(|line| {
        line.strip_prefix("warning: ")?.strip_suffix(" bytes of output lost")?.parse::<usize>().ok()
    });
    losses.sum()
}

#[tokio::test]
async fn fault_25_what_a_full_disk_never_took_is_a_hole_with_its_size() {
    // The first failed write begins the wait, and the next one is a minute later. Four more fail, then there is space.
    let write = "keeper::log::write=5*off->6*return(ENOSPC)->off";
    let daemon = failing("", &format!("{write};keeper::log::clock=1*off->return(61)"));
    let client = daemon.client().await;
    let go = daemon.file("go");
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    client.run("1", &format!("seq 1 100000; {wait}; echo after")).await;
    client.prints("1", "bytes of output lost").await;
    std::fs::write(&go, "").unwrap();
    assert_eq!(client.ended("1").await.state(), State::Success);
    let log = client.log("1").await;
    let written = numbered(100_000, "") + "after\n";
    let kept = logs::source(&log, "01O");
    assert!(lost(&log) > 0);
    assert_eq!(kept.len() + lost(&log), written.len());
    assert!(kept.ends_with(b"after\n"));
}

#[tokio::test]
async fn fault_25_a_job_that_was_given_up_while_the_disk_was_full_ends_when_there_is_space() {
    // The second line of the log, about the step's left-over processes, waits for a second.
    let daemon = Setup::new()
        .env("KEEPER_FAILPOINTS", "keeper::log::write=1*off->1*return(ENOSPC)->off")
        .option("kill-wait", "1ms")
        .option("leftover-grace", "0s")
        .start();
    let client = daemon.client().await;
    let sleep = OwnSleep::new();
    client.run("1", &format!("{sleep} >/dev/null 2>&1 & exit 3")).await;
    let start = Instant::now();
    let status = client.ended("1").await;
    assert!(start.elapsed() < SOON);
    assert_eq!((status.state(), status.exit_code), (State::Failure, 3), "{status:?}");
    let log = client.log("1").await;
    assert_eq!(lost(&log), 0);
    assert!(logs::daemon_lines(&log).iter().any(|line| line.starts_with("job failed: ")));
}

#[tokio::test]
async fn fault_27_a_job_whose_log_the_disk_refuses_to_the_end_has_failed() {
    let clock = "keeper::log::clock=1*off->return(61)";
    let mut daemon = failing("", &format!("keeper::log::write=5*off->return(EIO);{clock}"));
    let client = daemon.client().await;
    client.run("1", "seq 1 100000").await;
    let status = client.reaches("1", "its end", |status| status.finished).await;
    assert_eq!(status.state(), State::Failure);
    assert!(status.message.contains("storage error"), "{}", status.message);
    let log = std::fs::read(daemon.folder("1").join("log")).unwrap();
    assert_eq!(status.log_bytes, log.len() as i64);
    assert!(numbered(100_000, "").as_bytes().starts_with(&logs::source(&log, "01O")));
    // Followers get the bytes there are, and the message that some are missing; also from the next daemon.
    let mut follow = client.follow("1", 0).await;
    while follow.bytes.len() < log.len() {
        follow.next().await.unwrap();
    }
    assert_eq!(follow.bytes, log);
    refused(follow.next().await, Code::DataLoss, "data_loss");
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await, status);
    refused(client.follow("1", 0).await.rest().await, Code::DataLoss, "data_loss");
    client.finish("1").await;
}

#[tokio::test]
async fn fault_86_to_follow_a_job_that_a_storage_error_has_ended_says_so() {
    let clock = "keeper::log::clock=1*off->return(61)";
    let daemon = failing("", &format!("keeper::log::write=5*off->return(EIO);{clock}"));
    let client = daemon.client().await;
    client.run("1", "seq 1 100000").await;
    client.reaches("1", "its end", |status| status.finished).await;
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_step-runner"))
        .args(["follow", "1", "--address", &format!("unix:{}", daemon.socket.display())])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("job 1 has ended: storage error: the log could not be written"), "{said}");
}

#[tokio::test]
async fn fault_27_a_journal_that_cannot_be_written_ends_no_daemon_and_leaves_no_job_running() {
    for number in 0..4 {
        let point = format!("{number}*off->return(EIO)");
        let mut daemon = failing(&format!("store::journal::append={point}"), "");
        let client = daemon.client().await;
        if client.try_run(request("1", &script("echo one; exit 3"))).await.is_ok() {
            let status = client.reaches("1", "its end", |status| status.finished).await;
            assert_eq!(status.state(), State::Failure, "{number}: {status:?}");
            client.log("1").await;
        }
        daemon.kill();
        daemon.restart();
        let client = daemon.client().await;
        for job in client.jobs().await {
            let status = client.reaches(&job.id, "its end again", |status| status.finished).await;
            assert_eq!((status.state(), status.exit_code), (State::Failure, 3), "{number}");
        }
    }
}

#[tokio::test]
async fn fault_47_a_process_that_no_record_knows_does_not_outlive_its_keeper() {
    for leaves in [false, true] {
        for both in [false, true] {
            let sleep = OwnSleep::new();
            let text = if leaves { format!("setsid -f {sleep}; {sleep}") } else { format!("exec {sleep}") };
            let mut daemon = failing("", "keeper::step::spawned=return(KILL)");
            let client = daemon.client().await;
            let started = client.try_run(request("1", &script(&text))).await;
            started.unwrap();
            if both {
                daemon.kill();
                daemon.restart();
            }
            let client = daemon.client().await;
            let status = client.reaches("1", "its end", |status| status.finished).await;
            assert_eq!(status.state(), State::Interrupted, "{status:?}");
            assert_eq!(sleep.processes(), Vec::<i32>::new());
        }
    }
}

#[tokio::test]
async fn a_job_whose_files_take_for_ever_to_be_deleted_delays_neither_its_end_nor_another_job() {
    let daemon = failing("store::folder::delete=1*pause->off", "");
    let client = daemon.client().await;
    for id in ["1", "2", "3"] {
        client.run(id, "echo x").await;
    }
    let unfinished = async || client.jobs().await.into_iter().filter(|job| !job.finished).count();
    patiently("the end of all", async { while unfinished().await > 0 {} }).await;
    assert_eq!(client.run_to_end("after", &script("echo x")).await.state(), State::Success);
}

#[tokio::test]
async fn fault_15_a_job_whose_look_gets_no_thread_waits_for_one() {
    let daemon = failing("threads::start=3*return(EAGAIN)->off", "");
    let client = daemon.client().await;
    // So many folders are looked through on another thread.
    let path = format!("{}/usr/bin:/bin", "/none:".repeat(1_000));
    let run = RunRequest {
        env: [("PATH".to_owned(), path)].into(),
        ..request("1", r#"{"exec": {"command": ["true"]}}"#)
    };
    client.try_run(run).await.unwrap();
    assert_eq!(client.ended("1").await.state(), State::Success);
    until("the operator is told", || daemon.said().contains("cannot start a thread")).await;
}

#[tokio::test]
async fn fault_76_a_step_whose_file_system_does_not_answer_delays_neither_other_jobs_nor_its_cancel() {
    let mut daemon = failing("actors::step::lookup=pause", "");
    let client = daemon.client().await;
    // More jobs than threads that look. So many folders are not looked through at once.
    let ids = ["1", "2", "3", "4", "5", "6"];
    for id in ids {
        let exec = request(id, r#"{"exec": {"command": ["no-such-program"]}}"#);
        let env = [("PATH".to_owned(), "/none:".repeat(1_000))].into();
        client.try_run(RunRequest { env, ..exec }).await.unwrap();
    }
    assert_eq!(client.run_to_end("other", &script("echo x")).await.state(), State::Success);
    for id in &ids[..5] {
        assert_eq!(client.status(id).await.state(), State::Running);
        client.cancel(id).await;
        let status = client.reaches(id, "its end", |status| status.finished).await;
        assert_eq!(status.state(), State::Cancelled, "{status:?}");
    }
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    let status = client.reaches("6", "its end", |status| status.finished).await;
    assert_eq!(status.state(), State::Interrupted, "{status:?}");
    // The threads that look never end.
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
}
