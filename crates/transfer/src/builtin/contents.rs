//! Contents of an image: reads the inputs `common` and `platforms` and finds the files they name (language.md §17).

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use oci_client::manifest::Platform;
use serde_json::Value as Json;

use super::{BuiltinError, BuiltinValues};
use crate::fetch::order::{MAX_TREE_BYTES, MAX_TREE_ENTRIES};
use crate::fetch::worker::archive::is_whiteout;
use crate::fetch::worker::tree::{check_path, takes_target};

/// Direction of a mapping `files` between paths in the image and sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapping {
    /// Used by `function/oci/build`.
    DestinationToSource,
    /// Used by `step/oci/build`.
    SourceToDestination,
}

/// Operating system of an image that runs everywhere (language.md §7.7).
pub(super) const GENERIC: &str = "generic";

/// One entry of a mapping `files`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    /// Path in the image without `.`, `..` and slashes at its ends; empty for the root.
    destination: String,
    /// Relative to the job's directory, or absolute.
    source: String,
}

/// The files of one layer.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The input that names them, for messages.
    pub(super) place: String,
    pairs: Vec<Pair>,
}

/// An image for one platform: the common files and its own.
#[derive(Debug)]
pub(super) struct Variant {
    /// Platform on which it runs.
    pub(super) platform: Platform,
    /// Its own files.
    pub(super) files: Files,
}

/// The parsed inputs.
#[derive(Debug)]
pub(super) struct Contents {
    /// Files of every image.
    pub(super) common: Files,
    /// At least one image.
    pub(super) variants: Vec<Variant>,
}

/// An entry of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Folder,
    File {
        /// Path of the content.
        source: PathBuf,
        size: u64,
        /// True if it has an executable bit.
        executable: bool,
    },
    /// A symbolic link that stays inside the image.
    Link(PathBuf),
}

impl Entry {
    /// Returns the size of its content.
    const fn bytes(&self) -> u64 {
        match self {
            Self::File { size, .. } => *size,
            Self::Folder | Self::Link(_) => 0,
        }
    }
}

/// All entries of a layer by their path in the image, sorted so that equal files give equal bytes.
pub(super) type Entries = BTreeMap<PathBuf, Entry>;

impl Contents {
    /// Parses the two inputs. Without platforms there is one image for all of them.
    pub(super) fn parse(inputs: &BuiltinValues, mapping: Mapping) -> Result<Self, BuiltinError> {
        let empty = BuiltinValues::new();
        let object = |name: &'static str| match inputs.get(name) {
            None | Some(Json::Null) => Ok(&empty),
            Some(Json::Object(object)) => Ok(object),
            Some(_) => Err(BuiltinError::input(name, "expected a struct")),
        };
        let common = object("common")?;
        known_keys("common", "common", common, &["files"])?;
        let common = Files::parse("common", "common", common, mapping)?;
        let mut variants = Vec::new();
        for (name, described) in object("platforms")? {
            let Json::Object(described) = described else {
                return Err(BuiltinError::input("platforms", format!("{name:?}: expected a struct")));
            };
            variants.push(Variant::parse(name, described, mapping)?);
        }
        if variants.is_empty() {
            let platform = platform(GENERIC, GENERIC);
            variants.push(Variant { platform, files: Files::default() });
        }
        Ok(Self { common, variants })
    }
}

impl Variant {
    fn parse(name: &str, described: &BuiltinValues, mapping: Mapping) -> Result<Self, BuiltinError> {
        let refused = |message: String| BuiltinError::input("platforms", message);
        let place = format!("platforms.{name:?}");
        let (os, architecture) = name
            .split_once('/')
            .filter(|(os, architecture)| {
                !os.is_empty() && !architecture.is_empty() && !architecture.contains('/')
            })
            .ok_or_else(|| {
                refused(format!("{name:?} is no platform: expected OS/ARCH, such as linux/amd64"))
            })?;
        known_keys(
            "platforms",
            &place,
            described,
            &["files", "variant", "os.version", "os.features", "features"],
        )?;
        let word = |key: &str| match described.get(key) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(refused(format!("{place}.{key}: expected a string"))),
        };
        let words = |key: &str| match described.get(key) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Array(items)) => items
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
                .map(Some)
                .ok_or_else(|| refused(format!("{place}.{key}: expected an array of strings"))),
            Some(_) => Err(refused(format!("{place}.{key}: expected an array of strings"))),
        };
        let platform = Platform {
            variant: word("variant")?,
            os_version: word("os.version")?,
            os_features: words("os.features")?,
            features: words("features")?,
            ..platform(os, architecture)
        };
        Ok(Self { platform, files: Files::parse("platforms", &place, described, mapping)? })
    }
}

