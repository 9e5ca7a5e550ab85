//! Bad state on disk: damaged records and logs, and a full disk.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Beside, refuses_to_start};
use crate::support::parts::skipped;
use crate::support::{Daemon, Setup, contains, is_root, logs, names, refused, request, script, tree};
use step_runner::pb::v1::{self, State};
use tonic::Code;

#[tokio::test]
async fn fault_46_a_state_folder_of_a_newer_format_is_not_touched() {
    let mut daemon = Daemon::start();
    daemon.client().await.run_to_end("1", &script("echo x")).await;
    daemon.stop();
    let json = daemon.state_dir().join("daemon.json");
    let text = std::fs::read_to_string(&json).unwrap();
    std::fs::write(&json, text.replace("\"format\":1", "\"format\":2")).unwrap();
    let before = tree(&daemon.state_dir());
    let said = refuses_to_start(Setup::new(), &daemon.socket, 78);
    assert!(said.contains('2'), "{said}");
    let mut after = tree(&daemon.state_dir());
    // The lock file names its last holder, so it differs. It is not part of the state.
    after.insert(daemon.state_dir().join("lock"), before[&daemon.state_dir().join("lock")].clone());
    assert_eq!(before, after);
    std::fs::write(&json, text).unwrap();
    daemon.restart();
    assert_eq!(daemon.client().await.ended("1").await.exit_code, 0);
}

#[tokio::test]
async fn fault_44_damaged_records_cost_only_their_own_job() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let mut damages: Vec<(&str, Damage)> = Vec::new();
    for file in ["job.json", "journal", "steps"] {
        for part in 0..12 {
            damages.push((file, Damage::Flip(part)));
        }
        damages.push((file, Damage::Cut));
        damages.push((file, Damage::Empty));
        damages.push((file, Damage::Garbage));
        damages.push((file, Damage::Directory));
        damages.push((file, Damage::Link));
    }
    let mut before = Vec::new();
    for n in 0..damages.len() {
        let id = format!("damaged-{n}");
        let status = client.run_to_end(&id, &script(&format!("echo {n}"))).await;
        before.push((status, client.log(&id).await, client.steps(&id).await));
    }
    let whole = client.run_to_end("whole", &script("echo whole")).await;
    daemon.stop();
    for (n, (file, damage)) in damages.iter().enumerate() {
        damage.apply(&daemon.folder(&format!("damaged-{n}")).join(file));
    }
    std::fs::write(daemon.state_dir().join("jobs/stray"), "no folder").unwrap();
    std::fs::create_dir(daemon.state_dir().join("jobs/0123456789abcdef0123456789abcdef")).unwrap();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("whole").await, whole);
    assert_eq!(client.output("whole").await, "whole\n");
    for (n, (damage, (status, log, steps))) in damages.iter().zip(before).enumerate() {
        let id = format!("damaged-{n}");
        match client.try_status(&id).await {
            Ok(known) if interrupted(&known) => {}
            Ok(known) => {
                assert_eq!(known, status, "{damage:?}");
                assert_eq!(client.log(&id).await, log, "{damage:?}");
                match client.try_steps(&id).await {
                    Ok(found) => assert_eq!(found, steps, "{damage:?}"),
                    lost => drop(refused(lost, Code::DataLoss, "data_loss")),
                }
            }
            // The record was set aside: every call reports that, Run starts a new job, and Finish removes it.
            lost => {
                refused(lost, Code::DataLoss, "data_loss");
                refused(client.try_follow(&id, 0).await, Code::DataLoss, "data_loss");
                refused(client.try_steps(&id).await, Code::DataLoss, "data_loss");
                refused(client.try_cancel(&id).await, Code::DataLoss, "data_loss");
                if n % 2 == 0 {
                    client.run(&id, "echo anew").await;
                    assert_eq!(client.ended(&id).await.exit_code, 0);
                    assert_eq!(client.output(&id).await, "anew\n");
                }
            }
        }
        client.finish(&id).await;
        refused(client.try_status(&id).await, Code::NotFound, "unknown_job");
    }
    client.finish("whole").await;
    assert_eq!(names(&daemon.state_dir().join("broken")), Vec::<String>::new());
}

/// True if the job is reported as interrupted: its journal has no end record and no keeper holds the job.
fn interrupted(status: &v1::Status) -> bool {
    (status.state(), status.exit_code) == (State::Interrupted, -4)
}

/// Damage to a file of a job.
#[derive(Debug)]
enum Damage {
    /// Flips one bit, at this twelfth of the file.
    Flip(usize),
    Cut,
    Empty,
    Garbage,
    Directory,
    Link,
}

