//! The keeper's end of the connection: frames in, frames out, never waiting.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::link::is_final;
use super::protocol::{FromKeeper, MAX_FRAME, ToKeeper};

/// Bytes read at a time.
const READ_CHUNK: usize = 64 << 10;

/// At most so many chunks are read before the pipes of jobs have their turn again.
const CHUNKS_PER_TURN: usize = 16;

/// With more bytes than this waiting for the daemon, lengths of logs are kept back: they would only pile up.
const BUSY_BYTES: usize = 64 << 10;

/// Buffers larger than this are given back once they are empty.
const KEPT_CAPACITY: usize = 256 << 10;

/// A connected daemon.
pub(super) struct Connection {
    socket: OwnedFd,
    /// Number of the connection, so that late replies to an older one are told apart.
    pub(super) number: u32,
    /// The daemon's Hello was answered and it speaks our version.
    pub(super) greeted: bool,
    /// Room in the socket is waited for.
    pub(super) watches_write: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of `output` already sent.
    sent: usize,
    /// Nobody reads what we send. What was said before that is still to be read: its end tells that it is over.
    deaf: bool,
}

/// The daemon closed its end or broke the protocol: the connection is of no more use.
pub(super) struct Over;

impl Connection {
    pub(super) fn new(socket: OwnedFd, number: u32) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            number,
            greeted: false,
            watches_write: false,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            deaf: false,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads what is there. After `Over` the frames read before are still to be taken.
    pub(super) fn receive(&mut self) -> Result<(), Over> {
        for _ in 0..CHUNKS_PER_TURN {
            self.input.reserve(READ_CHUNK);
            let room = self.input.capacity() - self.input.len();
            match rustix::io::read(&self.socket, rustix::buffer::spare_capacity(&mut self.input)) {
                Ok(0) => return Err(Over),
                Ok(read) if read < room => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return Err(Over),
            }
        }
        Ok(())
    }

    /// Takes the complete frames read so far.
    pub(super) fn frames(&mut self) -> Result<Vec<ToKeeper>, Over> {
        let mut frames = Vec::new();
        let mut rest = self.input.as_slice();
        while let Some((header, body)) = rest.split_first_chunk::<4>() {
            let len = u32::from_le_bytes(*header) as usize;
            if len > MAX_FRAME {
                return Err(Over);
            }
            let Some((frame, behind)) = body.split_at_checked(len) else { break };
            frames.push(postcard::from_bytes(frame).map_err(|_| Over)?);
            rest = behind;
        }
        let (taken, left) = (self.input.len() - rest.len(), rest.len());
        self.input.copy_within(taken.., 0);
        // Requests hold the secrets of jobs, and the buffer lives on.
        self.input.split_at_mut(left).1.fill(0);
        self.input.truncate(left);
        if self.input.is_empty() && self.input.capacity() > KEPT_CAPACITY {
            self.input = Vec::new();
        }
        Ok(frames)
    }

    /// Queues a frame; [`Connection::send`] sends it.
    pub(super) fn push(&mut self, frame: &FromKeeper) {
        if self.deaf {
            return;
        }
        // Nothing of ours can fail to serialise into a vector; should it, the frame is left out whole.
        if let Ok(bytes) = postcard::to_stdvec(frame) {
            self.output.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            self.output.extend_from_slice(&bytes);
        }
    }

    /// Something is to be read, be it the end.
    pub(super) fn has_input(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    /// Sends what the socket takes.
    pub(super) fn send(&mut self) {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match rustix::net::send(&self.socket, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                // The other end is gone. What it sent before is read all the same.
                Err(error) if is_final(error) => {
                    self.deaf = true;
                    break;
                }
                // Also for want of memory: what was not sent is sent in a later turn.
                Err(_) => return,
            }
        }
        self.sent = 0;
        // A job's record holds its secrets.
        self.output.fill(0);
        self.output.clear();
        if self.output.capacity() > KEPT_CAPACITY {
            self.output = Vec::new();
        }
    }

    /// Bytes wait for the socket.
    pub(super) fn wants_write(&self) -> bool {
        self.sent < self.output.len()
    }

    /// The daemon is slow to read.
    pub(super) fn is_busy(&self) -> bool {
        self.output.len() - self.sent > BUSY_BYTES
    }
}