fn platform(os: &str, architecture: &str) -> Platform {
    Platform {
        architecture: architecture.into(),
        os: os.into(),
        os_version: None,
        os_features: None,
        variant: None,
        features: None,
    }
}

fn known_keys(
    input: &'static str,
    place: &str,
    object: &BuiltinValues,
    known: &[&str],
) -> Result<(), BuiltinError> {
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let known = known.join(", ");
            Err(BuiltinError::input(input, format!("{place}: unknown key {key:?}; known: {known}")))
        }
    }
}

impl Files {
    fn parse(
        input: &'static str,
        place: &str,
        described: &BuiltinValues,
        mapping: Mapping,
    ) -> Result<Self, BuiltinError> {
        let place = format!("{place}.files");
        let refused = |message: &str| BuiltinError::input(input, format!("{place}: {message}"));
        let files = match described.get("files") {
            None | Some(Json::Null) => return Ok(Self { place, pairs: Vec::new() }),
            Some(Json::Object(files)) => files,
            Some(_) => return Err(refused("expected a struct of paths")),
        };
        let mut pairs = Vec::new();
        for (key, value) in files {
            let Json::String(value) = value else {
                return Err(refused(&format!("{key:?}: expected a path as a string")));
            };
            let (destination, source) = match mapping {
                Mapping::DestinationToSource => (key, value),
                Mapping::SourceToDestination => (value, key),
            };
            let destination = in_image(destination).map_err(|message| refused(&message))?;
            check_source(source, mapping).map_err(|message| refused(&message))?;
            pairs.push(Pair { destination, source: source.clone() });
        }
        pairs.sort_by(|a, b| a.destination.cmp(&b.destination));
        Ok(Self { place, pairs })
    }

    /// Finds the files, with relative sources below `work_dir`. The content of a folder is taken without the paths `without`.
    pub(super) fn collect(&self, work_dir: &Path, without: &[PathBuf]) -> Result<Entries, BuiltinError> {
        let base = work_dir.canonicalize().map_err(BuiltinError::file("enter", work_dir))?;
        let mut collector = Collector { files: self, base, without, entries: Entries::new(), bytes: 0 };
        for pair in &self.pairs {
            collector.add_pair(pair)?;
        }
        Ok(collector.entries)
    }
}

/// Normalises a path in the image.
fn in_image(path: &str) -> Result<String, String> {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") || path.contains('\0') {
        return Err(format!("{path:?} is no path in an image: it may not have parts .. or NUL characters"));
    }
    Ok(parts.join("/"))
}

/// Checks a source. It must be in the job's directory, because other files of the machine are not the project's to
/// publish. `step/oci/build` also accepts absolute paths: its first implementation ran in a directory of its own and
/// needed them.
fn check_source(source: &str, mapping: Mapping) -> Result<(), String> {
    let path = Path::new(source);
    if mapping == Mapping::SourceToDestination && path.is_absolute() && !source.contains('\0') {
        return Ok(());
    }
    let stays = !source.contains('\0')
        && path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if stays && !source.is_empty() {
        return Ok(());
    }
    Err(format!("{source:?} is no source: expected a path below the job's directory, without parts .."))
}

struct Collector<'a> {
    files: &'a Files,
    /// The job's directory without symbolic links.
    base: PathBuf,
    without: &'a [PathBuf],
    entries: Entries,
    bytes: u64,
}

