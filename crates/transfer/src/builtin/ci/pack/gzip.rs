//! Gzip with a member for each file, which has its name. GitLab keeps reports this way.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use flate2::bufread::GzDecoder;
use flate2::{Compression, GzBuilder};

use super::{BuiltinError, Entry, Kind, Visit, damaged};

/// Writes files one behind the other.
pub(in super::super) fn write(paths: &[String], project: &Path, to: &File) -> io::Result<()> {
    for path in paths {
        let mut file = File::open(project.join(path))?;
        let mut member = GzBuilder::new().filename(path.as_bytes()).write(to, Compression::default());
        io::copy(&mut file, &mut member)?;
        member.finish()?;
    }
    Ok(())
}

/// Visits the members.
pub(super) fn each(file: &File, visit: Visit<'_>) -> Result<(), BuiltinError> {
    let mut reader = BufReader::new(file);
    while !reader.fill_buf().map_err(|error| damaged(&error))?.is_empty() {
        let mut member = GzDecoder::new(reader);
        let name = member.header().and_then(|header| header.filename());
        let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else {
            return Err(damaged(&"a part of it has no name, so nobody knows which file it is"));
        };
        visit(Entry { name: name.to_owned(), kind: Kind::File(&mut member), mode: None })?;
        // The next member begins behind the end of this one.
        io::copy(&mut member.by_ref(), &mut io::sink()).map_err(|error| damaged(&error))?;
        reader = member.into_inner();
    }
    Ok(())
}
