//! Builds function images (language.md §17), for `function/oci/build` and `step/oci/build`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_client::manifest::{
    IMAGE_CONFIG_MEDIA_TYPE, ImageIndexEntry, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE,
    OciDescriptor, OciImageIndex, OciImageManifest, Platform,
};
use serde::Serialize;
use serde_json::json;

use super::archive::{self, Blob, NAME_ANNOTATION, VERSION_ANNOTATION};
use super::contents::{self, Contents, Entries, Files, Mapping, Variant};
use super::layer;
use super::version::ReleaseVersion;
use super::{ARCHIVE, BuiltinEnvironment, BuiltinError, BuiltinValues, text};
use crate::oci::digest_of;

/// An image for all its platforms.
#[derive(Debug)]
pub(super) struct Image {
    /// Manifests, configurations, layers and the index, by digest.
    pub(super) blobs: BTreeMap<String, Blob>,
    /// Descriptor of the index.
    pub(super) root: OciDescriptor,
}

/// Runs `function/oci/build`.
pub(super) fn build_archive(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    let version = ReleaseVersion::parse(text(inputs, "version")?)
        .map_err(|message| BuiltinError::input("version", message))?
        .to_string();
    let contents = Contents::parse(inputs, Mapping::DestinationToSource)?;
    let path = environment.work_dir.join(ARCHIVE);
    let image = build(&contents, &version, &path, environment)?;
    write(&path, &image, &version)?;
    (environment.say)(&format!("wrote {ARCHIVE}: version {version}, {}", image.root.digest));
    let outputs = json!({"archive": ARCHIVE, "version": version, "digest": image.root.digest});
    Ok(outputs.as_object().cloned().unwrap_or_default())
}

/// Writes `image` as an archive whose top-level index names the version.
pub(super) fn write(path: &Path, image: &Image, version: &str) -> Result<(), BuiltinError> {
    let annotations = [(NAME_ANNOTATION, version), (VERSION_ANNOTATION, version)];
    let entry = ImageIndexEntry {
        annotations: Some(annotations.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        ..entry(&image.root, None)
    };
    let top = OciImageIndex { annotations: None, ..index(vec![entry]) };
    archive::write(path, &image.blobs, &serialized(&top)?)
}

/// Builds an image for the archive at `path`. Its layers are in temporary files.
pub(super) fn build(
    contents: &Contents,
    version: &str,
    path: &Path,
    environment: &BuiltinEnvironment<'_>,
) -> Result<Image, BuiltinError> {
    // If the archive's folder is packed, the image would contain its predecessor.
    let own = own_files(path);
    let common = contents.common.collect(&environment.work_dir, &own)?;
    let mut image = Image { blobs: BTreeMap::new(), root: OciDescriptor::default() };
    let shared = packed(&contents.common, &common, environment, &mut image)?;
    let mut manifests = Vec::new();
    for Variant { platform, files } in &contents.variants {
        let name = format!("{}/{}", platform.os, platform.architecture);
        let entries = files.collect(&environment.work_dir, &own)?;
        contents::check_layers(&common, &entries, &name)?;
        let layers: Vec<_> =
            shared.iter().cloned().chain(packed(files, &entries, environment, &mut image)?).collect();
        if layers.is_empty() {
            let message = format!("the image for {name} would be empty: name files in common or platforms");
            return Err(BuiltinError::input("common", message));
        }
        let (files, descriptor) = (common.len() + entries.len(), image.add_manifest(platform, &layers)?);
        (environment.say)(&format!("built {name}: {files} files and folders, {}", descriptor.digest));
        manifests.push(entry(&descriptor, Some(platform.clone())));
    }
    let annotations = BTreeMap::from([(VERSION_ANNOTATION.to_owned(), version.to_owned())]);
    let index = OciImageIndex { annotations: Some(annotations), ..index(manifests) };
    image.root = image.add(OCI_IMAGE_INDEX_MEDIA_TYPE, serialized(&index)?);
    Ok(image)
}

/// Returns the complete and the partial archive of an earlier build, without symbolic links in their paths.
fn own_files(archive: &Path) -> Vec<PathBuf> {
    [archive.to_owned(), archive::partial(archive)]
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .collect()
}

/// Digest before compression, and the layer; `None` if it would be empty.
type Packed = Option<(String, OciDescriptor)>;

/// Packs the `entries` of `files` into a layer that can be fetched.
fn packed(
    files: &Files,
    entries: &Entries,
    environment: &BuiltinEnvironment<'_>,
    image: &mut Image,
) -> Result<Packed, BuiltinError> {
    if entries.is_empty() {
        return Ok(None);
    }
    let layer = layer::pack(entries, &environment.scratch)?;
    let descriptor = layer.descriptor;
    layer::check(&layer.file, 0, &descriptor)
        .map_err(|failure| BuiltinError::unfetchable(&files.place, &failure))?;
    image.blobs.insert(descriptor.digest.clone(), Blob::File(layer.file, descriptor.size as u64));
    Ok(Some((layer.diff_id, descriptor)))
}

impl Image {
    fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> OciDescriptor {
        let descriptor = OciDescriptor {
            media_type: media_type.to_owned(),
            digest: digest_of(&bytes),
            size: bytes.len() as i64,
            ..OciDescriptor::default()
        };
        self.blobs.insert(descriptor.digest.clone(), Blob::Bytes(bytes));
        descriptor
    }

    fn add_manifest(
        &mut self,
        platform: &Platform,
        layers: &[(String, OciDescriptor)],
    ) -> Result<OciDescriptor, BuiltinError> {
        let diff_ids: Vec<_> = layers.iter().map(|(diff_id, _)| diff_id).collect();
        let mut config = json!({
            "architecture": platform.architecture,
            "os": platform.os,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        if let (Some(config), Some(variant)) = (config.as_object_mut(), &platform.variant) {
            config.insert("variant".into(), variant.as_str().into());
        }
        let manifest = OciImageManifest {
            media_type: Some(OCI_IMAGE_MEDIA_TYPE.to_owned()),
            config: self.add(IMAGE_CONFIG_MEDIA_TYPE, serialized(&config)?),
            layers: layers.iter().map(|(_, descriptor)| descriptor.clone()).collect(),
            ..OciImageManifest::default()
        };
        Ok(self.add(OCI_IMAGE_MEDIA_TYPE, serialized(&manifest)?))
    }
}

fn entry(descriptor: &OciDescriptor, platform: Option<Platform>) -> ImageIndexEntry {
    ImageIndexEntry {
        media_type: descriptor.media_type.clone(),
        digest: descriptor.digest.clone(),
        size: descriptor.size,
        platform,
        annotations: None,
        artifact_type: None,
    }
}

fn index(manifests: Vec<ImageIndexEntry>) -> OciImageIndex {
    OciImageIndex {
        schema_version: 2,
        media_type: Some(OCI_IMAGE_INDEX_MEDIA_TYPE.to_owned()),
        manifests,
        artifact_type: None,
        annotations: None,
    }
}

fn serialized(document: &impl Serialize) -> Result<Vec<u8>, BuiltinError> {
    serde_json::to_vec(document).map_err(|error| BuiltinError::image(&"image", error.to_string()))
}
