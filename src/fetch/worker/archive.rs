//! Unpacks layers of images into a tree (language.md §7.7, faults.md row 69).
//!
//! Owns what an entry of an archive may be, and the limits that stop an archive made to fill memory or disk. Names and
//! links are judged by [`TreeWriter`]. Only folders, regular files and relative links that stay inside are taken; a hard
//! link becomes a file of its own. Devices, FIFOs and links that lead outside are left out, as ordinary images have some
//! that have nothing to do with functions. Everything else is an error with the entry's name. May not know of registries.

mod meter;

use std::collections::HashSet;
use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use super::tree::{self, TreeWriter, failure};
use crate::job::event::FetchFailure;
use crate::lang::diagnostic::Class;
use meter::{Meter, Metered};

/// Largest window of zstd as a power of two: the most that a decoder remembers, 128 MiB, which every compression level
/// keeps to.
const MAX_WINDOW_LOG: u32 = 27;

/// Most bytes of headers in front of one entry: long names and extensions.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// Keys of a global extension that would say something about an entry that other readers take and this one does not.
const MEANING_KEYS: [&[u8]; 3] = [b"path", b"linkpath", b"size"];

/// Beginning of the keys that describe files with holes.
const SPARSE_KEYS: &[u8] = b"GNU.sparse.";

/// Beginning of names that say what of the layers below is gone.
const WHITEOUT: &[u8] = b".wh.";

/// How a layer is packed. The archive in it is always tar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Not at all.
    Plain,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

impl Packing {
    /// That of a layer's media type; `None`: no layer that can be unpacked.
    pub fn of_media_type(media_type: &str) -> Option<Self> {
        match media_type {
            "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => {
                Some(Self::Plain)
            }
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip" => Some(Self::Gzip),
            "application/vnd.gitlab.step.layer.v1.tar+zstd"
            | "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Unpacks one layer into `tree`, over what the layers below have put there.
///
/// # Errors
/// Class `fetch`: it is no archive, or an entry is refused. Class `limit`: it unpacks to too much.
pub fn unpack(packing: Packing, packed: impl Read, tree: &mut TreeWriter) -> Result<(), FetchFailure> {
    let meter = Meter::default();
    let packed = BufReader::new(meter.packed(packed));
    let reader: Box<dyn Read + '_> = match packing {
        Packing::Plain => Box::new(packed),
        Packing::Gzip => Box::new(MultiGzDecoder::new(packed)),
        Packing::Zstd => Box::new(zstd_reader(packed).map_err(|error| broken(&error))?),
    };
    let reader = meter.unpacked(reader);
    let (written, cleared) = (HashSet::new(), HashSet::new());
    let done = Layer { tree, meter: &meter, written, cleared }.unpack(reader);
    // What stopped the reader says more than what the parser made of it.
    done.map_err(|failure| meter.stopped().unwrap_or(failure))
}

fn zstd_reader(packed: BufReader<impl Read>) -> io::Result<impl Read> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
    decoder.window_log_max(MAX_WINDOW_LOG)?;
    Ok(decoder)
}

/// A layer on its way into the tree.
struct Layer<'a> {
    tree: &'a mut TreeWriter,
    meter: &'a Meter,
    /// Paths that this layer has, with the folders they are in: its whiteouts are about the layers below.
    written: HashSet<Vec<u8>>,
    /// Paths of which whiteouts have removed all that the layers below have there; those that end in `/`: in there.
    cleared: HashSet<Vec<u8>>,
}

