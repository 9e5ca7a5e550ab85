//! Faults of the file system below the state folder, with real ones: small, full, without room for files, and with other
//! hands in it (faults.md rows 23–29, 44, 46).
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use step_runner::journal::event::{End, Event};
use step_runner::journal::{self, Reader};
use step_runner::pb::v1::State;
use support::{
    Client, Daemon, Setup, contains, is_root, logs, names, numbered, parts, refused, request, script, until,
    wait_for,
};
use tonic::Code;

/// A small file system in memory; unmounted when it is dropped, with what still runs on it.
struct Small {
    dir: tempfile::TempDir,
}

impl Small {
    /// With these mount options; `None` where nothing can be mounted.
    fn mount(test: &str, options: &str) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(dir.path()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self { dir });
        }
        parts::skipped(test, "right to mount");
        None
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(Command::new("mount").args(["-o", &options]).arg(self.path()).status().unwrap().success());
    }

    /// A daemon on it.
    fn daemon(&self, setup: Setup) -> Daemon {
        setup.option("state-limit", "0").start_in(self.path())
    }

    /// Fills it to the last byte.
    fn fill(&self) -> PathBuf {
        let ballast = self.path().join("ballast");
        // Ends with an error: there is no space left.
        std::io::copy(&mut std::io::repeat(1), &mut std::fs::File::create(&ballast).unwrap()).unwrap_err();
        ballast
    }

    /// Makes files until there is room for none more.
    fn fill_with_files(&self) {
        for number in 0.. {
            if std::fs::File::create(self.path().join(format!("file-{number}"))).is_err() {
                break;
            }
        }
    }

    fn free(&self) -> u64 {
        rustix::fs::statvfs(self.path()).unwrap().f_bfree
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.path()).status().ok();
    }
}

/// A loop that ends when `file` is there.
fn wait_until_exists(file: &Path) -> String {
    format!("until [ -e {} ]; do sleep 0.02; done", file.display())
}

/// Most memory that a process ever had, in bytes.
fn peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn fault_25_output_waits_for_space_and_goes_on_when_there_is_some() {
    let Some(small) = Small::mount("fault_25", "size=3m") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let (go, done) = (elsewhere.path().join("go"), elsewhere.path().join("done"));
    let daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    client
        .run(
            "waits",
            &format!("echo ready; {}; seq 1 20000; touch {}", wait_until_exists(&go), done.display()),
        )
        .await;
    client.run("silent", &format!("echo ready; {}; exit 7", wait_until_exists(&done))).await;
    client.prints("waits", "ready").await;
    client.prints("silent", "ready").await;
    let ballast = small.fill();
    std::fs::write(&go, "").unwrap();
    // The pipe is full and nobody reads it: the step cannot go on.
    let seen = client.log_so_far("waits").await;
    refused(client.try_run(request("new", &script("true"))).await, Code::ResourceExhausted, "disk_full");
    assert!(!done.exists());
    std::fs::remove_file(ballast).unwrap();
    assert_eq!(client.ended("waits").await.state(), State::Success);
    assert_eq!(client.output("waits").await, format!("ready\n{}", numbered(20_000, "")));
    assert!(client.log("waits").await.starts_with(&seen));
    assert_eq!(client.ended("silent").await.exit_code, 7);
    assert_eq!(client.run_to_end("new", &script("echo new")).await.state(), State::Success);
}

#[tokio::test]
async fn fault_26_an_end_on_a_full_disk_is_told_and_survives_a_restart() {
    let Some(small) = Small::mount("fault_26", "size=3m") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let go = elsewhere.path().join("go");
    let mut daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    client.run("1", &format!("echo ready; {}; exit 7", wait_until_exists(&go))).await;
    client.prints("1", "ready").await;
    let ballast = small.fill();
    std::fs::write(&go, "").unwrap();
    let status = client.reaches("1", "its end", |status| status.finished).await;
    assert_eq!((status.state(), status.exit_code), (State::Failure, 7));
    daemon.kill();
    if let Some(keeper) = daemon.keeper_pid() {
        support::kill(keeper, rustix::process::Signal::KILL);
        wait_for("the keeper's end", || (!support::is_alive(keeper)).then_some(()));
    }
    std::fs::remove_file(ballast).unwrap();
    daemon.restart();
    let again = daemon.client().await.status("1").await;
    assert_eq!((again.state(), again.exit_code), (State::Failure, 7), "the reserve was not used");
    assert_eq!(again.end_time, status.end_time);
}

