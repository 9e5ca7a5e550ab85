//! The process at the other end of a socket: `getsockopt` with `SO_PEERPIDFD`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `SO_PEERPIDFD`, the same number on all processors that we are built for.
const SO_PEERPIDFD: libc::c_int = 77;

/// Handle of the process that connected a socket.
#[derive(Debug)]
pub enum PeerHandle {
    /// Its pidfd, also if it has ended since.
    Known(OwnedFd),
    /// It has ended and was reaped.
    Gone,
    /// The kernel is older than 6.5.
    Unsupported,
}

/// Returns the handle of the process that called `connect` for the other end of `socket`.
pub fn peer_handle(socket: BorrowedFd<'_>) -> PeerHandle {
    let mut pidfd: RawFd = -1;
    let mut size = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to `pidfd`.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut size,
        )
    };
    if got == 0 && pidfd >= 0 {
        // SAFETY: the kernel has just opened this descriptor for us.
        return PeerHandle::Known(unsafe { OwnedFd::from_raw_fd(pidfd) });
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOPROTOOPT) => PeerHandle::Unsupported,
        _ => PeerHandle::Gone,
    }
}
