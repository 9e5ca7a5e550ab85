//! The operator's template of Pods: a file in YAML or JSON with whatever a Pod may have.

use std::path::Path;

use serde_json::{Map as JsonMap, Value as Json};

use step_runner_system::files::operators::read_text;

/// Longest file.
const LONGEST: u64 = 1 << 20;

/// A template, taken apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Template {
    pub(super) metadata: JsonMap<String, Json>,
    pub(super) spec: JsonMap<String, Json>,
    /// Starting points of containers.
    containers: Vec<JsonMap<String, Json>>,
}

impl Template {
    /// Reads the file. The error says what is wrong with it.
    pub(super) fn read(path: &str) -> Result<Self, String> {
        let cannot = |why: String| format!("cannot use the Pod template {path}: {why}");
        let text = read_text(Path::new(path), LONGEST).map_err(|error| cannot(error.to_string()))?;
        let json = step_runner_ci::file::plain(path, &text).map_err(|found| {
            cannot(found.first().map_or_else(|| "it is no YAML".to_owned(), ToString::to_string))
        })?;
        Self::of(json).map_err(|why| cannot(why.to_owned()))
    }

    /// Takes a template apart.
    pub(super) fn of(json: Json) -> Result<Self, &'static str> {
        let Json::Object(mut pod) = json else { return Err("it is no mapping with `metadata` and `spec`") };
        if pod.get("kind").is_some_and(|kind| kind != "Pod") {
            return Err("its `kind` is not Pod");
        }
        let mut part = |key: &str| match pod.remove(key) {
            None | Some(Json::Null) => Some(JsonMap::new()),
            Some(Json::Object(part)) => Some(part),
            Some(_) => None,
        };
        let metadata = part("metadata").ok_or("its `metadata` is no mapping")?;
        let mut spec = part("spec").ok_or("its `spec` is no mapping")?;
        let mut containers = Vec::new();
        for key in ["containers", "initContainers"] {
            let wrong = "its containers are no list of mappings with names `build`, `service` and `program`";
            let mut others = Vec::new();
            for container in list(spec.remove(key), wrong)? {
                let Json::Object(container) = container else { return Err(wrong) };
                match container.get("name").and_then(Json::as_str) {
                    Some("build" | "service" | "program") => containers.push(container),
                    _ if key == "initContainers" => others.push(Json::Object(container)),
                    _ => return Err(wrong),
                }
            }
            if !others.is_empty() {
                spec.insert(key.to_owned(), others.into());
            }
        }
        for key in ["volumes", "hostAliases", "imagePullSecrets"] {
            let items = list(spec.remove(key), "one of its lists is none")?;
            spec.insert(key.to_owned(), items.into());
        }
        Ok(Self { metadata, spec, containers })
    }

    /// Returns the starting point of a container: `build`, `service` or `program`.
    pub(super) fn container(&self, name: &str) -> JsonMap<String, Json> {
        let is_it =
            |container: &&JsonMap<String, Json>| container.get("name").and_then(Json::as_str) == Some(name);
        self.containers.iter().find(is_it).cloned().unwrap_or_default()
    }
}

fn list(value: Option<Json>, wrong: &'static str) -> Result<Vec<Json>, &'static str> {
    match value {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::Array(items)) => Ok(items),
        Some(_) => Err(wrong),
    }
}
