//! Writes a tree that a server described, and nothing outside of it (faults.md row 69).
//!
//! Owns the rules for names, links and files of such a tree, and the limits of its size. All access goes through
//! directory descriptors and never follows a link, so no order of entries can reach another place. May not know of
//! archives, Git or the network.

use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::fetch::order::{MAX_TREE_BYTES, MAX_TREE_ENTRIES, Stats};
use step_runner_core::job::event::FetchFailure;
use step_runner_lang::diagnostic::Class;
use step_runner_model::text;

/// Deepest nesting of folders. It bounds the descriptors that removing a tree needs.
pub const MAX_DEPTH: usize = 255;

/// Longest path in bytes. With the tree's own folder it stays below the system's limit.
pub(crate) const MAX_PATH_BYTES: usize = 2048;

/// Longest name of a file or folder in bytes, the file systems' limit.
const MAX_NAME_BYTES: usize = 255;

/// Size of the copy buffer in bytes.
const COPY_BYTES: usize = 64 << 10;

/// Flags of every open: not inherited, no link followed.
const CAREFUL: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

/// Flags of a descriptor that gives access to a folder's entries but cannot list them.
const FOLDER: OFlags = CAREFUL.union(OFlags::PATH).union(OFlags::DIRECTORY);

/// Returns true for paths that [`TreeWriter::remove`] and [`TreeWriter::empty`] must keep.
pub type Keep<'a> = &'a dyn Fn(&[u8]) -> bool;

/// A tree being written. Paths are relative to its root, with `/` between names. A name that could mean another place
/// (`..`, empty, with NUL, an absolute path) is an error; it is never repaired. An entry replaces an earlier one at its
/// path.
#[derive(Debug)]
pub struct TreeWriter {
    root: OwnedFd,
    /// Size of the present tree.
    stats: Stats,
    /// Bytes written in all, including those replaced since.
    written: u64,
    /// Entries counted in all, including those replaced or skipped, because they cost time too.
    entries: u64,
    /// Limits; only tests use smaller ones.
    max_bytes: u64,
    max_entries: u64,
}

impl TreeWriter {
    /// Starts a tree in `into`, an existing empty folder.
    ///
    /// # Errors
    /// Class `fetch`: the folder cannot be opened.
    pub fn new(into: &Path) -> Result<Self, FetchFailure> {
        let root =
            retry_on_intr(|| rustix::fs::openat(CWD, into, FOLDER, Mode::empty())).map_err(|error| {
                failure(Class::Fetch, format!("cannot open the folder for the tree: {error}"))
            })?;
        let (stats, max_bytes, max_entries) = (Stats::default(), MAX_TREE_BYTES, MAX_TREE_ENTRIES);
        Ok(Self { root, stats, written: 0, entries: 0, max_bytes, max_entries })
    }

    /// Creates the folder `path` and its parents; existing ones stay as they are. `.` is the root.
    pub fn folder(&mut self, path: &[u8]) -> Result<(), FetchFailure> {
        let names = names(path)?;
        let before = self.entries;
        self.walk(path, &names)?;
        if self.entries == before { self.count_entry() } else { Ok(()) }
    }

    /// Writes the regular file `path` with mode 0555 if `executable`, else 0444: jobs share the tree, so none may
    /// change it. Folders stay writable for their owner, so that any program can remove a tree.
    pub fn file(
        &mut self,
        path: &[u8],
        executable: bool,
        content: &mut dyn Read,
    ) -> Result<(), FetchFailure> {
        let (parent, name) = self.place(path)?;
        let flags = CAREFUL | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(if executable { 0o555 } else { 0o444 });
        let make = || rustix::fs::openat(&parent, name.as_c_str(), flags, mode);
        let mut file = File::from(retry_on_intr(make).map_err(|error| cannot("write", path, error))?);
        self.stats.files += 1;
        self.stats.entries += 1;
        self.copy(path, content, &mut file)?;
        // The umask may have removed bits.
        retry_on_intr(|| rustix::fs::fchmod(&file, mode)).map_err(|error| cannot("write", path, error))
    }

