//! Followers read from any offset, at any speed, always to the end.

use super::masking;
use crate::support::{Daemon, Setup, contains, logs, patiently, request, script};
use futures_util::future::join_all;
use step_runner::pb::v1::{self, RunRequest};
use tonic::{Code, Streaming};

#[tokio::test]
async fn the_first_message_holds_a_whole_header() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("1", &script("printf x")).await;
    let mut follow = client.follow("1", 0).await;
    let first = follow.next().await.unwrap().unwrap();
    assert!(first >= 32);
}

#[tokio::test]
async fn fault_20_a_follower_resumes_anywhere_without_gap_or_repeat() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "seq 1 2000; i=0; while [ $i -lt 100 ]; do echo line $i; sleep 0.01; i=$((i+1)); done; seq 1 2000").await;
    let mut received = Vec::new();
    let mut dice = 0x2545_f491_4f6c_dd1d_u64;
    let mut cuts = 0;
    loop {
        let offset = i32::try_from(received.len()).unwrap();
        let another = daemon.client().await;
        let mut follow = another.follow("1", offset).await;
        dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let messages = 1 + (dice >> 33) % 4;
        let mut ended = false;
        for _ in 0..messages {
            ended = follow.next().await.unwrap().is_none();
            if ended {
                break;
            }
        }
        // The cut can fall anywhere in the received bytes.
        let keep = if ended || follow.bytes.len() < 2 {
            follow.bytes.len()
        } else {
            1 + (dice >> 17) as usize % follow.bytes.len()
        };
        received.extend_from_slice(&follow.bytes[..keep]);
        if ended {
            break;
        }
        cuts += 1;
        assert!(cuts < 100_000);
    }
    assert!(received == client.log("1").await);
    assert!(cuts > 3);
}

#[tokio::test]
async fn many_followers_see_the_same_and_end_with_the_job() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    client
        .run("1", &format!("echo on; until [ -e {} ]; do sleep 0.01; done; seq 1 20000", go.display()))
        .await;
    client.prints("1", "on").await;
    let mut follows = Vec::new();
    for _ in 0..30 {
        follows.push(client.follow("1", 0).await);
    }
    std::fs::write(&go, "").unwrap();
    let all = join_all(follows.into_iter().map(|follow| async { follow.rest().await.unwrap() })).await;
    let status = client.status("1").await;
    assert!(status.finished);
    for bytes in &all {
        assert!(*bytes == all[0]);
        assert_eq!(bytes.len() as i64, status.log_bytes);
    }
    assert!(client.log("1").await == all[0], "a follower of the ended job too");
}

#[tokio::test]
async fn fault_19_a_follower_that_never_reads_delays_nobody() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    let waits = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    client.run("1", &format!("echo on; {waits}; seq 1 300000; echo end")).await;
    let lazy = daemon.client().await;
    let mut stalled = lazy.follow("1", 0).await;
    stalled.until("on").await;
    std::fs::write(go, "").unwrap();
    assert_eq!(client.ended("1").await.exit_code, 0);
    // Once it reads again, it gets everything.
    assert!(stalled.rest().await.unwrap() == client.log("1").await);
}

#[tokio::test]
async fn finish_while_following_gives_every_byte_and_a_good_end() {
    let daemon = Setup::new().option("cancel-grace", "600s").start();
    let client = daemon.client().await;
    client
        .run("1", "trap 'seq 1 5000; echo last words; exit 0' TERM; echo on; while :; do sleep 0.01; done")
        .await;
    let mut follow = client.follow("1", 0).await;
    follow.until("on").await;
    let (rest, finished) = tokio::join!(follow.rest(), client.try_finish("1"));
    finished.unwrap();
    let log = rest.unwrap();
    let output = String::from_utf8(logs::source(&log, "01O")).unwrap();
    assert!(output.starts_with("on\n1\n") && output.ends_with("5000\nlast words\n"), "{output}");
    assert_eq!(logs::daemon_lines(&log).len(), 2, "{:?}", logs::daemon_lines(&log));
}

#[tokio::test]
async fn followers_of_a_finished_job_that_are_behind_get_the_rest() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_to_end("1", &script("seq 1 200000")).await;
    let whole = client.log("1").await;
    let behind = daemon.client().await;
    let mut follow = behind.follow("1", 0).await;
    follow.next().await.unwrap();
    client.finish("1").await;
    assert!(follow.rest().await.unwrap() == whole);
}

