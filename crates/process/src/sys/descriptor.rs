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

/// True if a process can leave a shared table of descriptors by `close_range` without harm. Some kernels from 5.9 to 6.10
/// leave marks of the left descriptors in its new table, which then has no number for a new file (CVE-2024-45025). Filters
/// of containers may forbid the call.
pub(crate) fn can_leave_table() -> bool {
    let is_sound = version_of(rustix::system::uname().release().to_bytes()) >= Some((6, 11));
    // SAFETY: there is no descriptor of this number.
    is_sound && unsafe { libc::syscall(libc::SYS_close_range, libc::c_uint::MAX, libc::c_uint::MAX, 0) == 0 }
}

/// Returns the first two numbers of a kernel's release.
fn version_of(release: &[u8]) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte| !byte.is_ascii_digit());
    let mut number = || str::from_utf8(numbers.next()?).ok()?.parse().ok();
    Some((number()?, number()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_kernel_is_read_from_its_release() {
        assert_eq!(version_of(b"6.18.5"), Some((6, 18)));
        assert_eq!(version_of(b"5.15.0-131-generic"), Some((5, 15)));
        assert_eq!(version_of(b"6.11+"), Some((6, 11)));
        assert_eq!(version_of(b"7"), None);
        assert!(Some((6, 2)) < Some((6, 11)) && None < Some((6, 11)));
    }
}
