//! Descriptors this process was started with: `fcntl`, `close_range`, `dup2`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Takes over descriptor `fd` that this process was started with, and makes it close-on-exec. Standard input is copied,
/// as others may hold it too. Nothing else in the process may use another descriptor: it is given on the command line
/// and taken once.
pub fn inherited_descriptor(fd: RawFd) -> io::Result<OwnedFd> {
    match fd {
        0 => return io::stdin().as_fd().try_clone_to_owned(),
        1 | 2 => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a descriptor to read and write"));
        }
        _ => {}
    }
    // SAFETY: `fcntl` with F_SETFD touches no memory; it fails if the descriptor is not open.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and, by this function's contract, ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes every descriptor from `first` on close-on-exec, whoever opened it.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: the call sets a flag of descriptors and touches no memory.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first as libc::c_uint,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// True if the kernel (5.9) has `close_range` and no filter of a container forbids it.
pub(crate) fn has_close_range() -> bool {
    // SAFETY: there is no descriptor of this number.
    unsafe { libc::syscall(libc::SYS_close_range, libc::c_uint::MAX, libc::c_uint::MAX, 0) == 0 }
}

/// Redirects descriptors 0, 1 and 2 to `/dev/null`, so that we hold no pipe or terminal of our starter open.
pub fn quieten_standard_streams() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    for stream in 0..3 {
        // SAFETY: replaces a standard stream; nothing holds them as an owned descriptor.
        if unsafe { libc::dup2(null.as_raw_fd(), stream) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
