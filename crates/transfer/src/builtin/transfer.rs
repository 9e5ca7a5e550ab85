//! Copies an image into a repository: first the missing blobs, then the manifests, so that a tag never names an
//! incomplete image.

use std::collections::HashSet;
use std::fs::File;
use std::io::Seek;
use std::path::Path;

use oci_client::manifest::{OciDescriptor, OciImageManifest, OciManifest};

use super::archive::Archive;
use super::layer::{self, temporary};
use super::version::ReleaseVersion as Release;
use super::{BuiltinEnvironment, BuiltinError};
use crate::oci::{
    self, Access, DOCKER_AUTH_CONFIG, ImageName, ImageVersion, MAX_INDEX_DEPTH, Problem, Registry,
};
use step_runner_web::Network;

/// Most tags of a repository that are read.
const MAX_TAGS: usize = 100_000;

/// Source of an image.
pub(super) enum ImageOrigin<'a> {
    /// An archive.
    Archive(&'a Archive),
    /// A repository. Its blobs pass through files in the folder.
    Registry(&'a mut Registry, &'a Path),
}

/// The top-level index or manifest of an image.
pub(super) struct Root {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// Its media type.
    pub(super) media_type: String,
    /// Digest of the bytes.
    pub(super) digest: String,
}

/// Opens a repository with the credentials and the network of the step's environment.
pub(super) fn open(
    name: &ImageName,
    access: Access,
    environment: &BuiltinEnvironment<'_>,
) -> Result<Registry, BuiltinError> {
    let network = Network::new(environment.variable, |_| None);
    let credentials = (environment.variable)(DOCKER_AUTH_CONFIG);
    Ok(Registry::open(&network, name, credentials.as_deref(), access)?.telling(environment.say))
}

impl ImageOrigin<'_> {
    async fn manifest(&self, descriptor: &OciDescriptor) -> Result<Vec<u8>, BuiltinError> {
        match self {
            Self::Archive(archive) => archive.manifest(descriptor),
            Self::Registry(registry, _) => {
                let version =
                    ImageVersion::digest(&descriptor.digest).ok_or_else(|| self.bad("malformed digest"))?;
                Ok(registry.manifest(&version).await?.bytes)
            }
        }
    }

    /// Returns a file that holds a blob, and its offset there.
    async fn blob(&mut self, descriptor: &OciDescriptor) -> Result<(File, u64), BuiltinError> {
        match self {
            Self::Archive(archive) => archive.blob(descriptor),
            Self::Registry(registry, scratch) => {
                let mut file = temporary(scratch)?;
                registry.blob(descriptor, &mut file, &mut |_| {}).await?;
                file.rewind().map_err(BuiltinError::file("read a temporary file in", scratch))?;
                Ok((file, 0))
            }
        }
    }

    /// Refuses a layer of an archive that could not be fetched. One of a registry is published already.
    fn check(&self, layer: &OciDescriptor) -> Result<(), BuiltinError> {
        let Self::Archive(archive) = self else { return Ok(()) };
        // The registry may have a layer that the archive lacks.
        let Ok((file, start)) = archive.blob(layer) else { return Ok(()) };
        layer::check(&file, start, layer)
            .map_err(|failure| BuiltinError::unfetchable(&archive.path().display(), &failure))
    }

    fn bad(&self, message: &str) -> BuiltinError {
        match self {
            Self::Archive(archive) => BuiltinError::image(&archive.path().display(), message),
            Self::Registry(registry, _) => BuiltinError::image(&registry.name(), message),
        }
    }
}

/// Copies everything that `root` refers to into the repository `to`, but not `root` itself.
pub(super) async fn copy(
    origin: &mut ImageOrigin<'_>,
    root: &Root,
    to: &mut Registry,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    copy_below(origin, &root.bytes, 0, to, environment).await
}

