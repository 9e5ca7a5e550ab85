//! Copies this program to a path where a job's environment finds it (connectors.md §2.3).
//!
//! The destination never holds a partial copy. A copy is written under another name beside it, synced to disk and
//! renamed; this works even if the destination is a running program. Needs no network, no temporary folder, no shell.

mod error;
mod tree;

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use error::BootstrapError;
use error::at;

/// File name of the program in a folder.
const PROGRAM: &str = "step-runner";

/// Permissions of the program and of created folders.
const MODE: u32 = 0o755;

/// Permission bits.
const PERMISSIONS: u32 = 0o7777;

/// Files in the root of a CI runner's helper image that belong to the program: certificates and Git.
const COMPANIONS: [&str; 2] = ["ca-certs.pem", "git"];

/// Bytes copied and compared at a time.
const CHUNK: usize = 64 << 10;

/// Form of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A folder, created if missing. The program in it is `step-runner`.
    Folder,
    /// The program itself, or a folder if one exists there or the path ends in `/`.
    FileOrFolder,
}

/// Returns the path of the program for the destination `path`.
pub fn destination(path: &Path, form: Form) -> PathBuf {
    let is_folder = match form {
        Form::Folder => true,
        Form::FileOrFolder => path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir(),
    };
    if is_folder { path.join(PROGRAM) } else { path.to_owned() }
}

/// Copies this program to `destination`, and its companions from the folder `root` to the same place.
pub fn install(destination: &Path, root: &Path) -> Result<(), BootstrapError> {
    // This finds the running program even if its file was deleted or replaced.
    let running = Path::new("/proc/self/exe");
    if !Path::new("/proc/self").exists() {
        return Err(BootstrapError::NoProc);
    }
    install_from(running, destination, root)
}

fn install_from(program: &Path, destination: &Path, root: &Path) -> Result<(), BootstrapError> {
    let folder = match destination.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    make_folders(folder)?;
    copy_file(program, destination, MODE)?;
    for name in COMPANIONS {
        let (from, to) = (root.join(name), folder.join(name));
        match std::fs::metadata(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(at("look at", &from)(error)),
            // The destination is the root of the image itself.
            Ok(found) if is_same(&found, &to) => {}
            Ok(found) if found.is_dir() => tree::copy(&from, &to)?,
            Ok(found) => copy_file(&from, &to, found.mode() & PERMISSIONS)?,
        }
    }
    Ok(())
}

fn is_same(found: &std::fs::Metadata, path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
}

/// Creates a folder and its missing parents, all readable by everybody.
fn make_folders(folder: &Path) -> Result<(), BootstrapError> {
    // One look: between two, another copy may make the folder.
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => return Err(BootstrapError::NoFolder { path: folder.to_owned() }),
        Err(_) => {}
    }
    if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_folders(parent)?;
    }
    match make_folder(folder) {
        // Somebody else created it.
        Err(_) if folder.is_dir() => Ok(()),
        made => made,
    }
}

/// Creates a folder with [`MODE`] whatever the umask: the job may run as another user.
fn make_folder(folder: &Path) -> Result<(), BootstrapError> {
    DirBuilder::new()
        .mode(MODE)
        .create(folder)
        .and_then(|()| std::fs::set_permissions(folder, Permissions::from_mode(MODE)))
        .map_err(at("make the folder", folder))
}

/// Copies a file, unless an equal one exists.
fn copy_file(from: &Path, to: &Path, mode: u32) -> Result<(), BootstrapError> {
    let mut source = File::open(from).map_err(at("read", from))?;
    match std::fs::symlink_metadata(to) {
        Ok(found) if found.is_dir() => return Err(BootstrapError::FolderInTheWay { path: to.to_owned() }),
        Ok(found) if found.is_file() && found.mode() & PERMISSIONS == mode => {
            if has_content(to, &mut source).map_err(at("read", to))? {
                return Ok(());
            }
            source = File::open(from).map_err(at("read", from))?;
        }
        // Anything else is replaced; a link is not followed.
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(at("look at", to)(error)),
    }
    let temporary = temporary_beside(to)?;
    let replaced = write(&mut source, &temporary, mode)
        .map_err(at("write", to))
        .and_then(|()| std::fs::rename(&temporary, to).map_err(at("replace", to)));
    if replaced.is_err() {
        std::fs::remove_file(&temporary).ok();
    }
    replaced?;
    sync_folder(to);
    Ok(())
}

fn write(source: &mut File, to: &Path, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(source, &mut file)?;
    file.flush()?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

/// Syncs the rename to disk. Ignores errors, because some file systems cannot do this.
fn sync_folder(of: &Path) {
    let folder = of.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).ok();
}

/// Returns an unused name in the same folder.
fn temporary_beside(path: &Path) -> Result<PathBuf, BootstrapError> {
    let random = getrandom::u64()
        .map_err(|error| at("name a file beside", path)(io::Error::other(error.to_string())))?;
    Ok(path.with_file_name(format!(".{PROGRAM}-{random:016x}.tmp")))
}

/// True if the file at `path` has the same content as `source`.
fn has_content(path: &Path, source: &mut File) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() != source.metadata()?.len() {
        return Ok(false);
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    loop {
        ours.clear();
        theirs.clear();
        source.take(CHUNK as u64).read_to_end(&mut ours)?;
        (&mut file).take(CHUNK as u64).read_to_end(&mut theirs)?;
        if ours != theirs {
            return Ok(false);
        }
        if ours.is_empty() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests;
