//! Layers: files packed as a compressed archive whose bytes depend only on the files.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use oci_client::manifest::OciDescriptor;
use sha2::{Digest, Sha256};

use super::BuiltinError;
use super::contents::{Entries, Entry};
use crate::fetch::worker::archive::{self, Packing};
use crate::oci::digest_of_hash;
use step_runner_core::job::event::FetchFailure;

/// Media type of the layers of functions (language.md §7.7).
pub(super) const LAYER_MEDIA_TYPE: &str = "application/vnd.gitlab.step.layer.v1.tar+zstd";

/// Compression level of zstd, its default balance of time and size.
const LEVEL: i32 = 3;

/// A layer in an unlinked temporary file.
#[derive(Debug)]
pub(super) struct PackedLayer {
    /// Its media type, digest and size.
    pub(super) descriptor: OciDescriptor,
    /// Digest of the archive before compression.
    pub(super) diff_id: String,
    /// The compressed bytes, from the start.
    pub(super) file: File,
}

/// A writer that hashes and counts the bytes that it passes on.
pub(super) struct Hashing<W> {
    inner: W,
    hash: Sha256,
    written: u64,
}

impl<W> Hashing<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), written: 0 }
    }

    /// Returns the inner writer, `sha256:HEX` of the bytes, and their number.
    pub(super) fn finish(self) -> (W, String, u64) {
        (self.inner, digest_of_hash(&self.hash.finalize()), self.written)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write_all(bytes)?;
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Checks a layer, the blob at byte `start` of `file`, by the rules of those who fetch it. A layer of another kind is of an
/// image for other programs, so it passes. Leaves the file's offset as it is.
///
/// # Errors
/// The layer could not be fetched.
pub(super) fn check(file: &File, start: u64, layer: &OciDescriptor) -> Result<(), FetchFailure> {
    let Some(packing) = Packing::of_media_type(&layer.media_type) else { return Ok(()) };
    archive::check(packing, BlobReader { file, at: start, left: u64::try_from(layer.size).unwrap_or(0) })
}

/// Reads a part of a file.
struct BlobReader<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for BlobReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wanted = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read_at(into.get_mut(..wanted).unwrap_or_default(), self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Packs the files. `scratch` is a folder for temporary files.
pub(super) fn pack(entries: &Entries, scratch: &Path) -> Result<PackedLayer, BuiltinError> {
    let file = temporary(scratch)?;
    let io = |source| BuiltinError::file("write a layer in", scratch)(source);
    let encoder = zstd::stream::write::Encoder::new(Hashing::new(file), LEVEL).map_err(io)?;
    let mut archive = tar::Builder::new(Hashing::new(encoder));
    for (path, entry) in entries {
        add(&mut archive, path, entry)?;
    }
    let (encoder, diff_id, _) = archive.into_inner().map_err(io)?.finish();
    let (mut file, digest, size) = encoder.finish().map_err(io)?.finish();
    file.rewind().map_err(io)?;
    let media_type = LAYER_MEDIA_TYPE.to_owned();
    let descriptor = OciDescriptor { media_type, digest, size: size as i64, ..OciDescriptor::default() };
    Ok(PackedLayer { descriptor, diff_id, file })
}

fn add(archive: &mut tar::Builder<impl Write>, path: &Path, entry: &Entry) -> Result<(), BuiltinError> {
    let mut header = header();
    let packed = match entry {
        Entry::Folder => {
            header.set_entry_type(tar::EntryType::Directory);
            header.set_mode(0o755);
            archive.append_data(&mut header, path, io::empty())
        }
        Entry::Link(target) => {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_mode(0o777);
            archive.append_link(&mut header, path, target)
        }
        Entry::File { source, size, executable } => {
            header.set_size(*size);
            header.set_mode(if *executable { 0o755 } else { 0o644 });
            let file = File::open(source).map_err(BuiltinError::file("open", source))?;
            let mut content = Exactly { file: file.take(*size), left: *size };
            archive
                .append_data(&mut header, path, &mut content)
                .map_err(BuiltinError::file("read", source))?;
            return Ok(());
        }
    };
    packed.map_err(BuiltinError::file("pack", path))
}

/// Creates a header that does not depend on when and where it is made.
pub(super) fn header() -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}

/// A reader that fails if the file is shorter than announced: another length would damage the archive.
struct Exactly {
    file: io::Take<File>,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(into)?;
        self.left -= read as u64;
        if read == 0 && self.left > 0 && !into.is_empty() {
            return Err(io::Error::other("it became shorter while it was read"));
        }
        Ok(read)
    }
}

/// Creates an unlinked file. It vanishes when the process ends, however it ends.
pub(super) fn temporary(scratch: &Path) -> Result<File, BuiltinError> {
    let path = scratch.join("temporary");
    let make = || {
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    };
    make().map_err(BuiltinError::file("make the temporary file", &path))
}
