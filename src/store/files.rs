//! Every operation on files that the state folder needs, and nothing else: the one place where the file system is
//! touched, and where a test can put a fault.
//!
//! All are relative to a directory's descriptor, never follow a link in the last part of a name, and repeat what a
//! signal interrupted. New descriptors are never inherited.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Permissions of every file of ours.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Permissions of every directory of ours.
pub(super) const DIR_MODE: Mode = Mode::RWXU;

/// What every open has: not inherited, no link, no waiting for the other end of a FIFO.
const CAREFUL: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

/// Makes a directory, 0700.
pub(super) fn make_dir(at: impl AsFd, name: impl Arg + Copy) -> io::Result<()> {
    retry(|| rustix::fs::mkdirat(at.as_fd(), name, DIR_MODE))
}

/// Opens a directory to work in.
pub(super) fn open_dir(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    retry(|| {
        rustix::fs::openat(at.as_fd(), name, CAREFUL | OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())
    })
}

/// Makes a file that must not exist, 0600, for writing.
pub(super) fn create_new(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    let flags = CAREFUL | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    retry(|| rustix::fs::openat(at.as_fd(), name, flags, FILE_MODE))
}

/// Opens or makes a file, 0600, to append to and to read.
pub(super) fn open_append(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    let flags = CAREFUL | OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
    retry(|| rustix::fs::openat(at.as_fd(), name, flags, FILE_MODE))
}

/// Opens or makes a file, 0600, for reading and writing anywhere.
pub(super) fn open_write(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    retry(|| rustix::fs::openat(at.as_fd(), name, CAREFUL | OFlags::RDWR | OFlags::CREATE, FILE_MODE))
}

/// Opens a file for reading; anything but a regular file is an error.
pub(super) fn open_read(at: impl AsFd, name: impl Arg + Copy) -> io::Result<(OwnedFd, Stat)> {
    let fd = retry(|| rustix::fs::openat(at.as_fd(), name, CAREFUL | OFlags::RDONLY, Mode::empty()))?;
    let stat = stat_of(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        Ok((fd, stat))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"))
    }
}

/// Facts of an open file.
pub(super) fn stat_of(fd: impl AsFd) -> io::Result<Stat> {
    retry(|| rustix::fs::fstat(fd.as_fd()))
}

/// Facts of a name, a link itself rather than what it points to.
pub(super) fn stat_at(at: impl AsFd, name: impl Arg + Copy) -> io::Result<Stat> {
    retry(|| rustix::fs::statat(at.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW))
}

/// Writes all of `bytes` at the file's position.
pub(super) fn write_all(fd: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    write_some(fd, bytes).map_err(|(_, error)| error)
}

/// Appends all of `bytes` to a file opened to append. If that fails in the middle, what was written is taken back, so
/// that the next record does not follow half of one.
pub(super) fn append(fd: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    write_some(fd.as_fd(), bytes).map_err(|(written, error)| {
        if written > 0 {
            // Only if nobody else has appended since; else the half record stays and the reader names it.
            let end = rustix::fs::tell(fd.as_fd()).unwrap_or_default();
            if stat_of(fd.as_fd()).is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|size| size == end))
            {
                drop(cut(fd.as_fd(), end.saturating_sub(written as u64)));
            }
        }
        error
    })
}

fn write_some(fd: impl AsFd, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = bytes.len() - rest.len();
        let count = retry(|| rustix::io::write(fd.as_fd(), rest)).map_err(|error| (written, error))?;
        if count == 0 {
            return Err((written, io::ErrorKind::WriteZero.into()));
        }
        rest = rest.get(count..).unwrap_or_default();
    }
    Ok(())
}

/// Reads up to `want` bytes at `offset` into a new buffer; less only at the end of the file.
pub(super) fn read_piece(fd: impl AsFd, offset: u64, want: usize) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(want);
    while piece.len() < want {
        let at = offset + piece.len() as u64;
        if retry(|| rustix::io::pread(fd.as_fd(), rustix::buffer::spare_capacity(&mut piece), at))? == 0 {
            break;
        }
    }
    piece.truncate(want);
    Ok(piece)
}

/// Reads at an offset; fewer bytes than asked for only at the end of the file.
pub(super) fn read_at(fd: impl AsFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset + filled as u64;
        match retry(|| rustix::io::pread(fd.as_fd(), &mut *rest, at))? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Reads a whole regular file of at most `max` bytes.
pub(super) fn read_file(at: impl AsFd, name: impl Arg + Copy, max: u64) -> io::Result<Vec<u8>> {
    let (fd, stat) = open_read(at, name)?;
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{size} bytes, at most {max} are expected"),
        ));
    }
    let mut bytes = vec![0; size as usize];
    let count = read_at(&fd, &mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Gives a file another name in the same or another directory, replacing what has it.
pub(super) fn rename(
    from: impl AsFd,
    old: impl Arg + Copy,
    to: impl AsFd,
    new: impl Arg + Copy,
) -> io::Result<()> {
    retry(|| rustix::fs::renameat(from.as_fd(), old, to.as_fd(), new))
}

/// Removes a name that is no directory.
pub(super) fn unlink(at: impl AsFd, name: impl Arg + Copy) -> io::Result<()> {
    retry(|| rustix::fs::unlinkat(at.as_fd(), name, AtFlags::empty()))
}

/// Removes an empty directory.
pub(super) fn remove_dir(at: impl AsFd, name: impl Arg + Copy) -> io::Result<()> {
    retry(|| rustix::fs::unlinkat(at.as_fd(), name, AtFlags::REMOVEDIR))
}

/// Sets the permissions of a name, 0700: for a directory that its owner may not enter.
pub(super) fn allow_owner(at: impl AsFd, name: impl Arg + Copy) -> io::Result<()> {
    retry(|| rustix::fs::chmodat(at.as_fd(), name, DIR_MODE, AtFlags::empty()))
}

/// Cuts a file to `len` bytes.
pub(super) fn cut(fd: impl AsFd, len: u64) -> io::Result<()> {
    retry(|| rustix::fs::ftruncate(fd.as_fd(), len))
}

/// Takes the exclusive lock of a file; `false` if somebody else has it.
pub(super) fn try_lock(fd: impl AsFd) -> io::Result<bool> {
    match retry(|| rustix::fs::flock(fd.as_fd(), FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Brings a file's content, or a directory's names, to the disk.
pub(super) fn sync(fd: impl AsFd) -> io::Result<()> {
    retry(|| rustix::fs::fsync(fd.as_fd()))
}

/// An entry of a directory.
pub(super) struct Entry {
    /// Its name.
    pub name: CString,
    /// What it is, where the file system tells.
    pub kind: FileType,
}

/// All entries of a directory but `.` and `..`.
pub(super) fn entries(dir: impl AsFd) -> io::Result<Vec<Entry>> {
    let mut list = Vec::new();
    for entry in Dir::read_from(dir.as_fd())? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            list.push(Entry { name: entry.file_name().to_owned(), kind: entry.file_type() });
        }
    }
    Ok(list)
}

/// Bytes free for us on the file system of `fd`.
pub(super) fn free_space(fd: impl AsFd) -> io::Result<u64> {
    let stat = retry(|| rustix::fs::fstatvfs(fd.as_fd()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Makes sure that `len` bytes of a file exist on the disk.
pub(super) fn reserve(fd: impl AsFd, len: u64) -> io::Result<()> {
    retry(|| rustix::fs::fallocate(fd.as_fd(), rustix::fs::FallocateFlags::empty(), 0, len))
}
