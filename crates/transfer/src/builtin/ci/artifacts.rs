//! `ci/artifacts/upload` and `ci/artifacts/download`, with a folder of this machine or a server as the store.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::Value as Json;

use super::super::layer::temporary;
use super::super::{BuiltinEnvironment, BuiltinError, BuiltinValues, text};
use super::selection::{self, Selection, Wanted};
use super::server::{Server, Upload};
use super::store::ArtifactStore;
use super::{counted, field, is_wanted, list, named, pack, transfer, wanted, warn};
use step_runner_ci::variables::dotenv;
use step_runner_process::git;

/// Saves the artifacts of a job. Call it where it may block.
pub(crate) fn upload(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    match Server::of(inputs, environment)? {
        Some(server) => send(&server, inputs, environment),
        None => keep(inputs, environment),
    }
    .map(|()| BuiltinValues::new())
}

/// Sends the artifacts of a job to the server.
fn send(
    server: &Server<'_>,
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    let (job, token, status) = (text(inputs, "job")?, text(inputs, "token")?, text(inputs, "status")?);
    for entry in list(inputs, "artifacts").iter().filter(|entry| is_wanted(field(entry, "when"), status)) {
        let Selection { paths, .. } = select(&wanted(entry), environment)?;
        let paths: Vec<String> = paths.into_iter().collect();
        if paths.is_empty() {
            warn(environment, "nothing is uploaded, because no file was found");
            continue;
        }
        let project = &environment.work_dir;
        let format = field(entry, "format");
        let name = Some(field(entry, "name")).filter(|name| !name.is_empty()).unwrap_or("artifacts");
        let file = temporary(&environment.scratch)?;
        let (name, written) = match format {
            "gzip" => (format!("{name}.gz"), pack::write_gzip(&paths, project, &file).map(|()| file)),
            "raw" => (name.to_owned(), one(&paths, project)),
            _ => (format!("{name}.zip"), pack::write_zip(&paths, project, &file).map(|()| file)),
        };
        let content = written.map_err(BuiltinError::file("pack the artifacts of", project))?;
        let upload =
            Upload { name, kind: field(entry, "type"), format, expire_in: field(entry, "expire_in") };
        server.send(job, token, &upload, &content)?;
        (environment.say)(&format!("Uploaded {} as {}", counted(paths.len()), upload.name.escape_debug()));
    }
    Ok(())
}

/// Returns the one file of an artifact that is sent as it is.
fn one(paths: &[String], project: &Path) -> io::Result<File> {
    match paths {
        [path] => File::open(project.join(path)),
        _ => Err(io::Error::other("an artifact of the format `raw` is one file")),
    }
}

/// Copies the artifacts of a job into the store.
fn keep(inputs: &BuiltinValues, environment: &BuiltinEnvironment<'_>) -> Result<(), BuiltinError> {
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
    Ok(())
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

/// Brings the artifacts of other jobs into the project. Call it where it may block.
pub(crate) fn download(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    match Server::of(inputs, environment)? {
        Some(server) => receive(&server, inputs, environment),
        None => fetch(inputs, environment),
    }
    .map(|()| BuiltinValues::new())
}

/// Brings the artifacts of other jobs from the server. The first failure ends it.
fn receive(
    server: &Server<'_>,
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    let tokens = list(inputs, "tokens");
    for (index, dependency) in list(inputs, "dependencies").iter().enumerate() {
        let job = dependency.get("id").and_then(Json::as_u64);
        let has_archive =
            dependency.get("artifacts_file").is_some_and(|file| !field(file, "filename").is_empty());
        let (Some(job), Some(token), true) = (job, tokens.get(index).and_then(Json::as_str), has_archive)
        else {
            continue;
        };
        let name = field(dependency, "name");
        (environment.say)(&format!("Downloading the artifacts of {} ({job})", name.escape_debug()));
        let mut file = temporary(&environment.scratch)?;
        server.receive(&job.to_string(), token, name, &mut file)?;
        let count = pack::read(&file, &environment.work_dir)?;
        (environment.say)(&format!("Artifacts of {}: {}", name.escape_debug(), counted(count)));
    }
    Ok(())
}

/// Copies the artifacts of other jobs into the project, but never over a file that git tracks.
fn fetch(inputs: &BuiltinValues, environment: &BuiltinEnvironment<'_>) -> Result<(), BuiltinError> {
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
    Ok(())
}
