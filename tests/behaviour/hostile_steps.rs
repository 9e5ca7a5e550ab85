//! Steps that attack the daemon, its keeper or the machine (faults.md §1): how they are contained, and the messages for
//! users.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support::programs::copy_program;
use crate::support::user::{ORDINARY, Place, copy_of_the_program, words};
use crate::support::{
    Daemon, PATIENCE, Setup, contains, is_alive, is_root, kill, logs, parts, processes_with, script, until,
    wait_for,
};
use rustix::process::Signal;
use step_runner::pb::v1::State;

/// Makes a setuid program that becomes root and runs a command, as `sudo` does. Returns the start of its command line.
fn root_maker(folder: &Path) -> String {
    let path = folder.join("become-root");
    copy_program("/usr/bin/setpriv".as_ref(), &path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    format!("{} --reuid=0 --regid=0 --clear-groups", path.display())
}

/// Returns the processes `sleep MARK` all of whose user ids are root's. Until then their own user can kill them.
fn of_root(mark: &str) -> Vec<i32> {
    let mut found = processes_with(&format!("sleep\0{mark}"));
    found.retain(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("\nUid:\t0\t0\t0\t0\n")
    });
    found
}

#[tokio::test]
async fn fault_11_processes_of_another_user_are_told_and_finish_answers() {
    let test = "fault_11_processes_of_another_user_are_told_and_finish_answers";
    if !is_root(test) {
        return;
    }
    let place = Place::of(ORDINARY);
    let become_root = root_maker(place.path());
    let daemon = place
        .setup()
        .option("cgroup", "off")
        .option("cancel-grace", "100ms")
        .option("kill-wait", "300ms")
        .option("leftover-grace", "100ms")
        .start_in(place.path());
    let client = daemon.client().await;
    let mark = format!("60{}", std::process::id());
    // The step leaves one such process, and the job still succeeds. The step waits until all user ids of the process
    // are root's: until then the daemon could kill it.
    let leaves = format!(
        "setsid {become_root} sleep {mark} >/dev/null 2>&1 &
        until grep -q '^Uid:.0.0.0' /proc/$!/status; do :; done"
    );
    let status = client.run_to_end("left", &script(&leaves)).await;
    assert_eq!((status.state(), status.exit_code), (State::Success, 0), "{status:?}");
    assert_eq!(status.message, "1 processes could not be killed");
    assert!(contains(&client.log("left").await, "00E 1 processes could not be killed"));
    client.finish("left").await;
    // The step itself and one of its children are such processes. The cancelled job ends all the same.
    let is = format!("{become_root} sleep {mark} & echo on; exec {become_root} sleep {mark}");
    client.run("is", &is).await;
    client.prints("is", "on").await;
    until("both are root's", || of_root(&mark).len() == 3).await;
    client.cancel("is").await;
    let status = client.ended("is").await;
    assert_eq!((status.state(), status.exit_code), (State::Cancelled, -2), "{status:?}");
    assert!(status.message.ends_with("; 2 processes could not be killed"), "{}", status.message);
    client.finish("is").await;
    // Finish of a running job is answered, too.
    client.run("running", &is).await;
    client.prints("running", "on").await;
    until("both are root's", || of_root(&mark).len() == 5).await;
    client.finish("running").await;
    assert!(client.jobs().await.is_empty());
    assert_eq!(client.run_to_end("after", &script("echo x")).await.exit_code, 0);
    let left = processes_with(&format!("sleep\0{mark}"));
    assert_eq!(left.len(), 5);
    for pid in left {
        kill(pid, Signal::KILL);
    }
}

/// A cgroup that user 1000 can use. Removed when this value is dropped.
struct Delegated(PathBuf);

impl Delegated {
    fn make() -> Option<Self> {
        let hosts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let host = hosts.iter().find(|host| host.join("cgroup.procs").exists())?;
        let path = host.join(format!("hostile-steps-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        for name in ["", "cgroup.procs"] {
            std::os::unix::fs::chown(path.join(name), Some(1_000), Some(1_000)).ok()?;
        }
        Some(Self(path))
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        fs::write(self.0.join("cgroup.kill"), "1").ok();
        wait_for("the group's end", || {
            let events = fs::read_to_string(self.0.join("cgroup.events")).ok()?;
            events.contains("populated 0").then_some(())
        });
        for inner in fs::read_dir(&self.0).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
            for leaf in fs::read_dir(inner.path()).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
                fs::remove_dir(leaf.path()).ok();
            }
            fs::remove_dir(inner.path()).ok();
        }
        fs::remove_dir(&self.0).ok();
    }
}