impl Layer<'_> {
    fn unpack(&mut self, reader: Metered<'_, impl Read>) -> Result<(), FetchFailure> {
        let mut archive = Archive::new(reader);
        let mut entries = archive.entries().map_err(|error| broken(&error))?;
        loop {
            self.meter.allow(MAX_HEADER_BYTES);
            let Some(entry) = entries.next() else { return Ok(()) };
            self.entry(&mut entry.map_err(|error| broken(&error))?)?;
        }
    }

    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), FetchFailure> {
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            return check_global(entry);
        }
        let path = entry.path_bytes().into_owned();
        check_extensions(&path, entry)?;
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if name.starts_with(WHITEOUT) {
            return self.whiteout(&path, name);
        }
        match kind {
            EntryType::Directory => self.tree.folder(&path)?,
            // As old archives write a folder.
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") && entry.size() == 0 => {
                self.tree.folder(&path)?;
            }
            EntryType::Regular | EntryType::Continuous => {
                let mode = entry.header().mode().map_err(|error| broken(&error))?;
                self.meter.allow(entry.size());
                self.tree.file(&path, mode & 0o111 != 0, entry)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                if tree::takes_target(&path, &target) {
                    self.tree.link(&path, &target)?;
                } else {
                    self.leave_out(&path)?;
                }
            }
            EntryType::Link => {
                let original = entry.link_name_bytes().unwrap_or_default().into_owned();
                self.tree.copy_of(&path, &original)?;
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => self.leave_out(&path)?,
            other => return Err(tree::refused(&path, refusal(other))),
        }
        self.keep(&path);
        Ok(())
    }

    /// Leaves an entry out; what an earlier one has put at its path is gone all the same.
    fn leave_out(&mut self, path: &[u8]) -> Result<(), FetchFailure> {
        self.tree.remove(path, &|_| false)
    }

    /// Removes what the layers below have.
    fn whiteout(&mut self, path: &[u8], name: &[u8]) -> Result<(), FetchFailure> {
        let folder = path.strip_suffix(name).unwrap_or_default();
        let gone = match name.strip_prefix(WHITEOUT).unwrap_or_default() {
            b".wh..opq" => folder.to_vec(),
            // Another mark of the same kind, which means nothing outside of the program that made it.
            mark if mark.starts_with(WHITEOUT) => return self.tree.pass_over(path),
            b"" => return Err(tree::refused(path, "it removes nothing")),
            gone => [folder, gone].concat(),
        };
        let is_opaque = gone == folder;
        let gone = gone.strip_prefix(b"./").unwrap_or(&gone).to_vec();
        if self.is_cleared(&gone) {
            // Going through what this layer has there once for each whiteout could take for ever.
            return self.tree.pass_over(path);
        }
        let written = &self.written;
        let keep = |path: &[u8]| written.contains(path);
        match () {
            () if !is_opaque => self.tree.remove(&gone, &keep)?,
            () if gone.is_empty() => self.tree.empty(b".", &keep)?,
            () => self.tree.empty(&gone, &keep)?,
        }
        if !is_opaque {
            self.cleared.insert([&gone, &b"/"[..]].concat());
        }
        self.cleared.insert(gone);
        Ok(())
    }

    /// Whether a whiteout has been there: for this path, or for a folder that it is in.
    fn is_cleared(&self, path: &[u8]) -> bool {
        let mut folders = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        self.cleared.contains(path)
            || self.cleared.contains(&b""[..])
            || folders.any(|(end, _)| self.cleared.contains(path.get(..=end).unwrap_or_default()))
    }

    /// Remembers a path and the folders above it.
    fn keep(&mut self, path: &[u8]) {
        let path = path.strip_prefix(b"./").unwrap_or(path);
        let mut rest = path.strip_suffix(b"/").unwrap_or(path);
        while self.written.insert(rest.to_vec()) {
            let Some(end) = rest.iter().rposition(|&byte| byte == b'/') else { return };
            rest = rest.get(..end).unwrap_or_default();
        }
    }
}

/// Why an entry of this kind is not taken.
fn refusal(kind: EntryType) -> &'static str {
    match kind {
        EntryType::GNUSparse => "it is a file with holes; write the archive without --sparse",
        _ => "its kind is not known",
    }
}

/// An extension that each reader understands in its own way could hide something from a check made elsewhere: only those
/// that can be read in one way are taken.
fn check_extensions<R: Read>(path: &[u8], entry: &mut Entry<'_, R>) -> Result<(), FetchFailure> {
    let Ok(Some(extensions)) = entry.pax_extensions() else { return Ok(()) };
    let mut seen = HashSet::new();
    for extension in extensions {
        let Ok(extension) = extension else {
            return Err(tree::refused(path, "its PAX extensions are malformed"));
        };
        let key = extension.key_bytes();
        if key.starts_with(SPARSE_KEYS) {
            return Err(tree::refused(path, refusal(EntryType::GNUSparse)));
        }
        if MEANING_KEYS.contains(&key) && !seen.insert(key) {
            return Err(tree::refused(path, "its PAX extensions say the same thing twice"));
        }
        if key == b"size" && extension.value().ok().and_then(|size| size.parse::<u64>().ok()).is_none() {
            return Err(tree::refused(path, "the size in its PAX extensions is no number"));
        }
    }
    Ok(())
}

/// Global extensions are comments, such as the commit that an archive was made of. One that means something is refused.
fn check_global<R: Read>(entry: &mut Entry<'_, R>) -> Result<(), FetchFailure> {
    let Some(extensions) = entry.pax_extensions().map_err(|error| broken(&error))? else { return Ok(()) };
    for extension in extensions {
        let key = extension.map_err(|error| broken(&error))?.key_bytes();
        if MEANING_KEYS.contains(&key) || key.starts_with(SPARSE_KEYS) {
            let text = "the archive is refused: a global PAX extension names, links or sizes its entries";
            return Err(failure(Class::Fetch, text.to_owned()));
        }
    }
    Ok(())
}

/// The archive cannot be read. The parser's text may quote the archive.
fn broken(error: &io::Error) -> FetchFailure {
    let text: String = error.to_string().chars().take(200).collect();
    failure(Class::Fetch, format!("a layer is no valid archive: {}", text.escape_debug()))
}

#[cfg(test)]
mod tests;
