//! Fetches functions from OCI registries (language.md §7.4, §7.7): resolves an image and unpacks its layers into a
//! tree.
//!
//! A layer is received whole and checked against its digest before a byte of it is unpacked.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Seek};
use std::path::{Path, PathBuf};

use oci_client::manifest::{OciDescriptor, OciManifest};
use tokio::runtime::{Builder, Runtime};

use super::Remote;
use super::archive::{self, Packing};
use super::tree::{self, TreeWriter, failure};
use crate::fetch::order::{MAX_TREE_BYTES, Order, Progress, Source, Stats};
use crate::oci::{Access, DOCKER_AUTH_CONFIG, ImageName, OciError, Platform, Problem, Registry};
use step_runner_core::job::event::FetchFailure;
use step_runner_lang::diagnostic::Class;
use step_runner_model::error::Chain;
use step_runner_web::Network;
use step_runner_web::retry::Notice;

/// Most bytes of all layers together: an uncompressed tree of the largest size, with the archive's headers.
const MAX_LAYER_BYTES: u64 = MAX_TREE_BYTES + MAX_TREE_BYTES / 4;

/// Most layers. Image builders make at most 127.
const MAX_LAYERS: usize = 500;

/// An image in a registry. Holds credentials, so there is no `Debug`.
pub struct Image {
    runtime: Runtime,
    network: Network,
    name: ImageName,
    docker_config: Option<String>,
    scratch: PathBuf,
    notice: Notice,
    found: Option<(Registry, Vec<ImageLayer>)>,
}

struct ImageLayer {
    packing: Packing,
    blob: OciDescriptor,
}

impl Image {
    /// Takes an order for an image. Asks no server yet. Has `notice` called for each read that is tried again.
    ///
    /// # Errors
    /// Class `fetch`: it is no name of an image, or the network cannot be set up.
    pub fn new(order: &Order, notice: Notice) -> Result<Self, FetchFailure> {
        let Source::Oci { registry, repository, version } = &order.source else {
            return Err(failure(Class::Fetch, "the order names no image in a registry".to_owned()));
        };
        let name = ImageName::new(registry, repository, version).map_err(|error| of_oci(&error))?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failure(Class::Fetch, format!("cannot set up the network: {error}")))?;
        Ok(Self {
            runtime,
            network: order.network.clone(),
            name,
            docker_config: order.credentials.get(DOCKER_AUTH_CONFIG).cloned(),
            scratch: order.scratch.clone(),
            notice,
            found: None,
        })
    }

    /// Receives a complete blob into an unlinked file.
    fn receive(
        &mut self,
        registry: &mut Registry,
        blob: &OciDescriptor,
        received: &mut dyn FnMut(u64),
    ) -> Result<File, FetchFailure> {
        let cannot = |error: io::Error| failure(Class::Fetch, format!("cannot keep a layer: {error}"));
        let path = self.scratch.join("layer");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).map_err(cannot)?;
        std::fs::remove_file(&path).map_err(cannot)?;
        let done = self.runtime.block_on(registry.blob(blob, &mut file, received));
        done.map_err(|error| of_oci(&error))?;
        file.rewind().map_err(cannot)?;
        Ok(file)
    }
}

impl Remote for Image {
    fn resolve(&mut self, _report: &mut dyn FnMut(Progress)) -> Result<String, FetchFailure> {
        let (network, name, config) = (&self.network, &self.name, self.docker_config.as_deref());
        let notice = self.notice;
        let found = self.runtime.block_on(async {
            let registry = Registry::open(network, name, config, Access::Pull)?.telling(notice);
            let image = registry.image(&Platform::here()).await?;
            Ok((registry, image))
        });
        let (registry, image) = found.map_err(|error: OciError| of_oci(&error))?;
        let OciManifest::Image(manifest) = image.content else {
            return Err(unusable(Class::Fetch, name, "it is an index of images"));
        };
        let layers = layers(name, manifest.layers)?;
        self.found = Some((registry, layers));
        Ok(image.digest)
    }

    fn transfer(&mut self, into: &Path, report: &mut dyn FnMut(Progress)) -> Result<Stats, FetchFailure> {
        let Some((mut registry, layers)) = self.found.take() else {
            return Err(failure(Class::Fetch, format!("cannot fetch {}: it was not resolved", self.name)));
        };
        let mut tree = TreeWriter::new(into)?;
        let total = layers.iter().map(ImageLayer::size).sum();
        let mut progress = Progress { bytes: 0, total: Some(total) };
        for layer in &layers {
            let mut received = |bytes| {
                progress.bytes += bytes;
                report(progress);
            };
            let file = self.receive(&mut registry, &layer.blob, &mut received)?;
            archive::unpack(layer.packing, file, &mut tree).map_err(|wrong| {
                if tree::is_of_disk(&wrong) {
                    return failure(wrong.class, format!("cannot fetch {}: {}", self.name, wrong.message));
                }
                unusable(wrong.class, &self.name, wrong.message)
            })?;
        }
        tree.finish()
    }
}

impl ImageLayer {
    fn size(&self) -> u64 {
        u64::try_from(self.blob.size).unwrap_or(0)
    }
}

/// Checks that the layers of a manifest can be unpacked and are within the limits.
fn layers(name: &ImageName, blobs: Vec<OciDescriptor>) -> Result<Vec<ImageLayer>, FetchFailure> {
    let wrong = |class, text| Err(unusable(class, name, text));
    if blobs.len() > MAX_LAYERS {
        return wrong(Class::Limit, format!("it has {} layers, more than {MAX_LAYERS}", blobs.len()));
    }
    let mut layers = Vec::with_capacity(blobs.len());
    for blob in blobs {
        let Some(packing) = Packing::of_media_type(&blob.media_type) else {
            let kind: String = blob.media_type.chars().take(100).collect();
            let text = format!(
                "its layer of type \"{}\" is no tar archive that can be unpacked",
                kind.escape_debug()
            );
            return wrong(Class::Fetch, text);
        };
        layers.push(ImageLayer { packing, blob });
    }
    let total = layers.iter().map(ImageLayer::size).fold(0, u64::saturating_add);
    if total > MAX_LAYER_BYTES {
        return wrong(Class::Limit, format!("its layers are larger than {} MiB", MAX_LAYER_BYTES >> 20));
    }
    Ok(layers)
}

fn of_oci(error: &OciError) -> FetchFailure {
    let class = if matches!(error.problem, Problem::TooLarge(_)) { Class::Limit } else { Class::Fetch };
    if error.problem.is_of_image() {
        return unusable(class, &error.image, Chain(&error.problem));
    }
    failure(class, format!("cannot fetch {error}"))
}

/// Reports that the published image is at fault. The summary of a failed job knows these words.
fn unusable(class: Class, image: impl Display, why: impl Display) -> FetchFailure {
    failure(class, format!("the image {image} cannot be used: {why}"))
}
