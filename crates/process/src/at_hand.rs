//! Files that the kernel has cached, looked at and read without waiting for a disk, a server or another program.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// File systems that depend on no server and no other program: ext2 to ext4, XFS, Btrfs, F2FS, ZFS, bcachefs,
/// overlayfs, tmpfs, ramfs. The last three do not support `RWF_NOWAIT`, because they keep their files in memory or
/// pass reads on to a lower file system.
const LOCAL_FILE_SYSTEMS: [u64; 9] = [
    libc::EXT4_SUPER_MAGIC as u64,
    libc::XFS_SUPER_MAGIC as u64,
    libc::BTRFS_SUPER_MAGIC as u64,
    libc::F2FS_SUPER_MAGIC as u64,
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    libc::OVERLAYFS_SUPER_MAGIC as u64,
    libc::TMPFS_MAGIC as u64,
    0x8584_58f6, // ramfs
];

/// Result of a lookup of a path.
#[derive(Debug)]
pub enum CachedLookup {
    /// A file, or another entry, exists there.
    Present(Box<Statx>),
    /// Nothing exists there.
    Absent,
    /// The kernel would have to wait for the answer, or refuses it.
    Unknown,
}

/// Looks at `path`, through links.
pub fn lookup(path: &Path) -> CachedLookup {
    match open(path, OFlags::PATH) {
        Ok(file) => stat(&file).map_or(CachedLookup::Unknown, |stat| CachedLookup::Present(Box::new(stat))),
        Err(Errno::NOENT | Errno::NOTDIR) => CachedLookup::Absent,
        Err(_) => CachedLookup::Unknown,
    }
}

/// True if the kernel knows what exists at `path`, or that nothing does.
pub fn is_known(path: &Path) -> bool {
    matches!(open(path, OFlags::PATH), Ok(_) | Err(Errno::NOENT | Errno::NOTDIR))
}

/// True if it is a directory.
pub fn is_dir(stat: &Statx) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()).is_dir()
}

/// Reads a regular file of at most `max` bytes on a local file system. `None` says nothing about the file: a caller
/// that may block must read it by other means. This includes files of size 0, because some file systems (`/proc`)
/// report 0 for files with content.
pub fn read(path: &Path, max: u64) -> Option<Vec<u8>> {
    let file = open(path, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    let stat = stat(&file)?;
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile || !is_local(&file) {
        return None;
    }
    let size = Some(stat.stx_size).filter(|size| (1..=max).contains(size))?;
    read_all(&file, usize::try_from(size).ok()?)
}

/// True if a folder on the way to `path` seems closed to this process by its mode: then nothing waits for what is behind it.
/// Asks no server.
pub fn seems_barred(path: &Path) -> bool {
    last_known_folder(path).and_then(|folder| stat(&folder)).is_some_and(|stat| !seems_open(&stat))
}

/// True if the mode of a folder lets this process search it. Access lists can tell otherwise.
fn seems_open(folder: &Statx) -> bool {
    use rustix::process::{getegid, geteuid, getgroups};
    let group = rustix::process::Gid::from_raw(folder.stx_gid);
    let allowed = if geteuid().is_root() {
        return true;
    } else if folder.stx_uid == geteuid().as_raw() {
        Mode::XUSR
    } else if group == getegid() || getgroups().is_ok_and(|groups| groups.contains(&group)) {
        Mode::XGRP
    } else {
        Mode::XOTH
    };
    Mode::from_raw_mode(folder.stx_mode.into()).contains(allowed)
}

/// Opens the last folder on the way to `path` that the kernel can name without waiting. Below a folder that this process
/// may not search, it can name none.
fn last_known_folder(path: &Path) -> Option<OwnedFd> {
    path.ancestors().skip(1).find_map(|folder| open(folder, OFlags::PATH).ok())
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let open =
        || rustix::fs::openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED);
    // A rename or mount elsewhere at the same time fails the first walk, too.
    match open() {
        Err(Errno::AGAIN) => open(),
        opened => opened,
    }
}

/// Returns what the kernel knows of an open file. Asks no server.
fn stat(file: &OwnedFd) -> Option<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, c"", flags, StatxFlags::BASIC_STATS).ok()
}

fn is_local(file: &OwnedFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| LOCAL_FILE_SYSTEMS.contains(&(found.f_type as u64)))
}

/// Reads all `size` bytes of a local file. `None` if that would wait for a disk or the size is not `size`.
fn read_all(file: &OwnedFd, size: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size + 1];
    let mut filled = 0;
    while let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) {
        let at = filled as u64;
        let mut slices = [IoSliceMut::new(room)];
        let read = match rustix::io::preadv2(file, &mut slices, at, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP) => rustix::io::preadv(file, &mut slices, at),
            read => read,
        };
        match read.ok()? {
            0 if filled == size => {
                bytes.truncate(size);
                return Some(bytes);
            }
            0 => return None,
            read => filled += read,
        }
    }
    // The file has grown meanwhile.
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_grows_or_shrinks_is_left_to_others() {
        let file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut &file, b"text").unwrap();
        let file = OwnedFd::from(file);
        for (size, there) in [(3, false), (4, true), (5, false)] {
            // The file system decides if a read without waiting succeeds.
            let read = read_all(&file, size);
            assert!(read.is_none_or(|bytes| there && bytes == b"text"), "{size}");
        }
    }

    #[test]
    fn a_file_without_a_size_or_of_no_local_file_system_is_left_to_others() {
        assert!(read(Path::new("/proc/self/status"), 1 << 20).is_none());
        assert!(read(Path::new("/sys/kernel/mm/transparent_hugepage/enabled"), 1 << 20).is_none());
    }

    #[test]
    fn a_folder_of_mode_0_seems_barred_unless_to_root() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("closed");
        fs::create_dir(&folder).unwrap();
        assert!(!seems_barred(&folder.join("file")));
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        assert_eq!(seems_barred(&folder.join("file")), !rustix::process::geteuid().is_root());
    }

    #[test]
    fn a_lookup_tells_a_file_from_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(!matches!(lookup(&path), CachedLookup::Present(_)));
        fs::write(&path, "x").unwrap();
        assert!(!matches!(lookup(&path), CachedLookup::Absent));
        let CachedLookup::Present(stat) = lookup(Path::new("/proc/self")) else { return };
        assert!(FileType::from_raw_mode(stat.stx_mode.into()).is_dir());
    }
}
