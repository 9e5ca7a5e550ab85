//! `include`: loads a file with all that it includes, and merges them (ci.md §2, row `include`).

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_lang::diagnostic::{Class, Position};
use step_runner_model::text::quote;

use super::inputs::{self, Given};
use super::interpolation::{self, Scope};
use super::rule;
use crate::files::{Files, ReadError, below_root};
use crate::finding::{Findings, at_index};
use crate::node::{Entry, Kind, Map, Node, Place};
use crate::pattern::Glob;
use crate::variables::Resolved;
use crate::yaml;

/// Maximum number of included files, as in GitLab. Repeated ones count.
const INCLUDES_LIMIT: usize = 150;

/// Maximum number of files inside each other. Reading them takes a stack.
const NESTING_LIMIT: usize = 50;

/// Maximum number of bytes of all files of a configuration.
const ALL_FILES_LIMIT: usize = 16 * 1024 * 1024;

/// Kinds of `include` that need a server, and what else can be done.
const REMOTE: [&str; 7] = ["project", "remote", "template", "component", "artifact", "file", "ref"];

/// Keys of an entry of `include`.
const KEYS: [&str; 12] = [
    "artifact",
    "component",
    "file",
    "inputs",
    "integrity",
    "job",
    "local",
    "project",
    "ref",
    "remote",
    "rules",
    "template",
];

/// The remedy for what only a server can include.
const FULL_CONFIGURATION: &str =
    "copy the full configuration from the pipeline editor of the project, and use that file";

/// Reads included files, and gives rules of `include` the facts that they look at.
pub(super) struct Loader<'l> {
    pub(super) files: &'l dyn Files,
    /// Variables before those of the configuration.
    pub(super) variables: &'l Resolved,
    pub(super) changed: Option<&'l [String]>,
    pub(super) findings: &'l mut Findings,
    list: Option<Vec<String>>,
    included: usize,
    bytes: usize,
    /// Files that are being read, outermost first.
    open: Vec<String>,
}

/// A file to include.
struct Wanted<'n> {
    path: String,
    place: Place,
    inputs: Option<&'n Node>,
}

impl<'l> Loader<'l> {
    pub(super) const fn new(
        files: &'l dyn Files,
        variables: &'l Resolved,
        changed: Option<&'l [String]>,
        findings: &'l mut Findings,
    ) -> Self {
        Self { files, variables, changed, findings, list: None, included: 0, bytes: 0, open: Vec::new() }
    }

    /// Loads the main file.
    pub(super) fn main(&mut self, path: &str, texts: &IndexMap<String, String>) -> Node {
        let start = Place { file: Arc::from(path), at: Position::START };
        self.load(path, &Given::Texts(texts), &start).unwrap_or_else(|| Node::map(start, Map::new()))
    }

    /// Loads a file with what it includes. `from` is the place that names it.
    fn load(&mut self, path: &str, given: &Given<'_>, from: &Place) -> Option<Node> {
        let text = match self.files.read(path) {
            Ok(text) => text,
            Err(error) => {
                self.unreadable(path, &error, from);
                return None;
            }
        };
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > ALL_FILES_LIMIT {
            self.findings
                .add(from.error_of(Class::Limit, "the files of the configuration have more than 16 MiB"));
            return None;
        }
        let file: Arc<str> = Arc::from(path);
        let documents = yaml::read(&file, &text, self.findings)?;
        let content = if let Some(header) = &documents.header {
            let inputs = inputs::read(header, given, from, self.findings);
            let scope = Scope { inputs: &inputs, variables: self.variables };
            interpolation::fill_in(&documents.content, &scope, self.findings)
        } else {
            inputs::undeclared(&Map::new(), given, from, self.findings);
            documents.content
        };
        if content.as_map().is_none() {
            self.findings.error(&content.place, "", "a CI file is a mapping of jobs and keywords");
            return None;
        }
        self.open.push(path.to_owned());
        let merged = self.with_includes(content);
        self.open.pop();
        Some(merged)
    }

    fn with_includes(&mut self, content: Node) -> Node {
        let mut own = content.as_map().cloned().unwrap_or_default();
        let Some(Entry { value: include, .. }) = own.shift_remove("include") else { return content };
        let own = Node::map(content.place.clone(), own);
        let mut merged: Option<Node> = None;
        for wanted in self.wanted(&include) {
            self.included += 1;
            if self.included > INCLUDES_LIMIT {
                let message = format!("more than {INCLUDES_LIMIT} files are included");
                self.findings.add(wanted.place.error_of(Class::Limit, message));
                break;
            }
            if self.open.contains(&wanted.path) {
                let message = format!("\"{}\" includes itself", quote(&wanted.path));
                self.findings.error(&wanted.place, "include", message);
                continue;
            }
            if self.open.len() >= NESTING_LIMIT {
                let message = format!("more than {NESTING_LIMIT} files include each other");
                self.findings.add(wanted.place.error_of(Class::Limit, message));
                continue;
            }
            let loaded = self.load(&wanted.path, &Given::Mapping(wanted.inputs), &wanted.place);
            if let Some(loaded) = loaded {
                merged = Some(merged.map_or_else(|| loaded.clone(), |merged| merged.merged(&loaded)));
            }
        }
        merged.map_or_else(|| own.clone(), |merged| merged.merged(&own))
    }