#[tokio::test]
async fn fault_26_without_room_for_files_a_job_is_refused_and_leaves_nothing() {
    let Some(small) = Small::mount("fault_26", "size=8m,nr_inodes=60") else { return };
    let daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    client.run_to_end("before", &script("echo served")).await;
    let folders = daemon.folders();
    // Every number of free inodes below what a job needs.
    let mut files = Vec::new();
    let mut refusals = 0;
    for number in 0.. {
        let file = small.path().join(format!("file-{number}"));
        if std::fs::write(&file, "").is_err() {
            break;
        }
        files.push(file);
        let id = format!("job-{number}");
        match client.try_run(request(&id, &script("true"))).await {
            Ok(()) => {
                client.ended(&id).await;
                client.finish(&id).await;
            }
            refusal => {
                refused(refusal, Code::ResourceExhausted, "disk_full");
                refusals += 1;
            }
        }
        assert_eq!(daemon.folders(), folders, "job {number} left something");
    }
    assert!(refusals > 0);
    assert_eq!(client.output("before").await, "served\n");
    for file in files {
        std::fs::remove_file(file).unwrap();
    }
    assert_eq!(client.run_to_end("after", &script("echo after")).await.state(), State::Success);
}

/// What a file system has no room for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Full {
    Bytes,
    Files,
}

#[tokio::test]
async fn fault_26_a_daemon_starts_again_on_a_full_disk_and_its_jobs_go_on() {
    for (full, has_reserve, durability) in
        [(Full::Bytes, true, "power"), (Full::Bytes, false, "crash"), (Full::Files, true, "crash")]
    {
        let Some(small) = Small::mount("fault_26", "size=3m,nr_inodes=60") else { return };
        let elsewhere = tempfile::tempdir().unwrap();
        let go = elsewhere.path().join("go");
        let mut daemon = small.daemon(Setup::new().option("durability", durability));
        let client = daemon.client().await;
        client.run_to_end("old", &script("seq 1 20000")).await;
        client.run("1", &format!("echo ready; {}; exit 7", wait_until_exists(&go))).await;
        client.prints("1", "ready").await;
        daemon.kill();
        let reserve = daemon.state_dir().join("reserve");
        if has_reserve {
            // Somebody has tidied up: it takes a file to listen again.
            std::fs::remove_file(&daemon.socket).unwrap();
        } else {
            std::fs::remove_file(&reserve).unwrap();
        }
        match full {
            Full::Bytes => drop(small.fill()),
            Full::Files => small.fill_with_files(),
        }
        daemon.restart();
        if !has_reserve {
            wait_for("the warning", || daemon.said().contains("daemon.json was not written").then_some(()));
        }
        assert_eq!(reserve.exists(), has_reserve && full == Full::Bytes, "{full:?}: the reserve is misspent");
        let client = daemon.client().await;
        assert_eq!(client.status("1").await.state(), State::Running);
        std::fs::write(&go, "").unwrap();
        let status = client.reaches("1", "its end", |status| status.finished).await;
        assert_eq!((status.state(), status.exit_code), (State::Failure, 7));
        assert_eq!(client.output("1").await, "ready\n");
        // Nothing but Finish makes room now.
        for id in ["1", "old"] {
            client.finish(id).await;
        }
        assert_eq!(client.run_to_end("new", &script("echo new")).await.state(), State::Success);
        assert_eq!(daemon.said().contains("daemon.json"), !has_reserve, "{full:?}: {}", daemon.said());
    }
}

#[tokio::test]
async fn fault_26_a_daemon_that_finds_no_room_to_listen_says_so_and_its_jobs_go_on() {
    let Some(small) = Small::mount("fault_26", "size=3m,nr_inodes=60") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let go = elsewhere.path().join("go");
    let mut daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    client.run("1", &format!("echo ready; {}; exit 7", wait_until_exists(&go))).await;
    client.prints("1", "ready").await;
    daemon.kill();
    for path in [daemon.state_dir().join("reserve"), daemon.socket.clone()] {
        std::fs::remove_file(path).unwrap();
    }
    small.fill_with_files();
    let refused = Setup::new().option("state-limit", "0").refused(&daemon.socket);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("s.sock: No space left on device"), "{said}");
    assert!(said.contains("make room on its file system"), "{said}");
    std::fs::remove_file(small.path().join("file-0")).unwrap();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await.state(), State::Running);
    std::fs::write(&go, "").unwrap();
    assert_eq!(client.reaches("1", "its end", |status| status.finished).await.exit_code, 7);
}

