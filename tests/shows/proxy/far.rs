//! The server behind a proxy: a socket that echoes or follows a script. Both sides know the bytes to expect.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::daemon::PATIENCE;
use crate::random::Random;
use crate::verdict::Check;

/// Size of one read or write.
pub(super) const CHUNK: usize = 64 << 10;

/// Length of the repeated block. It is prime, so that bytes displaced by any power of two are noticed.
const PERIOD: usize = 1_048_573;

/// An endless pseudo-random text known to both sides, and another one for the other direction.
pub(super) struct Content {
    block: Vec<u8>,
    other: Option<Box<Content>>,
}

impl Content {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut block = || (0..=PERIOD / 8).flat_map(|_| random.next().to_le_bytes()).take(PERIOD).collect();
        let (block, other) = (block(), Self { block: block(), other: None });
        Self { block, other: Some(Box::new(other)) }
    }

    /// Returns the text of the other direction.
    pub(super) fn other(&self) -> &Content {
        self.other.as_deref().unwrap_or(self)
    }

    fn at(&self, position: u64) -> &[u8] {
        let part = &self.block[(position % PERIOD as u64) as usize..];
        &part[..part.len().min(CHUNK)]
    }

    /// Sends the first `size` bytes of the text.
    pub(super) fn send(&self, size: u64, to: &mut impl Write, progress: &Progress) -> Check {
        let mut position = 0;
        while position < size {
            let part = self.at(position);
            let part = &part[..part.len().min((size - position) as usize)];
            to.write_all(part).map_err(|error| format!("after {position} bytes: {error}"))?;
            position += part.len() as u64;
            progress.0.store(position, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads `size` bytes and compares them with the text. Calls `pause` with the position after each read.
    pub(super) fn check(&self, size: u64, from: &mut impl Read, mut pause: impl FnMut(u64)) -> Check {
        let mut buffer = vec![0; CHUNK];
        let mut position = 0;
        while position < size {
            let room = buffer.len().min((size - position) as usize);
            let length =
                from.read(&mut buffer[..room]).map_err(|error| format!("after {position} bytes: {error}"))?;
            if length == 0 {
                return Err(format!("it ended after {position} of {size} bytes"));
            }
            let mut rest = &buffer[..length];
            while !rest.is_empty() {
                let expected = self.at(position);
                let common = expected.len().min(rest.len());
                if rest[..common] != expected[..common] {
                    return Err(format!("other bytes between {position} and {}", position + common as u64));
                }
                position += common as u64;
                rest = &rest[common..];
            }
            pause(position);
        }
        Ok(())
    }

    /// Like [`Self::check`]. Then expects the end of the stream.
    pub(super) fn check_all(&self, size: u64, from: &mut impl Read) -> Check {
        self.check(size, from, |_| ())?;
        let mut rest = Vec::new();
        read_all(Some(from), &mut rest)?;
        if rest.is_empty() { Ok(()) } else { Err(format!("{} bytes too many", rest.len())) }
    }
}

pub(super) fn read_all(from: Option<impl Read>, into: &mut Vec<u8>) -> Check {
    from.map_or(Ok(0), |mut from| from.read_to_end(into)).map(drop).map_err(|error| error.to_string())
}

/// Number of bytes written.
#[derive(Default)]
pub(super) struct Progress(AtomicU64);

impl Progress {
    /// Waits until all is written, or nothing more for `still`. Returns the number of bytes written.
    pub(super) fn wait_until_full(&self, size: u64, still: Duration) -> u64 {
        let (mut last, mut since) = (self.0.load(Ordering::Relaxed), Instant::now());
        while last < size && (last == 0 || since.elapsed() < still) && since.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
            let now = self.0.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        last
    }
}

/// A running server.
pub(super) struct Far(JoinHandle<Check>);

impl Far {
    /// Serves one connection with `script`.
    pub(super) fn serve(
        socket: &Path,
        script: impl FnOnce(UnixStream) -> Check + Send + 'static,
    ) -> Check<Self> {
        let listener = listen(socket)?;
        Ok(Self(thread::spawn(move || script(accept(&listener)?))))
    }

    /// Echoes on one connection.
    pub(super) fn echo(socket: &Path, _content: &Arc<Content>, _size: u64) -> Check<Self> {
        Self::serve(socket, echo)
    }

    /// Echoes on each of `count` connections.
    pub(super) fn echo_all(socket: &Path, count: u64) -> Check<Self> {
        let listener = listen(socket)?;
        Ok(Self(thread::spawn(move || {
            let mut threads = Vec::new();
            for _ in 0..count {
                let connection = accept(&listener)?;
                threads.push(thread::spawn(move || echo(connection)));
            }
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "an echo died".to_owned())?)
        })))
    }

    /// Reads one text and sends the other at the same time. Ends when both are complete.
    pub(super) fn two_streams(socket: &Path, content: &Arc<Content>, size: u64) -> Check<Self> {
        let content = Arc::clone(content);
        Self::serve(socket, move |mut connection| {
            let mut sending = connection.try_clone().map_err(|error| error.to_string())?;
            let sent = {
                let content = Arc::clone(&content);
                thread::spawn(move || content.other().send(size, &mut sending, &Progress::default()))
            };
            content.check_all(size, &mut connection)?;
            sent.join().map_err(|_| "the sender died".to_owned())?
        })
    }

    pub(super) fn end(self) -> Check {
        self.0.join().map_err(|_| "the far side died".to_owned())?.map_err(|miss| format!("far side: {miss}"))
    }
}

fn echo(mut connection: UnixStream) -> Check {
    let mut sending = connection.try_clone().map_err(|error| error.to_string())?;
    std::io::copy(&mut connection, &mut sending).map_err(|error| error.to_string())?;
    connection.shutdown(Shutdown::Write).map_err(|error| error.to_string())
}

fn listen(socket: &Path) -> Check<UnixListener> {
    let listener = UnixListener::bind(socket).map_err(|error| error.to_string())?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    Ok(listener)
}

/// Accepts the next connection. Fails if none comes, so that the test does not hang.
fn accept(listener: &UnixListener) -> Check<UnixStream> {
    let start = Instant::now();
    let connection = loop {
        match listener.accept() {
            Ok((connection, _)) => break connection,
            Err(error) if start.elapsed() > PATIENCE => return Err(format!("nobody connects: {error}")),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    connection.set_nonblocking(false).map_err(|error| error.to_string())?;
    Ok(connection)
}
