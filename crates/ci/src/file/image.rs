//! `image` and `services` (ci.md §2).

use serde_json::{Map as JsonMap, Value as Json};

use super::script::json;
use super::variables;
use crate::finding::{Findings, at_index, join};
use crate::node::{Kind, Node, Place};
use crate::variables::Level;

const IMAGE_KEYS: [&str; 5] = ["name", "entrypoint", "docker", "kubernetes", "pull_policy"];
const SERVICE_KEYS: [&str; 8] =
    ["name", "alias", "entrypoint", "command", "docker", "kubernetes", "pull_policy", "variables"];

/// An image or a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Reference to the image.
    pub name: String,
    /// Words by which a service is found.
    pub alias: Option<String>,
    /// Entrypoint, if it is given.
    pub entrypoint: Option<Vec<String>>,
    /// Command of a service.
    pub command: Option<Vec<String>>,
    /// `docker`, `kubernetes` and `pull_policy` as they are written; of a payload `ports`, too.
    pub options: JsonMap<String, Json>,
    /// Variables of a service.
    pub variables: Level,
    /// Place in the file.
    pub place: Place,
}

/// Reads `image`.
pub(super) fn image(node: &Node, path: &str, findings: &mut Findings) -> Option<Image> {
    read(node, path, &IMAGE_KEYS, findings)
}

/// Reads `services`.
pub(super) fn services(node: &Node, path: &str, findings: &mut Findings) -> Vec<Image> {
    if !matches!(node.kind, Kind::List(_)) {
        findings.expected(node, path, "a list of services");
        return Vec::new();
    }
    let items = node.flattened().into_iter().enumerate();
    items.filter_map(|(index, item)| read(item, &at_index(path, index), &SERVICE_KEYS, findings)).collect()
}

fn read(node: &Node, path: &str, keys: &[&str], findings: &mut Findings) -> Option<Image> {
    let mut image = Image {
        name: String::new(),
        alias: None,
        entrypoint: None,
        command: None,
        options: JsonMap::new(),
        variables: Level::new(),
        place: node.place.clone(),
    };
    if node.as_map().is_none() {
        image.name = findings.text(node, path)?;
        return Some(image);
    }
    findings.mapping(node, path, keys)?;
    let Some(name) = node.get("name") else {
        findings.error_with_help(&node.place, path, "it has no name", "write \"name: IMAGE\"");
        return None;
    };
    image.name = findings.text(name, &join(path, "name"))?;
    image.alias = node.get("alias").and_then(|alias| findings.text(alias, &join(path, "alias")));
    let list = |name: &str, findings: &mut Findings| {
        node.get(name).and_then(|node| findings.texts(node, &join(path, name)))
    };
    image.entrypoint = list("entrypoint", findings);
    image.command = list("command", findings);
    for name in ["docker", "kubernetes", "pull_policy"] {
        if let Some(value) = node.get(name)
            && let Some(value) = json(value, &join(path, name), findings)
        {
            image.options.insert(name.to_owned(), value);
        }
    }
    if let Some(node) = node.get("variables") {
        image.variables = variables::read(node, &join(path, "variables"), variables::Of::Job, findings);
    }
    Some(image)
}
