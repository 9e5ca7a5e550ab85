//! Reads a `.gitlab-ci.yml` with all that it includes, and checks it (ci.md §2).

mod artifacts;
mod configuration;
mod definition;
mod extends;
mod image;
mod include;
mod inputs;
mod interpolation;
mod keyword;
mod needs;
mod parallel;
mod reference;
mod rule;
pub(crate) mod script;
pub(crate) mod variables;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_lang::diagnostic::Diagnostic;

pub use artifacts::{Artifacts, Cache, CacheKey};
pub(crate) use configuration::inherited_variables;
pub use definition::{Definition, Environment, Inherit, Outside};
pub use image::Image;
pub use needs::Need;
pub use parallel::Copy;
pub use rule::Rule;
pub(crate) use rule::{Look, first_match};

use crate::files::Files;
use crate::finding::Findings;
pub use crate::finding::Noted;
use crate::node::{Entry, Map, Node};
use crate::variables::{Facts, Level, Resolved, predefined};
use crate::yaml;

/// Name of a job that has none.
const JOB: &str = "job";

/// A CI file to read, and the facts that the caller knows.
pub struct Source<'s> {
    /// Path of the CI file, below the root of the repository.
    pub path: &'s str,
    /// The repository's files.
    pub files: &'s dyn Files,
    /// Values for `spec:inputs` of the file.
    pub inputs: &'s IndexMap<String, String>,
    /// Facts about the repository.
    pub facts: &'s Facts,
    /// Variables that the caller gives.
    pub given: &'s Level,
}

/// A CI file that was read and checked.
#[derive(Clone, Debug)]
pub struct CiFile {
    /// All stages in their order, `.pre` and `.post` too.
    pub stages: Vec<String>,
    /// Variables at the top.
    pub variables: Level,
    /// Rules of `workflow`.
    pub workflow: Vec<Rule>,
    /// Jobs that are not hidden, by name.
    pub jobs: IndexMap<String, Definition>,
    /// Keywords at the top without effect.
    pub noted: Vec<Noted>,
    /// Warnings.
    pub warnings: Vec<Diagnostic>,
}

/// Reads a CI file. Returns all errors at once, warnings among them.
pub fn read(source: &Source<'_>) -> Result<CiFile, Vec<Diagnostic>> {
    let mut findings = Findings::default();
    let known = predefined(source.facts, None);
    let variables = Resolved::new([&known, source.given]).unwrap_or_default();
    let changed = source.facts.changed.as_deref();
    let merged = include::Loader::new(source.files, &variables, changed, &mut findings)
        .main(source.path, source.inputs);
    // Without the included files every job that uses them would be wrong, too.
    if findings.has_errors() {
        return Err(findings.into_list());
    }
    let whole = reference::resolve(&merged, &mut findings);
    let mut file = configuration::read(&whole, &mut findings);
    if findings.has_errors() {
        return Err(findings.into_list());
    }
    file.warnings = findings.into_list();
    Ok(file)
}

/// Reads a text that is a job, or a configuration without other files. A job alone is called `job`, and may be in any
/// stage.
pub(crate) fn of_text(file: &str, text: &str) -> Result<CiFile, Vec<Diagnostic>> {
    let mut findings = Findings::default();
    let name = Arc::from(file);
    let Some(documents) = yaml::read(&name, text, &mut findings) else { return Err(findings.into_list()) };
    if let Some(header) = &documents.header {
        findings.error_with_help(&header.place, "", "\"spec\" is not supported here", "write the values");
    }
    let mut content = documents.content;
    if let Some(include) = content.get("include") {
        let help = "put what it includes into the text";
        findings.error_with_help(&include.place, "include", "there are no other files", help);
    }
    let is_job = content.as_map().is_some_and(|map| map.keys().any(|key| keyword::is_of_job_alone(key)));
    if is_job {
        let place = content.place.clone();
        let job = Entry { key: place.clone(), value: content };
        content = Node::map(place, Map::from([(JOB.to_owned(), job)]));
    } else if content.as_map().is_none() {
        findings.expected(&content, "", "a job");
        return Err(findings.into_list());
    }
    let whole = reference::resolve(&content, &mut findings);
    let checked = configuration::read_one(&whole, &mut findings);
    if findings.has_errors() {
        return Err(findings.into_list());
    }
    Ok(CiFile { warnings: findings.into_list(), ..checked })
}
