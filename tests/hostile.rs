//! Clients that mean harm, one at a time: what they are answered, and that nobody else notices (faults.md rows 18, 54,
//! 56, 57). All of them at once, with figures: `scripts/hostile`.
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

mod support;

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use rustix::process::{Pid, Resource, Rlimit};
use step_runner::pb::v1::State;
use support::frames::{self, END_HEADERS, END_STREAM, Wire, call_headers, frame, header, kind};
use support::{
    Daemon, PATIENCE, contains, is_alive, logs, patiently, refused, request, script, scripts, until,
};
use tonic::Code;

/// Largest resident memory of the daemon so far, in KiB.
fn peak(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// What a hostile client may cost (faults.md row 56).
const GROWTH: u64 = 16 << 10;

/// Sends `first`, then `again` until the daemon ends the connection: the code of its GOAWAY.
fn flood(daemon: &Daemon, first: &[u8], again: &[u8]) -> Option<u32> {
    let mut wire = Wire::open(&daemon.socket).unwrap();
    wire.patience(PATIENCE).unwrap();
    let mut writer = Wire { stream: wire.stream.try_clone().unwrap() };
    let bytes = again.repeat(200);
    let first = first.to_vec();
    let writing = std::thread::spawn(move || {
        writer.send(&first).ok();
        while writer.send(&bytes).is_ok() {}
    });
    let code = wire.farewell().unwrap_or_else(|error| panic!("the flood is not ended: {error}"));
    writing.join().unwrap();
    code
}

#[tokio::test]
async fn fault_56_floods_end_their_connection_and_nothing_else() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let before = peak(&daemon);
    let open = |method| frame(kind::HEADERS, END_HEADERS, 1, &call_headers(method));
    let resets: Vec<u8> = (0..2_000)
        .flat_map(|n| {
            let open = frame(kind::HEADERS, END_HEADERS, n * 2 + 1, &call_headers("Status"));
            [open, frame(kind::RST_STREAM, 0, n * 2 + 1, &8_u32.to_be_bytes())].concat()
        })
        .collect();
    let more = header(b"x-more", &[b'x'; 1_000]);
    let floods: [(&str, Vec<u8>, Vec<u8>); 7] = [
        ("pings", vec![], frame(kind::PING, 0, 0, b"12345678")),
        ("settings", vec![], frame(kind::SETTINGS, 0, 0, &frames::settings(&[(3, 100)]))),
        ("priorities", vec![], frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        ("unknown frames", vec![], frame(77, 0, 0, b"")),
        ("empty data", open("Run"), frame(kind::DATA, 0, 1, b"")),
        ("resets", resets, vec![0]),
        (
            "continuation",
            frame(kind::HEADERS, 0, 1, &call_headers("Status")),
            frame(kind::CONTINUATION, 0, 1, &more),
        ),
    ];
    for (name, first, again) in floods {
        let code = flood(&daemon, &first, &again);
        assert!(code.is_some(), "{name}: no GOAWAY");
        assert_eq!(client.status("1").await.state(), State::Running, "{name}");
    }
    let grown = peak(&daemon) - before;
    assert!(grown < GROWTH, "{grown} KiB");
}

/// Whether the daemon has closed its end.
fn is_closed(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; 1 << 10];
    loop {
        match std::io::Read::read(&mut &*stream, &mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// A call of Run that says no more than this of its body: status and message, if they come before the rest.
async fn answered(daemon: &Daemon, body: Vec<u8>, ends: bool) -> Option<(String, String)> {
    let stream = tokio::net::UnixStream::connect(&daemon.socket).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let driving = tokio::spawn(connection);
    let call = http::Request::post("http://x/steprunner.v1.StepRunner/Run")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut sending) = sender.send_request(call, false).unwrap();
    sending.send_data(Bytes::from(body), ends).unwrap();
    let response = patiently("an answer", response).await;
    let text = |name: &str, headers: &http::HeaderMap| {
        headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    let found = response
        .ok()
        .map(|response| (text("grpc-status", response.headers()), text("grpc-message", response.headers())));
    driving.abort();
    found
}

fn prefix(flag: u8, length: u32) -> Vec<u8> {
    [&[flag][..], &length.to_be_bytes()].concat()
}

#[tokio::test]
async fn fault_57_what_a_length_promises_is_checked_before_anything_is_set_aside() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let before = peak(&daemon);
    for length in [u32::MAX, 1 << 31, (32 << 20) + 1] {
        let (code, _) = answered(&daemon, prefix(0, length), false).await.unwrap();
        assert!(["8", "11"].contains(&code.as_str()), "{length}: {code}");
    }
    for (body, what) in [
        (prefix(1, 10), "compressed"),
        (prefix(7, 10), "flag"),
        ([prefix(0, 10), b"short".to_vec()].concat(), "cut"),
        (vec![0, 0], "no prefix"),
    ] {
        let (code, message) = answered(&daemon, body, true).await.unwrap();
        assert_eq!(code, "3", "{what}: {message}");
        assert!(message.starts_with("malformed_request"), "{what}: {message}");
    }
    let grown = peak(&daemon) - before;
    assert!(grown < GROWTH, "{grown} KiB");
    assert_eq!(client.status("1").await.state(), State::Running);
}

#[tokio::test]
async fn fault_57_large_requests_have_room_for_some_at_a_time() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut wire = Wire::open(&daemon.socket).unwrap();
        wire.send(&frame(kind::HEADERS, END_HEADERS, 1, &call_headers("Run"))).unwrap();
        wire.send(&frame(kind::DATA, 0, 1, &prefix(0, 32 << 20))).unwrap();
        wire.send(&frame(kind::PING, 0, 0, b"received")).unwrap();
        while wire.receive().unwrap().unwrap().kind != kind::PING {}
        // The call has had its turn when one that came later is answered.
        assert!(client.jobs().await.is_empty());
        held.push(wire);
    }
    let large = || {
        let mut run = request("large", &script("true"));
        run.env.insert("A".into(), "x".repeat(100 << 10));
        run
    };
    refused(client.try_run(large()).await, Code::ResourceExhausted, "queue_full");
    // Small ones need no room, and what is given up gives its room back.
    assert_eq!(client.run_to_end("small", &script("true")).await.exit_code, 0);
    drop(held);
    loop {
        match client.try_run(large()).await {
            Ok(()) => break,
            refusal => drop(refused(refusal, Code::ResourceExhausted, "queue_full")),
        }
    }
    assert_eq!(client.ended("large").await.exit_code, 0);
}

