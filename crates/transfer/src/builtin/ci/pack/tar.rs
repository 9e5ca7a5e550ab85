//! Tar in Zstandard, which GitLab Runner writes if a job asks for it.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};

use tar::{Archive, EntryType};

use super::{BuiltinError, Entry, Kind, LONGEST_LINK, Visit, damaged};

/// Largest zstd window as a power of two: 128 MiB, the most that a decoder keeps. No compression level needs more.
const MAX_WINDOW_LOG: u32 = 27;

/// Most bytes of headers before one entry: long names and extensions are kept in memory.
const MAX_HEADER: u64 = 1 << 20;

/// Size of the blocks of an archive.
const BLOCK: u64 = 512;

/// Visits the entries.
pub(super) fn each(file: &File, visit: Visit<'_>) -> Result<(), BuiltinError> {
    let mut reader = zstd::Decoder::with_buffer(BufReader::new(file)).map_err(|error| damaged(&error))?;
    reader.window_log_max(MAX_WINDOW_LOG).map_err(|error| damaged(&error))?;
    let allowed = Cell::new(MAX_HEADER);
    let mut archive = Archive::new(Bounded { reader, allowed: &allowed });
    for entry in archive.entries().map_err(|error| damaged(&error))? {
        let mut entry = entry.map_err(|error| damaged(&error))?;
        // The rest of an entry, its padding and the headers of the next one.
        allowed.set(entry.size().saturating_add(BLOCK + MAX_HEADER));
        let name = text(&entry.path_bytes())?;
        let mode = entry.header().mode().ok();
        let kind = match entry.header().entry_type() {
            EntryType::Directory => Kind::Folder,
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                if target.len() as u64 > LONGEST_LINK {
                    return Err(damaged(&"a link is longer than a path can be"));
                }
                Kind::Link(text(&target)?)
            }
            EntryType::Regular | EntryType::Continuous => Kind::File(&mut entry),
            _ => Kind::Other,
        };
        visit(Entry { name, kind, mode })?;
    }
    Ok(())
}

fn text(bytes: &[u8]) -> Result<String, BuiltinError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| damaged(&"a name is not UTF-8"))
}

/// Reads at most as many bytes as are allowed.
struct Bounded<'a, R> {
    reader: R,
    allowed: &'a Cell<u64>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let allowed = self.allowed.get();
        let wanted = into.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        if wanted == 0 && !into.is_empty() {
            return Err(io::Error::other("the headers of an entry have more than 1 MiB"));
        }
        let read = self.reader.read(into.get_mut(..wanted).unwrap_or_default())?;
        self.allowed.set(allowed - read as u64);
        Ok(read)
    }
}
