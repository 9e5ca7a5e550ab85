//! `parallel` and `parallel:matrix` (ci.md §2): the full names of a job's copies, and what tells them apart.

use indexmap::IndexMap;
use step_runner_lang::diagnostic::Class;

use super::inputs::scalar_text;
use crate::finding::{Findings, at_index, join};
use crate::node::{Kind, Node};

/// Maximum number of copies of a job, as in GitLab.
const COPIES_LIMIT: usize = 200;

/// Longest name of a copy, as of any job.
const NAME_LIMIT: usize = 255;

/// Largest keys of one mapping of a matrix together, in bytes. Each copy has them.
const KEYS_LIMIT: usize = 4 * 1024;

/// One of the copies of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Full name: `J 1/3`, `J: [a, b]`.
    pub name: String,
    /// Number from 1 and count.
    pub node: (u32, u32),
    /// Variables of its combination.
    pub variables: IndexMap<String, String>,
}

/// A list of mappings of a matrix: lists of values by name.
pub(crate) type Matrix = Vec<IndexMap<String, Vec<String>>>;

/// Returns the copies of a job.
pub(super) fn copies(job: &str, node: &Node, path: &str, findings: &mut Findings) -> Option<Vec<Copy>> {
    if node.as_map().is_none() {
        let count = findings.whole(node, path, 1, COPIES_LIMIT as u32)?;
        let copy = |index| Copy {
            name: format!("{job} {index}/{count}"),
            node: (index, count),
            variables: IndexMap::new(),
        };
        return Some((1..=count).map(copy).collect());
    }
    findings.mapping(node, path, &["matrix"])?;
    let Some(node) = node.get("matrix") else {
        findings.error_with_help(&node.place, path, "it has no \"matrix\"", "write a number, or \"matrix\"");
        return None;
    };
    let path = join(path, "matrix");
    let matrix = matrix(node, &path, findings)?;
    let count = matrix.iter().map(combinations).fold(0, usize::saturating_add);
    if count > COPIES_LIMIT || count == 0 {
        let message = format!("the matrix has {count} combinations, from 1 to {COPIES_LIMIT} are possible");
        findings.add(node.place.error_of(Class::Limit, message).with_path(path));
        return None;
    }
    if let Some(message) = matrix.iter().find_map(|mapping| too_long(job, mapping)) {
        findings.add(node.place.error_of(Class::Limit, message).with_path(path));
        return None;
    }
    let all = matrix.iter().flat_map(expand).enumerate();
    let copy = |(index, variables): (usize, IndexMap<String, String>)| {
        let values: Vec<&str> = variables.values().map(String::as_str).collect();
        Copy {
            name: format!("{job}: [{}]", values.join(", ")),
            node: (index as u32 + 1, count as u32),
            variables,
        }
    };
    Some(all.map(copy).collect())
}

/// Reads the list of a matrix.
pub(super) fn matrix(node: &Node, path: &str, findings: &mut Findings) -> Option<Matrix> {
    let Kind::List(items) = &node.kind else {
        findings.expected(node, path, "a list of mappings");
        return None;
    };
    let mut matrix = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = at_index(path, index);
        let map = findings.any_mapping(item, &path)?;
        if map.is_empty() {
            findings.error_with_help(
                &item.place,
                &path,
                "it has no variable",
                "write NAME: [VALUES], or remove it",
            );
            return None;
        }
        let mut mapping = IndexMap::new();
        for (name, entry) in map {
            mapping.insert(name.clone(), values(&entry.value, &join(&path, name), findings)?);
        }
        matrix.push(mapping);
    }
    Some(matrix)
}

fn values(node: &Node, path: &str, findings: &mut Findings) -> Option<Vec<String>> {
    let items = match &node.kind {
        Kind::List(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let values: Vec<Option<String>> = items
        .iter()
        .map(|item| {
            if matches!(item.kind, Kind::Bool(_)) {
                return findings.text(item, path);
            }
            scalar_text(item).or_else(|| findings.text(item, path))
        })
        .collect();
    values.into_iter().collect()
}

/// Returns the number of combinations without making them.
fn combinations(mapping: &IndexMap<String, Vec<String>>) -> usize {
    mapping.values().map(Vec::len).fold(1, usize::saturating_mul)
}

/// Returns what is too long in a mapping, before its combinations are made.
fn too_long(job: &str, mapping: &IndexMap<String, Vec<String>>) -> Option<String> {
    let longest = |values: &Vec<String>| values.iter().map(String::len).max().unwrap_or_default();
    let values: usize = mapping.values().map(longest).sum();
    let separators = ", ".len() * mapping.len().saturating_sub(1);
    if job.len() + ": []".len() + values + separators > NAME_LIMIT {
        return Some(format!("a name of the matrix has more than {NAME_LIMIT} bytes"));
    }
    let keys: usize = mapping.keys().map(String::len).sum();
    (keys > KEYS_LIMIT).then(|| format!("the keys of the matrix have more than {KEYS_LIMIT} bytes"))
}

/// Makes all combinations; the last key varies fastest. Their number was checked.
fn expand(mapping: &IndexMap<String, Vec<String>>) -> Vec<IndexMap<String, String>> {
    let mut all = vec![IndexMap::new()];
    for (name, values) in mapping {
        all = all
            .iter()
            .flat_map(|combination| {
                values.iter().map(|value| {
                    let mut combination = combination.clone();
                    combination.insert(name.clone(), value.clone());
                    combination
                })
            })
            .collect();
    }
    all
}

impl Copy {
    /// True if the copy is one of those that a matrix names.
    pub(crate) fn is_in(&self, matrix: &Matrix) -> bool {
        let fits = |mapping: &IndexMap<String, Vec<String>>| {
            mapping
                .iter()
                .all(|(name, values)| self.variables.get(name).is_some_and(|value| values.contains(value)))
        };
        matrix.iter().any(fits)
    }
}