#[tokio::test]
async fn fault_11_a_control_group_ends_processes_of_another_user() {
    let test = "fault_11_a_control_group_ends_processes_of_another_user";
    if !is_root(test) {
        return;
    }
    let Some(group) = Delegated::make() else { return parts::skipped(test, "writable cgroup v2") };
    let place = Place::of(ORDINARY);
    let become_root = root_maker(place.path());
    let enter =
        format!("echo 0 > {}/cgroup.procs; exec {} \"$@\"", group.0.display(), words(ORDINARY).join(" "));
    let daemon = Setup::new()
        .program(&place.program)
        .wrapper(&["sh", "-c", &enter, "sh"])
        .option("cgroup", "on")
        .option("cancel-grace", "100ms")
        .start_in(place.path());
    let client = daemon.client().await;
    let mark = format!("61{}", std::process::id());
    let is = format!("setsid {become_root} sleep {mark} & echo on; exec {become_root} sleep {mark}");
    client.run("1", &is).await;
    client.prints("1", "on").await;
    until("both are root's", || of_root(&mark).len() == 2).await;
    client.cancel("1").await;
    let status = client.ended("1").await;
    assert_eq!((status.state(), status.exit_code), (State::Cancelled, -2), "{status:?}");
    assert!(!status.message.contains("could not be killed"), "{}", status.message);
    assert_eq!(processes_with(&format!("sleep\0{mark}")), [0; 0]);
    drop(daemon);
}

/// True for kernels that have a `pid_max` for each pid namespace. In older ones it is the machine's.
fn has_own_pid_max() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(14))
}

#[tokio::test]
async fn fault_08_a_process_id_used_again_is_never_signalled() {
    let test = "fault_08_a_process_id_used_again_is_never_signalled";
    if !is_root(test) || !parts::has_namespaces(test) {
        return;
    }
    if !has_own_pid_max() {
        return parts::skipped(test, "pid_max of a pid namespace (Linux 6.14)");
    }
    let dir = tempfile::tempdir().unwrap();
    let (hit, made) = (dir.path().join("hit"), dir.path().join("made"));
    // Process ids are reused after a hundred. Beside the daemon run short-lived processes that belong to no job. They
    // get the ids of ended processes of jobs, and record if a signal hits them.
    let canaries = format!(
        "echo 400 > /proc/sys/kernel/pid_max || exit 1\n\
         for canary in 1 2 3; do\n\
           (while :; do /bin/sleep 0.00$canary || echo $? >> {hit}; echo >> {made}; done) >/dev/null 2>&1 &\n\
         done\n\
         exec \"$@\"",
        hit = hit.display(),
        made = made.display()
    );
    let wrapper = ["unshare", "-pf", "--mount-proc", "--kill-child", "sh", "-c", &canaries, "sh"];
    let daemon = Setup::new()
        .wrapper(&wrapper)
        .option("cgroup", "off")
        .option("cancel-grace", "50ms")
        .start_in(dir.path());
    let client = daemon.client().await;
    // The job makes short-lived orphans in their own sessions all the time, and ignores SIGTERM, so it has to be
    // killed.
    let churn = "trap '' TERM; echo on; while :; do (exit 0 &); setsid sleep 0.01 & wait $!; done";
    let canaries = || fs::read(&made).unwrap_or_default().len();
    let start = Instant::now();
    // Repeats rounds until enough of these processes came and went beside the jobs.
    for round in 0.. {
        if round >= 12 && canaries() > 100 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{} processes in {round} rounds", canaries());
        let ids = [format!("a{round}"), format!("b{round}")];
        for id in &ids {
            client.run(id, churn).await;
        }
        for id in &ids {
            client.prints(id, "on").await;
            client.cancel(id).await;
        }
        for id in &ids {
            assert_eq!(client.ended(id).await.exit_code, -2);
            client.finish(id).await;
        }
    }
    assert_eq!(fs::read_to_string(&hit).unwrap_or_default(), "", "one of {} was signalled", canaries());
}