#[tokio::test]
async fn fault_57_huge_metadata_ends_its_own_call_or_connection() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    let before = peak(&daemon);
    let mut block = call_headers("Status");
    for at in 0..2_000 {
        block.extend(header(format!("x-{at}").as_bytes(), &[b'v'; 4_000]));
    }
    let mut bytes = Vec::new();
    let count = block.len().div_ceil(frames::MAX_FRAME);
    for (at, piece) in block.chunks(frames::MAX_FRAME).enumerate() {
        let last = if at + 1 == count { END_HEADERS } else { 0 };
        let (kind, flags) =
            if at == 0 { (kind::HEADERS, last | END_STREAM) } else { (kind::CONTINUATION, last) };
        bytes.extend(frame(kind, flags, 1, piece));
    }
    let code = flood(&daemon, &bytes, &frame(kind::PING, 0, 0, b"12345678"));
    assert!(code.is_some());
    let grown = peak(&daemon) - before;
    assert!(grown < GROWTH, "{grown} KiB");
    assert_eq!(client.status("1").await.state(), State::Running);
}

#[tokio::test]
async fn fault_54_without_descriptors_running_jobs_and_their_followers_go_on() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let go = daemon.file("go");
    let wait = format!("echo on; until [ -e {} ]; do sleep 0.02; done", go.display());
    client.run_steps("1", &scripts(&[("a", &wait), ("b", "echo second"), ("c", "echo third")])).await;
    let mut follow = client.follow("1", 0).await;
    follow.until("on").await;
    let limit = Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::prlimit(Pid::from_raw(daemon.pid()), Resource::Nofile, limit).unwrap();
    // These speak, so that none may be dropped for its silence.
    let callers: Vec<_> = (0..120).map(|_| Wire::open(&daemon.socket).unwrap()).collect();
    until("some are turned away", || callers.iter().filter(|wire| is_closed(&wire.stream)).count() >= 60)
        .await;
    let refusal = client.try_follow("1", 0).await.err().unwrap();
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
    std::fs::write(&go, "").unwrap();
    let log = follow.rest().await.unwrap();
    assert_eq!(logs::source(&log, "01O"), b"on\nsecond\nthird\n", "{}", String::from_utf8_lossy(&log));
    assert_eq!(client.status("1").await.exit_code, 0);
    drop(callers);
    let late = patiently("a connection", daemon.client()).await;
    assert!(late.log("1").await == log);
    assert!(is_alive(daemon.pid()));
}

#[tokio::test]
async fn fault_18_a_line_a_millisecond_to_a_follower_that_rests_costs_it_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    // 3,000 lines, each with a frame of its own if they were not joined; the client's own limit is 14,000.
    let text = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); sleep 0.001; done; echo end";
    client.run("1", text).await;
    let resting = daemon.client().await;
    let mut follow = resting.follow("1", 0).await;
    follow.until("line 0").await;
    client.reaches("1", "it has ended", |status| status.finished).await;
    // The same connection is there for other calls, and the stream goes on.
    assert_eq!(resting.status("1").await.exit_code, 0);
    let log = follow.rest().await.unwrap();
    assert!(contains(&log, "line 2999") && log == client.log("1").await);
}
