//! Hostile clients, one at a time: the answers they get, and that other clients are not affected (faults.md rows 18,
//! 54, 56, 57). `scripts/hostile` runs all of them at once and measures.

mod headers;
mod lengths;

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;

use crate::support::frames::{self, END_HEADERS, END_STREAM, Wire, call_headers, frame, header, kind};
use crate::support::{Daemon, PATIENCE, Setup, contains, is_alive, logs, patiently, scripts, until};
use bytes::Bytes;
use rustix::process::{Pid, Resource, Rlimit};
use step_runner::pb::v1::State;
use tonic::Code;

/// Returns the peak resident memory of the daemon in KiB.
fn peak(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Memory in KiB that a hostile client can cost (faults.md row 56).
const GROWTH: u64 = 16 << 10;

/// Sends `first`, then `again` until the daemon ends the connection. Returns the code of its GOAWAY.
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

/// True if the daemon has closed its end.
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

/// Makes a call of Run with this body, which can be incomplete. Returns status and message if they come before the rest
/// is sent.
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
        let (code, text) = answered(&daemon, prefix(0, length), false).await.unwrap();
        assert!(code == "3" && text.starts_with("too_large:"), "{length}: {code} {text}");
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
    // These clients send bytes, so that none is dropped as silent.
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
    // The step prints 3,000 lines. Unless the daemon joined them, each would need a frame of its own. The client's own
    // limit is 14,000 frames.
    let text = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); sleep 0.001; done; echo end";
    client.run("1", text).await;
    let resting = daemon.client().await;
    let mut follow = resting.follow("1", 0).await;
    follow.until("line 0").await;
    client.reaches("1", "it has ended", |status| status.finished).await;
    // Other calls on the same connection still work, and the stream goes on.
    assert_eq!(resting.status("1").await.exit_code, 0);
    let log = follow.rest().await.unwrap();
    assert!(contains(&log, "line 2999") && log == client.log("1").await);
}

/// Sends a complete call of Status without an id on `stream`.
fn ask(wire: &mut Wire, stream: u32) {
    wire.send(&frames::call(stream, "Status", b"")).unwrap();
}

/// Reads until `stream` has been answered.
fn answer(wire: &mut Wire, stream: u32) {
    loop {
        let frame = wire.receive().unwrap().unwrap_or_else(|| panic!("no answer on {stream}"));
        assert_ne!(frame.kind, kind::GOAWAY, "{stream}");
        if frame.stream == stream && frame.is_last {
            return;
        }
    }
}

#[tokio::test]
async fn fault_89_what_clients_send_with_their_calls_is_no_flood() {
    let daemon = Daemon::start();
    let mut wire = Wire::open(&daemon.socket).unwrap();
    wire.patience(PATIENCE).unwrap();
    let update = |stream| frame(kind::WINDOW_UPDATE, 0, stream, &5_u32.to_be_bytes());
    for stream in (1..6_000).step_by(2) {
        wire.send(&frame(kind::PING, 0, 0, b"bdp ping")).unwrap();
        ask(&mut wire, stream);
        wire.send(&[update(0), update(stream)].concat()).unwrap();
        answer(&mut wire, stream);
        wire.send(&[update(0), frame(kind::PING, 0, 0, b"bdp ping")].concat()).unwrap();
    }
}

#[tokio::test]
async fn fault_89_data_after_the_cancel_of_a_call_ends_no_connection() {
    // As netty sends it for a call that is cancelled at once.
    let daemon = Daemon::start();
    let mut wire = Wire::open(&daemon.socket).unwrap();
    wire.patience(PATIENCE).unwrap();
    for stream in (1..6_000).step_by(4) {
        let cancelled = [
            frame(kind::HEADERS, END_HEADERS, stream, &call_headers("Status")),
            frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()),
            frame(kind::DATA, END_STREAM, stream, &frames::message(b"")),
        ];
        wire.send(&cancelled.concat()).unwrap();
        ask(&mut wire, stream + 2);
        answer(&mut wire, stream + 2);
    }
}

