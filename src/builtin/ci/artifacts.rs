//! `ci/artifacts/upload` and `ci/artifacts/download`, with a folder of this machine as the store.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::Value as Json;

use super::super::{BuiltinEnvironment, BuiltinError, BuiltinValues, text};
use super::selection::{self, Selection, Wanted};
use super::store::ArtifactStore;
use super::{counted, field, is_wanted, list, named, transfer, wanted, warn};
use crate::ci::variables::dotenv;
use crate::process::git;

/// Copies the artifacts of a job into the store.
pub(crate) fn upload(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    let store = ArtifactStore::at(super::store(inputs)?);
    let (job, status) = (text(inputs, "job")?, text(inputs, "status")?);
    let folder = store.files(job);
    store.make().map_err(BuiltinError::file("make the folder", store.root()))?;
    for entry in list(inputs, "artifacts").iter().filter(|entry| is_wanted(field(entry, "when"), status)) {
        if field(entry, "type") == "dotenv" {
            save_variables(&wanted(entry), &store.dotenv(job), environment)?;
        } else {
            save_files(&wanted(entry), &folder, environment)?;
        }
    }
    if status == "success" {
        // Also without files: jobs that need this one see that it has run.
        make(&folder)?;
    }
    Ok(BuiltinValues::new())
}

fn make(folder: &Path) -> Result<(), BuiltinError> {
    fs::create_dir_all(folder).map_err(BuiltinError::file("make the folder", folder))
}

fn select(wanted: &Wanted, environment: &BuiltinEnvironment<'_>) -> Result<Selection, BuiltinError> {
    let selection = selection::select(&environment.work_dir, wanted)?;
    if !selection.without.is_empty() {
        warn(environment, &format!("no file is there for {}", named(&selection.without)));
    }
    Ok(selection)
}

fn save_files(
    wanted: &Wanted,
    folder: &Path,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    let Selection { paths, .. } = select(wanted, environment)?;
    if !paths.is_empty() {
        make(folder)?;
        transfer::copy(paths.iter(), &environment.work_dir, folder, environment)?;
    }
    (environment.say)(&format!("Artifacts: {} saved", counted(paths.len())));
    Ok(())
}

/// Reads a report, at most a byte more than it may have.
fn report(file: &Path) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    File::open(file)?.take(dotenv::REPORT_LIMIT as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Puts the variables of the report's files into one file, after a check.
fn save_variables(
    wanted: &Wanted,
    to: &Path,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    let Selection { paths, .. } = select(wanted, environment)?;
    let mut all = String::new();
    for path in paths {
        let file = environment.work_dir.join(&path);
        let refused = |message: String| BuiltinError::image(&format!("dotenv report {path}"), message);
        let bytes = report(&file).map_err(BuiltinError::file("read", &file))?;
        if bytes.len() > dotenv::REPORT_LIMIT {
            return Err(refused(format!("it has more than {} bytes", dotenv::REPORT_LIMIT)));
        }
        let read = String::from_utf8(bytes).map_err(|_| refused("it is not UTF-8".to_owned()))?;
        dotenv::read(&read).map_err(refused)?;
        all.push_str(&read);
        if !all.ends_with('\n') {
            all.push('\n');
        }
    }
    fs::write(to, all).map_err(BuiltinError::file("write", to))
}

/// Copies the artifacts of other jobs into the project, but never over a file that git tracks.
pub(crate) fn download(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    let store = ArtifactStore::at(super::store(inputs)?);
    let project = &environment.work_dir;
    let tracked: BTreeSet<String> =
        git::paths(project, &["ls-files", "-z"]).unwrap_or_default().into_iter().collect();
    let mut kept = Vec::new();
    for dependency in list(inputs, "dependencies") {
        let job = field(dependency, "name");
        let folder = store.files(job);
        if !folder.is_dir() {
            if dependency.get("required").and_then(Json::as_bool) == Some(true) {
                warn(environment, &format!("job \"{}\" has left no artifacts", job.escape_debug()));
            }
            continue;
        }
        let all = Wanted { paths: vec![".".to_owned()], ..Wanted::default() };
        let (skipped, paths): (Vec<String>, Vec<String>) =
            selection::select(&folder, &all)?.paths.into_iter().partition(|path| tracked.contains(path));
        kept.extend(skipped);
        transfer::copy(paths.iter(), &folder, project, environment)?;
        (environment.say)(&format!("Artifacts of {}: {}", job.escape_debug(), counted(paths.len())));
    }
    if !kept.is_empty() {
        warn(environment, &format!("not replaced, because git tracks them: {}", named(&kept)));
    }
    Ok(BuiltinValues::new())
}
