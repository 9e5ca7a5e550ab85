//! All operations on files that the state folder needs. This is the one place where daemon and keeper touch the file
//! system, and where a test can put a fault (docs/internals/failpoints.md).
//!
//! Nearly all are relative to a directory's descriptor, never follow a link in the last part of a name, and repeat
//! calls that a signal interrupted. New descriptors are never inherited. Operations are failpoints; a test can record
//! those that change something (`files/recorder.rs`).

/// Tells the recorder, if there is one, of a change that was made.
macro_rules! record {
    ($what:ident($($fact:expr),*)) => {
        #[cfg(any(test, feature = "failpoints"))]
        $crate::files::recorder::$what($($fact),*);
    };
}

pub mod operators;
#[cfg(any(test, feature = "failpoints"))]
pub mod recorder;
pub mod tail;
mod tree;

use std::error::Error;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::path::Arg;

pub use rustix::fs::CWD;
pub use tree::{remove_small_tree, remove_tree, remove_tree_while};

use crate::failpoint;

/// Permissions of every file of ours.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Permissions of every directory of ours.
pub const DIR_MODE: Mode = Mode::RWXU;

/// Flags of every open: not inherited, no link, no waiting for the other end of a FIFO.
const CAREFUL: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Most retries of a file that says "try again": a file system that says nothing else causes an error. Those of Linux
/// itself never say so. One that a program serves (FUSE) may, as every file is opened without waiting.
const AGAIN: u32 = 100;

/// Pause between two such retries.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Repeats a call that a signal interrupts. `place` is its failpoint.
fn retry<T>(place: &str, mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match failpoint::io(place).and_then(|()| Ok(call()?)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Makes a directory with mode 0700.
pub fn make_dir(at: impl AsFd, name: impl Arg + Copy) -> io::Result<()> {
    retry("files::mkdir", || rustix::fs::mkdirat(at.as_fd(), name, DIR_MODE))?;
    record!(made(at.as_fd(), name));
    Ok(())
}

/// Makes a directory and those above it that are missing, 0700. Existing ones are kept as they are.
pub fn make_dirs(path: &Path) -> io::Result<()> {
    failpoint::io("files::mkdir")?;
    std::fs::DirBuilder::new().recursive(true).mode(DIR_MODE.bits()).create(path)
}

/// True if `stat` is that of a directory.
pub fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_dir()
}

/// True if `stat` is that of a regular file.
pub fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
}

/// True if there is a symbolic link at `path`.
pub fn is_link(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

/// Returns why the symbolic link at `path` leads nowhere. `None` if it leads somewhere, or is no link.
pub fn broken_link(path: &Path) -> Option<io::Error> {
    std::fs::metadata(path).err().filter(|_| is_link(path))
}

/// Returns the absolute path without links, or `path` itself if it cannot be resolved.
pub fn resolved(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Opens a directory to work in.
pub fn open_dir(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    retry("files::open_dir", || {
        rustix::fs::openat(at.as_fd(), name, CAREFUL | OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())
    })
}

/// Makes a file that must not exist, 0600, for writing.
pub fn create_new(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    let flags = CAREFUL | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = retry("files::create", || rustix::fs::openat(at.as_fd(), name, flags, FILE_MODE))?;
    record!(opened(at.as_fd(), name, &file));
    Ok(file)
}

/// Opens or makes a file, 0600, for reading and appending.
pub fn open_append(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    let flags = CAREFUL | OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
    let file = retry("files::open", || rustix::fs::openat(at.as_fd(), name, flags, FILE_MODE))?;
    record!(opened(at.as_fd(), name, &file));
    Ok(file)
}

/// Opens or makes a file, 0600, for reading and writing anywhere.
pub fn open_write(at: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    let flags = CAREFUL | OFlags::RDWR | OFlags::CREATE;
    let file = retry("files::open", || rustix::fs::openat(at.as_fd(), name, flags, FILE_MODE))?;
    record!(opened(at.as_fd(), name, &file));
    Ok(file)
}

/// Opens a file for reading; anything but a regular file is an error.
pub fn open_read(at: impl AsFd, name: impl Arg + Copy) -> io::Result<(OwnedFd, Stat)> {
    let fd = retry("files::open_read", || {
        rustix::fs::openat(at.as_fd(), name, CAREFUL | OFlags::RDONLY, Mode::empty())
    })?;
    let stat = stat_of(&fd)?;
    if is_regular(&stat) {
        Ok((fd, stat))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"))
    }
}

/// Returns the metadata of an open file.
pub fn stat_of(fd: impl AsFd) -> io::Result<Stat> {
    retry("files::stat", || rustix::fs::fstat(fd.as_fd()))
}

/// Returns the metadata of a name; for a link its own, not its target's.
pub fn stat_at(at: impl AsFd, name: impl Arg + Copy) -> io::Result<Stat> {
    retry("files::stat", || rustix::fs::statat(at.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW))
}

/// Writes all of `bytes` at the file's position.
pub fn write_all(fd: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    write_some(fd, bytes).map_err(|(_, error)| error)
}

/// Appends all of `bytes` to a file opened for appending. If that fails in the middle, the written part is cut off, so
/// that the next record does not follow half of one.
pub fn append(fd: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    write_some(fd.as_fd(), bytes).map_err(|(written, error)| {
        if written > 0 {
            // Only if nobody else has appended since; else the half record stays, and the reader reports it.
            let end = rustix::fs::tell(fd.as_fd()).unwrap_or_default();
            if stat_of(fd.as_fd()).is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|size| size == end))
            {
                drop(cut(fd.as_fd(), end.saturating_sub(written as u64)));
            }
        }
        error
    })
}

