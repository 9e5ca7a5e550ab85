//! The order in which the two sides end, and the proxy's reaction.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::far::{Content, Far, Progress, read_all};
use super::{Proxy, command, expect, scene};
use crate::daemon::{Daemon, Scene};
use crate::proc;
use crate::verdict::Check;

/// No byte, one byte, and more than the buffers of a runtime that lost them (faults.md row 22: 192 KiB).
const SIZES: [u64; 3] = [0, 1, 3 << 20 | 1];

/// Bound on the time from the daemon's death to the end of a proxy whose stdin is open (connectors.md §9).
const AT_ONCE: Duration = Duration::from_millis(100);

/// Number of proxies of one daemon that is killed.
const AT_A_TIME: usize = 4;

/// The HTTP/2 preface and an empty SETTINGS frame. The daemon answers with its own SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Which side ends first.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// The client closes its half first, then the daemon answers.
    Client,
    /// The daemon closes the connection while the client's half stays open.
    Daemon,
    /// The daemon closes its half but still reads, while the client's half stays open.
    DaemonHalf,
    /// Both send, then both end.
    Both,
}

/// Tests every order with every size.
pub(super) fn matrix(content: &Arc<Content>) -> Check {
    for order in [Order::Client, Order::Daemon, Order::DaemonHalf, Order::Both] {
        for size in SIZES {
            half_close(order, content, size).map_err(|miss| format!("{order:?}, {size} bytes: {miss}"))?;
        }
    }
    Ok(())
}

fn half_close(order: Order, content: &Arc<Content>, size: u64) -> Check {
    let (_scene, socket) = scene();
    let text = Arc::clone(content);
    let far = Far::serve(&socket, move |mut connection| match order {
        Order::Client => {
            text.check_all(size, &mut connection)?;
            text.other().send(size, &mut connection, &Progress::default())
        }
        Order::Daemon => text.other().send(size, &mut connection, &Progress::default()),
        Order::DaemonHalf => {
            text.other().send(size, &mut connection, &Progress::default())?;
            connection.shutdown(Shutdown::Write).map_err(|error| error.to_string())?;
            text.check_all(0, &mut connection)
        }
        Order::Both => both(&text, connection, size),
    })?;
    let mut proxy = Proxy::start(&socket)?;
    let (mut stdin, mut stdout) = (proxy.stdin()?, proxy.stdout()?);
    let said = match order {
        Order::Client | Order::Both => size,
        Order::Daemon | Order::DaemonHalf => 0,
    };
    let writer = {
        let content = Arc::clone(content);
        let stays = matches!(order, Order::Daemon | Order::DaemonHalf);
        // A stdin that is to stay open is returned, and held until the proxy has ended.
        thread::spawn(move || {
            content.send(said, &mut stdin, &Progress::default()).map(|()| stays.then_some(stdin))
        })
    };
    content.other().check_all(size, &mut stdout)?;
    let held = writer.join().map_err(|_| "the writer died")??;
    proxy.end_well()?;
    drop(held);
    far.end()
}

fn both(content: &Arc<Content>, mut connection: UnixStream, size: u64) -> Check {
    let mut sending = connection.try_clone().map_err(|error| error.to_string())?;
    let text = Arc::clone(content);
    let sent = thread::spawn(move || {
        text.other().send(size, &mut sending, &Progress::default())?;
        // The client has ended its half by now or will do so later.
        Ok::<_, String>(sending)
    });
    content.check_all(size, &mut connection)?;
    sent.join().map_err(|_| "the sender died".to_owned())?.map(drop)
}

/// A daemon dies with bytes unread: the proxy delivers what the daemon sent, then reports a failure.
pub(super) fn lost(content: &Arc<Content>) -> Check {
    for size in SIZES {
        let (_scene, socket) = scene();
        let text = Arc::clone(content);
        let far = Far::serve(&socket, move |mut connection| {
            // Reads one byte, so that the other one is unread when the connection is closed.
            text.check(1, &mut connection, |_| ())?;
            text.other().send(size, &mut connection, &Progress::default())
        })?;
        let mut proxy = Proxy::start(&socket)?;
        let (mut stdin, mut stdout) = (proxy.stdin()?, proxy.stdout()?);
        content.send(2, &mut stdin, &Progress::default())?;
        content.other().check_all(size, &mut stdout)?;
        let output = proxy.end()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let is_told = said.starts_with("step-runner proxy: read ") && said.lines().count() == 1;
        if output.status.code() != Some(1) || !is_told {
            return Err(format!("{size} bytes: {}, stderr {said:?}", output.status));
        }
        drop(stdin);
        far.end()?;
    }
    Ok(())
}