impl Damage {
    fn apply(&self, file: &Path) {
        let mut bytes = std::fs::read(file).unwrap();
        match self {
            Self::Flip(part) => {
                let at = bytes.len() * part / 12;
                bytes[at] ^= 1 << (part % 8);
            }
            Self::Cut => bytes.truncate(bytes.len() / 2),
            Self::Empty => bytes.clear(),
            Self::Garbage => bytes = vec![0xff; 1 << 20],
            Self::Directory => {
                std::fs::remove_file(file).unwrap();
                return std::fs::create_dir(file).unwrap();
            }
            Self::Link => {
                std::fs::remove_file(file).unwrap();
                return symlink("/dev/zero", file).unwrap();
            }
        }
        std::fs::write(file, bytes).unwrap();
    }
}

/// A small file system, unmounted when this value is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it. Returns `None` where that is not possible.
    fn mount(path: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let options = format!("size={size},mode=0700");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).status();
        status.is_ok_and(|status| status.success()).then(|| Self(path.to_owned()))
    }

    /// Fills the file system, so that no block is free.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        for size in [64 << 10, 4 << 10] {
            while std::io::Write::write_all(&mut file, &vec![1; size]).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_jobs_and_holds_running_ones() {
    const TEST: &str = "a_full_disk_refuses_jobs_and_holds_running_ones";
    if !is_root(TEST) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&dir.path().join("s.sock.state"), "4m") else {
        return skipped(TEST, "permission to mount");
    };
    let daemon = Setup::new().option("state-limit", "0").start_in(dir.path());
    let client = daemon.client().await;
    let go = daemon.file("go");
    let text = format!(
        "echo on; until [ -e {go} ]; do sleep 0.02; done; mv {go} {go}ne; head -c 300000 /dev/zero | tr '\\0' x; echo; echo bye",
        go = go.display()
    );
    client.run("1", &text).await;
    client.prints("1", "on").await;
    let filler = disk.fill();
    let before = daemon.folders();
    for n in 0..3 {
        let run = client.try_run(request(&format!("refused-{n}"), &script("true"))).await;
        refused(run, Code::ResourceExhausted, "disk_full");
    }
    assert_eq!(daemon.folders(), before);
    std::fs::write(&go, "").unwrap();
    crate::support::until("the job writes", || daemon.file("gone").exists()).await;
    // It writes more than a pipe holds, so it has to wait.
    assert!(!client.status("1").await.finished);
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(client.ended("1").await.exit_code, 0);
    let output = client.output("1").await;
    assert_eq!(output.trim_matches(|c| c == 'x'), "on\n".to_owned() + &"x".repeat(300_000) + "\nbye\n");
    assert_eq!(client.run_to_end("2", &script("echo again")).await.exit_code, 0);
}

#[tokio::test]
async fn too_little_space_refuses_jobs_early() {
    let daemon = Setup::new().option("state-limit", "1000000GiB").start();
    let client = daemon.client().await;
    let run = client.try_run(request("1", &script("true"))).await;
    refused(run, Code::ResourceExhausted, "disk_full");
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn a_log_that_others_touched_is_data_loss_never_another_files_bytes() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let secret = daemon.file("secret");
    std::fs::write(&secret, "canary\n".repeat(10_000)).unwrap();
    for harm in ["truncate", "remove", "link", "replace"] {
        let go = daemon.file(&format!("go-{harm}"));
        let text = format!("seq 1 1000; until [ -e {} ]; do sleep 0.02; done; seq 1 1000", go.display());
        client.run(harm, &text).await;
        let mut follow = client.follow(harm, 0).await;
        follow.until(" 01O 1000\n").await;
        let log = daemon.folder(harm).join("log");
        match harm {
            "truncate" => std::fs::File::options().write(true).open(&log).unwrap().set_len(100).unwrap(),
            "remove" => std::fs::remove_file(&log).unwrap(),
            "link" => {
                std::fs::remove_file(&log).unwrap();
                symlink(&secret, &log).unwrap();
            }
            _ => {
                std::fs::remove_file(&log).unwrap();
                std::fs::copy(&secret, &log).unwrap();
            }
        }
        refused(client.try_follow(harm, 0).await, Code::DataLoss, "data_loss");
        std::fs::write(&go, "").unwrap();
        match follow.rest().await {
            // If only the name was damaged, the open file still has all bytes.
            Ok(bytes) => {
                assert_ne!(harm, "truncate");
                assert_eq!(
                    logs::source(&bytes, "01O"),
                    crate::support::numbered(1_000, "").repeat(2).into_bytes()
                );
            }
            lost => drop(refused(lost, Code::DataLoss, "data_loss")),
        }
        let status = client.reaches(harm, "it ends", |status| status.finished).await;
        assert_eq!(status.exit_code, 0, "the job itself does not notice");
        let late = client.try_follow(harm, 0).await;
        refused(late, Code::DataLoss, "data_loss");
        client.finish(harm).await;
        assert!(secret.exists());
    }
    assert!(!contains(&client.log_so_far("beside").await, "canary"));
    beside.unaffected(&daemon).await;
}