    /// Creates the symbolic link `path`. Its target must be relative and stay inside: every `..` must be at its
    /// beginning, and there may be no more of them than folders above the link. Under this rule no chain of links in
    /// the tree leads out.
    pub fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), FetchFailure> {
        let depth = names(path)?.len().saturating_sub(1);
        check_target(path, target, depth)?;
        let (parent, name) = self.place(path)?;
        retry_on_intr(|| rustix::fs::symlinkat(target, &parent, name.as_c_str()))
            .map_err(|error| cannot("make the link", path, error))?;
        self.stats.entries += 1;
        Ok(())
    }

    /// Copies the regular file `original` of the tree, with its mode, to `path`; used for an archive's hard links. The
    /// two are separate files, so a step that changes one does not change the other.
    pub(crate) fn copy_of(&mut self, path: &[u8], original: &[u8]) -> Result<(), FetchFailure> {
        let Some((mut file, executable)) = self.regular_file(original) else {
            return Err(refused(path, "it is a hard link to what is no regular file of the tree"));
        };
        self.file(path, executable, &mut file)
    }

    /// Counts the entry `path`, which does not change the tree: looking at it has cost time.
    pub(crate) fn pass_over(&mut self, path: &[u8]) -> Result<(), FetchFailure> {
        names(path)?;
        self.count_entry()
    }

    /// Removes `path` and all below it, except for paths that `keep` selects and their parent folders. A missing path
    /// is no error.
    pub fn remove(&mut self, path: &[u8], keep: Keep<'_>) -> Result<(), FetchFailure> {
        let names = names(path)?;
        let Some((name, parents)) = names.split_last() else {
            return Err(refused(path, "it names the root of the tree"));
        };
        self.count_entry()?;
        let Some(parent) = self.find(path, parents)? else { return Ok(()) };
        self.remove_below(parent.as_fd(), &c_name(name)?, &names.join(&b'/'), keep)
            .map(drop)
            .map_err(|error| cannot("remove", path, error))
    }

    /// Empties the folder `path`, except for paths that `keep` selects and their parent folders. A missing folder is no
    /// error.
    pub fn empty(&mut self, path: &[u8], keep: Keep<'_>) -> Result<(), FetchFailure> {
        let names = names(path)?;
        self.count_entry()?;
        let Some(folder) = self.find(path, &names)? else { return Ok(()) };
        self.empty_folder(folder.as_fd(), &names.join(&b'/'), keep)
            .map(drop)
            .map_err(|error| cannot("empty", path, error))
    }

    /// Completes the tree. Returns its size.
    pub fn finish(self) -> Result<Stats, FetchFailure> {
        Ok(self.stats)
    }

    /// Returns the parent folder of the entry `path` and its name there. Removes an earlier entry.
    fn place(&mut self, path: &[u8]) -> Result<(OwnedFd, CString), FetchFailure> {
        let names = names(path)?;
        let Some((name, parents)) = names.split_last() else {
            return Err(refused(path, "it names the root of the tree"));
        };
        let parent = match self.open_beneath(parents) {
            Some(parent) => parent,
            None => self.walk(path, parents)?,
        };
        let name = c_name(name)?;
        self.count_entry()?;
        self.remove_below(parent.as_fd(), &name, path, &|_| false)
            .map_err(|error| cannot("replace", path, error))?;
        Ok((parent, name))
    }

    /// Opens a folder below the root in one system call that rejects every link and every way out. `None` if the folder
    /// is missing or not a folder, or the kernel lacks the call; [`Self::walk`] then decides.
    fn open_beneath(&self, names: &[&[u8]]) -> Option<OwnedFd> {
        let path = if names.is_empty() { b".".to_vec() } else { names.join(&b'/') };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        retry_on_intr(|| rustix::fs::openat2(&self.root, path.as_slice(), FOLDER, Mode::empty(), resolve))
            .ok()
    }

    /// Opens a folder below the root, name by name, and creates those that are missing.
    fn walk(&mut self, path: &[u8], names: &[&[u8]]) -> Result<OwnedFd, FetchFailure> {
        let mut at = open_folder(self.root.as_fd(), c".").map_err(|error| cannot("open", path, error))?;
        for name in names {
            let name = c_name(name)?;
            at = match open_folder(at.as_fd(), &name) {
                Ok(folder) => folder,
                Err(Errno::NOENT) => {
                    self.count_entry()?;
                    self.stats.entries += 1;
                    make_folder(at.as_fd(), &name).map_err(|error| cannot("make the folder", path, error))?
                }
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    return Err(refused(path, "a file or link of the tree stands where it needs a folder"));
                }
                Err(error) => return Err(cannot("open", path, error)),
            };
        }
        Ok(at)
    }

    /// Opens the regular file at `path`; true if it is executable.
    fn regular_file(&self, path: &[u8]) -> Option<(File, bool)> {
        let names = names(path).ok()?;
        let (name, parents) = names.split_last()?;
        let (parent, name) = (self.find(path, parents).ok()??, c_name(name).ok()?);
        let flags = CAREFUL | OFlags::RDONLY;
        let open = || rustix::fs::openat(&parent, name.as_c_str(), flags, Mode::empty());
        let file = File::from(retry_on_intr(open).ok()?);
        let metadata = file.metadata().ok().filter(Metadata::is_file)?;
        Some((file, metadata.permissions().mode() & 0o100 != 0))
    }

    /// Opens the folder below the root, if it exists.
    fn find(&self, path: &[u8], names: &[&[u8]]) -> Result<Option<OwnedFd>, FetchFailure> {
        let mut at = open_folder(self.root.as_fd(), c".").map_err(|error| cannot("open", path, error))?;
        for name in names {
            at = match open_folder(at.as_fd(), &c_name(name)?) {
                Ok(folder) => folder,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(error) => return Err(cannot("open", path, error)),
            };
        }
        Ok(Some(at))
    }

    fn copy(&mut self, path: &[u8], content: &mut dyn Read, file: &mut File) -> Result<(), FetchFailure> {
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let read = match content.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let text = format!("the content of {} cannot be read: {error}", shown(path));
                    return Err(failure(Class::Fetch, text));
                }
            };
            let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
            self.written += read as u64;
            if self.written > self.max_bytes {
                let text = format!(
                    "the tree is larger than {} MiB: make the function smaller",
                    MAX_TREE_BYTES >> 20
                );
                return Err(failure(Class::Limit, text));
            }
            file.write_all(bytes).map_err(|error| cannot("write", path, error))?;
            self.stats.bytes += read as u64;
        }
    }

    fn count_entry(&mut self) -> Result<(), FetchFailure> {
        self.entries += 1;
        if self.entries > self.max_entries {
            let text = format!(
                "the tree has more than {MAX_TREE_ENTRIES} files, folders and links: make the function smaller"
            );
            return Err(failure(Class::Limit, text));
        }
        Ok(())
    }

    /// Removes `name`, whose path is `path`. Returns true if it is gone. [`MAX_DEPTH`] bounds the recursion.
    fn remove_below(
        &mut self,
        at: BorrowedFd<'_>,
        name: &CString,
        path: &[u8],
        keep: Keep<'_>,
    ) -> io::Result<bool> {
        let stat = match retry_on_intr(|| rustix::fs::statat(at, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW))
        {
            Err(Errno::NOENT) => return Ok(true),
            stat => stat?,
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            let folder = open_folder(at, name)?;
            if !self.empty_folder(folder.as_fd(), path, keep)? || keep(path) {
                return Ok(false);
            }
        } else if keep(path) {
            return Ok(false);
        }
        let flags = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        retry_on_intr(|| rustix::fs::unlinkat(at, name.as_c_str(), flags))?;
        self.stats.entries = self.stats.entries.saturating_sub(1);
        if kind == FileType::RegularFile {
            self.stats.files = self.stats.files.saturating_sub(1);
            self.stats.bytes = self.stats.bytes.saturating_sub(u64::try_from(stat.st_size).unwrap_or(0));
        }
        Ok(true)
    }

    /// Removes the content of a folder. Returns true if all of it is gone.
    fn empty_folder(&mut self, folder: BorrowedFd<'_>, path: &[u8], keep: Keep<'_>) -> io::Result<bool> {
        let mut names = Vec::new();
        let flags = CAREFUL | OFlags::RDONLY | OFlags::DIRECTORY;
        for entry in Dir::new(retry_on_intr(|| rustix::fs::openat(folder, c".", flags, Mode::empty()))?)? {
            let name = entry?.file_name().to_owned();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name);
            }
        }
        let mut all = true;
        for name in names {
            let below = [path, name.to_bytes()].join(&b'/');
            let below = below.strip_prefix(b"/").unwrap_or(&below);
            all &= self.remove_below(folder, &name, below, keep)?;
        }
        Ok(all)
    }
}

