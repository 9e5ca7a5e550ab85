//! The queue of a socket.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the memory that the kernel holds for bytes written to `socket` and not yet taken by the other end. It is
/// more than the bytes themselves, and 0 if all are taken or the kernel does not tell. It shrinks only when the other
/// end has taken all bytes of one write.
pub fn unread_bytes(socket: impl AsFd) -> usize {
    let mut bytes: c_int = 0;
    // SAFETY: the descriptor is open while it is borrowed; the call writes one integer to the place it is given.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 { 0 } else { usize::try_from(bytes).unwrap_or_default() }
}
