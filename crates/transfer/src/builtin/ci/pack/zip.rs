//! Zip, as GitLab keeps artifacts.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

use super::{BuiltinError, Entry, Kind, MODES, Visit, damaged, link};

/// Kinds of files in the mode of an entry, and those that are no devices, pipes or sockets.
const KINDS: u32 = 0o170_000;
const KNOWN_KINDS: [u32; 4] = [0, 0o040_000, 0o100_000, 0o120_000];

/// Writes files, links and folders of a project.
pub(in super::super) fn write(paths: &[String], project: &Path, to: &File) -> io::Result<()> {
    let mut zip = ZipWriter::new(BufWriter::new(to));
    for path in paths {
        let source = project.join(path);
        let found = source.symlink_metadata()?;
        let options = SimpleFileOptions::default()
            .large_file(true)
            .unix_permissions(found.permissions().mode() & MODES);
        if found.is_dir() {
            zip.add_directory(path.as_str(), options)?;
        } else if found.is_symlink() {
            zip.add_symlink(path.as_str(), fs::read_link(&source)?.to_string_lossy(), options)?;
        } else {
            zip.start_file(path.as_str(), options)?;
            io::copy(&mut File::open(&source)?, &mut zip)?;
        }
    }
    zip.finish()?.into_inner().map_err(io::IntoInnerError::into_error).map(drop)
}

/// Visits the entries.
pub(super) fn each(file: &File, visit: Visit<'_>) -> Result<(), BuiltinError> {
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|error| damaged(&error))?;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(|error| damaged(&error))?;
        let name = entry.name().map_err(|error| damaged(&error))?.into_owned();
        let mode = entry.unix_mode();
        let kind = if mode.is_some_and(|mode| !KNOWN_KINDS.contains(&(mode & KINDS))) {
            Kind::Other
        } else if entry.is_symlink() {
            Kind::Link(link(&mut entry).map_err(|error| damaged(&error))?)
        } else if entry.is_dir() {
            Kind::Folder
        } else {
            Kind::File(&mut entry)
        };
        visit(Entry { name, kind, mode })?;
    }
    Ok(())
}
