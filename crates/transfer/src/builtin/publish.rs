//! Runs `function/oci/publish`, `step/oci/promote` and `step/oci/build` (language.md §17).

use serde_json::json;

use super::archive::Archive;
use super::build;
use super::contents::{Contents, Mapping};
use super::transfer::{self, ImageOrigin, Root};
use super::version::ReleaseVersion;
use super::{BuiltinEnvironment, BuiltinError, BuiltinValues, text};
use crate::oci::{self, Access, ImageName};

/// Runs `function/oci/publish`.
pub(super) async fn publish(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    let archive = Archive::open(&environment.work_dir.join(text(inputs, "archive")?))?;
    let version = ReleaseVersion::parse(archive.version())
        .map_err(|message| BuiltinError::image(&archive.path().display(), message))?;
    let (registry, repository) = repository(text(inputs, "to_repository")?)
        .map_err(|message| BuiltinError::input("to_repository", message))?;
    let name = ImageName::new(registry, repository, &version.to_string())?;
    let mut to = transfer::open(&name, Access::Push, environment)?;
    let root = root_of(&archive)?;
    let digest = root.digest.clone();
    let tags =
        transfer::release(&mut ImageOrigin::Archive(&archive), root, &version, &mut to, environment).await?;
    Ok(values(&json!({
        "ref": reference(&name, &digest),
        "digest": digest,
        "version": version.to_string(),
        "tags": tags,
    })))
}

/// Runs `step/oci/promote`.
pub(super) async fn promote(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    let version = ReleaseVersion::parse(text(inputs, "to_version")?)
        .map_err(|message| BuiltinError::input("to_version", message))?;
    let (registry, repository, from_version) =
        image(text(inputs, "from_image")?).map_err(|message| BuiltinError::input("from_image", message))?;
    let from = ImageName::new(registry, repository, from_version)?;
    let name =
        ImageName::new(text(inputs, "to_registry")?, text(inputs, "to_repository")?, &version.to_string())?;
    let mut source = transfer::open(&from, Access::Pull, environment)?;
    let mut to = transfer::open(&name, Access::Push, environment)?;
    let oci::Manifest { content, bytes, digest } = source.manifest(from.version()).await?;
    let root = Root { bytes, media_type: content.content_type().to_owned(), digest };
    let mut origin = ImageOrigin::Registry(&mut source, &environment.scratch);
    transfer::release(&mut origin, root, &version, &mut to, environment).await?;
    Ok(BuiltinValues::new())
}

/// Runs `step/oci/build`.
pub(super) async fn step_build(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    let [registry, repository, tag] =
        [text(inputs, "registry")?, text(inputs, "repository")?, text(inputs, "tag")?];
    let contents = Contents::parse(inputs, Mapping::SourceToDestination)?;
    let name = ImageName::new(registry, repository, tag)?;
    if !matches!(name.version(), oci::ImageVersion::Tag(_)) {
        return Err(BuiltinError::input("tag", "expected a tag, not a digest"));
    }
    let mut to = transfer::open(&name, Access::Push, environment)?;
    if transfer::tagged(&to, tag).await?.is_some() {
        return Err(BuiltinError::image(&name, "the tag exists: choose another tag"));
    }
    let path = environment.scratch.join("image.tar");
    let image = build::build(&contents, tag, &path, environment)?;
    build::write(&path, &image, tag)?;
    let archive = Archive::open(&path)?;
    let root = root_of(&archive)?;
    transfer::copy(&mut ImageOrigin::Archive(&archive), &root, &mut to, environment).await?;
    transfer::tag(&to, tag, &root, environment).await?;
    let (algorithm, hash) = root.digest.split_once(':').unwrap_or_default();
    Ok(values(&json!({
        "registry": registry,
        "repository": repository,
        "tag": tag,
        "ref": reference(&name, &root.digest),
        "digest": {"algorithm": algorithm, "hash": hash, "value": root.digest},
    })))
}

fn root_of(archive: &Archive) -> Result<Root, BuiltinError> {
    let root = archive.root();
    let bytes = archive.manifest(root)?;
    Ok(Root { bytes, media_type: root.media_type.clone(), digest: root.digest.clone() })
}

fn values(outputs: &serde_json::Value) -> BuiltinValues {
    outputs.as_object().cloned().unwrap_or_default()
}

/// Returns `REGISTRY/REPOSITORY@sha256:…`.
fn reference(name: &ImageName, digest: &str) -> String {
    format!("{}/{}@{digest}", name.registry(), name.repository())
}

/// Splits `REGISTRY/REPOSITORY`.
fn repository(text: &str) -> Result<(&str, &str), String> {
    let is_registry = |first: &str| first == "localhost" || first.contains(['.', ':']);
    text.split_once('/')
        .filter(|(registry, _)| is_registry(registry))
        .ok_or_else(|| format!("{text:?} names no registry: expected REGISTRY/REPOSITORY"))
}

/// Splits `REGISTRY/REPOSITORY[:TAG]` or `REGISTRY/REPOSITORY@DIGEST`; the version may be empty.
fn image(text: &str) -> Result<(&str, &str, &str), String> {
    let (registry, rest) = repository(text)?;
    let (repository, version) = rest.split_once('@').or_else(|| rest.rsplit_once(':')).unwrap_or((rest, ""));
    Ok((registry, repository, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_by_tag_digest_or_nothing() {
        for (text, expected) in [
            ("r.example/a/b:1", ("r.example", "a/b", "1")),
            ("localhost:5000/a", ("localhost:5000", "a", "")),
            ("[::1]:5000/a@sha256:00", ("[::1]:5000", "a", "sha256:00")),
        ] {
            assert_eq!(image(text).unwrap(), expected);
        }
        for text in ["a/b:1", "echo", ""] {
            assert!(image(text).unwrap_err().contains("names no registry"), "{text}");
        }
    }
}
