//! The user's own `git` program, for questions about a work tree: what is checked out, what is tracked.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns what `git` prints in `folder`. `None`: there is no such program, no work tree, or no answer.
pub fn ask(folder: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let asked = command(folder, arguments).output();
    asked.ok().filter(|output| output.status.success()).map(|output| output.stdout)
}

/// Lets `git` change something. The error is what it says.
pub fn change(folder: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = command(folder, arguments).output().map_err(|error| format!("cannot start git: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let what = arguments.first().copied().unwrap_or_default();
    Err(format!("git {what}: {}", String::from_utf8_lossy(&output.stderr).trim_end()))
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder);
    // No question starts another program that the repository names.
    command.args(["-c", "core.fsmonitor=false"]).args(arguments);
    command.env("GIT_OPTIONAL_LOCKS", "0").stdin(Stdio::null());
    command
}

/// Returns the one line that `git` prints; `None` also for an empty one.
pub fn line(folder: &Path, arguments: &[&str]) -> Option<String> {
    let text = String::from_utf8(ask(folder, arguments)?).ok()?;
    let line = text.trim_end_matches('\n');
    (!line.is_empty()).then(|| line.to_owned())
}

/// Returns the paths that `git` prints with `-z`. Paths that are not UTF-8 are left out.
pub fn paths(folder: &Path, arguments: &[&str]) -> Option<Vec<String>> {
    let bytes = ask(folder, arguments)?;
    let paths = bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    Some(paths.filter_map(|path| String::from_utf8(path.to_vec()).ok()).collect())
}

/// Returns the root of the work tree that holds `folder`.
pub fn root(folder: &Path) -> Option<PathBuf> {
    line(folder, &["rev-parse", "--show-toplevel"]).map(PathBuf::from)
}
