//! Groups below a group.

use std::fs;
use std::path::{Path, PathBuf};

/// Removes a group and those below it, as far as they are empty. Its files cannot be removed, only its directories.
pub(super) fn remove_tree(path: &Path) {
    for group in groups_in(path) {
        remove_tree(&group);
    }
    fs::remove_dir(path).ok();
}

/// Returns the groups directly in a group.
fn groups_in(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Returns all groups below a group.
pub(super) fn groups_below(path: &Path) -> Vec<PathBuf> {
    let mut found = groups_in(path);
    let mut next = 0;
    while let Some(group) = found.get(next) {
        let inside = groups_in(group);
        found.extend(inside);
        next += 1;
    }
    found
}
