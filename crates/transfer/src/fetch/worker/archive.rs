//! Unpacks layers of images into a tree (language.md §7.7, faults.md row 69).
//!
//! Owns which entries an archive may have, and the limits that stop an archive made to fill memory or disk;
//! [`TreeWriter`] checks names and links. Accepts folders, regular files, and relative links that stay inside; a hard
//! link becomes a separate file. Skips devices, FIFOs and links that lead outside: ordinary images hold some that no
//! function needs. Any other entry is an error with its name. May not know of registries.

mod check;
mod meter;

use std::collections::HashSet;
use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use super::tree::{self, TreeWriter, failure};
use crate::oci::short;
pub(crate) use check::check;
use meter::Meter;
use step_runner_core::job::event::FetchFailure;
use step_runner_lang::diagnostic::Class;

/// Largest zstd window as a power of two: 128 MiB, the most that a decoder keeps. No compression level needs more.
const MAX_WINDOW_LOG: u32 = 27;

/// Maximum number of bytes of headers (long names and extensions) before one entry.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// Keys whose meaning readers disagree on if an extension is global or names them twice.
const MEANING_KEYS: [&[u8]; 3] = [b"path", b"linkpath", b"size"];

/// Prefix of the keys that describe sparse files.
const SPARSE_KEYS: &[u8] = b"GNU.sparse.";

/// Prefix of names that mark entries of lower layers as deleted.
const WHITEOUT: &[u8] = b".wh.";

/// Compression of a layer. The archive in it is always tar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// None.
    Plain,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

impl Packing {
    /// Returns the packing for a layer's media type; `None` if it cannot be unpacked.
    pub(crate) fn of_media_type(media_type: &str) -> Option<Self> {
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

/// Unpacks one layer into `tree`, over the entries of lower layers.
///
/// # Errors
/// Class `fetch`: it is no archive, or an entry is refused. Class `limit`: it unpacks to too much data.
pub fn unpack(packing: Packing, packed: impl Read, tree: &mut TreeWriter) -> Result<(), FetchFailure> {
    let mut unpacker = LayerUnpacker { tree, written: HashSet::new(), cleared: HashSet::new() };
    visit(packing, packed, &mut unpacker)
}

/// True if a name marks an entry of lower layers as deleted: the file of this name is not unpacked.
pub(crate) fn is_whiteout(name: &[u8]) -> bool {
    name.starts_with(WHITEOUT)
}

/// Takes the entries of a layer.
trait EntryVisitor {
    /// Takes the entry at `path`, whose content may be read after [`Meter::allow`].
    fn entry<R: Read>(
        &mut self,
        path: &[u8],
        entry: &mut Entry<'_, R>,
        meter: &Meter,
    ) -> Result<(), FetchFailure>;
}

/// Passes the entries of a layer to `visitor`, within the limits of what it may unpack to.
fn visit(packing: Packing, packed: impl Read, visitor: &mut impl EntryVisitor) -> Result<(), FetchFailure> {
    let meter = Meter::default();
    let packed = BufReader::new(meter.packed(packed));
    let reader: Box<dyn Read + '_> = match packing {
        Packing::Plain => Box::new(packed),
        Packing::Gzip => Box::new(MultiGzDecoder::new(packed)),
        Packing::Zstd => Box::new(zstd_reader(packed).map_err(|error| broken(&error))?),
    };
    let mut archive = Archive::new(meter.unpacked(reader));
    let mut visit_all = || -> Result<(), FetchFailure> {
        let mut entries = archive.entries().map_err(|error| broken(&error))?;
        loop {
            meter.allow(MAX_HEADER_BYTES);
            let Some(entry) = entries.next() else { return Ok(()) };
            let mut entry = entry.map_err(|error| broken(&error))?;
            if entry.header().entry_type().is_pax_global_extensions() {
                check_global(&mut entry)?;
                continue;
            }
            let path = entry.path_bytes().into_owned();
            check_extensions(&path, &mut entry)?;
            visitor.entry(&path, &mut entry, &meter)?;
        }
    };
    // If the meter stopped the reader, its reason says more than the parser's error.
    visit_all().map_err(|failure| meter.stopped().unwrap_or(failure))
}

fn zstd_reader(packed: BufReader<impl Read>) -> io::Result<impl Read> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
    decoder.window_log_max(MAX_WINDOW_LOG)?;
    Ok(decoder)
}

