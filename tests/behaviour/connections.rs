//! Silent clients, too many clients, and too few descriptors (service.md §1.1, faults.md rows 54, 55).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use crate::support::frames::{END_HEADERS, END_STREAM, Wire, frame, header, kind, message};
use crate::support::{Daemon, PATIENCE, SOON, Setup, at_rest, is_root, patiently, script, until};
use step_runner::pb::v1::State;

/// True if the daemon has closed its end.
fn is_closed(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut stream = stream;
    let mut bytes = [0; 64];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

#[tokio::test]
async fn fault_55_silent_callers_make_room_for_those_that_speak() {
    let daemon = Setup::new().option("max-connections", "16").start();
    let early = daemon.client().await;
    early.run("1", "echo on; exec sleep 600").await;
    early.prints("1", "on").await;
    // If a new connection had to wait for silent ones to time out, this test would take minutes.
    let silent: Vec<UnixStream> = (0..400).map(|_| UnixStream::connect(&daemon.socket).unwrap()).collect();
    // A new caller is served at once, and the old one is still served.
    let start = Instant::now();
    let late = daemon.client().await;
    assert_eq!(late.status("1").await.state(), State::Running);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(early.status("1").await.state(), State::Running);
    until("the oldest silent callers are dropped", || silent.iter().filter(|s| is_closed(s)).count() >= 384)
        .await;
}

#[tokio::test]
async fn fault_55_a_caller_that_stays_silent_is_dropped() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let silent = UnixStream::connect(&daemon.socket).unwrap();
    // Part of the HTTP/2 preface counts as silence.
    let mut half = UnixStream::connect(&daemon.socket).unwrap();
    half.write_all(b"PRI * HTTP").unwrap();
    let mut other = UnixStream::connect(&daemon.socket).unwrap();
    other.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    until("those that speak otherwise are dropped", || is_closed(&other)).await;
    until("silent ones are dropped", || is_closed(&silent) && is_closed(&half)).await;
    assert!(client.jobs().await.is_empty());
}

#[tokio::test]
async fn fault_54_without_descriptors_jobs_go_on_and_it_recovers() {
    let wrapper = ["prlimit", "--nofile=64:64"];
    let daemon = Setup::new().wrapper(&wrapper).start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    client.prints("1", "on").await;
    let callers: Vec<UnixStream> = (0..120).map(|_| UnixStream::connect(&daemon.socket).unwrap()).collect();
    assert_eq!(client.status("1").await.state(), State::Running);
    until("the operator is told", || daemon.said().contains("no call was made on them")).await;
    drop(callers);
    let late = patiently("a connection", daemon.client()).await;
    assert_eq!(late.run_to_end("2", &script("echo again")).await.exit_code, 0);
    assert_eq!(late.status("1").await.state(), State::Running);
}

#[tokio::test]
async fn fault_64_clients_that_come_and_go_leave_nothing() {
    if !is_root("fault_64_clients_that_come_and_go_leave_nothing") {
        return;
    }
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run("1", "echo on; exec sleep 600").await;
    // Uses Status: the end of a stream would be processed at an unknown time later.
    client.reaches("1", "it prints", |status| status.log_bytes > 0).await;
    let open = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    let before = at_rest(daemon.pid(), open);
    for _ in 0..50 {
        let another = daemon.client().await;
        let mut follow = another.follow("1", 0).await;
        follow.until("on").await;
    }
    until("followers' descriptors are closed", || open() == before).await;
}

#[tokio::test]
async fn fault_88_a_client_may_send_any_authority_or_none() {
    let daemon = Daemon::start();
    let path = header(b":path", b"/steprunner.v1.StepRunner/Status");
    let fixed = [header(b":method", b"POST"), header(b":scheme", b"http"), path].concat();
    let rest = [header(b"te", b"trailers"), header(b"content-type", b"application/grpc")].concat();
    let insert = |value: &[u8]| [&[0x41, value.len() as u8][..], value].concat();
    let mut blocks: Vec<Vec<u8>> =
        [&b"run%2Fs.sock"[..], b"", b"%", b"a b", "sockét".as_bytes(), b"\xff\xfe", b"[::"]
            .into_iter()
            .flat_map(|value| [insert(value), header(b":authority", value)])
            .collect();
    // The authority is absent, the static table entry, the first dynamic table entry, or replaced by Host.
    blocks.extend([vec![], vec![0x81], vec![0x80 | (61 + 7)], header(b"host", b"run%2Fs.sock")]);
    let mut wire = Wire::open(&daemon.socket).unwrap();
    wire.patience(PATIENCE).unwrap();
    for (at, authority) in blocks.iter().enumerate() {
        let stream = at as u32 * 2 + 1;
        let block =
            if at % 2 == 0 { [&authority[..], &fixed, &rest] } else { [&fixed[..], authority, &rest] }
                .concat();
        wire.send(&frame(kind::HEADERS, END_HEADERS, stream, &block)).unwrap();
        wire.send(&frame(kind::DATA, END_STREAM, stream, &message(b""))).unwrap();
        let mut kinds = Vec::new();
        loop {
            let frame =
                wire.receive().unwrap().unwrap_or_else(|| panic!("{authority:?} ended the connection"));
            kinds.extend((frame.stream == stream).then_some(frame.kind));
            if frame.stream == stream && frame.is_last {
                break;
            }
        }
        assert_eq!(kinds, [kind::HEADERS, kind::DATA, kind::HEADERS], "{authority:?}");
    }
}