/// Sets a file's position.
pub fn seek(fd: impl AsFd, at: u64) -> io::Result<()> {
    retry("files::seek", || rustix::fs::seek(fd.as_fd(), rustix::fs::SeekFrom::Start(at))).map(drop)
}

/// Writes once, at the file's position, or at its end if it was opened for appending. Returns the number of bytes
/// written.
pub fn write(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let part = bytes.get(..failpoint::amount("files::write_part", bytes.len())).unwrap_or(bytes);
    let count = retry("files::write", || rustix::io::write(fd.as_fd(), part))?;
    record!(written(fd.as_fd(), part.get(..count).unwrap_or(part)));
    Ok(count)
}

/// Writes all of `bytes`. An error comes with the number of bytes written.
fn write_some(fd: impl AsFd, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut rest = bytes;
    let mut attempts = 0;
    while !rest.is_empty() {
        match write(fd.as_fd(), rest) {
            Ok(0) => return Err((bytes.len() - rest.len(), io::ErrorKind::WriteZero.into())),
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempts < AGAIN => {
                attempts += 1;
                std::thread::sleep(AGAIN_AFTER);
            }
            Err(error) => return Err((bytes.len() - rest.len(), error)),
        }
    }
    Ok(())
}

/// Writes a file under a temporary name and renames it, so that a reader sees the old content or the new. A device that
/// says it took all and has less gives an error, and the old content stays.
pub fn replace(at: impl AsFd, name: &str, content: &[u8]) -> io::Result<()> {
    let at = at.as_fd();
    let temporary = format!("{name}.tmp");
    let file = match create_new(at, temporary.as_str()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            unlink(at, temporary.as_str())?;
            create_new(at, temporary.as_str())
        }
        result => result,
    }?;
    let kept = content.get(..failpoint::amount("files::kept", content.len())).unwrap_or(content);
    let written = write_all(&file, kept)
        .and_then(|()| check_length(&file, content.len()))
        .and_then(|()| rename(at, temporary.as_str(), at, name));
    if written.is_err() {
        drop(unlink(at, temporary.as_str()));
    }
    written
}

/// Asserts that a file has the length that was written.
fn check_length(file: &OwnedFd, wanted: usize) -> io::Result<()> {
    let length = stat_of(file)?.st_size;
    if u64::try_from(length) == Ok(wanted as u64) {
        return Ok(());
    }
    Err(io::Error::other(format!("the device has {length} of the {wanted} bytes that it took")))
}

