//! `needs` and `dependencies` (ci.md §2): jobs whose artifacts a job gets.

use std::collections::HashSet;

use indexmap::IndexMap;
use step_runner_model::text::quote;

use super::parallel;
use crate::finding::{Findings, at_index, join};
use crate::node::{Kind, Node, Place};

/// Maximum number of needed jobs, as in GitLab.
const NEEDS_LIMIT: usize = 50;

/// A job that another one needs.
#[derive(Clone, Debug)]
pub struct Need {
    /// Name of the job, without the part of a parallel one.
    pub job: String,
    /// True if its artifacts are wanted.
    pub artifacts: bool,
    /// True if it may be absent.
    pub optional: bool,
    /// Combinations of a matrix that are needed; all if absent.
    pub matrix: Option<Vec<IndexMap<String, Vec<String>>>>,
    /// Place in the file.
    pub place: Place,
}

/// Reads `needs`. The job cannot run here if an entry is about another pipeline.
pub(super) fn read(node: &Node, path: &str, findings: &mut Findings) -> Option<Vec<Need>> {
    if !matches!(node.kind, Kind::List(_) | Kind::Map(_)) {
        findings.expected(node, path, "a list of jobs");
        return None;
    }
    // GitLab passes over entries that are nothing.
    let items: Vec<&Node> = node.flattened().into_iter().filter(|item| !item.is_null()).collect();
    if items.len() > NEEDS_LIMIT {
        findings.error(&node.place, path, format!("more than {NEEDS_LIMIT} jobs are needed"));
        return None;
    }
    let items = items.into_iter().enumerate();
    let needs: Vec<Need> =
        items.filter_map(|(index, item)| need(item, &at_index(path, index), findings)).collect();
    check_repeated(&needs, path, findings);
    Some(needs)
}

/// Refuses a job that is named again. The combinations of a matrix may be named one by one.
fn check_repeated(needs: &[Need], path: &str, findings: &mut Findings) {
    let mut seen = HashSet::new();
    for need in needs.iter().filter(|need| need.matrix.is_none()) {
        if !seen.insert(need.job.as_str()) {
            let message = format!("\"{}\" is needed twice", quote(&need.job));
            findings.error_with_help(&need.place, path, message, "take one of the two out");
        }
    }
}

fn need(node: &Node, path: &str, findings: &mut Findings) -> Option<Need> {
    let plain =
        |job: String| Need { job, artifacts: true, optional: false, matrix: None, place: node.place.clone() };
    if node.as_map().is_none() {
        return findings.text(node, path).map(plain);
    }
    for (key, what) in [("project", "another project"), ("pipeline", "another pipeline")] {
        if let Some(other) = node.get(key) {
            let finding = other.place.error(format!("jobs of {what} need a server")).with_path(path);
            findings.refuse(finding.with_help("take the entry out, and put the files in place"));
            return None;
        }
    }
    findings.mapping(node, path, &["job", "artifacts", "optional", "parallel"])?;
    let Some(job) = node.get("job") else {
        findings.error_with_help(&node.place, path, "it names no job", "write \"job: NAME\"");
        return None;
    };
    let job = findings.text(job, &join(path, "job"))?;
    let flag = |name: &str, findings: &mut Findings| {
        node.get(name).and_then(|node| findings.boolean(node, &join(path, name)))
    };
    let artifacts = flag("artifacts", findings).unwrap_or(true);
    let optional = flag("optional", findings).unwrap_or(false);
    let matrix = node.get("parallel").and_then(|parallel| {
        let path = join(path, "parallel");
        findings.mapping(parallel, &path, &["matrix"])?;
        let matrix = parallel.get("matrix")?;
        parallel::matrix(matrix, &join(&path, "matrix"), findings)
    });
    for value in matrix.iter().flatten().flat_map(|mapping| mapping.values().flatten()) {
        if value.contains("$[[") {
            let message = format!("\"{}\" is not supported here", quote(value));
            let finding = node.place.error(message).with_path(path);
            findings.refuse(finding.with_help("write the values that are needed"));
        }
    }
    Some(Need { artifacts, optional, matrix, ..plain(job) })
}

/// Reads `dependencies`.
pub(super) fn dependencies(node: &Node, path: &str, findings: &mut Findings) -> Option<Vec<Need>> {
    findings.list_of_texts(node, path)?;
    let names = findings.placed_texts(node, path)?;
    let need = |(job, place)| Need { job, artifacts: true, optional: false, matrix: None, place };
    Some(names.into_iter().map(need).collect())
}
