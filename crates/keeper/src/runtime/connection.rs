//! The keeper's end of the connection: reads and writes frames, and never blocks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::link::is_final;
use crate::protocol::{FromKeeper, MAX_FRAME, ToKeeper};

const READ_CHUNK: usize = 64 << 10;

/// Most chunks to read before the pipes of jobs get their turn.
const CHUNKS_PER_TURN: usize = 16;

/// With more bytes than this queued for the daemon, no lengths of logs are sent: they would only pile up.
const BUSY_BYTES: usize = 64 << 10;

/// Larger buffers are freed once they are empty.
const KEPT_CAPACITY: usize = 256 << 10;

/// The connection to a daemon.
pub(super) struct Connection {
    socket: OwnedFd,
    /// Number of the connection; replies to an older one are dropped.
    pub(super) number: u32,
    /// True once the daemon's Hello was answered and its version is ours.
    pub(super) greeted: bool,
    /// True while epoll watches for room in the socket.
    pub(super) watches_write: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of `output` already sent.
    sent: usize,
    /// True once sending has failed for good. Frames that the daemon sent before are still read.
    deaf: bool,
}

/// The connection is over: the daemon closed its end or broke the protocol.
pub(super) struct ConnectionClosed;

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

    /// Reads the available bytes. After `ConnectionClosed`, the frames read before must still be taken.
    pub(super) fn receive(&mut self) -> Result<(), ConnectionClosed> {
        for _ in 0..CHUNKS_PER_TURN {
            self.input.reserve(READ_CHUNK);
            let room = self.input.capacity() - self.input.len();
            match rustix::io::read(&self.socket, rustix::buffer::spare_capacity(&mut self.input)) {
                Ok(0) => return Err(ConnectionClosed),
                Ok(read) if read < room => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return Err(ConnectionClosed),
            }
        }
        Ok(())
    }

    /// Takes the complete frames read so far.
    pub(super) fn frames(&mut self) -> Result<Vec<ToKeeper>, ConnectionClosed> {
        let mut frames = Vec::new();
        let mut rest = self.input.as_slice();
        while let Some((header, body)) = rest.split_first_chunk::<4>() {
            let len = u32::from_le_bytes(*header) as usize;
            if len > MAX_FRAME {
                return Err(self.refuse(&format!("a request of {len} bytes, more than {MAX_FRAME}")));
            }
            let Some((frame, behind)) = body.split_at_checked(len) else { break };
            match postcard::from_bytes(frame) {
                Ok(frame) => frames.push(frame),
                Err(error) => return Err(self.refuse(&format!("a request that cannot be read: {error}"))),
            }
            rest = behind;
        }
        let (taken, left) = (self.input.len() - rest.len(), rest.len());
        self.input.copy_within(taken.., 0);
        // Wipe them: requests hold the secrets of jobs, and the buffer lives on.
        self.input.split_at_mut(left).1.fill(0);
        self.input.truncate(left);
        if self.input.is_empty() && self.input.capacity() > KEPT_CAPACITY {
            self.input = Vec::new();
        }
        Ok(frames)
    }

    /// Tells the daemon's log why the connection ends now. Before the greeting the daemon may speak another protocol.
    fn refuse(&mut self, what: &str) -> ConnectionClosed {
        if self.greeted {
            self.push(&FromKeeper::Notice(format!("the daemon sent {what}; the connection is closed")));
            self.send();
        }
        ConnectionClosed
    }

    /// Queues a frame; [`Connection::send`] sends it.
    pub(super) fn push(&mut self, frame: &FromKeeper) {
        if self.deaf {
            return;
        }
        // Our types always serialise into a vector. If one did not, the whole frame would be left out.
        if let Ok(bytes) = postcard::to_stdvec(frame) {
            self.output.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            self.output.extend_from_slice(&bytes);
        }
    }

    /// True if input waits, or the end of the connection.
    pub(super) fn has_input(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    /// Sends as much as the socket takes.
    pub(super) fn send(&mut self) {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match rustix::net::send(&self.socket, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                // The daemon is gone. What it sent before is still read.
                Err(error) if is_final(error) => {
                    self.deaf = true;
                    break;
                }
                // No room, or no memory: a later turn sends the rest.
                Err(_) => return,
            }
        }
        self.sent = 0;
        // Wipe them: a job's record holds its secrets.
        self.output.fill(0);
        self.output.clear();
        if self.output.capacity() > KEPT_CAPACITY {
            self.output = Vec::new();
        }
    }

    /// True if bytes wait for room in the socket.
    pub(super) fn wants_write(&self) -> bool {
        self.sent < self.output.len()
    }

    /// True if the daemon is slow to read.
    pub(super) fn is_busy(&self) -> bool {
        self.output.len() - self.sent > BUSY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Returns what a daemon that has sent `bytes` gets until the connection ends.
    fn answer(bytes: &[u8], greeted: bool) -> Vec<u8> {
        let (mut daemon, keeper) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(keeper.into(), 1).unwrap();
        connection.greeted = greeted;
        daemon.write_all(bytes).unwrap();
        assert!(connection.receive().is_ok() && connection.frames().is_err());
        drop(connection);
        let mut answer = Vec::new();
        daemon.read_to_end(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_frame_that_cannot_be_read_closes_the_connection_with_a_word_for_the_log() {
        for (bytes, word) in [
            (&[2, 0, 0, 0, 0xff, 0xff][..], "cannot be read: "),
            (&[0xff, 0xff, 0xff, 0xff], "4294967295 bytes"),
        ] {
            let answer = answer(bytes, true);
            let (_, frame) = answer.split_at(4);
            let Ok(FromKeeper::Notice(text)) = postcard::from_bytes(frame) else { panic!("{answer:?}") };
            assert!(text.contains(word), "{text}");
        }
        assert_eq!(answer(&[2, 0, 0, 0, 0xff, 0xff], false), b"", "the daemon may not know notices");
    }
}
