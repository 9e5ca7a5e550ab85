//! Copies one direction, whether or not the descriptors block.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};

/// Bytes in memory for one direction (connectors.md §2.2).
const BUFFER: usize = 64 * 1024;

/// Bytes moved so far, in both directions.
#[derive(Debug, Default)]
pub(super) struct Moved(AtomicU64);

impl Moved {
    pub(super) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The side that failed, and its error.
#[derive(Debug)]
pub(super) enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies `from` to `to` until `from` ends. A full `to` stops reading `from`. Whoever shares the descriptors with us
/// may have made them non-blocking.
pub(super) fn copy(from: impl AsFd, to: impl AsFd, moved: &Moved) -> Result<(), CopyError> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = read(from.as_fd(), &mut buffer).map_err(|e| CopyError::Read(e.into()))?;
        if length == 0 {
            return Ok(());
        }
        let mut rest = buffer.get(..length).unwrap_or_default();
        while !rest.is_empty() {
            let written = write(to.as_fd(), rest).map_err(|e| CopyError::Write(e.into()))?;
            moved.add(written);
            rest = rest.get(written..).unwrap_or_default();
        }
    }
}

fn read(from: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match rustix::io::read(from, &mut *buffer) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => ready(from, PollFlags::IN)?,
            other => return other,
        }
    }
}

fn write(to: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match rustix::io::write(to, bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => ready(to, PollFlags::OUT)?,
            other => return other,
        }
    }
}

/// Returns when the far side has ended the connection or its sending half, even if earlier bytes are unread.
pub(super) fn wait_for_hang_up(socket: impl AsFd) -> Result<(), Errno> {
    ready(socket.as_fd(), PollFlags::RDHUP)
}

fn ready(descriptor: BorrowedFd<'_>, what: PollFlags) -> Result<(), Errno> {
    retry_on_intr(|| poll(&mut [PollFd::from_borrowed_fd(descriptor, what)], None)).map(drop)
}
