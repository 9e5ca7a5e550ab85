//! `artifacts` (ci.md §2).

use step_runner_model::text::quote;

use super::noted;
use crate::finding::{Findings, join};
use crate::node::{Node, Place};

/// Ends of a job after which something is saved.
pub(crate) const WHEN: [&str; 3] = ["on_success", "on_failure", "always"];

const KEYS: [&str; 10] = [
    "paths",
    "exclude",
    "untracked",
    "when",
    "name",
    "reports",
    "expire_in",
    "expose_as",
    "public",
    "access",
];

/// Keys without effect here.
const NOTED: [&str; 4] = ["expire_in", "expose_as", "public", "access"];

/// Reports that GitLab knows.
const REPORTS: [&str; 26] = [
    "accessibility",
    "annotations",
    "api_fuzzing",
    "browser_performance",
    "cluster_image_scanning",
    "codequality",
    "container_scanning",
    "coverage_fuzzing",
    "coverage_report",
    "cyclonedx",
    "dast",
    "dependency_scanning",
    "dotenv",
    "junit",
    "license_scanning",
    "load_performance",
    "metrics",
    "performance",
    "repository_xray",
    "requirements",
    "requirements_v2",
    "sast",
    "secret_detection",
    "terraform",
    "cobertura",
    "lsif",
];

/// Artifacts of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Artifacts {
    /// Name of the archive.
    pub name: Option<String>,
    /// Globs of what is saved.
    pub paths: Vec<String>,
    /// Globs of what is left out.
    pub exclude: Vec<String>,
    /// True if untracked files are saved, ignored ones too.
    pub untracked: bool,
    /// `on_success`, `on_failure`, `always`.
    pub when: Option<String>,
    /// Globs of files with variables for later jobs.
    pub dotenv: Vec<String>,
}

/// Reads `artifacts`.
pub(super) fn read(node: &Node, path: &str, findings: &mut Findings) -> Option<Artifacts> {
    let map = findings.mapping(node, path, &KEYS)?;
    for (name, entry) in map.iter().filter(|(name, _)| NOTED.contains(&name.as_str())) {
        findings.note(format!("artifacts:{name}"), &entry.key);
    }
    if let Some(time) = node.get("expire_in") {
        noted::expire_in(time, &join(path, "expire_in"), findings);
    }
    let globs = |name: &str, findings: &mut Findings| {
        let node = node.get(name);
        node.and_then(|node| findings.list_of_texts(node, &join(path, name))).unwrap_or_default()
    };
    let (paths, exclude) = (globs("paths", findings), globs("exclude", findings));
    let untracked = node.get("untracked").and_then(|node| findings.boolean(node, &join(path, "untracked")));
    let when = node.get("when").and_then(|node| findings.choice(node, &join(path, "when"), &WHEN));
    let name = node.get("name").and_then(|node| findings.text(node, &join(path, "name")));
    let dotenv = node
        .get("reports")
        .map(|reports| dotenv(reports, &join(path, "reports"), findings))
        .unwrap_or_default();
    Some(Artifacts { name, paths, exclude, untracked: untracked == Some(true), when, dotenv })
}

/// Reads `reports`, and returns the globs of `dotenv`.
fn dotenv(node: &Node, path: &str, findings: &mut Findings) -> Vec<String> {
    let Some(map) = findings.mapping(node, path, &REPORTS) else { return Vec::new() };
    for (name, entry) in map.iter().filter(|(name, _)| *name != "dotenv") {
        findings.note(format!("artifacts:reports:{name}"), &entry.key);
    }
    node.get("dotenv").and_then(|node| findings.texts(node, &join(path, "dotenv"))).unwrap_or_default()
}

/// Keys of an entry of `cache`.
const CACHE_KEYS: [&str; 7] = ["key", "paths", "untracked", "policy", "when", "fallback_keys", "unprotect"];

