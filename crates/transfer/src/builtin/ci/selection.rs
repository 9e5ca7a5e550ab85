//! Which files of a project belong to an artifact or a cache (ci.md §2).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::super::BuiltinError;
use step_runner_ci::Glob;
use step_runner_process::git;

/// Folders that never belong to one: git's own, and the one that holds the artifacts.
const LEFT_OUT: [&str; 2] = [".git", super::store::FOLDER];

/// Files that an entry of `cache` or `artifacts` asks for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Globs of files and folders.
    pub(super) paths: Vec<String>,
    /// Globs of what is left out.
    pub(super) exclude: Vec<String>,
    /// True if files that git does not track belong to it, ignored ones too.
    pub(super) untracked: bool,
}

/// Files that were found.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// Paths of files, links and empty folders below the project, in order.
    pub(super) paths: BTreeSet<String>,
    /// Globs without a file.
    pub(super) without: Vec<String>,
}

/// Finds the files below `project`. Links are not followed.
pub(super) fn select(project: &Path, wanted: &Wanted) -> Result<Selection, BuiltinError> {
    let mut selection = Selection::default();
    for path in &wanted.paths {
        let found = matching(project, path)?;
        if found.is_empty() {
            selection.without.push(path.clone());
        }
        selection.paths.extend(found);
    }
    if wanted.untracked {
        let untracked = git::paths(project, &["ls-files", "--others", "-z"]);
        let untracked = untracked.ok_or_else(|| {
            BuiltinError::input(
                "untracked",
                "git does not tell which files are untracked: there is no work tree, or no git",
            )
        })?;
        selection.paths.extend(untracked.into_iter().filter(|path| !is_left_out(path)));
    }
    let exclude: Vec<Glob> = wanted.exclude.iter().map(|text| glob(text)).collect::<Result<_, _>>()?;
    selection.paths.retain(|path| !exclude.iter().any(|glob| glob.fits(path)));
    Ok(selection)
}

fn glob(text: &str) -> Result<Glob, BuiltinError> {
    Glob::of_archive(text).map_err(|message| BuiltinError::input("paths", message))
}

/// Returns what a glob names, with all that is below it.
fn matching(project: &Path, text: &str) -> Result<Vec<String>, BuiltinError> {
    let plain = below(project, text)?;
    let mut found = Vec::new();
    if plain.is_empty() {
        add_tree(project, "", &mut found)?;
        return Ok(found);
    }
    let Some(at) = plain.find(['*', '?', '[', '{', '\\']) else {
        if project.join(&plain).symlink_metadata().is_ok() {
            add_tree(project, &plain, &mut found)?;
        }
        return Ok(found);
    };
    let start = plain.get(..at).and_then(|before| before.rsplit_once('/')).map_or("", |(folder, _)| folder);
    let glob = glob(&plain)?;
    let mut open = vec![start.to_owned()];
    while let Some(folder) = open.pop() {
        for (path, is_folder) in entries(project, &folder)? {
            if glob.fits(&path) {
                add_tree(project, &path, &mut found)?;
            } else if is_folder {
                open.push(path);
            }
        }
    }
    Ok(found)
}

/// Returns a glob as it is below the project. One that leads out of it is an error.
fn below(project: &Path, text: &str) -> Result<String, BuiltinError> {
    let inner = match text.strip_prefix(&*project.to_string_lossy()) {
        Some("") => "",
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => text,
    };
    let parts: Vec<&str> = inner.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if inner.starts_with('/') || parts.contains(&"..") {
        let message = format!("\"{}\" leads out of the project", text.escape_debug());
        return Err(BuiltinError::input("paths", message));
    }
    Ok(parts.join("/"))
}

/// Adds the files of a tree, and its folders that are empty.
fn add_tree(project: &Path, path: &str, found: &mut Vec<String>) -> Result<(), BuiltinError> {
    let is_folder = |path: &str| project.join(path).symlink_metadata().is_ok_and(|found| found.is_dir());
    let mut open = vec![(path.to_owned(), is_folder(path))];
    while let Some((path, is_folder)) = open.pop() {
        if is_left_out(&path) {
            continue;
        }
        if !is_folder {
            found.push(path);
            continue;
        }
        let inside = entries(project, &path)?;
        if inside.is_empty() && !path.is_empty() {
            found.push(path);
        } else {
            open.extend(inside);
        }
    }
    Ok(())
}

/// Returns the paths in a folder, and which of them are folders. Names that are not UTF-8 are left out.
fn entries(project: &Path, folder: &str) -> Result<Vec<(String, bool)>, BuiltinError> {
    let path = project.join(folder);
    let listed = match fs::read_dir(&path) {
        Ok(listed) => listed,
        // A folder of a glob that is not there, or is a file.
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(BuiltinError::file("read the folder", &path)(error)),
    };
    let mut entries = Vec::new();
    for entry in listed.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if !is_left_out(&path) {
            entries.push((path, entry.file_type().is_ok_and(|kind| kind.is_dir())));
        }
    }
    Ok(entries)
}

fn is_left_out(path: &str) -> bool {
    LEFT_OUT.contains(&path.split('/').next().unwrap_or_default())
}
