//! The fate of processes: those of steps, left-over ones, and those that resist a kill (service.md §6, faults.md §1).

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::user::{ORDINARY, Place, command_as};
use crate::support::{
    Daemon, SOON, Setup, contains, exec, is_alive, is_root, kill, logs, parts, processes_with, refused,
    request, script, scripts, until,
};
use rustix::process::Signal;
use step_runner::pb::v1::State;
use tonic::Code;

/// Waits until a step has written its pid to `file`, and returns it.
async fn pid_in(file: &Path) -> i32 {
    let read = || std::fs::read_to_string(file).ok()?.trim().parse().ok();
    until("a step wrote its pid", || read().is_some()).await;
    read().unwrap()
}

#[tokio::test]
async fn fault_01_a_step_is_over_when_its_process_is() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let pid = daemon.file("pid");
    let start = Instant::now();
    let status =
        client.run_to_end("1", &script(&format!("sleep 600 & echo $! > {}; echo x", pid.display()))).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!((status.state(), status.exit_code), (State::Success, 0));
    assert_eq!(client.output("1").await, "x\n");
    let said = logs::daemon_lines(&client.log("1").await);
    assert!(said.iter().any(|line| line.starts_with("step s left 1 process running: ")), "{said:?}");
    assert!(!is_alive(pid_in(&pid).await));
}

#[tokio::test]
async fn fault_01_a_server_started_by_one_step_serves_the_next_and_dies_with_the_job() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let (asked, answered, pid) = (daemon.file("asked"), daemon.file("answered"), daemon.file("pid"));
    let server = format!(
        "mkfifo {asked} {answered}\n\
         (while :; do read -r word < {asked}; echo \"served $word\"; echo \"answer to $word\" > {answered}; done) &\n\
         echo $! > {pid}; echo started",
        asked = asked.display(),
        answered = answered.display(),
        pid = pid.display()
    );
    let user = format!("echo question > {}; cat {}", asked.display(), answered.display());
    let status = client.run_to_end("1", &scripts(&[("server", &server), ("user", &user)])).await;
    assert_eq!(status.exit_code, 0, "{status:?}");
    let output = client.output("1").await;
    assert!(output.contains("answer to question\n"), "{output}");
    assert!(output.contains("served question\n"), "what is left goes on being logged: {output}");
    assert!(!is_alive(pid_in(&pid).await));
}

#[tokio::test]
async fn fault_01_leftover_kill_ends_them_with_the_step() {
    let daemon = Setup::new().option("leftover", "kill").start();
    let client = daemon.client().await;
    let pid = daemon.file("pid");
    let first = format!("sleep 600 & echo $! > {}", pid.display());
    let second =
        format!("if kill -0 $(cat {}) 2>/dev/null; then echo lives; else echo gone; fi", pid.display());
    let status = client.run_to_end("1", &scripts(&[("a", &first), ("b", &second)])).await;
    assert_eq!(status.exit_code, 0);
    assert_eq!(client.output("1").await, "gone\n");
}

/// Returns a script that starts 400 processes in their own sessions. `mark` is in their command lines.
fn escapes(mark: &str) -> String {
    format!(
        "i=0; while [ $i -lt 400 ]; do setsid -f sh -c 'trap \"\" TERM HUP; sleep 600; : {mark}' >/dev/null 2>&1; i=$((i+1)); done; echo escaped"
    )
}

async fn nobody_escapes(daemon: Daemon, mode: &str, in_force: &str) {
    until("the operator is told", || daemon.said().contains(in_force)).await;
    let client = daemon.client().await;
    let mark = format!("mark-{mode}-{}", std::process::id());
    // They are killed at the job's end.
    let status = client.run_to_end("1", &script(&escapes(&mark))).await;
    assert_eq!(status.exit_code, 0, "{status:?}");
    assert_eq!(processes_with(&format!(": {mark}")), Vec::<i32>::new());
    // They are killed by Finish while they run.
    client.run("2", &format!("{}; exec sleep 600", escapes(&mark))).await;
    client.prints("2", "escaped").await;
    client.finish("2").await;
    assert_eq!(processes_with(&format!(": {mark}")), Vec::<i32>::new());
}

#[tokio::test]
async fn fault_02_nobody_escapes_the_reaper() {
    let daemon = Setup::new().option("cgroup", "off").option("cancel-grace", "200ms").start();
    nobody_escapes(daemon, "off", "a reaper holds the processes of each job").await;
}

/// True if control groups can be made here. Else says that the test is skipped.
fn has_groups(test: &str) -> bool {
    let hosts = ["/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs"];
    let has = hosts.iter().any(|path| std::fs::OpenOptions::new().append(true).open(path).is_ok());
    if !has {
        parts::skipped(test, "writable cgroup v2");
    }
    has
}

