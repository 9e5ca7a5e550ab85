//! CI files as commands find them: told from function files, read in their projects, and checked (ci.md §2, §4).

mod facts;
mod project;
mod recognised;

use std::path::Path;

use indexmap::IndexMap;

use crate::ci::file::{self, CiFile, Source};
use crate::ci::variables::{Facts, Level};
use crate::error::{Exit, Failure};
use crate::lang::diagnostic::Diagnostic;

pub(super) use project::Project;
pub(super) use recognised::is_ci_file;

/// Name of a CI file.
pub(super) const CI_FILE: &str = ".gitlab-ci.yml";

/// Reads the CI file of a project for a pipeline with the variables `given`.
pub(super) fn read(
    project: &Project,
    facts: &Facts,
    given: &Level,
    inputs: &IndexMap<String, String>,
) -> Result<CiFile, Vec<Diagnostic>> {
    file::read(&Source { path: project.ci_file(), files: project, inputs, facts, given })
}

/// Findings in one file, and its text if that can be read.
pub(super) type OfFile = (Vec<Diagnostic>, Option<String>);

/// Returns the findings in a CI file and in what it includes.
pub(super) fn check(path: &Path, inputs: &IndexMap<String, String>) -> Result<Vec<OfFile>, Failure> {
    let project = Project::of(&path.to_string_lossy())?;
    let findings = match read(&project, &project.facts(), &Level::new(), inputs) {
        Ok(file) => file.warnings,
        Err(findings) => findings,
    };
    Ok(project.by_file(&findings))
}

/// Makes the failure of a command that wants a function file and got a CI file.
pub(super) fn wants_a_job(path: &Path) -> Failure {
    /// Maximum number of jobs that the message names.
    const SHOWN: usize = 12;
    let shown = path.display();
    let file = Project::of(&path.to_string_lossy())
        .ok()
        .and_then(|project| read(&project, &project.facts(), &Level::new(), &IndexMap::new()).ok());
    let names: Vec<String> = file.iter().flat_map(CiFile::full_names).map(super::states::printable).collect();
    let more = if names.len() > SHOWN { ", …" } else { "" };
    let named: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let jobs =
        if named.is_empty() { String::new() } else { format!("; its jobs: {}{more}", named.join(", ")) };
    let example = named.first().map_or("NAME".to_owned(), |name| shell_words::quote(name).into_owned());
    Failure::new(Exit::Usage, format!("{shown} is a CI file{jobs}")).with_remedy(format!(
        "run one of its jobs: step-runner run --job {example} {}; all about them: --list-jobs",
        shell_words::quote(&shown.to_string())
    ))
}
