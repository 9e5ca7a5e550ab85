//! Thread that writes to stdout and stderr. A reader that hangs stops this thread alone: the command still hears
//! signals, and the job is not slowed.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::Notify;

use crate::logging;

/// Bytes waiting for the reader above which callers should not add more.
const ROOM: usize = 1 << 20;

/// Writes to stdout and stderr in the order of the calls. Calls never block.
pub(super) struct Writer {
    chunks: Sender<Chunk>,
    shared: Arc<Shared>,
}

enum Chunk {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Stdout(bytes) | Self::Stderr(bytes) => bytes,
        }
    }
}

#[derive(Default)]
struct Shared {
    /// Bytes handed over and not written yet.
    waiting: AtomicUsize,
    error: Mutex<Option<io::Error>>,
    /// Told after each chunk.
    written: Notify,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let (chunks, taken) = channel();
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || write_chunks(&taken, &of_thread))?;
        Ok(Self { chunks, shared })
    }

    pub(super) fn stdout(&self, bytes: Vec<u8>) {
        self.push(Chunk::Stdout(bytes));
    }

    /// Writes to stderr. There is nowhere to report a failure to.
    pub(super) fn stderr(&self, bytes: Vec<u8>) {
        self.push(Chunk::Stderr(bytes));
    }

    fn push(&self, chunk: Chunk) {
        let length = chunk.bytes().len();
        if length == 0 {
            return;
        }
        self.shared.waiting.fetch_add(length, Ordering::AcqRel);
        // The thread ends after its last sender, unless it panics.
        if self.chunks.send(chunk).is_err() {
            self.shared.waiting.fetch_sub(length, Ordering::AcqRel);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.shared.waiting.load(Ordering::Acquire) < ROOM
    }

    /// Waits until the thread has written something since the last wait. Cancel-safe.
    pub(super) async fn progress(&self) {
        self.shared.written.notified().await;
    }

    /// Waits until everything is written. Cancel-safe.
    pub(super) async fn drained(&self) {
        while self.shared.waiting.load(Ordering::Acquire) > 0 {
            self.progress().await;
        }
    }

    /// Returns the first error of stdout since the last call.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.shared.error.lock().take()
    }
}

fn write_chunks(chunks: &Receiver<Chunk>, shared: &Shared) {
    while let Ok(chunk) = chunks.recv() {
        match &chunk {
            Chunk::Stdout(bytes) => {
                if let Err(error) = write_all(&io::stdout(), bytes) {
                    shared.error.lock().get_or_insert(error);
                }
            }
            // In a daemon no thread may write between two lines of its log.
            Chunk::Stderr(bytes) if logging::take_for_stderr(bytes) => {}
            Chunk::Stderr(bytes) => drop(write_all(&io::stderr(), bytes)),
        }
        shared.waiting.fetch_sub(chunk.bytes().len(), Ordering::AcqRel);
        shared.written.notify_one();
    }
}

/// Writes without the buffer and the lock of the standard library: a thread that holds those might wait for this one.
pub(super) fn write_all(output: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(output, bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            // Another program has made this file non-blocking.
            Err(rustix::io::Errno::AGAIN) => {
                let mut waits = [PollFd::new(output, PollFlags::OUT)];
                match poll(&mut waits, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
