//! The keeper's end of the quiet pipe: requests of a daemon that need not wake the keeper.
//!
//! A daemon hands over the reading end with the first bytes of its connection. Nothing watches the pipe. It is read
//! whenever the socket has been read, and at the end of the connection. An entry has two little-endian `u64` and a frame. The
//! first is the number of frames of the socket that come before it, so all requests of a daemon have one order, whichever
//! way they came. The second is the time at which it was written, as [`clock::boot_micros`]: an entry can lie for days.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;

use super::connection::{Arrived, ConnectionClosed};
use crate::clock;
use crate::keeper::protocol::{MAX_FRAME, ToKeeper};

/// Bytes read at a time. Entries are short.
const READ_CHUNK: usize = 4 << 10;

/// The reading end of a quiet pipe.
pub(super) struct QuietPipe {
    pipe: OwnedFd,
    input: Vec<u8>,
    entries: VecDeque<Entry>,
}

struct Entry {
    /// Number of frames of the socket that come before it.
    after: u64,
    /// Time at which the daemon wrote it, as [`clock::boot_micros`].
    written: u64,
    frame: ToKeeper,
}

impl QuietPipe {
    /// Takes over a pipe. Reading it never waits, whoever made it.
    pub(super) fn new(pipe: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self { pipe, input: Vec::new(), entries: VecDeque::new() })
    }

    /// Reads the available entries. Fails if their bytes break the protocol.
    pub(super) fn read(&mut self) -> Result<(), ConnectionClosed> {
        loop {
            self.input.reserve(READ_CHUNK);
            let room = self.input.capacity() - self.input.len();
            let read = match rustix::io::read(&self.pipe, rustix::buffer::spare_capacity(&mut self.input)) {
                Err(Errno::INTR) => continue,
                Ok(0) | Err(_) => return Ok(()),
                Ok(read) => read,
            };
            self.decode()?;
            if read < room {
                return Ok(());
            }
        }
    }

    /// Takes the complete entries out of the bytes read so far.
    fn decode(&mut self) -> Result<(), ConnectionClosed> {
        let mut rest = self.input.as_slice();
        while let Some((after, behind)) = rest.split_first_chunk::<8>()
            && let Some((written, frame)) = behind.split_first_chunk::<8>()
            && let Some((header, body)) = frame.split_first_chunk::<4>()
        {
            let len = u32::from_le_bytes(*header) as usize;
            if len > MAX_FRAME {
                return Err(ConnectionClosed);
            }
            let Some((frame, behind)) = body.split_at_checked(len) else { break };
            self.entries.push_back(Entry {
                after: u64::from_le_bytes(*after),
                written: u64::from_le_bytes(*written),
                frame: postcard::from_bytes(frame).map_err(|_| ConnectionClosed)?,
            });
            rest = behind;
        }
        self.input.drain(..self.input.len() - rest.len());
        Ok(())
    }

    /// Takes the entries whose turn has come after `taken` frames of the socket.
    pub(super) fn take(&mut self, taken: u64) -> impl Iterator<Item = Arrived> {
        let now = clock::boot_micros();
        std::iter::from_fn(move || {
            let Entry { written, frame, .. } = self.entries.pop_front_if(|entry| entry.after <= taken)?;
            Some(Arrived { frame, age: Duration::from_micros(now.saturating_sub(written)) })
        })
    }
}

#[cfg(test)]
mod tests;
