//! `extends` (ci.md §2): merges jobs with the jobs that they extend.

use std::collections::HashMap;

use step_runner_lang::diagnostic::Class;
use step_runner_model::text::quote;

use crate::finding::{Findings, join};
use crate::node::{Map, Node};

/// Maximum number of levels, as in GitLab.
const LEVELS: usize = 11;

/// Largest weight of all jobs after merging (language.md §6): many jobs can extend a large one.
const WEIGHT_LIMIT: usize = 64 * 1024 * 1024;

/// Returns all jobs with what they extend, in their order. `jobs` are the entries of the configuration that are no
/// keywords.
pub(super) fn apply(jobs: &Map, findings: &mut Findings) -> Map {
    let mut merger =
        Merger { jobs, done: HashMap::new(), under_way: Vec::new(), left: WEIGHT_LIMIT, findings };
    let mut merged = Map::new();
    for (name, entry) in jobs {
        let merged_job = merger.job(name).map(|(value, _)| value);
        let value = merged_job.unwrap_or_else(|| without_extends(&entry.value));
        let mut entry = entry.clone();
        entry.value = value;
        merged.insert(name.clone(), entry);
    }
    merged
}

struct Merger<'m> {
    jobs: &'m Map,
    /// Merged jobs with their number of levels.
    done: HashMap<&'m str, (Node, usize)>,
    under_way: Vec<&'m str>,
    left: usize,
    findings: &'m mut Findings,
}

impl Merger<'_> {
    /// Returns a job with what it extends. `None` if that cannot be found out, or is being found out.
    fn job(&mut self, name: &str) -> Option<(Node, usize)> {
        let (name, entry) = self.jobs.get_key_value(name)?;
        if let Some(done) = self.done.get(name.as_str()) {
            return Some(done.clone());
        }
        let own = without_extends(&entry.value);
        let mut levels = 1;
        let merged = match entry.value.get("extends") {
            None => own,
            Some(extends) => {
                let parents = self.findings.texts(extends, &join(name, "extends")).unwrap_or_default();
                self.under_way.push(name);
                let mut base: Option<Node> = None;
                for parent in parents {
                    if let Some((parent, below)) = self.parent(&parent, extends, name) {
                        levels = levels.max(below + 1);
                        base = Some(base.map_or_else(|| parent.clone(), |base| base.merged(&parent)));
                    }
                }
                self.under_way.pop();
                base.map_or_else(|| own.clone(), |base| base.merged(&own))
            }
        };
        let Some(left) = self.left.checked_sub(merged.weight()) else {
            self.left = 0;
            let message = "the jobs take more than 64 MiB after \"extends\"";
            self.findings.add(entry.key.error_of(Class::Limit, message));
            return None;
        };
        self.left = left;
        self.done.insert(name, (merged.clone(), levels));
        Some((merged, levels))
    }

    fn parent(&mut self, parent: &str, extends: &Node, name: &str) -> Option<(Node, usize)> {
        let path = join(name, "extends");
        if self.under_way.contains(&parent) {
            let message = format!("\"{}\" extends itself", quote(parent));
            self.findings.error(&extends.place, &path, message);
            return None;
        }
        if self.jobs.get(parent).is_none_or(|entry| entry.value.as_map().is_none()) {
            let message = format!("there is no job \"{}\"", quote(parent));
            let finding = extends.place.error_of(Class::NotFound, message).with_path(path);
            let known = self.jobs.keys().map(String::as_str);
            self.findings.add_with_suggestion(finding, parent, known, None);
            return None;
        }
        let found = if self.under_way.len() < LEVELS { Some(self.job(parent)?) } else { None };
        if found.as_ref().is_none_or(|(_, levels)| *levels >= LEVELS) {
            let message = format!("more than {LEVELS} levels of \"extends\"");
            self.findings.add(extends.place.error_of(Class::Limit, message).with_path(path));
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
