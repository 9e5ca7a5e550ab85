//! Leases of files: the kernel's word that nobody else has a file open.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `F_SETSIG` of Linux, which `libc` defines for few machines. The value is the same on all that this program runs on.
const F_SETSIG: c_int = 10;

/// Takes a write lease of `file`, which must be open for writing. `false` if the file is open anywhere else, in this
/// process or another. The lease ends when `file` is closed. Until then the kernel holds up others that open the file.
///
/// Fails on file systems without leases, such as NFS, and for files of other users. On overlayfs it does not see files
/// that were opened through the upper directory itself.
pub fn lease_if_sole(file: impl AsFd) -> io::Result<bool> {
    let fd = file.as_fd().as_raw_fd();
    // An opener causes a signal for the lease's holder. The one that is set by default, SIGIO, would end this process.
    set(fd, F_SETSIG, libc::SIGURG)?;
    match set(fd, libc::F_SETLEASE, c_int::from(libc::F_WRLCK)) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        leased => leased.map(|()| true),
    }
}

fn set(fd: c_int, command: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed; both commands take an integer and touch no memory of ours.
    let result = unsafe { libc::fcntl(fd, command, value) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn a_lease_is_given_only_for_a_file_that_nobody_else_has_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x").unwrap();
        let file = || File::options().write(true).open(&path).unwrap();
        let reader = File::open(&path).unwrap();
        assert!(!lease_if_sole(file()).unwrap(), "a reader has it open");
        drop(reader);
        let writer = file();
        assert!(!lease_if_sole(file()).unwrap(), "a writer has it open");
        assert!(lease_if_sole(&writer).unwrap());
        drop(writer);
        assert!(lease_if_sole(file()).unwrap(), "the lease before it ended with its file");
    }

    #[test]
    fn an_opener_is_held_up_while_the_lease_lasts_and_its_signal_does_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        assert!(lease_if_sole(&file).unwrap());
        let open = || File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        assert_eq!(open().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(file);
        open().unwrap();
    }
}