#[tokio::test]
async fn fault_20_offsets_count_what_was_sent() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let run = RunRequest {
        masking: Some(masking(&["sesame-open"])),
        ..request("1", &script("echo sesame-open; echo x"))
    };
    client.try_run(run).await.unwrap();
    client.ended("1").await;
    let log = client.log("1").await;
    for offset in 0..=log.len() {
        let rest = client.follow("1", i32::try_from(offset).unwrap()).await.rest().await.unwrap();
        assert!(rest == log[offset..], "from {offset}");
    }
    let past = client.try_follow("1", i32::try_from(log.len()).unwrap() + 1).await.err().unwrap();
    assert_eq!(past.code(), Code::OutOfRange);
}

/// Reads messages until one holds an unfinished line. Returns it and the bytes of the log before it.
async fn unfinished_line(stream: &mut Streaming<v1::FollowLogsResponse>) -> (String, Vec<u8>) {
    let mut log = Vec::new();
    loop {
        let message = patiently("an unfinished line", stream.message()).await.unwrap().unwrap();
        assert!(message.data.is_empty() != message.unfinished.is_empty(), "{message:?}");
        log.extend_from_slice(&message.data);
        if !message.unfinished.is_empty() {
            return (String::from_utf8(message.unfinished.to_vec()).unwrap(), log);
        }
    }
}

/// Returns the body of an entry.
fn body(entry: &str) -> &str {
    entry.get(32..).unwrap()
}

#[tokio::test]
async fn a_line_without_an_end_is_shown_to_those_who_ask_and_is_no_part_of_the_log() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let (first, second) = (daemon.file("first"), daemon.file("second"));
    for fifo in [&first, &second] {
        assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    }
    let text = format!(
        "echo whole; printf 'load sesame-open '; cat {}; printf 'more '; cat {}; echo end",
        first.display(),
        second.display()
    );
    let run = RunRequest { masking: Some(masking(&["sesame-open"])), ..request("1", &script(&text)) };
    client.try_run(run).await.unwrap();
    let live = |offset| v1::FollowLogsRequest { id: "1".into(), offset, unfinished: true };
    let mut stream = client.calls.clone().follow_logs(live(0)).await.unwrap().into_inner();
    let (line, log) = unfinished_line(&mut stream).await;
    assert_eq!(line.get(27..32), Some(" 01O "));
    assert_eq!(body(&line), "load [MASKED] ");
    assert!(contains(&log, "whole"), "the log before the line comes first");
    assert_eq!(client.status("1").await.log_bytes, log.len() as i64);
    std::fs::write(&first, "").unwrap();
    let (line, between) = unfinished_line(&mut stream).await;
    assert_eq!((body(&line), between.len()), ("load [MASKED] more ", 0));
    // A later follower gets the current text of the line, also if it resumes at its offset.
    for offset in [0, log.len() as i32] {
        let mut late = client.calls.clone().follow_logs(live(offset)).await.unwrap().into_inner();
        assert_eq!(body(&unfinished_line(&mut late).await.0), "load [MASKED] more ");
    }
    assert_eq!(client.log_so_far("1").await, log, "those who do not ask get the log alone");
    std::fs::write(&second, "").unwrap();
    let mut rest = Vec::new();
    while let Some(message) = patiently("the end", stream.message()).await.unwrap() {
        assert!(message.unfinished.is_empty(), "{message:?}");
        rest.extend_from_slice(&message.data);
    }
    assert!(client.log("1").await == [log, rest].concat());
    assert_eq!(client.output("1").await, "whole\nload [MASKED] more end\n");
}

#[tokio::test]
async fn a_line_without_an_end_is_shown_over_a_kill_of_the_daemon() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "printf 'waiting '; exec sleep 600").await;
    let live = v1::FollowLogsRequest { id: "1".into(), offset: 0, unfinished: true };
    let mut stream = client.calls.clone().follow_logs(live.clone()).await.unwrap().into_inner();
    let (before, log) = unfinished_line(&mut stream).await;
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    let mut stream = client.calls.clone().follow_logs(live).await.unwrap().into_inner();
    assert_eq!(unfinished_line(&mut stream).await, (before, log));
    client.finish("1").await;
}
