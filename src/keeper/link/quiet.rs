//! The daemon's end of the quiet pipe: requests that reach the keeper without waking it.
//!
//! The bytes in the pipe outlive this process, because the keeper has the reading end. The keeper reads the pipe when it is
//! awake for another reason (`keeper/shell/quiet.rs`).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::KeeperFrame;
use crate::{clock, failpoint};

/// Largest write that a pipe takes as a whole or not at all (`PIPE_BUF`, pipe(7)).
const MOST_BYTES: usize = 4096;

/// The writing end of a quiet pipe.
pub(super) struct QuietPipe(OwnedFd);

impl QuietPipe {
    /// Makes a pipe. Also returns its reading end, for the keeper.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Self(write), read))
    }

    /// Writes frames that come behind the first `after` frames of the socket. False if nothing was written: the pipe is
    /// full, or nobody reads it.
    pub(super) fn write(&self, after: u64, frames: &[KeeperFrame]) -> bool {
        let mut entries = Vec::new();
        let written = clock::boot_micros();
        for KeeperFrame(frame) in frames {
            entries.extend_from_slice(&after.to_le_bytes());
            entries.extend_from_slice(&written.to_le_bytes());
            entries.extend_from_slice(frame);
        }
        if entries.len() > MOST_BYTES || failpoint::io("keeper::quiet::write").is_err() {
            return false;
        }
        loop {
            match rustix::io::write(&self.0, &entries) {
                Err(Errno::INTR) => {}
                written => return written.is_ok(),
            }
        }
    }
}
