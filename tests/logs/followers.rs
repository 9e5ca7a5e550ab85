//! Followers: any offset, any pace, always to the end.

use super::masking;
use crate::support::{Daemon, Setup, logs, request, script};
use futures_util::future::join_all;
use step_runner::pb::v1::RunRequest;
use tonic::Code;

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
        // A cut may fall anywhere in what was received.
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
    // When it reads on at last, it gets everything.
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
