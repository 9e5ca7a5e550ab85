//! Copies of files between a project and a store. Nothing is ever written through a link.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::{BuiltinEnvironment, BuiltinError};

/// Shortest time between two lines about the progress of a copy.
const BETWEEN_LINES: Duration = Duration::from_secs(2);

/// A copy that is over by then has no lines about its progress.
const SILENCE: Duration = Duration::from_secs(5);

/// Copies files, links and empty folders from below one folder to below another.
pub(super) fn copy<'p>(
    paths: impl ExactSizeIterator<Item = &'p String>,
    from: &Path,
    to: &Path,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    let count = paths.len();
    let mut next_line = Instant::now() + SILENCE;
    for (done, path) in paths.enumerate() {
        copy_one(path, from, to).map_err(BuiltinError::file("copy", &from.join(path)))?;
        if Instant::now() >= next_line {
            next_line = Instant::now() + BETWEEN_LINES;
            (environment.say)(&format!("{} of {count} files", done + 1));
        }
    }
    Ok(())
}

fn copy_one(path: &str, from: &Path, to: &Path) -> io::Result<()> {
    let source = from.join(path);
    let target = to.join(path);
    let found = source.symlink_metadata()?;
    if found.is_dir() {
        return make_folders(to, path);
    }
    if let Some((folder, _)) = path.rsplit_once('/') {
        make_folders(to, folder)?;
    }
    if !(found.is_file() || found.is_symlink()) {
        return Err(io::Error::other("it is neither a file, a folder nor a link"));
    }
    match target.symlink_metadata() {
        Ok(old) if old.is_dir() => return Err(io::Error::other("there is a folder in its place")),
        Ok(_) => fs::remove_file(&target)?,
        Err(_) => {}
    }
    if found.is_symlink() {
        return symlink(fs::read_link(&source)?, &target);
    }
    fs::copy(&source, &target)?;
    // Build tools compare times. Without the time of the original, what depends on the file is only built again.
    if let Ok(modified) = found.modified() {
        File::open(&target).and_then(|file| file.set_modified(modified)).ok();
    }
    Ok(())
}

/// Makes a folder and those above it, up to `root`.
pub(super) fn make_folders(root: &Path, path: &str) -> io::Result<()> {
    let mut folder = root.to_owned();
    for name in path.split('/') {
        folder.push(name);
        match folder.symlink_metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let message = format!("{} is a link or a file, not a folder", folder.display());
                return Err(io::Error::other(message));
            }
            Err(_) => fs::create_dir(&folder)?,
        }
    }
    Ok(())
}