fn open_folder(at: BorrowedFd<'_>, name: &std::ffi::CStr) -> rustix::io::Result<OwnedFd> {
    retry_on_intr(|| rustix::fs::openat(at, name, FOLDER, Mode::empty()))
}

/// Creates a folder with mode 0755, whatever the umask.
fn make_folder(at: BorrowedFd<'_>, name: &CString) -> rustix::io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(0o755);
    retry_on_intr(|| rustix::fs::mkdirat(at, name.as_c_str(), mode))?;
    let flags = CAREFUL | OFlags::RDONLY | OFlags::DIRECTORY;
    let folder = retry_on_intr(|| rustix::fs::openat(at, name.as_c_str(), flags, Mode::empty()))?;
    retry_on_intr(|| rustix::fs::fchmod(&folder, mode))?;
    Ok(folder)
}

/// Splits a path into names; the root has none. Ignores `./` in front and `/` at the end, which archives write for
/// folders.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, FetchFailure> {
    if path.len() > MAX_PATH_BYTES {
        return Err(failure(
            Class::Limit,
            format!("the tree holds {}: a path longer than {MAX_PATH_BYTES} bytes", shown(path)),
        ));
    }
    if path.is_empty() {
        return Err(refused(path, "it has no name"));
    }
    if path.starts_with(b"/") {
        return Err(refused(path, "its path is absolute"));
    }
    let inner = path.strip_suffix(b"/").unwrap_or(path);
    let inner = inner.strip_prefix(b"./").unwrap_or(inner);
    if inner == b"." {
        return Ok(Vec::new());
    }
    let names: Vec<_> = inner.split(|&byte| byte == b'/').collect();
    for name in &names {
        match *name {
            b"" => return Err(refused(path, "a name in its path is empty")),
            b"." | b".." => return Err(refused(path, "its path holds . or ..")),
            name if name.contains(&0) => return Err(refused(path, "a name in its path holds NUL")),
            name if name.len() > MAX_NAME_BYTES => {
                return Err(refused(path, "a name in its path is longer than 255 bytes"));
            }
            _ => {}
        }
    }
    if names.len() > MAX_DEPTH {
        return Err(failure(
            Class::Limit,
            format!("the tree holds {}: folders nested deeper than {MAX_DEPTH}", shown(path)),
        ));
    }
    Ok(names)
}