/// Maximum number of caches of a job, as in GitLab.
const CACHES_LIMIT: usize = 4;

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Its key.
    pub key: CacheKey,
    /// Globs of what is saved.
    pub paths: Vec<String>,
    /// True if untracked files are saved.
    pub untracked: bool,
    /// `pull-push`, `pull`, `push`, or a text with variables.
    pub policy: Option<String>,
    /// `on_success`, `on_failure`, `always`.
    pub when: Option<String>,
    /// Keys that are tried if there is no cache of the first one.
    pub fallback_keys: Vec<String>,
    /// Place in the file.
    pub place: Place,
}

/// The key of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheKey {
    /// A text; `default` if absent.
    Text(String),
    /// A hash of files.
    Files {
        /// Globs.
        files: Vec<String>,
        /// True if the hash is that of the files' last commits.
        commits: bool,
        /// Text before the hash.
        prefix: Option<String>,
    },
}

/// Reads `cache`: a mapping, or a list of at most four.
pub(super) fn caches(node: &Node, path: &str, findings: &mut Findings) -> Vec<Cache> {
    let items = node.flattened();
    if items.len() > CACHES_LIMIT {
        findings.error(&node.place, path, format!("more than {CACHES_LIMIT} caches"));
        return Vec::new();
    }
    items.into_iter().filter_map(|item| cache(item, path, findings)).collect()
}

fn cache(node: &Node, path: &str, findings: &mut Findings) -> Option<Cache> {
    let map = findings.mapping(node, path, &CACHE_KEYS)?;
    if let Some(entry) = map.get("unprotect") {
        findings.note("cache:unprotect", &entry.key);
    }
    let key = match node.get("key") {
        Some(node) => key(node, &join(path, "key"), findings)?,
        None => CacheKey::Text("default".to_owned()),
    };
    let list = |name: &str, findings: &mut Findings| {
        node.get(name).and_then(|node| findings.list_of_texts(node, &join(path, name))).unwrap_or_default()
    };
    let policy = node.get("policy").and_then(|node| {
        let path = join(path, "policy");
        let text = findings.text(node, &path)?;
        if text.contains('$') {
            Some(text)
        } else {
            findings.choice(node, &path, &["pull-push", "pull", "push"])
        }
    });
    let untracked = node.get("untracked").and_then(|node| findings.boolean(node, &join(path, "untracked")));
    let when = node.get("when").and_then(|node| findings.choice(node, &join(path, "when"), &WHEN));
    let (paths, fallback_keys) = (list("paths", findings), list("fallback_keys", findings));
    Some(Cache {
        key,
        paths,
        untracked: untracked == Some(true),
        policy,
        when,
        fallback_keys,
        place: node.place.clone(),
    })
}

fn key(node: &Node, path: &str, findings: &mut Findings) -> Option<CacheKey> {
    if node.as_map().is_none() {
        let text = findings.scalar(node, path)?;
        check_key(&text, node, path, findings)?;
        return Some(CacheKey::Text(text));
    }
    findings.mapping(node, path, &["files", "files_commits", "prefix"])?;
    let prefix = node.get("prefix").and_then(|node| {
        let prefix = findings.text(node, &join(path, "prefix"))?;
        check_key(&prefix, node, path, findings)?;
        Some(prefix)
    });
    let (name, commits) =
        if node.get("files").is_some() { ("files", false) } else { ("files_commits", true) };
    let Some(list) = node.get(name) else {
        findings.error_with_help(
            &node.place,
            path,
            "it has neither \"files\" nor \"files_commits\"",
            "write a text as key",
        );
        return None;
    };
    let files = findings.list_of_texts(list, &join(path, name))?;
    if files.is_empty() || files.len() > 2 {
        findings.error(&list.place, path, "one or two files make the key");
        return None;
    }
    Some(CacheKey::Files { files, commits, prefix })
}

fn check_key(text: &str, node: &Node, path: &str, findings: &mut Findings) -> Option<()> {
    if text.contains('/') || text.trim_matches('.').is_empty() {
        let message = format!("\"{}\" cannot be the key of a cache", quote(text));
        findings.error_with_help(
            &node.place,
            path,
            message,
            "use a text without \"/\" that is not only dots",
        );
        return None;
    }
    Some(())
}