#[tokio::test]
async fn fault_14_a_step_that_kills_the_daemon_goes_on_with_the_next() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let before = client.run_to_end("before", &script("echo x")).await;
    let (answered, again, pid) = (daemon.file("answered"), daemon.file("again"), daemon.pid());
    let wait = |file: &Path| format!("until [ -e {} ]; do sleep 0.01; done", file.display());
    client.run("1", &format!("{}; kill -9 {pid}; {}; echo lived", wait(&answered), wait(&again))).await;
    fs::write(&answered, "").unwrap();
    until("the daemon is dead", || !is_alive(pid)).await;
    daemon.wait();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await.state(), State::Running);
    fs::write(&again, "").unwrap();
    let status = client.ended("1").await;
    assert_eq!((status.state(), status.exit_code), (State::Success, 0), "{status:?}");
    assert_eq!(client.output("1").await, "lived\n");
    assert_eq!(client.status("before").await, before);
}

#[tokio::test]
async fn fault_14_a_removed_socket_costs_no_connection_and_comes_back_with_the_next_daemon() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let text = "rm \"$STEP_RUNNER_SOCKET\"; echo removed; exec sleep 600";
    client.run("1", text).await;
    client.prints("1", "removed").await;
    assert!(!daemon.socket.exists());
    // Connected clients are still served.
    assert_eq!(client.run_to_end("2", &script("echo x")).await.exit_code, 0);
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await.state(), State::Running);
    client.finish("1").await;
    assert_eq!(client.status("2").await.exit_code, 0);
}

#[tokio::test]
async fn fault_14_overwritten_state_costs_no_other_job() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let before = client.run_to_end("before", &script("echo x")).await;
    let log = client.log("before").await;
    let folder = daemon.folder("1");
    let text = format!(
        "for file in job.json journal steps; do echo garbage > {folder}/$file; done\n\
         echo garbage > {state}/daemon.json; echo garbage > {state}/keeper.json\n\
         echo done; exec sleep 600",
        folder = folder.display(),
        state = daemon.state_dir().display()
    );
    let keeper = {
        client.run("0", "exec sleep 600").await;
        daemon.keeper_pid().unwrap()
    };
    client.run("1", &text).await;
    client.prints("1", "done").await;
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("before").await, before);
    assert_eq!(client.log("before").await, log);
    // Running jobs go on: keeper and processes are the same.
    for id in ["0", "1"] {
        assert_eq!(client.status(id).await.state(), State::Running, "{id}");
        client.finish(id).await;
    }
    assert_eq!(client.run_to_end("after", &script("echo y")).await.exit_code, 0);
    daemon.stop();
    wait_for("the keeper's end", || (!is_alive(keeper)).then_some(()));
}

#[tokio::test]
async fn fault_14_a_replaced_program_is_not_what_the_daemon_runs() {
    if !is_root("fault_14_a_replaced_program_is_not_what_the_daemon_runs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let binary = copy_of_the_program(dir.path());
    let daemon = Setup::new().program(&binary).start_in(dir.path());
    let client = daemon.client().await;
    let overwritten = fs::File::options().write(true).open(&binary);
    assert_eq!(overwritten.unwrap_err().kind(), std::io::ErrorKind::ExecutableFileBusy);
    let other = dir.path().join("other");
    fs::write(&other, format!("#!/bin/sh\necho taken over > {}/canary\n", dir.path().display())).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&other, &binary).unwrap();
    // The first job starts the keeper.
    let status = client.run_to_end("1", &script("readlink /proc/$PPID/exe")).await;
    assert_eq!(status.exit_code, 0, "{status:?}");
    assert_eq!(client.output("1").await, format!("{} (deleted)\n", binary.display()));
    assert!(!dir.path().join("canary").exists());
}

#[tokio::test]
async fn fault_14_a_step_of_the_same_user_reads_no_memory_of_daemon_and_keeper() {
    let test = "fault_14_a_step_of_the_same_user_reads_no_memory_of_daemon_and_keeper";
    if !is_root(test) {
        return;
    }
    let place = Place::of(ORDINARY);
    let daemon = place.setup().start_in(place.path());
    let client = daemon.client().await;
    let text = format!(
        "for pid in {} $PPID; do for file in environ maps mem exe fd/0; do \
         cat /proc/$pid/$file >/dev/null 2>&1 && echo read $file of $pid; done; done; \
         echo > /proc/$PPID/exe; kill -0 $PPID && echo tried",
        daemon.pid()
    );
    let status = client.run_to_end("1", &script(&text)).await;
    assert_eq!(status.exit_code, 0, "{status:?}");
    assert_eq!(client.output("1").await, "tried\n");
    let said = logs::daemon_lines(&client.log("1").await);
    assert_eq!(said.len(), 1, "{said:?}");
}
