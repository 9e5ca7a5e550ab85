//! Archives of artifacts: zip as GitLab keeps them, and gzip with a member for each file of a report.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path};

use flate2::{Compression, GzBuilder};
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

use super::super::{BuiltinError, FAULT_OF_JOB};
use super::transfer::make_folders;

/// Modes that files of an archive may have.
const MODES: u32 = 0o777;

/// Writes files, links and folders of a project as a zip archive.
pub(super) fn write_zip(paths: &[String], project: &Path, to: &File) -> io::Result<()> {
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

/// Writes files one behind the other, each a member with its name.
pub(super) fn write_gzip(paths: &[String], project: &Path, to: &File) -> io::Result<()> {
    for path in paths {
        let mut file = File::open(project.join(path))?;
        let mut member = GzBuilder::new().filename(path.as_bytes()).write(to, Compression::default());
        io::copy(&mut file, &mut member)?;
        member.finish()?;
    }
    Ok(())
}

/// Writes the entries of a zip archive below a project. Returns their number. Nothing is written through a link or
/// outside: an archive with such an entry is refused, before anything is written.
pub(super) fn read_zip(file: &File, project: &Path) -> Result<usize, BuiltinError> {
    let damaged = |error: &dyn std::fmt::Display| {
        let message = format!("the archive of artifacts is damaged or no zip archive: {error}");
        BuiltinError::Stage { code: FAULT_OF_JOB, message }
    };
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|error| damaged(&error))?;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(|error| damaged(&error))?;
        let name = entry.name().map_err(|error| damaged(&error))?.into_owned();
        let target =
            if entry.is_symlink() { Some(link(&mut entry).map_err(|error| damaged(&error))?) } else { None };
        check(&name, entry.unix_mode(), target.as_deref()).map_err(|why| BuiltinError::Stage {
            code: FAULT_OF_JOB,
            message: format!("the archive of artifacts is refused: \"{}\" {why}", name.escape_debug()),
        })?;
    }
    let mut count = 0;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(|error| damaged(&error))?;
        let name = entry.name().map_err(|error| damaged(&error))?.trim_end_matches('/').to_owned();
        if name.is_empty() {
            continue;
        }
        let (is_dir, is_link, mode) = (entry.is_dir(), entry.is_symlink(), entry.unix_mode());
        let written = (|| {
            if is_dir {
                return make_folders(project, &name);
            }
            if let Some((folder, _)) = name.rsplit_once('/') {
                make_folders(project, folder)?;
            }
            let target = project.join(&name);
            match target.symlink_metadata() {
                Ok(old) if old.is_dir() => return Err(io::Error::other("there is a folder in its place")),
                Ok(_) => fs::remove_file(&target)?,
                Err(_) => {}
            }
            if is_link {
                return symlink(link(&mut entry)?, &target);
            }
            let mode = mode.map_or(0o644, |mode| mode & MODES);
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&target)?;
            io::copy(&mut entry, &mut file).map(drop)
        })();
        written.map_err(BuiltinError::file("write", &project.join(&name)))?;
        count += 1;
    }
    Ok(count)
}

/// Reads where a link leads. No path is longer than the limit.
fn link(entry: &mut impl Read) -> io::Result<String> {
    let text = io::read_to_string(entry.take(LONGEST_LINK + 1))?;
    if text.len() as u64 > LONGEST_LINK {
        return Err(io::Error::other("a link is longer than a path can be"));
    }
    Ok(text)
}

/// Longest target of a link, in bytes.
const LONGEST_LINK: u64 = 4_096;

/// Kinds of files in the mode of an entry.
const KINDS: u32 = 0o170_000;
const KNOWN_KINDS: [u32; 4] = [0, 0o040_000, 0o100_000, 0o120_000];

/// Says why an entry is refused.
fn check(name: &str, mode: Option<u32>, target: Option<&str>) -> Result<(), &'static str> {
    let path = Path::new(name);
    if path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
        || name.contains('\0')
    {
        return Err("leads out of the project");
    }
    if path.components().any(|part| part.as_os_str().as_bytes().eq_ignore_ascii_case(b".git")) {
        return Err("is below .git");
    }
    if mode.is_some_and(|mode| !KNOWN_KINDS.contains(&(mode & KINDS))) {
        return Err("is neither a file, a folder nor a link");
    }
    let Some(target) = target else { return Ok(()) };
    // Where the link stands, then where it leads.
    let mut depth = path.components().count().saturating_sub(1);
    for part in Path::new(target).components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return Err("is a link that leads out of the project"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a16_entries_that_lead_out_of_the_project_are_refused() {
        for name in ["a", "a/b.txt", "./a", "a.git/x", "..a/b"] {
            assert_eq!(check(name, Some(0o100_644), None), Ok(()), "{name}");
        }
        for name in ["../a", "/etc/passwd", "a/../../b", ".git/hooks/x", "a/.GIT/config", "a\0b"] {
            assert!(check(name, None, None).is_err(), "{name:?}");
        }
        assert!(check("a", Some(0o020_644), None).is_err());
        for (name, target, is_fit) in [
            ("a", "b", true),
            ("a/b", "../c", true),
            ("a", "../c", false),
            ("a/b", "../../c", false),
            ("a", "/etc", false),
        ] {
            assert_eq!(check(name, Some(0o120_777), Some(target)).is_ok(), is_fit, "{name} -> {target}");
        }
    }

    #[test]
    fn a16_a_link_without_end_is_refused_before_anything_is_written() {
        let to = tempfile::tempdir().unwrap();
        let file = tempfile::tempfile().unwrap();
        let mut zip = ZipWriter::new(&file);
        let options = SimpleFileOptions::default();
        zip.start_file("first", options).unwrap();
        zip.add_symlink("link", "a".repeat(5_000), options).unwrap();
        zip.finish().unwrap();
        let error = read_zip(&file, to.path()).unwrap_err().to_string();
        assert!(error.contains("longer than a path"), "{error}");
        assert!(!to.path().join("first").exists());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(from.path().join("a/empty")).unwrap();
        fs::write(from.path().join("a/run"), "text").unwrap();
        fs::set_permissions(from.path().join("a/run"), fs::Permissions::from_mode(0o750)).unwrap();
        symlink("a/run", from.path().join("link")).unwrap();
        let file = tempfile::tempfile().unwrap();
        let paths = ["a/empty", "a/run", "link"].map(str::to_owned);
        write_zip(&paths, from.path(), &file).unwrap();
        assert_eq!(read_zip(&file, to.path()).unwrap(), 3);
        assert_eq!(fs::read_to_string(to.path().join("link")).unwrap(), "text");
        assert!(to.path().join("a/empty").is_dir());
        let mode = fs::metadata(to.path().join("a/run")).unwrap().permissions().mode();
        assert_eq!(mode & 0o700, 0o700);
    }
}
