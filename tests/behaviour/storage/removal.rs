//! File systems that refuse to remove what a job has left (faults.md rows 98, 99).

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::loop_disk::{LoopDisk, missing_part};
use crate::support::user::{ORDINARY, Place};
use crate::support::{
    Client, Daemon, Setup, contains, is_alive, is_root, kill, names, parts, patiently, refused, request,
    script, tree, until, wait_for,
};
use rustix::process::Signal;
use step_runner::pb::v1::{self, RunRequest, State};
use tonic::Code;

/// True if the words, a command, succeed.
fn does(words: &[&str]) -> bool {
    Command::new(words[0]).args(&words[1..]).output().is_ok_and(|output| output.status.success())
}

/// True if files can be made immutable here. Otherwise reports `test` as skipped.
fn has_flags(test: &str) -> bool {
    if !is_root(test) {
        return false;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let has = does(&["chattr", "+i", path]) && does(&["chattr", "-i", path]);
    if !has {
        parts::skipped(test, "immutable files");
    }
    has
}

/// Ends daemon and keeper at once.
fn kill_both(daemon: &mut Daemon) {
    let keeper = daemon.keeper_pid();
    daemon.kill();
    if let Some(keeper) = keeper {
        kill(keeper, Signal::KILL);
        wait_for("the keeper's end", || (!is_alive(keeper)).then_some(()));
    }
}

async fn left_over(client: &Client) -> Vec<v1::LeftOver> {
    let answer = client.overview().await;
    assert_eq!(answer.left_over.len(), usize::try_from(answer.left_over_total).unwrap());
    answer.left_over
}

/// Waits until that many things are told as left over. Returns them.
async fn left(client: &Client, count: usize) -> Vec<v1::LeftOver> {
    let told = async {
        loop {
            let left = left_over(client).await;
            if left.len() == count {
                return left;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    patiently("the list of left-overs", told).await
}

/// Returns what `step-runner WORDS` prints, with the socket of the daemon.
fn printed(daemon: &Daemon, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    let output = command.args(words).arg("--socket").arg(&daemon.socket).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn fault_98_a_finish_that_would_not_last_is_refused_and_the_job_stays() {
    let test = "fault_98_a_finish_that_would_not_last_is_refused_and_the_job_stays";
    if let Some(part) = missing_part() {
        return parts::skipped(test, part);
    }
    for durability in ["crash", "power"] {
        let scene = tempfile::tempdir().unwrap();
        let mut disk = LoopDisk::new(&scene.path().join("disk")).unwrap();
        let state = scene.path().join("disk");
        let setup =
            Setup::new().option("durability", durability).option("state-dir", state.to_str().unwrap());
        let mut daemon = setup.start_in(scene.path());
        let client = daemon.client().await;
        let told = client.run_to_end("1", &script("echo whole")).await;
        let keeper = crate::storage::keeper_of(&state);
        assert!(does(&["sync", "-f", state.to_str().unwrap()]));
        // From now on the file system is read-only, as after an error of the disk.
        assert!(does(&["mount", "-o", "remount,abort", state.to_str().unwrap()]));
        let both = tokio::join!(client.try_finish("1"), client.try_finish("1"));
        for refusal in [both.0, both.1, client.try_finish("1").await] {
            let text = refused(refusal, Code::Unavailable, "not_removed");
            assert!(text.contains("Read-only file system") && text.contains("still registered"), "{text}");
        }
        assert_eq!((client.status("1").await, client.output("1").await.as_str()), (told.clone(), "whole\n"));

        daemon.kill();
        kill(keeper, Signal::KILL);
        disk.unmount().unwrap();
        disk.mount().unwrap();
        daemon.restart();
        let client = daemon.client().await;
        assert_eq!(
            (client.status("1").await.state(), client.output("1").await.as_str()),
            (told.state(), "whole\n")
        );
        client.finish("1").await;
        daemon.kill();
        daemon.restart();
        refused(daemon.client().await.try_status("1").await, Code::NotFound, "unknown_job");
        assert_eq!(names(&state.join("jobs")), [""; 0]);
        daemon.kill();
        disk.unmount().unwrap();
    }
}

/// Something in a job's folder that cannot be deleted.
struct Obstacle {
    what: &'static str,
    /// Script of the step that makes it.
    makes: &'static str,
    /// Removes it from the folder.
    clears: fn(&Path),
}

fn clear_flags(folder: &Path) {
    assert!(does(&["chattr", "-R", "-i", "-a", folder.to_str().unwrap()]));
}

fn unmount_below(folder: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    for at in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        if Path::new(at).starts_with(folder) {
            assert!(does(&["umount", at]));
        }
    }
}

const OBSTACLES: &[Obstacle] = &[
    Obstacle {
        what: "immutable file",
        makes: "mkdir -p a/b; touch a/before a/b/file a/zz; chattr +i a/b/file",
        clears: clear_flags,
    },
    Obstacle { what: "file to append to", makes: "echo x > log; chattr +a log", clears: clear_flags },
    Obstacle {
        what: "immutable folder",
        makes: "mkdir -p a/b; touch a/b/c; chattr +i a",
        clears: clear_flags,
    },
    Obstacle { what: "mount", makes: "mkdir -p a/m; mount -t tmpfs none a/m", clears: unmount_below },
    Obstacle {
        what: "read-only mount of itself",
        makes: "mkdir m; touch m/file; mount --bind m m; mount -o remount,bind,ro m",
        clears: unmount_below,
    },
];

#[tokio::test]
async fn fault_98_what_cannot_be_deleted_is_told_and_deleted_once_it_can_be() {
    let test = "fault_98_what_cannot_be_deleted_is_told_and_deleted_once_it_can_be";
    if !has_flags(test) {
        return;
    }
    for Obstacle { what, makes, clears } in OBSTACLES {
        let mut daemon = Setup::new().option("reap-interval", "1s").start();
        let client = daemon.client().await;
        let made = client.run_to_end("1", &script(&format!("set -e; {makes}"))).await;
        if made.state() != State::Success {
            parts::skipped(test, "permission to mount");
            continue;
        }
        client.finish("1").await;
        refused(client.try_status("1").await, Code::NotFound, "unknown_job");
        let told = left(&client, 1).await.remove(0);
        assert_eq!(told.id, "1", "{what}");
        assert!(told.path.contains("/jobs/.gone-") && !told.reason.is_empty(), "{what}: {told:?}");
        assert!(printed(&daemon, &["status"]).contains("left over of job 1: /"), "{what}");
        let advice = printed(&daemon, &["doctor", "--state-dir", daemon.state_dir().to_str().unwrap()]);
        assert!(advice.contains("1 folders of removed jobs are not deleted yet"), "{what}: {advice}");

        daemon.kill();
        daemon.restart();
        let client = daemon.client().await;
        refused(client.try_status("1").await, Code::NotFound, "unknown_job");
        let told = left(&client, 1).await.remove(0);
        // The id is free.
        client.run_to_end("1", &script("echo again")).await;
        client.finish("1").await;
        // Passes of the reaper change nothing until the cause is gone.
        until("a pass", || daemon.folders().len() == 1).await;
        clears(Path::new(&told.path));
        left(&client, 0).await;
        assert_eq!(daemon.folders(), [""; 0], "{what}");
    }
}

#[tokio::test]
async fn fault_98_files_of_another_user_are_told_and_deleted_once_they_can_be() {
    let test = "fault_98_files_of_another_user_are_told_and_deleted_once_they_can_be";
    if !is_root(test) {
        return;
    }
    let place = Place::of(ORDINARY);
    let daemon = place.setup().option("reap-interval", "1s").start_in(place.path());
    let client = daemon.client().await;
    client.run_to_end("1", &script("mkdir theirs; touch ours")).await;
    let theirs = daemon.folder("1").join("work/theirs");
    std::fs::create_dir(theirs.join("deep")).unwrap();
    std::fs::write(theirs.join("deep/file"), "x").unwrap();
    client.finish("1").await;
    let told = left(&client, 1).await.remove(0);
    assert!(told.reason.contains("Permission denied") || told.reason.contains("not permitted"), "{told:?}");
    let found = found_below(Path::new(&told.path));
    let is_left = |name: &str| found.iter().any(|path| path.ends_with(name));
    assert!(is_left("file") && !is_left("ours"), "{found:?}");
    for at in found {
        chown(at, Some(ORDINARY), Some(ORDINARY)).unwrap();
    }
    left(&client, 0).await;
    assert_eq!(daemon.folders(), [""; 0]);
}

fn found_below(folder: &Path) -> Vec<PathBuf> {
    let output = Command::new("find").arg(folder).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(PathBuf::from).collect()
}

/// Runs a job with a file variable, whose step does `makes`. Returns the path of the file.
async fn with_file(daemon: &Daemon, client: &Client, makes: &str) -> PathBuf {
    let variable = v1::Variable { key: "CERT".into(), value: "canary".into(), file: true, masked: true };
    let build_dir = daemon.file("build").to_str().unwrap().to_owned();
    let job = Some(v1::Job { variables: vec![variable], build_dir, ..v1::Job::default() });
    let steps = script(&format!("set -e; D=$(dirname $CERT); {makes}"));
    client.try_run(RunRequest { job, ..request("1", &steps) }).await.unwrap();
    let end = client.ended("1").await;
    assert_eq!(end.state(), State::Success, "{end:?}");
    daemon.file("build.tmp/CERT")
}

#[tokio::test]
async fn fault_99_a_file_variable_in_a_folder_that_refuses_is_emptied_and_told() {
    let test = "fault_99_a_file_variable_in_a_folder_that_refuses_is_emptied_and_told";
    if !has_flags(test) {
        return;
    }
    let mut daemon = Setup::new().option("reap-interval", "1s").start();
    let client = daemon.client().await;
    let file = with_file(&daemon, &client, "chattr +i $D").await;
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    assert!(left(&client, 1).await[0].path.ends_with("build.tmp/CERT"));
    client.finish("1").await;
    for _ in 0..2 {
        let client = daemon.client().await;
        refused(client.try_status("1").await, Code::NotFound, "unknown_job");
        let told = left(&client, 1).await.remove(0);
        assert!(told.reason.contains("build.tmp/CERT"), "{told:?}");
        daemon.kill();
        daemon.restart();
    }
    clear_flags(file.parent().unwrap());
    left(&daemon.client().await, 0).await;
    assert!(!daemon.file("build.tmp").exists());
    // The job's own folder goes after its file variables.
    until("the job's folder is gone", || daemon.folders().is_empty()).await;
}

#[tokio::test]
async fn fault_99_a_finish_is_refused_while_a_file_variable_keeps_its_secret() {
    let test = "fault_99_a_finish_is_refused_while_a_file_variable_keeps_its_secret";
    if !has_flags(test) {
        return;
    }
    let mut daemon = Setup::new().option("reap-interval", "600s").start();
    let client = daemon.client().await;
    let file = with_file(&daemon, &client, "chattr +i $CERT").await;
    let text = refused(client.try_finish("1").await, Code::Unavailable, "not_removed");
    assert!(text.contains("build.tmp/CERT") && !text.contains("canary"), "{text}");
    assert_eq!(left(&client, 1).await[0].id, "1");
    kill_both(&mut daemon);
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("1").await.state(), State::Success);
    refused(client.try_finish("1").await, Code::Unavailable, "not_removed");
    clear_flags(&file);
    client.finish("1").await;
    assert!(!daemon.file("build.tmp").exists());
    assert_eq!((left_over(&client).await, daemon.folders()), (vec![], vec![]));
}

#[tokio::test]
async fn fault_99_a_file_variable_whose_folder_lost_its_write_bit_is_removed() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    with_file(&daemon, &client, "chmod 400 $CERT; chmod 500 $D").await;
    client.finish("1").await;
    assert!(!daemon.file("build.tmp").exists());
    for (path, bytes) in tree(&daemon.state_dir()) {
        assert!(!contains(&bytes, "canary"), "the secret stays in {}", path.display());
    }
}