#[tokio::test]
async fn fault_26_a_daemon_starts_where_its_own_log_finds_no_room() {
    let Some(small) = Small::mount("fault_26", "size=1m,nr_inodes=4") else { return };
    small.fill_with_files();
    let log = small.path().join("log");
    let daemon = Setup::new().option("log-file", log.to_str().unwrap()).start();
    daemon.client().await;
    wait_for("the warning", || daemon.said().contains("log_file cannot be made").then_some(()));
}

#[tokio::test]
async fn fault_26_a_daemon_starts_where_its_ready_marker_finds_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    let mut daemon = daemon.arg("serve").arg("--socket").arg(&socket).stderr(full).spawn().unwrap();
    wait_for("the socket", || std::os::unix::net::UnixStream::connect(&socket).ok());
    Client::connect(&socket).await;
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}

/// Adds an event to a journal that makes it end with a block of the disk, so that the next one takes another.
fn fill_last_block(journal: &Path) {
    const BLOCK: usize = 4096;
    let mut lines = std::fs::read(journal).unwrap();
    let of_length = |length| Event::File { path: "x".repeat(length), device: 0, inode: 0 };
    let filling = (0..2 * BLOCK).map(|length| journal::encode(&of_length(length)).unwrap());
    let len = lines.len();
    lines.extend(filling.into_iter().find(|line| (len + line.len()).is_multiple_of(BLOCK)).unwrap());
    std::fs::write(journal, lines).unwrap();
}

#[tokio::test]
async fn fault_26_a_job_whose_interruption_finds_no_space_is_served_as_interrupted() {
    let Some(small) = Small::mount("fault_26", "size=3m") else { return };
    let mut daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    client.run("1", "echo ready; exec sleep 600").await;
    client.prints("1", "ready").await;
    daemon.kill();
    let keeper = daemon.keeper_pid().unwrap();
    support::kill(keeper, rustix::process::Signal::KILL);
    wait_for("the keeper's end", || (!support::is_alive(keeper)).then_some(()));
    fill_last_block(&daemon.folder("1").join("journal"));
    std::fs::remove_file(daemon.state_dir().join("reserve")).unwrap();
    let ballast = small.fill();
    for made_room in [false, true] {
        if made_room {
            std::fs::remove_file(&ballast).unwrap();
            daemon.kill();
        }
        daemon.restart();
        let client = daemon.client().await;
        let status = client.status("1").await;
        assert_eq!((status.state(), status.exit_code), (State::Interrupted, -4));
        assert!(client.output("1").await.starts_with("ready\n"));
    }
}

#[tokio::test]
async fn fault_23_endless_output_is_dropped_over_the_limit_and_costs_no_memory() {
    let daemon = Setup::new().option("log-limit", "1MiB").start();
    let client = daemon.client().await;
    let status = client.run_to_end("1", &script("yes | head -c 100000000; exit 4")).await;
    assert_eq!(status.exit_code, 4);
    assert!(status.log_bytes <= 1 << 20);
    let log = client.log("1").await;
    let said = logs::daemon_lines(&log);
    let dropped = said.iter().find_map(|line| {
        line.strip_prefix("warning: ")?.strip_suffix(" bytes of output dropped")?.parse::<usize>().ok()
    });
    assert_eq!(dropped.unwrap() + logs::source(&log, "01O").len(), 100_000_000);
    for pid in [daemon.pid(), daemon.keeper_pid().unwrap()] {
        assert!(peak(pid) <= 64 << 20, "{} bytes", peak(pid));
    }
}

#[tokio::test]
async fn fault_24_output_faster_than_the_disk_waits_in_its_pipe() {
    const JOBS: u64 = 20;
    let Some(small) = Small::mount("fault_24", "size=6m") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let go = elsewhere.path().join("go");
    let daemon = small.daemon(Setup::new());
    let client = daemon.client().await;
    for n in 0..JOBS {
        // More than the disk takes now, less than it takes later: what is ended then finds room for its end.
        let text =
            format!("echo ready; {}; head -c 4000000 /dev/zero; exec sleep 600", wait_until_exists(&go));
        client.run(&format!("job-{n}"), &text).await;
        client.prints(&format!("job-{n}"), "ready").await;
    }
    std::fs::write(&go, "").unwrap();
    until("the disk is full", || small.free() == 0).await;
    for (name, pid) in [("daemon", daemon.pid()), ("keeper", daemon.keeper_pid().unwrap())] {
        let bound = (32 << 20) + JOBS * (256 << 10);
        assert!(peak(pid) <= bound, "{name}: {} bytes of {bound}", peak(pid));
    }
    // They wait and live; with space they can be ended as ever.
    assert!(client.jobs().await.iter().all(|job| job.state() == State::Running));
    small.remount("size=200m");
    for n in 0..JOBS {
        client.cancel(&format!("job-{n}")).await;
    }
    for n in 0..JOBS {
        assert_eq!(client.ended(&format!("job-{n}")).await.state(), State::Cancelled);
    }
}