impl Collector<'_> {
    fn add_pair(&mut self, Pair { destination, source }: &Pair) -> Result<(), BuiltinError> {
        let named = self.base.join(source);
        let real = named.canonicalize().map_err(BuiltinError::file("find the source", &named))?;
        let names_the_outside = Path::new(source).is_absolute();
        if !names_the_outside && !real.starts_with(&self.base) {
            let message = "a symbolic link leads out of the job's directory: copy the file into it first";
            return Err(BuiltinError::image(&named.display(), message));
        }
        let metadata = fs::metadata(&real).map_err(BuiltinError::file("read", &real))?;
        let destination = PathBuf::from(destination);
        if destination.as_os_str().is_empty() && !metadata.is_dir() {
            return Err(self.refused(&destination, "a file needs a name: only a folder can be the root"));
        }
        for above in destination.ancestors().skip(1) {
            self.add(above, Entry::Folder)?;
        }
        self.add_found(&real, &metadata, &destination)
    }

    fn add_found(&mut self, path: &Path, found: &Metadata, destination: &Path) -> Result<(), BuiltinError> {
        if found.is_dir() {
            self.add(destination, Entry::Folder)?;
            return self.add_children(path, destination);
        }
        if found.is_symlink() {
            let target = fs::read_link(path).map_err(BuiltinError::file("read the link", path))?;
            if !takes_target(destination.as_os_str().as_bytes(), target.as_os_str().as_bytes()) {
                let message = "the symbolic link does not stay inside the image: make it relative or a file";
                return Err(BuiltinError::image(&path.display(), message));
            }
            return self.add(destination, Entry::Link(target));
        }
        if !found.is_file() {
            return Err(BuiltinError::image(&path.display(), "neither a file, a folder nor a link"));
        }
        self.bytes += found.len();
        if self.bytes > MAX_TREE_BYTES {
            return Err(self.refused(destination, &format!("more than {MAX_TREE_BYTES} bytes of files")));
        }
        let executable = found.permissions().mode() & 0o111 != 0;
        self.add(destination, Entry::File { source: path.to_owned(), size: found.len(), executable })
    }

    fn add_children(&mut self, folder: &Path, destination: &Path) -> Result<(), BuiltinError> {
        let read = || fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>();
        let children = read().map_err(BuiltinError::file("list", folder))?;
        for child in children {
            let path = child.path();
            if self.without.contains(&path) {
                continue;
            }
            let found = fs::symlink_metadata(&path).map_err(BuiltinError::file("read", &path))?;
            self.add_found(&path, &found, &destination.join(child.file_name()))?;
        }
        Ok(())
    }

    /// A folder may be added again, a file or link may not.
    fn add(&mut self, destination: &Path, entry: Entry) -> Result<(), BuiltinError> {
        if destination.as_os_str().is_empty() {
            return Ok(());
        }
        match self.entries.get(destination) {
            Some(Entry::Folder) if entry == Entry::Folder => return Ok(()),
            Some(known) if *known == Entry::Folder || entry == Entry::Folder => {
                return Err(self.refused(destination, "a folder and another source have this destination"));
            }
            Some(_) => return Err(self.refused(destination, "two sources have this destination")),
            None => {}
        }
        check_path(destination.as_os_str().as_bytes())
            .map_err(|failure| BuiltinError::unfetchable(&self.files.place, &failure))?;
        if destination.file_name().is_some_and(|name| is_whiteout(name.as_bytes())) {
            let message = "a name that begins with .wh. removes files of other layers: choose another name";
            return Err(self.refused(destination, message));
        }
        if self.entries.len() as u64 >= MAX_TREE_ENTRIES {
            return Err(self.refused(destination, &format!("more than {MAX_TREE_ENTRIES} files and folders")));
        }
        self.entries.insert(destination.to_owned(), entry);
        Ok(())
    }

    fn refused(&self, destination: &Path, message: &str) -> BuiltinError {
        let named = if destination.as_os_str().is_empty() { Path::new(".") } else { destination };
        BuiltinError::image(&format!("{}: {:?}", self.files.place, named.display().to_string()), message)
    }
}

/// Checks the layers of one image: a path in both must be a folder, and both together must fit into a tree.
pub(super) fn check_layers(common: &Entries, own: &Entries, platform: &str) -> Result<(), BuiltinError> {
    let bytes: u64 = common.values().chain(own.values()).map(Entry::bytes).sum();
    if bytes > MAX_TREE_BYTES || (common.len() + own.len()) as u64 > MAX_TREE_ENTRIES {
        let message = format!(
            "more than {MAX_TREE_BYTES} bytes of files, or than {MAX_TREE_ENTRIES} files and folders"
        );
        return Err(BuiltinError::image(&format!("the image for {platform}"), message));
    }
    let both = own.iter().find_map(|(path, entry)| {
        let under = common.get(path)?;
        (*under != Entry::Folder || *entry != Entry::Folder).then_some(path)
    });
    match both {
        None => Ok(()),
        Some(path) => {
            let message =
                format!("{:?} is in common.files too: name it in one of them", path.display().to_string());
            Err(BuiltinError::input("platforms", format!("{platform:?}: {message}")))
        }
    }
}

#[cfg(test)]
mod tests;