/// Checks the path of an entry as [`TreeWriter`] does.
pub(crate) fn check_path(path: &[u8]) -> Result<(), FetchFailure> {
    names(path).map(drop)
}

/// True if [`TreeWriter::link`] accepts this target for a link at `path`.
pub(crate) fn takes_target(path: &[u8], target: &[u8]) -> bool {
    names(path).is_ok_and(|names| check_target(path, target, names.len().saturating_sub(1)).is_ok())
}

/// Checks the target of a link whose folder is `depth` levels below the root.
fn check_target(path: &[u8], target: &[u8], depth: usize) -> Result<(), FetchFailure> {
    let wrong = |why| Err(refused(path, why));
    if target.is_empty() || target.len() > MAX_PATH_BYTES || target.contains(&0) {
        return wrong("its target is empty, too long or holds NUL");
    }
    if target.starts_with(b"/") {
        return wrong("it is a link to an absolute path; only relative links inside the tree are taken");
    }
    let (mut up, mut named) = (0, false);
    for name in target.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if named => return wrong("it is a link with .. after a name; write the target without"),
            b".." => up += 1,
            _ => named = true,
        }
    }
    if up > depth {
        return wrong("it is a link out of the tree; only relative links inside the tree are taken");
    }
    Ok(())
}

fn c_name(name: &[u8]) -> Result<CString, FetchFailure> {
    CString::new(name).map_err(|_| refused(name, "a name in its path holds NUL"))
}

/// Quotes a path that a server sent, for messages.
pub(super) fn shown(path: &[u8]) -> String {
    format!("\"{}\"", text::quote(&OsStr::from_bytes(path).to_string_lossy()))
}

pub(super) fn failure(class: Class, message: String) -> FetchFailure {
    FetchFailure { class, message }
}

/// Reports an entry of the tree that is refused.
pub(super) fn refused(path: &[u8], why: &str) -> FetchFailure {
    failure(Class::Fetch, format!("the tree holds {}, which is refused: {why}", shown(path)))
}

/// Begin of the messages about the disk that holds the tree.
const CANNOT: &str = "cannot ";

fn cannot(action: &str, path: &[u8], error: impl Into<io::Error>) -> FetchFailure {
    failure(Class::Fetch, format!("{CANNOT}{action} {} of the tree: {}", shown(path), error.into()))
}

/// True if a failure of this module is the disk's, not that of the tree which a server described.
pub(super) fn is_of_disk(failure: &FetchFailure) -> bool {
    failure.message.starts_with(CANNOT)
}

#[cfg(test)]
mod tests;
