//! The keeper's end of the quiet pipe: requests of a daemon that need not wake the keeper.
//!
//! A daemon hands over the reading end with the first bytes of its connection. Nothing watches the pipe. It is read
//! whenever the socket has been read, and at the end of the connection. An entry is the number of frames of the socket that
//! come before it, a little-endian `u64`, and a frame. So all requests of a daemon have one order, whichever way they came.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::keeper::protocol::{MAX_FRAME, ToKeeper};

/// Bytes read at a time. Entries are short.
const READ_CHUNK: usize = 4 << 10;

/// The reading end of a quiet pipe.
pub(super) struct QuietPipe {
    /// `None` once its bytes broke the protocol.
    pipe: Option<OwnedFd>,
    input: Vec<u8>,
    entries: VecDeque<Entry>,
}

struct Entry {
    /// Number of frames of the socket that come before it.
    after: u64,
    frame: ToKeeper,
}

impl QuietPipe {
    pub(super) const fn new(pipe: OwnedFd) -> Self {
        Self { pipe: Some(pipe), input: Vec::new(), entries: VecDeque::new() }
    }

    /// Reads the available entries.
    pub(super) fn read(&mut self) {
        while let Some(pipe) = &self.pipe {
            self.input.reserve(READ_CHUNK);
            let room = self.input.capacity() - self.input.len();
            let read = match rustix::io::read(pipe, rustix::buffer::spare_capacity(&mut self.input)) {
                Err(Errno::INTR) => continue,
                Ok(0) | Err(_) => return,
                Ok(read) => read,
            };
            if self.decode().is_none() {
                self.pipe = None;
            }
            if read < room {
                return;
            }
        }
    }

    /// Takes the entries out of the bytes read so far. `None` if they are none.
    fn decode(&mut self) -> Option<()> {
        let mut rest = self.input.as_slice();
        while let Some((after, frame)) = rest.split_first_chunk::<8>()
            && let Some((header, body)) = frame.split_first_chunk::<4>()
        {
            let len = u32::from_le_bytes(*header) as usize;
            if len > MAX_FRAME {
                return None;
            }
            let Some((frame, behind)) = body.split_at_checked(len) else { break };
            let frame = postcard::from_bytes(frame).ok()?;
            self.entries.push_back(Entry { after: u64::from_le_bytes(*after), frame });
            rest = behind;
        }
        self.input.drain(..self.input.len() - rest.len());
        Some(())
    }

    /// Takes the entries whose turn has come after `taken` frames of the socket.
    pub(super) fn take(&mut self, taken: u64) -> impl Iterator<Item = ToKeeper> {
        std::iter::from_fn(move || Some(self.entries.pop_front_if(|entry| entry.after <= taken)?.frame))
    }
}

#[cfg(test)]
mod tests;