/// A job that prints on when `daemon.file("go")` is there, a follower that has its first line, and a job beside it.
async fn followed(daemon: &Daemon) -> (Client, support::Follow) {
    let client = daemon.client().await;
    let go = wait_until_exists(&daemon.file("go"));
    client.run("1", &format!("seq 1 2000; echo ready; {go}; seq 1 3000; exit 5")).await;
    let mut follow = client.follow("1", 0).await;
    follow.until("ready").await;
    client.run("other", &format!("echo ready; {go}; echo fine")).await;
    client.prints("other", "ready").await;
    (client, follow)
}

async fn the_other_is_fine(client: &Client) {
    assert_eq!(client.ended("other").await.state(), State::Success);
    assert_eq!(client.output("other").await, "ready\nfine\n");
}

#[tokio::test]
async fn fault_29_followers_of_a_log_that_was_cut_are_told_so() {
    let daemon = Daemon::start();
    let (client, follow) = followed(&daemon).await;
    let log = std::fs::File::options().write(true).open(daemon.folder("1").join("log")).unwrap();
    log.set_len(100).unwrap();
    refused(client.try_follow("1", 0).await.map(drop), Code::DataLoss, "data_loss");
    std::fs::write(daemon.file("go"), "").unwrap();
    refused(follow.rest().await, Code::DataLoss, "data_loss");
    let status = client.reaches("1", "its end", |status| status.finished).await;
    assert_eq!(status.exit_code, 5);
    refused(client.try_follow("1", 0).await.map(drop), Code::DataLoss, "data_loss");
    the_other_is_fine(&client).await;
}

#[tokio::test]
async fn fault_29_a_log_removed_or_replaced_is_data_loss_and_nothing_of_another_file_is_sent() {
    for replaced in [None, Some("file"), Some("link"), Some("folder"), Some("fifo")] {
        let mut daemon = Daemon::start();
        let (client, follow) = followed(&daemon).await;
        let log = daemon.folder("1").join("log");
        let secret = daemon.file("secret");
        std::fs::write(&secret, "another file's bytes\n".repeat(10_000)).unwrap();
        std::fs::remove_file(&log).unwrap();
        match replaced {
            None => {}
            Some("file") => drop(std::fs::copy(&secret, &log).unwrap()),
            Some("link") => std::os::unix::fs::symlink(&secret, &log).unwrap(),
            Some("fifo") => assert!(Command::new("mkfifo").arg(&log).status().unwrap().success()),
            Some(_) => std::fs::create_dir(&log).unwrap(),
        }
        refused(client.try_follow("1", 0).await.map(drop), Code::DataLoss, "data_loss");
        std::fs::write(daemon.file("go"), "").unwrap();
        // Whoever had it open has the very file that the keeper writes.
        let bytes = follow.rest().await.unwrap();
        let steps = String::from_utf8(logs::source(&bytes, "01O")).unwrap();
        assert_eq!(steps, format!("{}ready\n{}", numbered(2_000, ""), numbered(3_000, "")));
        assert_eq!(client.status("1").await.exit_code, 5);
        the_other_is_fine(&client).await;
        daemon.kill();
        daemon.restart();
        let client = daemon.client().await;
        assert_eq!(client.status("1").await.exit_code, 5, "{replaced:?}");
        refused(client.try_follow("1", 0).await.map(drop), Code::DataLoss, "data_loss");
        client.finish("1").await;
        assert!(std::fs::read(&secret).unwrap().starts_with(b"another file's bytes\n"));
    }
}

