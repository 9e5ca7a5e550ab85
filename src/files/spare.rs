//! Spare files: empty files `NAME.spare` that are renamed to `NAME` when it is needed. Where inodes of deleted files are
//! not used again at once, this costs much less than deleting a file and making another one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::LazyLock;

use rustix::fs::{Mode, OFlags, RenameFlags, Stat};
use rustix::path::Arg;

use super::{CAREFUL, FILE_MODE, cut, is_regular, rename, retry, stat_of, unlink, write_all};
use crate::{failpoint, process};

/// Ending of the name of a spare file.
const ENDING: &str = ".spare";

/// True if the file system of `fd` is ext4 without a journal. It does not use inodes again that were deleted within the last
/// minutes, so each new file costs a search for another one. False if the system does not tell.
pub(crate) fn avoids_used_inodes(fd: impl AsFd) -> bool {
    let journal_task = || {
        let device = stat_of(fd).ok()?.st_dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let device = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let name = device.file_name()?;
        std::fs::read_to_string(Path::new("/sys/fs/ext4").join(name).join("journal_task")).ok()
    };
    journal_task().is_some_and(|task| task.trim_end() == "<none>")
}

/// Returns the name of the spare file for `name`.
pub(crate) fn spare_name(name: &str) -> String {
    format!("{name}{ENDING}")
}

/// Opens an existing file for writing if it is an ordinary file as we make them, with no other name, that nobody else
/// has open. `None` if it is not. Until it is closed, nobody else can open it.
pub(crate) fn open_sole(at: impl AsFd, name: impl Arg + Copy) -> io::Result<Option<OwnedFd>> {
    let file = open_existing(at.as_fd(), name)?;
    let stat = stat_of(&file)?;
    let is_ours = is_regular(&stat) && is_as_made(&stat, FILE_MODE) && stat.st_nlink == 1;
    let is_sole = is_ours && failpoint::io("files::lease").and_then(|()| process::lease_if_sole(&file))?;
    Ok(is_sole.then_some(file))
}

/// True if the file or directory still has our owner and `mode`. A step can change both.
pub(crate) fn is_as_made(stat: &Stat, mode: Mode) -> bool {
    static OWN: LazyLock<u32> = LazyLock::new(|| rustix::process::geteuid().as_raw());
    stat.st_uid == *OWN && Mode::from_raw_mode(stat.st_mode) == mode
}

/// Gives the spare file for `name`, if there is one, its name. Fails with `AlreadyExists` if something has that name,
/// and on a file system that cannot tell.
pub(crate) fn use_spare(at: impl AsFd, name: &str) -> io::Result<()> {
    let (at, spare) = (at.as_fd(), spare_name(name));
    retry("files::rename", || {
        rustix::fs::renameat_with(at, spare.as_str(), at, name, RenameFlags::NOREPLACE)
    })?;
    record!(renamed(at, spare.as_str(), at, name));
    Ok(())
}

/// Like [`super::replace`], with the spare file for `name` in place of a new temporary one. `false` if there is no empty
/// spare file; then nothing is written.
pub(crate) fn replace_with_spare(at: impl AsFd, name: &str, content: &[u8]) -> io::Result<bool> {
    let (at, spare) = (at.as_fd(), spare_name(name));
    let file = match open_existing(at, spare.as_str()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    if stat_of(&file)?.st_size != 0 {
        return Ok(false);
    }
    record!(opened(at, spare.as_str(), &file));
    let written = write_all(file, content).and_then(|()| rename(at, spare.as_str(), at, name));
    if written.is_err() {
        drop(unlink(at, spare.as_str()));
    }
    written.map(|()| true)
}

/// Empties a file that [`open_sole`] opened.
pub(crate) fn empty(file: OwnedFd) -> io::Result<()> {
    // Closed at once: ext4 writes a file that was emptied to the disk when it is closed next.
    cut(file, 0)
}

fn open_existing(at: BorrowedFd<'_>, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    retry("files::open", || rustix::fs::openat(at, name, CAREFUL | OFlags::WRONLY, Mode::empty()))
}