#[tokio::test]
async fn fault_89_a_flood_is_told_the_last_call_and_loses_none_before_it() {
    let daemon = Daemon::start();
    let mut wire = Wire::open(&daemon.socket).unwrap();
    wire.patience(PATIENCE).unwrap();
    ask(&mut wire, 1);
    // The headers of this call are sent before the flood, its request after the flood.
    wire.send(&frame(kind::HEADERS, END_HEADERS, 3, &call_headers("Status"))).unwrap();
    wire.send(&frame(kind::PING, 0, 0, b"12345678").repeat(2_000)).unwrap();
    wire.send(&frame(kind::DATA, END_STREAM, 3, &frames::message(b""))).unwrap();
    let (mut answered, mut farewells, mut late) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(frame) = wire.receive().unwrap() {
        if frame.kind == kind::GOAWAY {
            farewells.push(frame.payload);
            // A real client could still send a call that crosses the GOAWAY.
            late.push(wire.send(&frames::call(5, "Status", b"")));
        } else if frame.is_last && [kind::HEADERS, kind::DATA].contains(&frame.kind) {
            answered.push(frame.stream);
        }
    }
    assert_eq!(answered, [1, 3]);
    assert_eq!(farewells, [[3_u32.to_be_bytes(), 11_u32.to_be_bytes()].concat()]);
    until("the operator is told", || daemon.said().contains("more frames than its calls justify")).await;
}

#[tokio::test]
async fn fault_89_connections_without_a_call_make_room_for_others() {
    let daemon = Setup::new().option("max-connections", "16").start();
    let mut used: Vec<Wire> = (0..15).map(|_| Wire::open(&daemon.socket).unwrap()).collect();
    for wire in &mut used {
        ask(wire, 1);
        answer(wire, 1);
    }
    // These clients send the preface but make no call.
    let idle: Vec<Wire> = (0..100).map(|_| Wire::open(&daemon.socket).unwrap()).collect();
    until("the older ones are dropped", || idle.iter().filter(|wire| is_closed(&wire.stream)).count() == 99)
        .await;
    for wire in &mut used {
        wire.stream.set_nonblocking(false).unwrap();
        ask(wire, 3);
        answer(wire, 3);
    }
    let mut last = idle.into_iter().next_back().unwrap();
    last.stream.set_nonblocking(false).unwrap();
    ask(&mut last, 1);
    answer(&mut last, 1);
    // All connections that are left have made calls.
    let refused = Wire::silent(&daemon.socket).unwrap();
    until("one more is refused", || is_closed(&refused.stream)).await;
    until("the operator is told of those", || daemon.said().contains("no call was made on them")).await;
    until("the operator is told of that", || daemon.said().contains("all places are taken")).await;
    assert!(daemon.said().matches("connections ").count() < 10, "{}", daemon.said());
}

#[tokio::test]
async fn fault_89_a_thousand_stalled_followers_leave_room_on_their_connection() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let steps = "head -c 400000 /dev/zero | tr '\\0' x | fold; exec sleep 600";
    client.run("1", steps).await;
    client.reaches("1", "it has printed", |status| status.log_bytes > 400_000).await;
    let before = peak(&daemon);
    let mut wire = Wire::open(&daemon.socket).unwrap();
    wire.patience(PATIENCE).unwrap();
    // The connection's window is large, but no stream gets more than its first 64 KiB.
    wire.send(&frame(kind::WINDOW_UPDATE, 0, 0, &0x7000_0000_u32.to_be_bytes())).unwrap();
    let mut come = 0;
    for follower in 0..1_000 {
        wire.send(&frames::call(follower * 2 + 1, "FollowLogs", b"\x0a\x011")).unwrap();
        while come < (follower as usize + 1) * 65_535 {
            let frame = wire.receive().unwrap().unwrap();
            assert_ne!(frame.kind, kind::GOAWAY);
            come += if frame.kind == kind::DATA { frame.payload.len() } else { 0 };
        }
    }
    ask(&mut wire, 2_001);
    answer(&mut wire, 2_001);
    let grown = peak(&daemon) - before;
    // The first 64 followers get the largest pieces, later ones smaller ones. The HTTP/2 library holds up to two pieces
    // for each.
    assert!(grown < 3 * GROWTH, "{grown} KiB");
}