/// Copies everything that a manifest or index refers to. `depth` is the number of indexes above it.
async fn copy_below(
    origin: &mut ImageOrigin<'_>,
    bytes: &[u8],
    depth: usize,
    to: &mut Registry,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    let index = match parse(origin, bytes)? {
        OciManifest::Image(image) => return copy_blobs(origin, &image, to, environment).await,
        OciManifest::ImageIndex(index) => index,
    };
    if depth > MAX_INDEX_DEPTH {
        return Err(origin.bad("its indexes name others, too many below each other"));
    }
    for entry in index.manifests {
        let descriptor = OciDescriptor {
            media_type: entry.media_type,
            digest: entry.digest,
            size: entry.size,
            ..OciDescriptor::default()
        };
        let bytes = origin.manifest(&descriptor).await?;
        Box::pin(copy_below(origin, &bytes, depth + 1, to, environment)).await?;
        let version =
            ImageVersion::digest(&descriptor.digest).ok_or_else(|| origin.bad("malformed digest"))?;
        to.push_manifest(&version, bytes, &descriptor.media_type).await?;
    }
    Ok(())
}

fn parse(origin: &ImageOrigin<'_>, bytes: &[u8]) -> Result<OciManifest, BuiltinError> {
    serde_json::from_slice(bytes).map_err(|error| {
        origin.bad(&format!("neither an image manifest nor an index: {}", oci::short(&error.to_string())))
    })
}

async fn copy_blobs(
    origin: &mut ImageOrigin<'_>,
    image: &OciImageManifest,
    to: &mut Registry,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    image.layers.iter().try_for_each(|layer| origin.check(layer))?;
    for descriptor in image.layers.iter().chain([&image.config]) {
        let (digest, size) = (&descriptor.digest, descriptor.size);
        if to.has_blob(digest).await? {
            continue;
        }
        (environment.say)(&format!("pushing {digest}, {size} bytes"));
        let (file, start) = origin.blob(descriptor).await?;
        to.push_file(descriptor, file, start).await?;
    }
    Ok(())
}

/// Fetches the manifest of a tag; `None` if there is no such tag.
pub(super) async fn tagged(registry: &Registry, tag: &str) -> Result<Option<oci::Manifest>, BuiltinError> {
    let Some(version) = ImageVersion::tag(tag) else { return Ok(None) };
    match registry.manifest(&version).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.problem, Problem::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Publishes an image as a release: sets its own tag, which never changes, and those that the release moves. Returns
/// them.
pub(super) async fn release(
    origin: &mut ImageOrigin<'_>,
    root: Root,
    version: &Release,
    to: &mut Registry,
    environment: &BuiltinEnvironment<'_>,
) -> Result<Vec<String>, BuiltinError> {
    let exact = version.to_string();
    match tagged(to, &exact).await? {
        Some(found) if found.digest == root.digest => {
            (environment.say)(&format!("{} is there already", to.name()));
        }
        Some(found) => {
            let message = format!(
                "the version is published with other content ({}), and a published version never changes: choose a new one",
                found.digest
            );
            return Err(BuiltinError::image(&to.name(), message));
        }
        None => {
            copy(origin, &root, to, environment).await?;
            tag(to, &exact, &root, environment).await?;
        }
    }
    let moved = version.moves(&all_tags(to).await?);
    for name in &moved {
        tag(to, name, &root, environment).await?;
    }
    Ok(std::iter::once(exact).chain(moved).collect())
}

/// Sets a tag to `root`, whose parts must all be there.
pub(super) async fn tag(
    to: &Registry,
    name: &str,
    root: &Root,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    let version = ImageVersion::tag(name).ok_or_else(|| BuiltinError::image(&to.name(), "malformed tag"))?;
    to.push_manifest(&version, root.bytes.clone(), &root.media_type).await?;
    (environment.say)(&format!("tagged {}", to.name().with(version)));
    Ok(())
}

async fn all_tags(registry: &Registry) -> Result<Vec<String>, BuiltinError> {
    let (mut tags, mut seen) = (Vec::<String>::new(), HashSet::new());
    loop {
        let more = match registry.tags(tags.last().map(String::as_str)).await {
            Ok(more) => more,
            Err(error) if matches!(error.problem, Problem::NotFound) => return Ok(tags),
            Err(error) => return Err(error.into()),
        };
        // A registry without paging lists the same tags again.
        let known = tags.len();
        tags.extend(more.into_iter().filter(|tag| seen.insert(tag.clone())));
        if tags.len() == known || tags.len() > MAX_TAGS {
            return Ok(tags);
        }
    }
}
