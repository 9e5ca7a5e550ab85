//! A connection that breaks repeatedly (custom-executor.md §15, T9).

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::custom_executor::runner::{Runner, Seen};
use crate::support::Daemon;

/// Relays between a socket and the daemon's. Cuts each connection after some bytes from the daemon.
fn relay(path: &Path, daemon: PathBuf, mut after: impl FnMut() -> usize + Send + 'static) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = UnixStream::connect(&daemon) else { return };
            let limit = after();
            let (mut up_near, mut up_far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || {
                std::io::copy(&mut up_near, &mut up_far).ok();
                up_far.shutdown(Shutdown::Both).ok();
            });
            std::thread::spawn(move || pass(near, far, limit));
        }
    });
}

fn pass(mut near: UnixStream, mut far: UnixStream, mut left: usize) {
    let mut buffer = vec![0; 1 << 16];
    while left > 0 {
        let room = left.min(buffer.len());
        match far.read(&mut buffer[..room]) {
            Ok(length @ 1..) if near.write_all(&buffer[..length]).is_ok() => left -= length,
            _ => break,
        }
    }
    near.shutdown(Shutdown::Both).ok();
    far.shutdown(Shutdown::Both).ok();
}

/// Returns bytes of every value, in lines of all lengths, with carriage returns.
fn binary(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
    .take(length)
    .collect();
    // Adds a line of more than a mebibyte, a line of carriage returns only, and empty lines.
    bytes.iter_mut().take(1_200_000).filter(|byte| **byte == b'\n').for_each(|byte| *byte = b'x');
    bytes.extend_from_slice(b"\rprogress 1\rprogress 2\rdone\r\n\n\n\r\n");
    bytes
}

/// T9. `STEP_RUNNER_T9_BYTES` is the size of the output; the gate sets 50 MB.
#[test]
fn every_byte_arrives_once_over_a_line_that_is_cut_again_and_again() {
    let length = std::env::var("STEP_RUNNER_T9_BYTES").map_or(2_000_000, |text| text.parse().unwrap());
    let daemon = Daemon::start();
    let (socket, output) = (daemon.file("cut.sock"), daemon.file("output"));
    let expected = binary(length);
    std::fs::write(&output, &expected).unwrap();
    let mut cuts = 0;
    // Cuts during the handshake, or after a few messages.
    relay(&socket, daemon.socket.clone(), move || {
        cuts += 1;
        [300_000, 70, 1_000_000, 9_000, 150_000][cuts % 5]
    });
    let mut runner = Runner::shared(&socket).prepared();
    let script = format!("cat {}; cat {} >&2; exit 11", output.display(), output.display());
    let call = runner.stage("build_script", script).is(&Seen::BuildFailure(11));
    assert!(call.stdout == expected, "stdout differs: {} of {} bytes", call.stdout.len(), expected.len());
    assert!(call.stderr == expected, "stderr differs: {} of {} bytes", call.stderr.len(), expected.len());
    runner.call(&["cleanup"]).is(&Seen::Success);
    assert_eq!(daemon.folders(), [""; 0]);
}
