//! What jobs may use of the machine, what they used, and what becomes of all when something runs short (service.md §3.1,
//! faults.md rows 6, 12, 15).
#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken scene fails the test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal};
use step_runner::model::{LimitName, Unenforceable};
use step_runner::pb::v1::{self, Limits, RunRequest, State};
use step_runner::process::cgroup::{CgroupMode, Pool};
use step_runner::process::limiter::Limiter;
use support::parts::skipped;
use support::{
    Client, Daemon, Setup, contains, is_alive, is_root, kill, logs, names, processes_with, refused, request,
    script, scripts, until, wait_for,
};
use tonic::Code;

const MIB: i64 = 1 << 20;

/// Fills its memory until it is ended.
const HOG: &str = "exec tail /dev/zero";

/// Starts more processes than any limit here allows; a shell that gives up at the first one that is refused.
const CROWD: &str = "exec sh -c 'i=0; while [ $i -lt 100 ]; do sleep 600 & i=$((i+1)); done; echo all'";

/// Whether this host can hold jobs to these limits; else says that `test` is skipped.
fn holds(test: &str, limits: &[LimitName]) -> bool {
    // Asked once: all tests of this process would make the same group.
    static MISSING: LazyLock<Vec<Unenforceable>> = LazyLock::new(|| {
        let pool = Pool::open().ok();
        Limiter::new(CgroupMode::Auto).unenforceable(pool.as_ref())
    });
    let missing = MISSING.iter().find(|missing| limits.contains(&missing.limit));
    if let Some(missing) = missing {
        skipped(test, &format!("control group for limit {}", missing.limit));
    }
    missing.is_none()
}

fn limited(id: &str, steps: &str, limits: Limits) -> RunRequest {
    RunRequest { limits: Some(limits), ..request(id, steps) }
}

const fn memory(bytes: i64) -> Limits {
    Limits { processes: 0, memory: bytes, cpus: 0.0, open_files: 0 }
}

const fn processes(most: i64) -> Limits {
    Limits { processes: most, memory: 0, cpus: 0.0, open_files: 0 }
}

const fn open_files(most: i64) -> Limits {
    Limits { processes: 0, memory: 0, cpus: 0.0, open_files: most }
}

async fn run_limited(client: &Client, id: &str, text: &str, limits: Limits) -> v1::Status {
    client.try_run(limited(id, &script(text), limits)).await.unwrap();
    client.ended(id).await
}

/// Prints the quota of the processors of the step's group, in microseconds, in either version.
const SHOW_CPUS: &str = "v1=$(sed -n 's/^[0-9]*:\\(cpu\\|cpu,cpuacct\\)://p' /proc/self/cgroup); \
     v2=$(sed -n 's/^0:://p' /proc/self/cgroup); \
     cat /sys/fs/cgroup/cpu$v1/cpu.cfs_quota_us 2>/dev/null || cat /sys/fs/cgroup$v2/cpu.max";

#[tokio::test]
async fn the_limits_of_a_request_hold() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    run_limited(&client, "files", "ulimit -Sn; ulimit -Hn", open_files(40)).await;
    assert_eq!(client.output("files").await, "40\n40\n");
    if holds("the_limits_of_a_request_hold", &[LimitName::Cpus]) {
        let half = Limits { cpus: 0.5, ..Limits::default() };
        run_limited(&client, "cpus", SHOW_CPUS, half).await;
        assert_eq!(client.output("cpus").await.split_whitespace().next(), Some("50000"));
    }
    if holds("the_limits_of_a_request_hold", &[LimitName::Processes, LimitName::Memory]) {
        let status = run_limited(&client, "processes", CROWD, processes(16)).await;
        assert_eq!(status.state(), State::Failure, "{status:?}");
        let status = run_limited(&client, "memory", HOG, memory(32 * MIB)).await;
        assert_eq!((status.state(), status.exit_code), (State::Failure, 137), "{status:?}");
    }
    // A job beside them has none.
    client.run("free", "ulimit -Sn; ulimit -Hn").await;
    let soft = rustix::process::getrlimit(Resource::Nofile).current;
    let first = client.output("free").await.lines().next().map(str::to_owned);
    assert_eq!(first, soft.map(|soft| soft.to_string()));
}

