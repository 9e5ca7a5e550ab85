//! Copies a folder with its content. The copy becomes visible only when it is complete.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::error::{BootstrapError, at};
use super::{PERMISSIONS, has_content, make_folder, sync_folder, temporary_beside, write};

/// Copies a folder, unless an equal one exists. Between the two renames of a replacement `to` is missing.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), BootstrapError> {
    let present = match std::fs::symlink_metadata(to) {
        Ok(found) if found.is_dir() => true,
        Ok(_) => return Err(BootstrapError::NoFolder { path: to.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(at("look at", to)(error)),
    };
    if present && is_equal(from, to).map_err(at("compare", to))? {
        return Ok(());
    }
    let temporary = temporary_beside(to)?;
    let copied = copy_into(from, &temporary).and_then(|()| {
        // A folder cannot be renamed over a non-empty one.
        let old = temporary_beside(to)?;
        if present {
            std::fs::rename(to, &old).map_err(at("replace", to))?;
        }
        let renamed = std::fs::rename(&temporary, to).map_err(at("replace", to));
        match &renamed {
            Ok(()) if present => drop(std::fs::remove_dir_all(&old)),
            Err(_) if present => drop(std::fs::rename(&old, to)),
            _ => {}
        }
        renamed
    });
    if copied.is_err() {
        std::fs::remove_dir_all(&temporary).ok();
    }
    copied?;
    sync_folder(to);
    Ok(())
}

fn copy_into(from: &Path, to: &Path) -> Result<(), BootstrapError> {
    let found = std::fs::symlink_metadata(from).map_err(at("look at", from))?;
    let mode = found.mode() & PERMISSIONS;
    if found.is_symlink() {
        let target = std::fs::read_link(from).map_err(at("read", from))?;
        return symlink(target, to).map_err(at("make the link", to));
    }
    if found.is_file() {
        let mut source = File::open(from).map_err(at("read", from))?;
        return write(&mut source, to, mode).map_err(at("write", to));
    }
    if !found.is_dir() {
        // Skip sockets and devices: no program has them.
        return Ok(());
    }
    make_folder(to)?;
    for entry in std::fs::read_dir(from).map_err(at("read", from))? {
        let name = entry.map_err(at("read", from))?.file_name();
        copy_into(&from.join(&name), &to.join(&name))?;
    }
    // Last, as the mode may forbid writing.
    std::fs::set_permissions(to, Permissions::from_mode(mode)).map_err(at("set the permissions of", to))
}

fn is_equal(one: &Path, other: &Path) -> io::Result<bool> {
    let (found, copy) = (std::fs::symlink_metadata(one)?, std::fs::symlink_metadata(other)?);
    if found.file_type() != copy.file_type() || (!found.is_symlink() && found.mode() != copy.mode()) {
        return Ok(false);
    }
    if found.is_symlink() {
        return Ok(std::fs::read_link(one)? == std::fs::read_link(other)?);
    }
    if found.is_file() {
        return has_content(other, &mut File::open(one)?);
    }
    let names = |folder: &Path| -> io::Result<Vec<_>> {
        let mut names =
            std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    let ours = names(one)?;
    if ours != names(other)? {
        return Ok(false);
    }
    for name in ours {
        if !is_equal(&one.join(&name), &other.join(&name))? {
            return Ok(false);
        }
    }
    Ok(true)
}