#[tokio::test]
async fn fault_02_nobody_escapes_the_cgroup() {
    if !has_groups("fault_02_nobody_escapes_the_cgroup") {
        return;
    }
    let daemon = Setup::new().option("cgroup", "on").option("cancel-grace", "200ms").start();
    nobody_escapes(daemon, "on", "a control group holds the processes of each job").await;
}

/// Nothing but its group tells whose it is.
#[tokio::test]
async fn fault_78_a_process_without_signs_in_the_group_of_a_dead_keeper_is_killed() {
    if !has_groups("fault_78_a_process_without_signs_in_the_group_of_a_dead_keeper_is_killed") {
        return;
    }
    let daemon = Setup::new().option("cgroup", "on").start();
    let client = daemon.client().await;
    let hidden = daemon.file("hidden");
    let hides = format!(
        "(env -i setsid sh -c 'env -i setsid sh -c \"echo \\$\\$ > {}; exec sleep 600\" & exit 0' &)\nexec sleep 600",
        hidden.display()
    );
    client.run("1", &hides).await;
    let hidden = pid_in(&hidden).await;
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    let status = client.reaches("1", "it ends", |status| status.finished).await;
    assert_eq!((status.state(), status.exit_code), (State::Interrupted, -4));
    until("nothing is left", || !is_alive(hidden)).await;
}

#[tokio::test]
async fn fault_78_a_stopped_reaper_of_a_dead_keeper_is_found_and_leaves_nothing() {
    let daemon = Setup::new().option("cgroup", "off").start();
    let client = daemon.client().await;
    let (reaper, hidden) = (daemon.file("reaper"), daemon.file("hidden"));
    let hides = format!(
        "(env -i setsid sh -c 'env -i setsid sh -c \"echo \\$\\$ > {0}; exec sleep 600\" & exit 0' &)\n\
         echo $PPID > {1}; exec sleep 600",
        hidden.display(),
        reaper.display()
    );
    client.run("1", &hides).await;
    let (reaper, hidden) = (pid_in(&reaper).await, pid_in(&hidden).await);
    kill(reaper, Signal::STOP);
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    let status = client.reaches("1", "it ends", |status| status.finished).await;
    assert_eq!((status.state(), status.exit_code), (State::Interrupted, -4));
    until("nothing is left", || !is_alive(hidden) && !is_alive(reaper)).await;
}

#[tokio::test]
async fn fault_03_a_job_that_keeps_forking_is_ended() {
    let daemon = Setup::new().option("cgroup", "off").option("cancel-grace", "100ms").start();
    let client = daemon.client().await;
    let mark = format!("forks-{}", std::process::id());
    let forks = format!("trap '' TERM; f() {{ : {mark}; sleep 0.01; f & }}; f; echo on; wait; sleep 600");
    for round in 0..5 {
        let id = format!("r{round}");
        client.run(&id, &forks).await;
        client.prints(&id, "on").await;
        client.finish(&id).await;
    }
    assert_eq!(processes_with(&format!(": {mark}")), Vec::<i32>::new());
}

#[tokio::test]
async fn fault_04_what_ignores_sigterm_is_killed_after_the_grace() {
    let daemon = Setup::new().option("cancel-grace", "500ms").start();
    let client = daemon.client().await;
    client.run("1", "trap '' TERM; echo on; while :; do sleep 1; done").await;
    client.prints("1", "on").await;
    let start = Instant::now();
    client.cancel("1").await;
    assert_eq!(client.ended("1").await.exit_code, -2);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(450) && took < SOON, "{took:?}");
}