#[tokio::test]
async fn the_smaller_of_request_and_setting_holds() {
    let daemon = Setup::new().option("limit-open-files", "50").start();
    let client = daemon.client().await;
    client.run("setting", "ulimit -n").await;
    assert_eq!(client.output("setting").await, "50\n");
    for (id, asked, in_force) in [("less", 30, "30\n"), ("more", 70, "50\n"), ("none", 0, "50\n")] {
        run_limited(&client, id, "ulimit -n", open_files(asked)).await;
        assert_eq!(client.output(id).await, in_force, "{id}");
    }
    assert!(!daemon.said().contains("cannot be enforced"), "{}", daemon.said());
}

#[tokio::test]
async fn the_limits_of_the_settings_hold_for_every_job() {
    let all = [LimitName::Processes, LimitName::Memory, LimitName::Cpus];
    if !holds("the_limits_of_the_settings_hold_for_every_job", &all) {
        return;
    }
    let daemon = Setup::new()
        .option("limit-memory", "48MiB")
        .option("limit-processes", "20")
        .option("limit-cpus", "0.25")
        .start();
    let client = daemon.client().await;
    let status = client.run_to_end("memory", &script(HOG)).await;
    assert!(status.message.contains("limit is 50331648 bytes"), "{}", status.message);
    let status = client.run_to_end("processes", &script(CROWD)).await;
    assert!(status.message.contains("limit of 20 processes"), "{}", status.message);
    client.run_to_end("cpus", &script(SHOW_CPUS)).await;
    assert_eq!(client.output("cpus").await.split_whitespace().next(), Some("25000"));
    let status = run_limited(&client, "smaller", HOG, memory(24 * MIB)).await;
    assert!(status.message.contains("limit is 25165824 bytes"), "{}", status.message);
    let status = run_limited(&client, "larger", HOG, memory(96 * MIB)).await;
    assert!(status.message.contains("limit is 50331648 bytes"), "{}", status.message);
}

#[tokio::test]
async fn a_limit_that_cannot_be_enforced_refuses_the_request_and_names_itself() {
    let daemon = Setup::new().option("cgroup", "off").start();
    let client = daemon.client().await;
    let mut asked = vec![
        ("memory", memory(MIB)),
        ("cpus", Limits { cpus: 1.5, ..Limits::default() }),
        ("cpus", Limits { cpus: 1e-9, ..Limits::default() }),
    ];
    if rustix::process::geteuid().is_root() {
        // The kernel binds nobody else by the user's own limit.
        asked.push(("processes", processes(10)));
    }
    for (name, limits) in asked {
        let answer = client.try_run(limited("1", &script("true"), limits)).await;
        let text = refused(answer, Code::FailedPrecondition, "limit_unavailable");
        assert!(text.contains(&format!("limit {name} cannot be enforced")), "{text}");
        assert!(limits.cpus > 0.0 && limits.cpus < 1e-3 || text.contains("set cgroup = auto"), "{text}");
    }
    assert!(client.jobs().await.is_empty() && daemon.folders().is_empty(), "nothing is left behind");
    run_limited(&client, "1", "ulimit -n", open_files(33)).await;
    assert_eq!(client.output("1").await, "33\n");
}

#[tokio::test]
async fn a_limit_of_the_settings_that_cannot_be_enforced_is_one_warning() {
    let options = |setup: Setup| setup.option("cgroup", "off").option("limit-memory", "1MiB");
    let daemon = options(Setup::new()).option("limit-cpus", "2").start();
    let client = daemon.client().await;
    assert_eq!(client.run_to_end("1", &script("true")).await.exit_code, 0);
    assert_eq!(client.run_to_end("2", &script("true")).await.exit_code, 0);
    let said = daemon.said();
    assert_eq!(said.matches("cannot be enforced").count(), 1, "{said}");
    assert!(said.contains("limit_memory") && said.contains("limit_cpus"), "{said}");
}

