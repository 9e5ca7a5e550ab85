//! Archives of artifacts: zip, gzip with a member for each file of a report, and tar.zst, which is only read (ci.md §5).

mod gzip;
mod tar;
mod zip;

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Component, Path};

use super::super::{BuiltinError, FAULT_OF_JOB};
use super::transfer::make_folders;

pub(super) use gzip::write as write_gzip;
pub(super) use zip::write as write_zip;

/// Modes that files of an archive may have.
const MODES: u32 = 0o777;

/// Mode of a file whose archive tells none.
const USUAL_MODE: u32 = 0o644;

/// Longest target of a link, in bytes. No path is longer.
const LONGEST_LINK: u64 = 4_096;

/// An entry of an archive.
struct Entry<'a> {
    name: String,
    kind: Kind<'a>,
    /// Permissions, if the archive tells them.
    mode: Option<u32>,
}

/// Kind of an entry, with what only this kind has.
enum Kind<'a> {
    Folder,
    /// A link, and where it leads.
    Link(String),
    File(&'a mut dyn Read),
    /// Something that no artifact is.
    Other,
}

/// Work on each entry of an archive in turn.
type Visit<'v> = &'v mut dyn FnMut(Entry<'_>) -> Result<(), BuiltinError>;

/// Reader of one format: visits all entries.
type Format = fn(&File, Visit<'_>) -> Result<(), BuiltinError>;

/// Formats by the bytes that they begin with. An empty zip archive has no entry in front.
const FORMATS: [(&[u8], Format); 4] = [
    (b"PK\x03\x04", zip::each),
    (b"PK\x05\x06", zip::each),
    (b"\x1f\x8b", gzip::each),
    (b"\x28\xb5\x2f\xfd", tar::each),
];

/// Writes the entries of an archive below a project. Returns their number. Nothing is written through a link or outside: an
/// archive with such an entry is refused, before anything is written.
pub(in super::super) fn read(file: &File, project: &Path) -> Result<usize, BuiltinError> {
    let mut magic = Vec::new();
    rewind(file)?;
    file.take(4).read_to_end(&mut magic).map_err(|error| damaged(&error))?;
    let format = FORMATS.iter().find(|(begin, _)| magic.starts_with(begin));
    let Some((_, each)) = format else {
        return Err(damaged(&"it begins like none of zip, gzip and tar.zst"));
    };
    rewind(file)?;
    each(file, &mut |entry| {
        check(&entry).map_err(|why| BuiltinError::Stage {
            code: FAULT_OF_JOB,
            message: format!("the archive of artifacts is refused: \"{}\" {why}", entry.name.escape_debug()),
        })
    })?;
    rewind(file)?;
    let mut count = 0;
    each(file, &mut |entry| {
        let name = entry.name.trim_end_matches('/').to_owned();
        if !name.is_empty() {
            write(entry, &name, project).map_err(BuiltinError::file("write", &project.join(&name)))?;
            count += 1;
        }
        Ok(())
    })?;
    Ok(count)
}

fn rewind(mut file: &File) -> Result<(), BuiltinError> {
    file.seek(SeekFrom::Start(0)).map(drop).map_err(|error| damaged(&error))
}

/// Returns the error for an archive that cannot be read.
fn damaged(why: &dyn std::fmt::Display) -> BuiltinError {
    let message = format!("the archive of artifacts is damaged or of an unknown kind: {why}");
    BuiltinError::Stage { code: FAULT_OF_JOB, message }
}

/// Writes an entry that was checked.
fn write(entry: Entry<'_>, name: &str, project: &Path) -> io::Result<()> {
    if matches!(entry.kind, Kind::Folder) {
        return make_folders(project, name);
    }
    if let Some((folder, _)) = name.rsplit_once('/') {
        make_folders(project, folder)?;
    }
    let target = project.join(name);
    match target.symlink_metadata() {
        Ok(old) if old.is_dir() => return Err(io::Error::other("there is a folder in its place")),
        Ok(_) => fs::remove_file(&target)?,
        Err(_) => {}
    }
    match entry.kind {
        Kind::Link(to) => symlink(to, &target),
        Kind::File(content) => {
            let mode = entry.mode.map_or(USUAL_MODE, |mode| mode & MODES);
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&target)?;
            io::copy(content, &mut file).map(drop)
        }
        Kind::Folder | Kind::Other => Ok(()),
    }
}

/// Reads where a link leads.
fn link(content: &mut impl Read) -> io::Result<String> {
    let text = io::read_to_string(content.take(LONGEST_LINK + 1))?;
    if text.len() as u64 > LONGEST_LINK {
        return Err(io::Error::other("a link is longer than a path can be"));
    }
    Ok(text)
}

/// Says why an entry is refused.
fn check(entry: &Entry<'_>) -> Result<(), &'static str> {
    let path = Path::new(&entry.name);
    if path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
        || entry.name.contains('\0')
    {
        return Err("leads out of the project");
    }
    if path.components().any(|part| part.as_os_str().as_bytes().eq_ignore_ascii_case(b".git")) {
        return Err("is below .git");
    }
    let target = match &entry.kind {
        Kind::Link(target) => target,
        Kind::Folder | Kind::File(_) => return Ok(()),
        Kind::Other => return Err("is neither a file, a folder nor a link"),
    };
    // Folders are real, so steps up at the beginning stay inside as long as there are folders. Behind a name they may not: the
    // name can be another link, and where that leads there may be no folder to go up from.
    let mut above = path.components().filter(|part| *part != Component::CurDir).count().saturating_sub(1);
    let mut has_name = false;
    for part in Path::new(target).components() {
        match part {
            Component::Normal(_) => has_name = true,
            Component::CurDir => {}
            Component::ParentDir if has_name => return Err("is a link with `..` behind a name"),
            Component::ParentDir if above > 0 => above -= 1,
            _ => return Err("is a link that leads out of the project"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
