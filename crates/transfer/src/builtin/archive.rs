//! Archives of images: an OCI image layout in one tar file.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use oci_client::manifest::{OciDescriptor, OciImageIndex};

use super::BuiltinError;
use super::layer::header;
use crate::oci::{MAX_MANIFEST_BYTES, digest_of};

/// Annotation with the version of an image.
pub(super) const VERSION_ANNOTATION: &str = "org.opencontainers.image.version";

/// Annotation with the tag of an image in a layout.
pub(super) const NAME_ANNOTATION: &str = "org.opencontainers.image.ref.name";

/// Most files of an archive.
const MAX_ENTRIES: usize = 100_000;

/// Content of the file `oci-layout`.
const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// Folder of the blobs.
const BLOBS: &str = "blobs/sha256/";

/// Content-addressed bytes.
#[derive(Debug)]
pub(super) enum Blob {
    /// In memory.
    Bytes(Vec<u8>),
    /// A whole file and its size.
    File(File, u64),
}

/// Writes `blobs`, by digest, and the top-level `index` into the archive `path`. Equal content gives equal bytes. An
/// existing file is replaced only when the new one is complete.
pub(super) fn write(path: &Path, blobs: &BTreeMap<String, Blob>, index: &[u8]) -> Result<(), BuiltinError> {
    let partial = partial(path);
    let written = write_partial(&partial, blobs, index)
        .and_then(|()| fs::rename(&partial, path))
        .map_err(BuiltinError::file("write", path));
    if written.is_err() {
        // If removing fails too, the error to report is still the first one.
        fs::remove_file(&partial).ok();
    }
    written
}

/// Returns the path that [`write()`] uses until the archive is complete. A process that is killed leaves this file, and
/// the next call overwrites it.
pub(super) fn partial(path: &Path) -> PathBuf {
    path.with_extension("tar.partial")
}

fn write_partial(path: &Path, blobs: &BTreeMap<String, Blob>, index: &[u8]) -> io::Result<()> {
    let mut archive = tar::Builder::new(io::BufWriter::new(File::create(path)?));
    for folder in ["blobs", "blobs/sha256"] {
        let mut header = header();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        archive.append_data(&mut header, folder, io::empty())?;
    }
    for (digest, blob) in blobs {
        let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
        let name = format!("{BLOBS}{hex}");
        match blob {
            Blob::Bytes(bytes) => append(&mut archive, &name, bytes.len() as u64, bytes.as_slice())?,
            Blob::File(file, size) => append(&mut archive, &name, *size, file)?,
        }
    }
    append(&mut archive, "index.json", index.len() as u64, index)?;
    append(&mut archive, "oci-layout", LAYOUT.len() as u64, LAYOUT)?;
    archive.into_inner()?.flush()
}

fn append(archive: &mut tar::Builder<impl Write>, name: &str, size: u64, from: impl Read) -> io::Result<()> {
    let mut header = header();
    header.set_size(size);
    header.set_mode(0o644);
    archive.append_data(&mut header, name, from)
}

/// An archive to read. Nothing in it is trusted.
#[derive(Debug)]
pub(super) struct Archive {
    path: PathBuf,
    file: File,
    /// Offset and size of each blob by its digest.
    blobs: HashMap<String, (u64, u64)>,
    /// Version of the one image. `root` describes its index or manifest.
    version: String,
    root: OciDescriptor,
}

impl Archive {
    /// Opens an archive and finds its only image.
    pub(super) fn open(path: &Path) -> Result<Self, BuiltinError> {
        let bad = |message: String| BuiltinError::image(&path.display(), message);
        let open = || File::open(path);
        let file = open().map_err(BuiltinError::file("open the archive", path))?;
        let (mut blobs, mut index) = (HashMap::new(), None);
        let mut reader = tar::Archive::new(&file);
        let unreadable = |error: io::Error| bad(format!("no OCI image layout as a tar archive: {error}"));
        for (number, entry) in reader.entries_with_seek().map_err(unreadable)?.enumerate() {
            let mut entry = entry.map_err(unreadable)?;
            if number >= MAX_ENTRIES {
                return Err(bad(format!("more than {MAX_ENTRIES} files")));
            }
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let name = name.trim_start_matches("./");
            if let Some(hex) = name.strip_prefix(BLOBS) {
                blobs.insert(format!("sha256:{hex}"), (entry.raw_file_position(), entry.size()));
            } else if name == "index.json" {
                let mut text = Vec::new();
                (&mut entry).take(MAX_MANIFEST_BYTES as u64).read_to_end(&mut text).map_err(unreadable)?;
                index = Some(text);
            }
        }
        let index = index.ok_or_else(|| bad("no OCI image layout: it has no index.json".into()))?;
        let index: OciImageIndex =
            serde_json::from_slice(&index).map_err(|error| bad(format!("index.json: {error}")))?;
        let [image] = index.manifests.as_slice() else {
            return Err(bad(format!("expected one image, found {}", index.manifests.len())));
        };
        let annotation = |name| image.annotations.as_ref().and_then(|all| all.get(name)).cloned();
        let version = annotation(VERSION_ANNOTATION)
            .or_else(|| annotation(NAME_ANNOTATION))
            .ok_or_else(|| bad(format!("index.json: the image has no annotation {VERSION_ANNOTATION}")))?;
        let root = OciDescriptor {
            media_type: image.media_type.clone(),
            digest: image.digest.clone(),
            size: image.size,
            ..OciDescriptor::default()
        };
        Ok(Self { path: path.to_owned(), file, blobs, version, root })
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Descriptor of the index or manifest.
    pub(super) const fn root(&self) -> &OciDescriptor {
        &self.root
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and checks a whole manifest or index.
    pub(super) fn manifest(&self, descriptor: &OciDescriptor) -> Result<Vec<u8>, BuiltinError> {
        let (start, size) = self.find(descriptor)?;
        if size > MAX_MANIFEST_BYTES as u64 {
            return Err(self.bad(format!("{} is larger than {MAX_MANIFEST_BYTES} bytes", descriptor.digest)));
        }
        let mut bytes = vec![0; size as usize];
        self.file.read_exact_at(&mut bytes, start).map_err(BuiltinError::file("read", &self.path))?;
        if digest_of(&bytes) != descriptor.digest {
            return Err(self.bad(format!("{} has other content than its name says", descriptor.digest)));
        }
        Ok(bytes)
    }

    /// Returns the archive's file and the offset of a blob in it.
    pub(super) fn blob(&self, descriptor: &OciDescriptor) -> Result<(File, u64), BuiltinError> {
        let (start, _) = self.find(descriptor)?;
        let file = self.file.try_clone().map_err(BuiltinError::file("read", &self.path))?;
        Ok((file, start))
    }

    fn find(&self, descriptor: &OciDescriptor) -> Result<(u64, u64), BuiltinError> {
        match self.blobs.get(&descriptor.digest) {
            Some((start, size)) if *size == descriptor.size as u64 => Ok((*start, *size)),
            Some(_) => Err(self.bad(format!("{} has another size than described", descriptor.digest))),
            None => Err(self.bad(format!("{} is missing", descriptor.digest))),
        }
    }

    fn bad(&self, message: String) -> BuiltinError {
        BuiltinError::image(&self.path.display(), message)
    }
}