#[tokio::test]
async fn values_that_are_no_limits_are_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    for limits in [
        memory(-1),
        processes(-1),
        open_files(i64::MIN),
        Limits { cpus: -0.5, ..Limits::default() },
        Limits { cpus: f64::NAN, ..Limits::default() },
        Limits { cpus: f64::INFINITY, ..Limits::default() },
    ] {
        let answer = client.try_run(limited("1", &script("true"), limits)).await;
        refused(answer, Code::InvalidArgument, "malformed_request");
    }
    // More than there is of anything is no limit, but none that cannot be kept either.
    if holds("values_that_are_no_limits_are_refused", &LimitName::ALL) {
        let huge = Limits { processes: i64::MAX, memory: i64::MAX, cpus: 1e18, open_files: i64::MAX };
        assert_eq!(run_limited(&client, "huge", "true", huge).await.exit_code, 0);
    }
}

/// A folder and a copy of the program for the user 1001.
fn place_of_a_user() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(1_001), Some(1_001)).unwrap();
    let binary = dir.path().join("step-runner");
    fs::copy(env!("CARGO_BIN_EXE_step-runner"), &binary).unwrap();
    (dir, binary)
}

const AS_USER: [&str; 4] = ["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups"];

#[tokio::test]
async fn fault_06_without_groups_the_limit_of_the_user_bounds_processes() {
    if !is_root("fault_06_without_groups_the_limit_of_the_user_bounds_processes") {
        return;
    }
    let (dir, binary) = place_of_a_user();
    let setup = Setup::new().program(&binary).wrapper(&AS_USER).option("cgroup", "off");
    let daemon = setup.start_in(dir.path());
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
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
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

fn oom_score_adj(pid: i32) -> i32 {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn fault_12_a_step_is_ended_for_want_of_memory_and_the_daemon_lives() {
    if !holds("fault_12_a_step_is_ended_for_want_of_memory_and_the_daemon_lives", &[LimitName::Memory]) {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("beside", "echo on; exec sleep 600").await;
    client.prints("beside", "on").await;
    let keeper = daemon.keeper_pid().unwrap();
    for (id, text, end) in [
        ("itself", HOG, "exec: signal: killed"),
        ("child", "tail /dev/zero; exit 3", "exec: exit status 3"),
        ("deep", "(setsid tail /dev/zero & wait $!); exit 9", "exec: exit status 9"),
    ] {
        let status = run_limited(&client, id, text, memory(64 * MIB)).await;
        assert_eq!(status.state(), State::Failure, "{status:?}");
        let reason = "step \"s\": oom-killed: out of memory: the job's memory limit is 67108864 bytes";
        assert!(status.message.starts_with(reason), "{}", status.message);
        assert!(status.message.ends_with(end), "{}", status.message);
        assert!(contains(&client.log(id).await, "job failed: step \"s\": oom-killed: "));
    }
    let status = run_limited(&client, "copes", "tail /dev/zero; exit 0", memory(64 * MIB)).await;
    assert_eq!(status.exit_code, 0);
    assert!(contains(&client.log("copes").await, "warning: step s: processes were killed"));
    // Not even room for its own start.
    let status = run_limited(&client, "none", "true", memory(1)).await;
    assert_eq!(status.state(), State::Failure, "{status:?}");
    assert_eq!(daemon.keeper_pid(), Some(keeper));
    assert_eq!(client.status("beside").await.state(), State::Running);
}

/// `CAP_SYS_RESOURCE`
fn may_lower_oom_score() -> bool {
    const BIT: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(capabilities.trim(), 16).unwrap() & BIT != 0
}

#[tokio::test]
async fn fault_12_steps_are_ended_before_the_daemon_and_its_keeper() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "cat /proc/self/oom_score_adj; echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let output = logs::source(&client.log_so_far("1").await, "01O");
    let step: i32 = String::from_utf8(output).unwrap().lines().next().unwrap().parse().unwrap();
    let own = oom_score_adj(std::process::id() as i32);
    let (of_daemon, of_keeper) = (oom_score_adj(daemon.pid()), oom_score_adj(daemon.keeper_pid().unwrap()));
    assert!(of_daemon <= own && of_daemon < step, "daemon {of_daemon}, step {step}, started with {own}");
    assert_eq!(of_keeper, of_daemon);
    assert!(step >= own, "a step is not better off than what started the daemon");
    if may_lower_oom_score() {
        assert_eq!((of_daemon, step), (-500, own.max(0)));
    } else {
        assert_eq!((of_daemon, step), (own, (own + 500).min(1000)));
    }
}

#[tokio::test]
async fn fault_12_a_daemon_without_rights_still_lets_steps_end_first() {
    if !is_root("fault_12_a_daemon_without_rights_still_lets_steps_end_first") {
        return;
    }
    let (dir, binary) = place_of_a_user();
    let daemon = Setup::new().program(&binary).wrapper(&AS_USER).start_in(dir.path());
    let client = daemon.client().await;
    client.run_to_end("1", &script("cat /proc/self/oom_score_adj")).await;
    let own = oom_score_adj(std::process::id() as i32);
    assert_eq!(client.output("1").await, format!("{}\n", (own + 500).min(1000)));
    assert_eq!(oom_score_adj(daemon.pid()), own);
    assert_eq!(oom_score_adj(daemon.keeper_pid().unwrap()), own);
}

/// Directories of the control groups of the daemon's keeper.
fn groups(daemon: &Daemon) -> Vec<PathBuf> {
    let json = fs::read(daemon.state_dir().join("keeper.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let groups = json["cgroups"].as_array().unwrap();
    groups.iter().map(|group| group.as_str().unwrap().into()).collect()
}

/// Groups of version 1 that jobs have now.
fn groups_of_jobs(groups: &[PathBuf]) -> Vec<String> {
    let is_group = |group: &Path, name: &str| group.join(name).is_dir();
    let below = |group: &PathBuf| {
        let all = names(group);
        all.into_iter().filter(|name| is_group(group, name)).collect::<Vec<_>>()
    };
    groups.iter().filter(|group| !group.join("cgroup.events").exists()).flat_map(below).collect()
}

const BOTH: Limits = Limits { processes: 50, memory: 64 * MIB, cpus: 1.5, open_files: 0 };

#[tokio::test]
async fn no_group_outlives_its_job_nor_its_keeper() {
    let all = [LimitName::Processes, LimitName::Memory, LimitName::Cpus];
    if !holds("no_group_outlives_its_job_nor_its_keeper", &all) {
        return;
    }
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let steps = scripts(&[("a", "sleep 600 & setsid -f sleep 601"), ("b", "(echo on); sleep 600")]);
    client.try_run(limited("1", &steps, BOTH)).await.unwrap();
    client.prints("1", "on").await;
    let all = groups(&daemon);
    assert!(!all.is_empty());
    client.finish("1").await;
    wait_for("the job's groups are gone", || groups_of_jobs(&all).is_empty().then_some(()));
    assert_eq!(run_limited(&client, "2", "true", BOTH).await.exit_code, 0);
    wait_for("the job's groups are gone", || groups_of_jobs(&all).is_empty().then_some(()));
    daemon.stop();
    wait_for("the keeper's groups are gone", || all.iter().all(|group| !group.exists()).then_some(()));
}

#[tokio::test]
async fn groups_of_a_killed_keeper_are_removed_by_its_daemon_and_by_the_next() {
    let all = [LimitName::Processes, LimitName::Memory, LimitName::Cpus];
    if !holds("groups_of_a_killed_keeper_are_removed_by_its_daemon_and_by_the_next", &all) {
        return;
    }
    let mut daemon = Daemon::start();
    let start = async |daemon: &Daemon, id| {
        let client = daemon.client().await;
        client
            .try_run(limited(id, &script("setsid -f sleep 601; (echo on); sleep 600"), BOTH))
            .await
            .unwrap();
        client.prints(id, "on").await;
        let groups = groups(daemon);
        assert!(groups.iter().any(|group| group.exists()), "{groups:?}");
        groups
    };
    let of_first = start(&daemon, "1").await;
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    let client = daemon.client().await;
    assert_eq!(client.ended("1").await.state(), State::Interrupted);
    assert!(of_first.iter().all(|group| !group.exists()), "{of_first:?}");
    let of_second = start(&daemon, "2").await;
    let keeper = daemon.keeper_pid().unwrap();
    daemon.kill();
    kill(keeper, Signal::KILL);
    wait_for("the keeper's end", || (!is_alive(keeper)).then_some(()));
    daemon.restart();
    assert!(of_second.iter().all(|group| !group.exists()), "before it serves: {of_second:?}");
    assert_eq!(daemon.client().await.status("2").await.state(), State::Interrupted);
}

#[tokio::test]
async fn limits_outlive_the_daemon_that_set_them() {
    let mut daemon = Setup::new().option("limit-open-files", "45").start();
    let client = daemon.client().await;
    let gate = daemon.file("gate");
    let first = format!("echo on; while [ ! -e {} ]; do sleep 0.05; done", gate.display());
    client.run_steps("1", &scripts(&[("a", &first), ("b", "ulimit -n")])).await;
    client.prints("1", "on").await;
    daemon.kill();
    daemon.restart_with(Setup::new().option("limit-open-files", "90"));
    fs::write(&gate, "").unwrap();
    let client = daemon.client().await;
    assert_eq!(client.ended("1").await.exit_code, 0);
    assert_eq!(client.output("1").await, "on\n45\n");
    client.run_to_end("2", &script("ulimit -n")).await;
    assert_eq!(client.output("2").await, "90\n");
}

/// Keeps a processor busy for a while.
const BURN: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

fn cpu_time(status: &v1::Status) -> Duration {
    status.cpu_time.map(|time| time.try_into().unwrap()).unwrap_or_default()
}

#[tokio::test]
async fn what_a_job_used_is_in_its_status() {
    for mode in ["auto", "off"] {
        let daemon = Setup::new().option("cgroup", mode).start();
        let client = daemon.client().await;
        let start = Instant::now();
        let orphan = format!("(setsid sh -c '{BURN}' &); {BURN}; echo on; exec sleep 600");
        client.run_steps("1", &scripts(&[("a", BURN), ("b", &orphan)])).await;
        client.prints("1", "on").await;
        let so_far = cpu_time(&client.status("1").await);
        assert!(so_far >= Duration::from_millis(20), "{mode}: {so_far:?} after the first step");
        client.cancel("1").await;
        let all = cpu_time(&client.ended("1").await);
        assert!(all > so_far, "{mode}: {all:?} after {so_far:?}");
        let most = start.elapsed() * std::thread::available_parallelism().unwrap().get() as u32;
        assert!(all <= most, "{mode}: {all:?} in {most:?}");
    }
}

#[tokio::test]
async fn the_peak_of_a_limited_jobs_memory_is_in_its_status() {
    if !holds("the_peak_of_a_limited_jobs_memory_is_in_its_status", &[LimitName::Memory]) {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let text = "head -c 40M /dev/zero | tail -n 1 | wc -c";
    let status = run_limited(&client, "1", text, memory(128 * MIB)).await;
    assert_eq!(status.exit_code, 0, "{status:?}");
    assert!((40 * MIB..=128 * MIB).contains(&status.peak_memory), "{status:?}");
}

/// Sets the soft limit of the address space of a process.
fn limit_memory(pid: i32, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    rustix::process::prlimit(Pid::from_raw(pid), Resource::As, limit).unwrap();
}

/// Sets the soft limit of processes of a user's process, as that user: root may lack the right.
fn limit_processes(user: u32, pid: i32, soft: Option<u64>) {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]);
    let maximum = rustix::process::getrlimit(Resource::Nproc).maximum;
    let soft = soft.or(maximum).map_or("unlimited".to_owned(), |soft| soft.to_string());
    command.args(["prlimit", &format!("--pid={pid}"), &format!("--nproc={soft}:")]);
    assert!(command.status().unwrap().success());
}

/// A daemon of a user who has no other processes, so that the system's limit of them can be met.
fn lonely(uid: u32) -> (tempfile::TempDir, Daemon) {
    let (dir, binary) = place_of_a_user();
    std::os::unix::fs::chown(dir.path(), Some(uid), Some(uid)).unwrap();
    let (user, group) = (format!("--reuid={uid}"), format!("--regid={uid}"));
    let wrapper = ["setpriv", &user, &group, "--clear-groups"];
    let daemon = Setup::new().program(&binary).wrapper(&wrapper).start_in(dir.path());
    (dir, daemon)
}

#[tokio::test]
async fn fault_15_a_run_without_a_process_for_its_keeper_is_refused_for_now() {
    if !is_root("fault_15_a_run_without_a_process_for_its_keeper_is_refused_for_now") {
        return;
    }
    let (_dir, daemon) = lonely(1_015);
    let client = daemon.client().await;
    limit_processes(1_015, daemon.pid(), Some(1));
    for id in ["1", "2"] {
        let answer = client.try_run(request(id, &script("echo x"))).await;
        let status = answer.clone().unwrap_err();
        assert!(
            tonic_types::StatusExt::get_details_retry_info(&status).is_some(),
            "it says when to come back"
        );
        refused(answer, Code::ResourceExhausted, "keeper_unavailable");
    }
    // What is checked on a thread of its own needs no new one.
    let large = format!("# {}\n{}", "x".repeat(100_000), script("echo x"));
    refused(client.try_run(request("3", &large)).await, Code::ResourceExhausted, "keeper_unavailable");
    assert!(client.jobs().await.is_empty() && daemon.folders().is_empty(), "nothing is left behind");
    limit_processes(1_015, daemon.pid(), None);
    assert_eq!(client.run_to_end("1", &script("echo x")).await.exit_code, 0);
    assert_eq!(client.run_to_end("3", &large).await.exit_code, 0);
}

#[tokio::test]
async fn fault_15_a_step_without_a_process_is_a_failure_that_says_so() {
    if !is_root("fault_15_a_step_without_a_process_is_a_failure_that_says_so") {
        return;
    }
    let (_dir, daemon) = lonely(1_016);
    let client = daemon.client().await;
    client.run("beside", "echo on; while :; do read -r line < /dev/null; sleep 0.1; done").await;
    client.prints("beside", "on").await;
    let keeper = daemon.keeper_pid().unwrap();
    limit_processes(1_016, keeper, Some(1));
    let status = client.run_to_end("1", &script("echo x")).await;
    assert_eq!((status.state(), status.exit_code), (State::Failure, -1), "{status:?}");
    assert!(status.message.contains("exec: resource: cannot start a process (fork): "), "{}", status.message);
    let phrases = (0..2_000).map(|n| format!("phrase-{n}")).collect();
    let masking = Some(v1::Masking { phrases, token_prefixes: vec![] });
    client.try_run(RunRequest { masking, ..request("2", &script("echo x")) }).await.unwrap();
    assert_eq!(client.ended("2").await.exit_code, -1, "its phrases need no thread");
    limit_processes(1_016, keeper, None);
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
            // What the step needs is not there, or the keeper found nothing for itself.
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
