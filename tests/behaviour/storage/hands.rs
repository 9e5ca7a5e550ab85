//! Changes that others make in the state folder (faults.md rows 29, 44).

use std::process::Command;

use super::{peak, wait_until_exists};
use crate::support;
use crate::support::{Client, Daemon, contains, kill, logs, numbered, refused, script, scripts};
use rustix::process::Signal;
use step_runner::pb::v1::State;
use tonic::Code;

/// Starts a job that goes on once the file `go` exists, a follower that has received its first line, and another job.
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
        // A follower that has the file open still reads the file that the keeper writes.
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
async fn fault_85_what_a_step_appends_to_its_log_and_results_reaches_no_follower() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let (log, steps) = (daemon.folder("1").join("log"), daemon.folder("1").join("steps"));
    let add = |file: &std::path::Path| format!("seq 1 3000 >> {};", file.display());
    let first = format!("echo one; {} {}", add(&log), add(&steps));
    let text = scripts(&[("a", &first), ("b", &format!("echo two; {}", add(&log)))]);
    assert_eq!(client.run_to_end("1", &text).await.state(), State::Success);
    assert_eq!(client.output("1").await, "one\ntwo\n");
    let bytes = client.try_follow("1", 0).await.unwrap().rest().await.unwrap();
    assert!(contains(&bytes, "bytes that another process wrote"));
    assert_eq!(client.try_steps("1").await.unwrap().len(), 3);
    // Another process can append to the file after its end, too.
    let mut file = std::fs::File::options().append(true).open(&log).unwrap();
    std::io::Write::write_all(&mut file, b"more\n").unwrap();
    for restarted in [false, true] {
        if restarted {
            daemon.kill();
            daemon.restart();
        }
        let client = daemon.client().await;
        let again = client.try_follow("1", 0).await.unwrap().rest().await.unwrap();
        assert!(again == bytes, "{restarted}");
    }
}

#[tokio::test]
async fn fault_85_foreign_bytes_behind_a_dead_keepers_log_are_cut_off() {
    let daemon = Daemon::start();
    let (_, follow) = followed(&daemon).await;
    let log = daemon.folder("1").join("log");
    let whole = std::fs::read(&log).unwrap().len();
    let mut file = std::fs::File::options().append(true).open(&log).unwrap();
    std::io::Write::write_all(&mut file, b"foreign\nbytes").unwrap();
    kill(daemon.keeper_pid().unwrap(), Signal::KILL);
    let bytes = follow.rest().await.unwrap();
    assert!(!contains(&bytes, "foreign"));
    assert!(contains(&bytes, "13 bytes that another process wrote to its log were removed"));
    assert!(bytes.len() >= whole);
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
    // A new job needs a new keeper, and with it all files of its name.
    assert_eq!(client.run_to_end("new", &script("echo new")).await.state(), State::Success);
}
