//! Reads definition files of the job's environment that the kernel has cached. Nothing here blocks. Another thread
//! would take two wake-ups, which cost a step more than all else the daemon does for it.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags};

use super::local::MAX_FILE;
use crate::job::event::Fetched;

/// File systems that keep their files in memory, or pass reads on to a lower one. They do not support `RWF_NOWAIT`.
const LOCAL_FILE_SYSTEMS: [u64; 3] =
    [libc::TMPFS_MAGIC as u64, RAMFS_MAGIC, libc::OVERLAYFS_SUPER_MAGIC as u64];

/// `libc` lacks it.
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Reads the first of `files` in the folder `dir`, if the kernel has it cached. Returns its state before that, too. `None` says nothing about the file: a
/// caller that may block must look itself. It must do so for files of size 0 too, because some file systems (`/proc`,
/// FUSE) report 0 for files with content.
pub(super) fn find(dir: &str, files: &[String]) -> Option<(Fetched, Stat)> {
    let path = Path::new(dir).join(files.first()?);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    let size = u64::try_from(stat.st_size).ok().filter(|size| (1..=MAX_FILE).contains(size))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let text = String::from_utf8(read_at_hand(&file, size as usize)?).ok()?;
    let path = path.to_string_lossy().into_owned();
    Some((Fetched { dir: dir.to_owned(), path, text, tree: None, version: None }, stat))
}

/// Reads all `size` bytes of `file`. `None` if that would wait for a disk or the size is not `size`.
fn read_at_hand(file: &OwnedFd, size: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size + 1];
    let mut filled = 0;
    while let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) {
        let at = filled as u64;
        let mut slices = [IoSliceMut::new(room)];
        let read = match rustix::io::preadv2(file, &mut slices, at, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP) if is_local(file) => rustix::io::preadv(file, &mut slices, at),
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

fn is_local(file: &OwnedFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| LOCAL_FILE_SYSTEMS.contains(&(found.f_type as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::local;

    #[test]
    fn a_file_that_grows_or_shrinks_is_left_to_others() {
        let file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut &file, b"text").unwrap();
        let file = OwnedFd::from(file);
        for (size, there) in [(3, false), (4, true), (5, false)] {
            // The file system decides if a read without waiting succeeds.
            let read = read_at_hand(&file, size);
            assert!(read.is_none_or(|bytes| there && bytes == b"text"), "{size}");
        }
    }

    #[test]
    fn a_file_without_a_size_is_left_to_others() {
        assert!(find("/proc/self", &["status".to_owned()]).is_none());
        assert!(local::find("/proc/self", &["status".to_owned()], None).is_ok());
    }

    #[test]
    fn what_is_at_hand_is_what_a_look_finds() {
        let dir = tempfile::tempdir().unwrap();
        let (name, files) = (dir.path().to_str().unwrap(), ["func.yml".to_owned(), "step.yml".to_owned()]);
        assert!(find(name, &files).is_none());
        std::fs::write(dir.path().join("step.yml"), "second").unwrap();
        // The kernel has not cached that the first file is missing.
        assert!(find(name, &files).is_none());
        for text in ["", "first", "äö", "\u{1f600}"] {
            std::fs::write(dir.path().join("func.yml"), text).unwrap();
            let looked = local::find(name, &files, None).ok().unwrap();
            assert_eq!(looked.text, text);
            // `find` may give up, but never returns another text.
            assert!(find(name, &files).is_none_or(|(found, _)| found == looked));
        }
        std::fs::write(dir.path().join("func.yml"), [0xff]).unwrap();
        assert!(find(name, &files).is_none());
    }
}