/// State of unpacking one layer.
struct LayerUnpacker<'a> {
    tree: &'a mut TreeWriter,
    /// Paths of this layer and their parent folders. Its whiteouts spare them, as they apply to lower layers only.
    written: HashSet<Vec<u8>>,
    /// Paths that whiteouts have already cleared of lower layers' entries. A path that ends in `/` stands for all
    /// inside it.
    cleared: HashSet<Vec<u8>>,
}

impl EntryVisitor for LayerUnpacker<'_> {
    fn entry<R: Read>(
        &mut self,
        path: &[u8],
        entry: &mut Entry<'_, R>,
        meter: &Meter,
    ) -> Result<(), FetchFailure> {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if is_whiteout(name) {
            return self.whiteout(path, name);
        }
        match entry.header().entry_type() {
            EntryType::Directory => self.tree.folder(path)?,
            // Old archives write folders like this.
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") && entry.size() == 0 => {
                self.tree.folder(path)?;
            }
            EntryType::Regular | EntryType::Continuous => {
                let mode = entry.header().mode().map_err(|error| broken(&error))?;
                meter.allow(entry.size());
                self.tree.file(path, mode & 0o111 != 0, entry)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                if tree::takes_target(path, &target) {
                    self.tree.link(path, &target)?;
                } else {
                    self.leave_out(path)?;
                }
            }
            EntryType::Link => {
                let original = entry.link_name_bytes().unwrap_or_default().into_owned();
                self.tree.copy_of(path, &original)?;
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => self.leave_out(path)?,
            other => return Err(tree::refused(path, refusal(other))),
        }
        self.keep(path);
        Ok(())
    }
}

impl LayerUnpacker<'_> {
    /// Skips an entry, but removes what an earlier entry put at its path.
    fn leave_out(&mut self, path: &[u8]) -> Result<(), FetchFailure> {
        self.tree.remove(path, &|_| false)
    }

    /// Removes entries of lower layers.
    fn whiteout(&mut self, path: &[u8], name: &[u8]) -> Result<(), FetchFailure> {
        let folder = path.strip_suffix(name).unwrap_or_default();
        let gone = match name.strip_prefix(WHITEOUT).unwrap_or_default() {
            b".wh..opq" => folder.to_vec(),
            // Another mark of this kind. It has a meaning only for the program that made it.
            mark if mark.starts_with(WHITEOUT) => return self.tree.pass_over(path),
            b"" => return Err(tree::refused(path, "it removes nothing")),
            gone => [folder, gone].concat(),
        };
        let is_opaque = gone == folder;
        let gone = gone.strip_prefix(b"./").unwrap_or(&gone).to_vec();
        if self.is_cleared(&gone) {
            // Walking this layer's own entries again for each such whiteout could take unbounded time.
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

    /// True if a whiteout has already cleared this path or a folder above it.
    fn is_cleared(&self, path: &[u8]) -> bool {
        let mut folders = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        self.cleared.contains(path)
            || self.cleared.contains(&b""[..])
            || folders.any(|(end, _)| self.cleared.contains(path.get(..=end).unwrap_or_default()))
    }

    /// Remembers a path and its parent folders.
    fn keep(&mut self, path: &[u8]) {
        let path = path.strip_prefix(b"./").unwrap_or(path);
        let mut rest = path.strip_suffix(b"/").unwrap_or(path);
        while self.written.insert(rest.to_vec()) {
            let Some(end) = rest.iter().rposition(|&byte| byte == b'/') else { return };
            rest = rest.get(..end).unwrap_or_default();
        }
    }
}

/// Reason to refuse an entry of this kind.
fn refusal(kind: EntryType) -> &'static str {
    match kind {
        EntryType::GNUSparse => "it is a file with holes; write the archive without --sparse",
        _ => "its kind is not known",
    }
}

/// Refuses extensions that readers could understand in different ways: they could hide something from a check made
/// elsewhere.
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

/// Accepts global extensions that are comments, such as an archive's commit. Refuses those that change entries.
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

/// An archive that cannot be read. The parser's text may quote it: the bytes of a damaged header are left out.
fn broken(error: &io::Error) -> FetchFailure {
    let text = error.to_string();
    let text = text.split(" when getting ").next().unwrap_or_default();
    failure(Class::Fetch, format!("a layer is no valid archive: {}", short(text)))
}

#[cfg(test)]
mod tests;
