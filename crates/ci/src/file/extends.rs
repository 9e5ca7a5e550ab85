//! `extends` (ci.md §2): merges jobs with the jobs that they extend.

use std::collections::HashMap;

use step_runner_lang::diagnostic::Class;
use step_runner_model::text::quote;

use crate::finding::{Findings, chain, join};
use crate::node::{Entry, Map, Node, Place};

/// Maximum number of levels, as in GitLab.
const LEVELS: usize = 11;

/// Largest weight of all jobs after merging (language.md §6): many jobs can extend a large one.
const WEIGHT_LIMIT: usize = 64 * 1024 * 1024;

/// Returns all jobs with what they extend, in their order. `jobs` are the entries of the configuration that are no
/// keywords. A job keeps `extends` if a part of it is missing, which was reported.
pub(super) fn apply(jobs: &Map, findings: &mut Findings) -> Map {
    let left = Some(WEIGHT_LIMIT);
    let mut merger = Merger { jobs, done: HashMap::new(), under_way: Vec::new(), left, findings };
    let mut merged = Map::new();
    for (name, entry) in jobs {
        let merged_job = merger.job(name).map(|(value, _)| value);
        let value = merged_job.unwrap_or_else(|| entry.value.clone());
        merged.insert(name.clone(), Entry { value, ..entry.clone() });
    }
    merged
}

struct Merger<'m> {
    jobs: &'m Map,
    /// Merged jobs with their number of levels.
    done: HashMap<&'m str, (Node, usize)>,
    under_way: Vec<&'m str>,
    /// Weight that merged jobs may still take; `None` once they took more.
    left: Option<usize>,
    findings: &'m mut Findings,
}

impl Merger<'_> {
    /// Returns a job with what it extends. `None` if that is being found out, or takes too much.
    fn job(&mut self, name: &str) -> Option<(Node, usize)> {
        let (name, entry) = self.jobs.get_key_value(name)?;
        if let Some(done) = self.done.get(name.as_str()) {
            return Some(done.clone());
        }
        let (merged, levels) = match entry.value.get("extends") {
            None => (without_extends(&entry.value), 1),
            Some(extends) => {
                self.under_way.push(name);
                let merged = self.merged(name, &entry.value, extends);
                self.under_way.pop();
                merged
            }
        };
        let left = self.left?;
        self.left = left.checked_sub(merged.weight());
        if self.left.is_none() {
            let finding =
                entry.key.error_of(Class::Limit, "the jobs take more than 64 MiB after \"extends\"");
            self.findings
                .add(finding.with_help("move what is long in the extended jobs to files, or extend less"));
            return None;
        }
        self.done.insert(name, (merged.clone(), levels));
        Some((merged, levels))
    }

    /// Merges a job with its parents, from the first on.
    fn merged(&mut self, name: &str, job: &Node, extends: &Node) -> (Node, usize) {
        let path = join(name, "extends");
        let own = without_extends(job);
        let parents = self.findings.placed_texts(extends, &path);
        let mut is_whole = parents.is_some();
        let mut levels = 1;
        let mut base: Option<Node> = None;
        for (parent, place) in parents.unwrap_or_default() {
            if let Some((parent, below)) = self.parent(&parent, &place, &path) {
                levels = levels.max(below + 1);
                base = Some(base.map_or_else(|| parent.clone(), |base| base.merged(&parent)));
            } else {
                is_whole = false;
            }
        }
        let own = if is_whole { own } else { job.clone() };
        (base.map_or_else(|| own.clone(), |base| base.merged(&own)), levels)
    }

    fn parent(&mut self, parent: &str, place: &Place, path: &str) -> Option<(Node, usize)> {
        if let Some(first) = self.under_way.iter().position(|name| *name == parent) {
            let names = self.under_way.iter().skip(first).copied().chain([parent]);
            let message = format!("\"{}\" extends itself: {}", quote(parent), chain(names));
            self.findings.error_with_help(place, path, message, "take one of these out of \"extends\"");
            return None;
        }
        if self.jobs.get(parent).is_none_or(|entry| entry.value.as_map().is_none()) {
            let message = format!("there is no job \"{}\"", quote(parent));
            let finding = place.error_of(Class::NotFound, message).with_path(path);
            let known = self.jobs.keys().map(String::as_str);
            self.findings.add_with_suggestion(finding, parent, known, None);
            return None;
        }
        let found = if self.under_way.len() < LEVELS { Some(self.job(parent)?) } else { None };
        if found.as_ref().is_none_or(|(_, levels)| *levels >= LEVELS) {
            let message = format!("more than {LEVELS} levels of \"extends\"");
            self.findings.add(place.error_of(Class::Limit, message).with_path(path));
            return None;
        }
        found
    }
}

fn without_extends(job: &Node) -> Node {
    let Some(map) = job.as_map().filter(|map| map.contains_key("extends")) else { return job.clone() };
    let mut map = map.clone();
    map.shift_remove("extends");
    Node::map(job.place.clone(), map)
}