/// Reads up to `want` bytes at `offset` into a new buffer; less only at the end of the file.
pub fn read_piece(fd: impl AsFd, offset: u64, want: usize) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(want);
    while piece.len() < want {
        let at = offset + piece.len() as u64;
        if retry("files::read", || {
            rustix::io::pread(fd.as_fd(), rustix::buffer::spare_capacity(&mut piece), at)
        })? == 0
        {
            break;
        }
    }
    piece.truncate(want);
    Ok(piece)
}

/// Reads at an offset; fewer bytes than asked for only at the end of the file.
pub fn read_at(fd: impl AsFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset + filled as u64;
        match retry("files::read", || rustix::io::pread(fd.as_fd(), &mut *rest, at))? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Reads a whole regular file of at most `max` bytes.
pub fn read_file(at: impl AsFd, name: impl Arg + Copy, max: u64) -> io::Result<Vec<u8>> {
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
pub fn rename(from: impl AsFd, old: impl Arg + Copy, to: impl AsFd, new: impl Arg + Copy) -> io::Result<()> {
    retry("files::rename", || rustix::fs::renameat(from.as_fd(), old, to.as_fd(), new))?;
    record!(renamed(from.as_fd(), old, to.as_fd(), new));
    Ok(())
}

/// Removes a name that is no directory.
pub fn unlink(at: impl AsFd, name: impl Arg + Copy) -> io::Result<()> {
    retry("files::unlink", || rustix::fs::unlinkat(at.as_fd(), name, AtFlags::empty()))?;
    record!(removed(at.as_fd(), name));
    Ok(())
}

/// Removes an empty directory.
pub fn remove_dir(at: impl AsFd, name: impl Arg + Copy) -> io::Result<()> {
    retry("files::rmdir", || rustix::fs::unlinkat(at.as_fd(), name, AtFlags::REMOVEDIR))?;
    record!(removed(at.as_fd(), name));
    Ok(())
}

/// Sets the mode of a name to 0700: for a directory that its owner may not enter.
pub fn allow_owner(at: impl AsFd, name: impl Arg + Copy) -> io::Result<()> {
    retry("files::chmod", || rustix::fs::chmodat(at.as_fd(), name, DIR_MODE, AtFlags::empty()))
}

/// Sets the mode of an open directory to 0700: its owner may then remove what is in it.
pub fn allow_owner_of(dir: impl AsFd) -> io::Result<()> {
    retry("files::chmod", || rustix::fs::fchmod(dir.as_fd(), DIR_MODE))
}

/// Cuts a file to `len` bytes.
pub fn cut(fd: impl AsFd, len: u64) -> io::Result<()> {
    retry("files::cut", || rustix::fs::ftruncate(fd.as_fd(), len))?;
    record!(cut_to(fd.as_fd(), len));
    Ok(())
}

/// Overwrites a file with zeros and cuts it to nothing, if it still has this device and inode: for a secret whose name
/// cannot be removed.
pub fn wipe(at: impl AsFd, name: impl Arg + Copy, identity: (u64, u64)) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let open = || {
        let flags = CAREFUL | OFlags::WRONLY;
        retry("files::open", || rustix::fs::openat(at.as_fd(), name, flags, Mode::empty()))
    };
    let file = match open() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            allow_owner(at.as_fd(), name)?;
            open()?
        }
        opened => opened?,
    };
    let stat = stat_of(&file)?;
    if (stat.st_dev, stat.st_ino) != identity || !is_regular(&stat) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "another file has this name"));
    }
    let mut left = usize::try_from(stat.st_size).unwrap_or_default();
    // Without room for the zeros, the cut alone still takes the content out of the file.
    while left > 0
        && let Ok(written) = write(&file, ZEROS.get(..left).unwrap_or(&ZEROS))
    {
        left = left.saturating_sub(written);
    }
    cut(&file, 0)
}

/// Takes the exclusive lock of a file; `false` if somebody else has it.
pub fn try_lock(fd: impl AsFd) -> io::Result<bool> {
    lock(fd, FlockOperation::NonBlockingLockExclusive)
}

/// True if somebody has the exclusive lock of a file.
pub fn is_locked(fd: impl AsFd) -> io::Result<bool> {
    lock(fd, FlockOperation::NonBlockingLockShared).map(|free| !free)
}