#[tokio::test]
async fn fault_29_a_running_jobs_folder_removed_or_replaced_costs_its_records_only() {
    for link in [false, true] {
        let mut daemon = Daemon::start();
        let (client, follow) = followed(&daemon).await;
        let folder = daemon.folder("1");
        let victim = daemon.file("victim");
        std::fs::create_dir(&victim).unwrap();
        std::fs::write(victim.join("file"), "stays").unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        if link {
            std::os::unix::fs::symlink(&victim, &folder).unwrap();
        }
        std::fs::write(daemon.file("go"), "").unwrap();
        assert!(contains(&follow.rest().await.unwrap(), "ready"));
        let status = client.reaches("1", "its end", |status| status.finished).await;
        assert_eq!(status.exit_code, 5);
        the_other_is_fine(&client).await;
        client.finish("1").await;
        assert_eq!(std::fs::read_to_string(victim.join("file")).unwrap(), "stays");
        daemon.kill();
        daemon.restart();
        the_other_is_fine(&daemon.client().await).await;
    }
}

#[tokio::test]
async fn fault_44_foreign_and_huge_things_in_the_state_folder_never_stop_the_start() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    for id in ["good", "steps", "log", "journal", "job.json"] {
        client.run_to_end(id, &script("echo x")).await;
    }
    daemon.stop();
    for name in ["steps", "log", "journal", "job.json"] {
        let file = std::fs::File::options().write(true).open(daemon.folder(name).join(name)).unwrap();
        file.set_len(4 << 30).unwrap();
    }
    let state = daemon.state_dir();
    for name in ["lock", "daemon.json", "keeper.lock", "keeper.json", "keeper.sock", "reserve"] {
        std::fs::remove_file(state.join(name)).ok();
        std::fs::remove_dir(state.join(name)).ok();
        std::fs::create_dir(state.join(name)).unwrap();
        std::fs::write(state.join(name).join("foreign"), "foreign").unwrap();
    }
    std::fs::write(state.join("broken"), "foreign").unwrap();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.output("good").await, "x\n");
    for id in ["journal", "job.json"] {
        refused(client.try_status(id).await, Code::DataLoss, "data_loss");
    }
    for id in ["steps", "log"] {
        assert_eq!(client.output(id).await, "x\n");
    }
    refused(client.try_steps("steps").await, Code::DataLoss, "data_loss");
    assert!(peak(daemon.pid()) < 256 << 20, "{}", peak(daemon.pid()));
    // A new job needs a keeper, and so all its names.
    assert_eq!(client.run_to_end("new", &script("echo new")).await.state(), State::Success);
}

/// The state folders that released versions wrote, as the daemon finds them after an upgrade. A copy has other inodes than
/// the folder it was made of: those of the logs are put into the journals.
fn golden(format: u32, into: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/state-{format}"));
    copy(&from, into);
    for key in names(&into.join("jobs")) {
        let folder = into.join("jobs").join(key);
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(folder.join("log")).unwrap());
        let journal = std::fs::read(folder.join("journal")).unwrap();
        let lines = Reader::<Event>::new(&journal).map(|record| match record.unwrap().event {
            Event::Ended(end) => Event::Ended(End { log_inode: inode, ..end }),
            event => event,
        });
        let lines: Vec<u8> = lines.flat_map(|event| journal::encode(&event).unwrap()).collect();
        std::fs::write(folder.join("journal"), lines).unwrap();
    }
}

fn copy(from: &Path, into: &Path) {
    std::fs::create_dir(into).unwrap();
    std::fs::set_permissions(into, std::fs::Permissions::from_mode(0o700)).unwrap();
    for name in names(from) {
        let (from, into) = (from.join(&name), into.join(&name));
        if from.is_dir() {
            copy(&from, &into);
        } else {
            std::fs::copy(from, into).unwrap();
        }
    }
}

#[tokio::test]
async fn fault_46_state_folders_of_every_format_are_read() {
    for format in 1..=step_runner::store::FORMAT as u32 {
        let dir = tempfile::tempdir().unwrap();
        golden(format, &dir.path().join("s.sock.state"));
        let daemon = Setup::new().start_in(dir.path());
        let client = daemon.client().await;
        let succeeded = client.status("succeeded").await;
        assert_eq!((succeeded.state(), succeeded.exit_code), (State::Success, 0));
        assert_eq!(client.output("succeeded").await, "one\ntwo\n");
        assert_eq!(client.steps("succeeded").await.len(), 3);
        let failed = client.ended("failed").await;
        assert_eq!((failed.state(), failed.exit_code), (State::Failure, 3));
        let interrupted = client.ended("running").await;
        assert_eq!((interrupted.state(), interrupted.exit_code), (State::Interrupted, -4));
        assert!(client.output("running").await.starts_with("begun\n"));
        assert_eq!(client.jobs().await.len(), 3);
        assert_eq!(client.run_to_end("new", &script("echo new")).await.state(), State::Success);
        assert!(daemon.folder("failed").join("job.json").exists());
    }
}