#[tokio::test]
async fn fault_04_what_ends_within_the_grace_does_not_wait_for_it() {
    let daemon = Setup::new().option("cancel-grace", "600s").start();
    let client = daemon.client().await;
    client.run("1", "trap 'sleep 0.05; exit 3' TERM; echo on; while :; do sleep 0.01; done").await;
    client.prints("1", "on").await;
    let start = Instant::now();
    client.cancel("1").await;
    assert_eq!(client.ended("1").await.exit_code, -2);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[tokio::test]
async fn fault_05_a_stopped_process_is_cancelled_within_its_grace() {
    let daemon = Setup::new().option("cancel-grace", "600s").start();
    let client = daemon.client().await;
    let pid = daemon.file("pid");
    client.run("1", &format!("echo $$ > {}; kill -STOP $$; echo never", pid.display())).await;
    let stat = format!("/proc/{}/stat", pid_in(&pid).await);
    until("it is stopped", || std::fs::read_to_string(&stat).unwrap().contains(") T ")).await;
    let start = Instant::now();
    client.finish("1").await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[tokio::test]
async fn fault_10_a_step_has_only_its_three_descriptors() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("busy", "echo on; exec sleep 600").await;
    client.prints("busy", "on").await;
    let mut follow = client.follow("busy", 0).await;
    follow.until("on").await;
    let status = client.run_to_end("1", &exec(&daemon, "fds", &["ls", "/proc/self/fd"])).await;
    assert_eq!(status.exit_code, 0);
    // Descriptor 3 is the folder that `ls` reads.
    assert_eq!(client.output("1").await, "0\n1\n2\n3\n");
    client.run_to_end("2", &exec(&daemon, "stdin", &["readlink", "/proc/self/fd/0"])).await;
    assert_eq!(client.output("2").await, "/dev/null\n");
}

#[tokio::test]
async fn fault_10_a_hundred_jobs_share_no_descriptors() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let stop = daemon.file("stop");
    rustix::fs::mknodat(rustix::fs::CWD, &stop, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    // All jobs run at once: each waits until the FIFO is closed.
    let text = format!("ls /proc/self/fd | tr '\\n' ' '; echo listed; read -r word < {}", stop.display());
    for job in 0..100 {
        client.run(&job.to_string(), &text).await;
    }
    for job in 0..100 {
        client.prints(&job.to_string(), "listed").await;
    }
    let writer = std::fs::File::options().write(true).open(&stop).unwrap();
    drop(writer);
    for job in 0..100 {
        assert_eq!(client.output(&job.to_string()).await, "0 1 2 3 listed\n");
    }
}

#[tokio::test]
async fn a_step_starts_with_default_signals_in_a_group_of_its_own() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client
        .run_to_end("1", &exec(&daemon, "sig", &["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"]))
        .await;
    assert_eq!(client.output("1").await, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
    client.run("2", "[ \"$(cut -d' ' -f5 /proc/$$/stat)\" = $$ ] && echo leads").await;
    client.ended("2").await;
    assert_eq!(client.output("2").await, "leads\n");
}

#[tokio::test]
async fn the_environment_of_a_step_tells_its_job_and_socket() {
    let daemon = Setup::new().env("STEP_RUNNER_SECRET_SETTING", "x").env("PASSED", "on").start();
    let client = daemon.client().await;
    let steps = r#"[{"name":"a","script":"env | grep -E '^(STEP_RUNNER_|PASSED)' | sed 's/JOB=[0-9a-f]*$/JOB=hex/' | sort","env":{"STEP_RUNNER_JOB":"forged"}}]"#;
    client.run_to_end("1", steps).await;
    let expected =
        format!("PASSED=on\nSTEP_RUNNER_JOB=hex\nSTEP_RUNNER_SOCKET={}\n", daemon.socket.display());
    assert_eq!(client.output("1").await, expected);
}

#[tokio::test]
async fn outputs_that_are_no_files_fail_the_step_and_hang_nobody() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let kinds = [
        ("fifo", "rm ${{output_file}}; mkfifo ${{output_file}}"),
        ("zero", "rm ${{output_file}}; ln -s /dev/zero ${{output_file}}"),
        ("link", "rm ${{output_file}}; ln -s /etc/passwd ${{output_file}}"),
        ("folder", "rm ${{output_file}}; mkdir ${{output_file}}"),
        ("gone", "rm ${{export_file}}"),
        ("sparse", "truncate -s 10G ${{output_file}}"),
        ("torn", "printf '{\"name\":\"a\",\"val' > ${{export_file}}"),
        ("old", "echo key=canary > ${{export_file}}"),
        ("bytes", "printf '\\377\\376' > ${{export_file}}"),
        ("null", "echo '{\"name\":\"a\",\"value\":null}' > ${{export_file}}"),
        ("empty-name", "echo '{\"name\":\"\",\"value\":\"x\"}' > ${{export_file}}"),
        ("equals", "echo '{\"name\":\"a=b\",\"value\":\"x\"}' > ${{export_file}}"),
        ("undeclared", "echo '{\"name\":\"a\",\"value\":\"x\"}' > ${{output_file}}"),
    ];
    for (id, text) in kinds {
        let status = client.run_to_end(id, &script(text)).await;
        assert_eq!((status.state(), status.exit_code), (State::Failure, -1), "{id}: {status:?}");
        assert!(
            !status.message.contains("canary") && !status.message.contains("root:"),
            "{}",
            status.message
        );
    }
    client.finish("sparse").await;
}

#[tokio::test]
async fn an_ordinary_user_can_run_it() {
    if !is_root("an_ordinary_user_can_run_it") {
        return;
    }
    let place = Place::of(ORDINARY);
    let daemon = place.setup().start_in(place.path());
    let client = daemon.client().await;
    let status = client.run_to_end("1", &script("id -u; exit 7")).await;
    assert_eq!(status.exit_code, 7);
    assert_eq!(client.output("1").await, "1000\n");
    client.run("2", "setsid -f sleep 601; echo on; exec sleep 600").await;
    client.prints("2", "on").await;
    client.finish("2").await;
    assert_eq!(daemon.folders().len(), 1);
}