    /// Returns the files that an `include` names, in order.
    fn wanted<'n>(&mut self, include: &'n Node) -> Vec<Wanted<'n>> {
        match &include.kind {
            Kind::List(items) => (items.iter().enumerate())
                .flat_map(|(index, item)| self.entry(item, &at_index("include", index)))
                .collect(),
            Kind::Null => Vec::new(),
            _ => self.entry(include, "include"),
        }
    }

    fn entry<'n>(&mut self, node: &'n Node, path: &str) -> Vec<Wanted<'n>> {
        if let Kind::Text(text) = &node.kind {
            let text = self.variables.fill_in(text);
            if text.starts_with("http://") || text.starts_with("https://") {
                self.remote(&node.place, "remote", path);
                return Vec::new();
            }
            return self.local(&text, node, None, path);
        }
        let Some(map) = self.findings.mapping(node, path, &KEYS) else { return Vec::new() };
        if let Some((key, entry)) = map.iter().find(|(key, _)| REMOTE.contains(&key.as_str())) {
            self.remote(&entry.key, key, path);
            return Vec::new();
        }
        let Some(local) = node.get("local") else {
            self.findings.error_with_help(&node.place, path, "it names no file", "write \"local: PATH\"");
            return Vec::new();
        };
        if let Some(rules) = node.get("rules")
            && !self.applies(rules, path)
        {
            return Vec::new();
        }
        let Some(text) = self.findings.text(local, path) else { return Vec::new() };
        let text = self.variables.fill_in(&text);
        self.local(&text, local, node.get("inputs"), path)
    }

    fn remote(&mut self, place: &Place, key: &str, path: &str) {
        let message = format!("\"include:{}\" needs a server", quote(key));
        self.findings.error_with_help(place, path, message, FULL_CONFIGURATION);
    }

    fn local<'n>(
        &mut self,
        text: &str,
        node: &Node,
        inputs: Option<&'n Node>,
        path: &str,
    ) -> Vec<Wanted<'n>> {
        let place = &node.place;
        let Some(plain) = below_root(text) else {
            let message = format!("\"{}\" is no file of the repository", quote(text));
            self.findings.error_with_help(place, path, message, "write a path from the repository's root");
            return Vec::new();
        };
        if !Path::new(&plain).extension().is_some_and(|end| end == "yml" || end == "yaml") {
            let message = format!("\"{}\" ends in neither .yml nor .yaml", quote(text));
            self.findings.error(place, path, message);
            return Vec::new();
        }
        let wanted = |path: String| Wanted { path, place: place.clone(), inputs };
        if !plain.contains('*') {
            return vec![wanted(plain)];
        }
        match Glob::of_include(&plain) {
            Err(message) => {
                self.findings.error(place, path, message);
                Vec::new()
            }
            Ok(glob) => {
                let mut matching: Vec<String> =
                    self.list().iter().filter(|file| glob.fits(file)).cloned().collect();
                matching.sort_unstable();
                matching.into_iter().map(wanted).collect()
            }
        }
    }

    /// Returns all files of the work tree. A failure is reported once.
    fn list(&mut self) -> &[String] {
        if self.list.is_none() {
            let listed = self.files.list().unwrap_or_else(|error| {
                let place = Place { file: Arc::from("include"), at: Position::START };
                let message = format!("the files of the repository cannot be listed: {error}");
                self.findings.add(place.error_of(Class::Io, message));
                Vec::new()
            });
            self.list = Some(listed);
        }
        self.list.as_deref().unwrap_or_default()
    }

    /// True if the rules of an entry say that it is included.
    fn applies(&mut self, rules: &Node, path: &str) -> bool {
        let rules = rule::read(rules, path, rule::Of::Include, self.findings);
        let needs_list = rules.iter().any(rule::Rule::looks_at_files);
        let files = if needs_list { self.list().to_vec() } else { Vec::new() };
        let look = rule::Look { variables: self.variables, files: &files, changed: self.changed };
        match rule::first_match(&rules, &look) {
            Ok(found) => found.is_some_and(|rule| rule.when.as_deref() != Some("never")),
            Err(finding) => {
                self.findings.add(finding);
                false
            }
        }
    }

    fn unreadable(&mut self, path: &str, error: &ReadError, from: &Place) {
        let class = match error {
            ReadError::NotFound => Class::NotFound,
            ReadError::Outside | ReadError::Failed(_) => Class::Io,
        };
        let finding =
            from.error_of(class, format!("cannot read \"{}\": {}", quote(path), quote(&error.to_string())));
        let known = if *error == ReadError::NotFound { self.list().to_vec() } else { Vec::new() };
        self.findings.add_with_suggestion(finding, path, known.iter().map(String::as_str), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository in which each file is the same.
    struct Same(&'static str);

    impl Files for Same {
        fn read(&self, _: &str) -> Result<String, ReadError> {
            Ok(self.0.to_owned())
        }

        fn list(&self) -> Result<Vec<String>, ReadError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn all_files_together_have_at_most_sixteen_mebibytes() {
        let files = Same("a: {script: x}");
        let (variables, texts) = (Resolved::default(), IndexMap::new());
        let read_after = |bytes: usize| {
            let mut findings = Findings::default();
            let mut loader = Loader::new(&files, &variables, None, &mut findings);
            loader.bytes = bytes;
            loader.main("ci.yml", &texts);
            findings.into_list().iter().map(ToString::to_string).collect::<String>()
        };
        let room = 16_777_216 - files.0.len();
        assert_eq!(read_after(room), "");
        assert!(read_after(room + 1).ends_with("the files of the configuration have more than 16 MiB"));
    }
}