fn lock(fd: impl AsFd, operation: FlockOperation) -> io::Result<bool> {
    match retry("files::lock", || rustix::fs::flock(fd.as_fd(), operation)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Syncs a file's content, or a directory's names. For tests only: the program syncs all jobs together.
#[cfg(any(test, feature = "failpoints"))]
pub fn sync(fd: impl AsFd) -> io::Result<()> {
    retry("files::sync", || rustix::fs::fsync(fd.as_fd()))?;
    record!(synced(fd.as_fd()));
    Ok(())
}

/// Syncs everything that was written to the file system of `fd`: contents, lengths, names. An error is reported once,
/// to the first call after it. The failed writes are not tried again.
pub fn sync_all(fd: impl AsFd) -> io::Result<()> {
    retry("files::sync_all", || rustix::fs::syncfs(fd.as_fd()))?;
    record!(synced_all());
    Ok(())
}

/// True if something foreign has the name: a directory in place of a file, the reverse, or a link.
pub fn is_foreign(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP | libc::EISDIR))
}

/// True if `error` comes from a file system that has no room: for bytes, for files, or for this user.
pub fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let has_no_room =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    causes.any(|error| error.downcast_ref().is_some_and(has_no_room))
}

/// Does `work` on a name. If something foreign has the name, moves it to `NAME.foreign` and does `work` again
/// (faults.md row 44).
pub fn make_way<T>(at: impl AsFd, name: &str, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match work() {
        Err(error) if is_foreign(&error) => {
            let aside = format!("{name}.foreign");
            remove_tree(at.as_fd(), &CString::new(aside.as_str())?)?;
            rename(at.as_fd(), name, at.as_fd(), aside.as_str())?;
            work()
        }
        result => result,
    }
}

/// An entry of a directory.
pub struct Entry {
    /// Its name.
    pub name: CString,
    /// Its type, if the file system tells.
    pub kind: FileType,
}

/// Returns all entries of a directory but `.` and `..`.
pub fn entries(dir: impl AsFd) -> io::Result<Vec<Entry>> {
    some_entries(dir, usize::MAX)
}

/// Returns the first `most` entries of a directory.
pub fn some_entries(dir: impl AsFd, most: usize) -> io::Result<Vec<Entry>> {
    failpoint::io("files::entries")?;
    let mut list = Vec::new();
    for entry in Dir::read_from(dir.as_fd())? {
        let entry = entry?;
        if list.len() == most {
            break;
        }
        list.extend(named_entry(entry.file_name(), entry.file_type()));
    }
    Ok(list)
}

fn named_entry(name: &CStr, kind: FileType) -> Option<Entry> {
    (!matches!(name.to_bytes(), b"." | b"..")).then(|| Entry { name: name.to_owned(), kind })
}

/// Free space for us on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// Files, if their number is limited.
    pub files: Option<u64>,
}

/// Too little free space for another job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Bytes that are free.
    Bytes(u64),
    /// No more files can be made.
    Files,
}

/// Minimum number of files and directories that a job and its keeper need.
const FILES_OF_A_JOB: u64 = 8;

impl Free {
    /// Tells what is too little for a job, if `needed` bytes are to be free.
    pub fn shortage(self, needed: u64) -> Option<Shortage> {
        if self.bytes < needed {
            return Some(Shortage::Bytes(self.bytes));
        }
        self.files.is_some_and(|files| files < FILES_OF_A_JOB).then_some(Shortage::Files)
    }
}

/// Returns the free space for us on the file system of `fd`.
pub fn free_space(fd: impl AsFd) -> io::Result<Free> {
    let stat = retry("files::free_space", || rustix::fs::fstatvfs(fd.as_fd()))?;
    Ok(Free {
        bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        files: (stat.f_files > 0).then_some(stat.f_favail),
    })
}

/// Reserves `len` bytes of a file on the disk.
pub fn reserve(fd: impl AsFd, len: u64) -> io::Result<()> {
    retry("files::reserve", || {
        rustix::fs::fallocate(fd.as_fd(), rustix::fs::FallocateFlags::empty(), 0, len)
    })?;
    record!(reserved(fd.as_fd(), len));
    Ok(())
}

#[cfg(test)]
mod tests;