/// Asserts that the operator is told once of calls of other users, and not again.
async fn told_once(daemon: &Daemon) {
    let told = || daemon.said().matches("calls of another user are refused").count();
    until("the operator is told", || told() > 0).await;
    assert_eq!(told(), 1);
}

#[tokio::test]
async fn fault_65_another_user_is_refused_on_every_call() {
    if !is_root("fault_65_another_user_is_refused_on_every_call") {
        return;
    }
    let place = Place::of(ORDINARY);
    let daemon = Setup::new().program(&place.program).option("socket-mode", "0666").start_in(place.path());
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let steps = place.path().join("steps.yml");
    std::fs::write(&steps, "- {name: a, script: 'true'}").unwrap();
    let address = format!("unix:{}", daemon.socket.display());
    let steps = steps.to_str().unwrap();
    let calls: [&[&str]; 6] = [
        &["submit", "--id", "2", steps],
        &["follow", "1"],
        &["status"],
        &["status", "1"],
        &["cancel", "1"],
        &["finish", "1"],
    ];
    for call in calls {
        let mut command = command_as(1_001, &place.program);
        command.args(call).args(["--address", &address]).env("STEP_RUNNER_ADDRESS", &address);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("forbidden"), "{call:?}: {said}");
    }
    assert_eq!(client.status("1").await.state(), State::Running);
    assert_eq!(client.jobs().await.len(), 1);
    told_once(&daemon).await;
}

#[tokio::test]
async fn fault_65_root_the_own_user_and_those_of_allow_uids_may_call() {
    if !is_root("fault_65_root_the_own_user_and_those_of_allow_uids_may_call") {
        return;
    }
    let place = Place::of(ORDINARY);
    let setup = place.setup().option("socket-mode", "0666").option("allow-uids", "1002");
    let daemon = setup.start_in(place.path());
    assert!(daemon.client().await.jobs().await.is_empty(), "root");
    let address = format!("unix:{}", daemon.socket.display());
    for (user, may) in [(ORDINARY, true), (1_002, true), (1_001, false)] {
        let mut command = command_as(user, &place.program);
        let output = command.args(["status", "--address", &address]).output().unwrap();
        assert_eq!(output.status.success(), may, "{user}: {}", String::from_utf8_lossy(&output.stderr));
    }
    told_once(&daemon).await;
}

#[tokio::test]
async fn fault_07_as_the_first_process_it_reaps_all_orphans() {
    let test = "fault_07_as_the_first_process_it_reaps_all_orphans";
    if !is_root(test) || !parts::has_namespaces(test) {
        return;
    }
    let wrapper = ["unshare", "-pf", "--mount-proc", "--kill-child"];
    let daemon = Setup::new().wrapper(&wrapper).start();
    let client = daemon.client().await;
    let zombies = "grep -hs '^State:.Z' /proc/[0-9]*/status | grep -c .";
    let orphans = "i=0; while [ $i -lt 10000 ]; do (exit 9 &) ; i=$((i+1)); done; echo orphaned";
    let status = client.run_to_end("orphans", &script(orphans)).await;
    assert_eq!(status.exit_code, 0, "{status:?}");
    for code in [0, 1, 17, 255] {
        let id = format!("exit-{code}");
        let status = client.run_to_end(&id, &script(&format!("(sh -c 'exit 9' &); exit {code}"))).await;
        assert_eq!(status.exit_code, code);
    }
    // Zombies are reaped within a second. On a loaded machine the step itself can take that long to look.
    let count = format!(
        "for i in 1 2 3 4 5 6 7 8 9; do sleep 1; [ $({zombies}) != 0 ] || exit 0; done; grep -hs ^Name /proc/[0-9]*/status; exit 1"
    );
    let status = client.run_to_end("zombies", &script(&count)).await;
    assert_eq!(status.exit_code, 0, "{}", client.output("zombies").await);
}

#[tokio::test]
async fn fault_14_a_step_that_kills_its_parent_interrupts_only_running_jobs() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let before = client.run_to_end("before", &script("echo x")).await;
    client.run("1", &format!("echo on; kill -9 {}; exec sleep 600", daemon.keeper_pid().unwrap())).await;
    let status = client.reaches("1", "it ends", |status| status.finished).await;
    assert_eq!((status.state(), status.exit_code), (State::Interrupted, -4));
    assert!(contains(&client.log("1").await, "job interrupted: "));
    assert_eq!(client.status("before").await, before);
    assert_eq!(client.run_to_end("after", &script("echo y")).await.exit_code, 0);
    kill(daemon.keeper_pid().unwrap(), Signal::TERM);
    refused(client.try_run(request("", "")).await, Code::InvalidArgument, "invalid_id");
}
