//! `run --clone`: a temporary clone of HEAD, with what the work tree has changed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Exit, Failure};
use crate::process::git;

/// A clone, removed with this value.
pub(super) struct Clone {
    folder: PathBuf,
    root: PathBuf,
}

impl Clone {
    /// Clones the project's work tree: HEAD, uncommitted changes, and files that are neither tracked nor ignored.
    pub(super) fn of(project: &Path) -> Result<Self, Failure> {
        let failed = |what: &str| {
            Failure::new(Exit::Failure, format!("--clone: {what}"))
                .with_remedy("run without --clone to use the project as it is")
        };
        if git::root(project).is_none() {
            return Err(failed("this is no git work tree, or there is no git"));
        }
        let name = project.file_name().unwrap_or_default();
        let random = getrandom::u64().map_err(|error| failed(&error.to_string()))?;
        let folder = std::env::temp_dir().join(format!("step-runner-clone-{random:016x}"));
        fs::create_dir(&folder).map_err(|error| failed(&format!("cannot make a folder: {error}")))?;
        let folder = folder.canonicalize().unwrap_or(folder);
        let clone = Self { root: folder.join(name), folder };
        clone.fill(project).map_err(|what| failed(&what))?;
        Ok(clone)
    }

    /// Root of the clone.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn fill(&self, project: &Path) -> Result<(), String> {
        let (from, to) = (project.to_string_lossy(), self.root.to_string_lossy());
        git::change(&self.folder, &["clone", "--quiet", "--no-checkout", "--", &from, &to])?;
        let head = git::line(project, &["rev-parse", "HEAD"]).ok_or("there is no commit yet")?;
        let branch = git::line(project, &["symbolic-ref", "--short", "-q", "HEAD"]);
        let checkout: &[&str] = match &branch {
            Some(branch) => &["checkout", "--quiet", "-B", branch, &head],
            None => &["checkout", "--quiet", "--detach", &head],
        };
        git::change(&self.root, checkout)?;
        let origin = git::line(project, &["config", "--get", "remote.origin.url"]);
        if let Some(origin) = origin {
            git::change(&self.root, &["remote", "set-url", "origin", &origin])?;
        }
        let changed = git::paths(project, &["diff", "--name-only", "--no-renames", "-z", "HEAD"]);
        let added = git::paths(project, &["ls-files", "--others", "--exclude-standard", "-z"]);
        for path in changed.into_iter().chain(added).flatten() {
            copy(&project.join(&path), &self.root.join(&path)).map_err(|error| format!("{path}: {error}"))?;
        }
        Ok(())
    }
}

/// Makes a path of the clone what it is in the project: a file, a link, or nothing.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    if to.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
        fs::remove_file(to)?;
    }
    let Ok(found) = from.symlink_metadata() else { return Ok(()) };
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    if found.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(from)?, to)
    } else if found.is_file() {
        fs::copy(from, to).map(drop)
    } else {
        // The work tree of a submodule stays empty.
        Ok(())
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        // The folder is temporary: what cannot be removed is left to the system.
        fs::remove_dir_all(&self.folder).ok();
    }
}