/// Each signal ends the proxy silently with code 1, while it is idle or in a blocked write. The daemon sees the end of
/// the connection.
pub(super) fn signals(content: &Arc<Content>) -> Check {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        for is_full in [false, true] {
            signalled(content, signal, is_full)
                .map_err(|miss| format!("{signal:?}, full: {is_full}: {miss}"))?;
        }
    }
    Ok(())
}

fn signalled(content: &Arc<Content>, signal: Signal, is_full: bool) -> Check {
    let (_scene, socket) = scene();
    let text = Arc::clone(content);
    let sent = Arc::new(Progress::default());
    let shared = Arc::clone(&sent);
    let far = Far::serve(&socket, move |mut connection| {
        let size = if is_full { 8 << 20 } else { 1 };
        // Fails when the proxy ends.
        let all = text.other().send(size, &mut connection, &shared);
        let mut rest = Vec::new();
        // Bytes still on their way to the proxy turn the end into a connection reset.
        read_all(Some(connection), &mut rest).ok();
        if is_full == all.is_err() && rest.is_empty() {
            Ok(())
        } else {
            Err(format!("{all:?}, {} bytes", rest.len()))
        }
    })?;
    let mut proxy = Proxy::start(&socket)?;
    let mut stdout = proxy.stdout()?;
    stdout.read_exact(&mut [0]).map_err(|error| error.to_string())?;
    if is_full {
        sent.wait_until_full(8 << 20, super::FULL);
    }
    proc::kill(proxy.pid(), signal);
    let output = proxy.end()?;
    expect(&output, 1)?;
    drop(stdout);
    far.end()
}

/// stdout carries only the bytes of the socket, also if the proxy fails and with every variable set that makes programs
/// print more. After a failure stderr has exactly one line.
pub(super) fn pure(content: &Arc<Content>) -> Check {
    let (_scene, socket) = scene();
    let refused = Proxy::start(&socket)?.end()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    if refused.status.code() != Some(1) || !refused.stdout.is_empty() || said.lines().count() != 1 {
        return Err(format!("without a socket: {refused:?}"));
    }
    let text = Arc::clone(content);
    let far = Far::serve(&socket, move |mut connection| {
        text.other().send(1_000, &mut connection, &Progress::default())
    })?;
    let mut verbose = command(&socket);
    let mut proxy = Proxy::start_by(verbose.args(["-vvv", "--color", "always"]))?;
    content.other().check_all(1_000, &mut proxy.stdout()?)?;
    proxy.end_well()?;
    far.end()
}

/// Kills daemons while proxies with an open stdin are connected. Returns the longest time until one of these had ended.
pub(super) fn deaths(rounds: u64, judges_time: bool) -> Check<Duration> {
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let scene = Scene::new("proxy");
        let daemon = Daemon::start(&scene)?;
        let proxies: Vec<_> = (0..AT_A_TIME).map(|_| connected(&scene)).collect::<Check<_>>()?;
        let start = Instant::now();
        daemon.kill()?;
        for (proxy, stdin) in proxies {
            let output = proxy.end()?;
            longest = longest.max(start.elapsed());
            expect(&output, 0)?;
            drop(stdin);
        }
    }
    if judges_time && longest > AT_ONCE {
        return Err(format!("a proxy took {longest:?}, at most {AT_ONCE:?} are allowed"));
    }
    Ok(longest)
}

/// Starts a proxy whose daemon has read everything sent so far.
fn connected(scene: &Scene) -> Check<(Proxy, std::process::ChildStdin)> {
    let mut proxy = Proxy::start(&scene.socket())?;
    let (mut stdin, mut stdout) = (proxy.stdin()?, proxy.stdout()?);
    stdin.write_all(PREFACE).map_err(|error| error.to_string())?;
    while !is_acknowledgement(&read_frame(&mut stdout)?) {}
    // The rest of the output comes from the daemon and is ignored.
    thread::spawn(move || read_all(Some(stdout), &mut Vec::new()));
    Ok((proxy, stdin))
}

/// Reads the next HTTP/2 frame. Returns its header.
fn read_frame(from: &mut impl Read) -> Check<[u8; 9]> {
    let mut header = [0; 9];
    from.read_exact(&mut header).map_err(|error| error.to_string())?;
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    from.read_exact(&mut vec![0; length as usize]).map_err(|error| error.to_string())?;
    Ok(header)
}

/// True if the frame acknowledges our SETTINGS, so the daemon has read them.
fn is_acknowledgement(header: &[u8; 9]) -> bool {
    header[3] == 4 && header[4] & 1 == 1
}
