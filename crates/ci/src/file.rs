//! Reads a `.gitlab-ci.yml` with all that it includes, and checks it (ci.md §2).

mod allow_failure;
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
mod noted;
mod parallel;
mod reference;
mod rule;
pub(crate) mod script;
pub(crate) mod variables;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::Value as Json;
use step_runner_lang::diagnostic::{Class, Diagnostic, Position};
use step_runner_lang::name::suggest;
use step_runner_model::text::quote;

pub use allow_failure::AllowFailure;
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
use crate::node::{Entry, Map, Node, Place};
use crate::variables::{Facts, Level, Resolved, predefined};
use crate::yaml;

/// Maximum number of names that a message lists.
const NAMES_SHOWN: usize = 20;

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

impl CiFile {
    /// Returns the job of a name or full name.
    pub fn definition(&self, name: &str) -> Option<&Definition> {
        let has_copy = |job: &&Definition| job.copies.iter().any(|copy| copy.name == name);
        self.jobs.get(name).or_else(|| self.jobs.values().find(has_copy))
    }

    /// Finds a job, or a copy of a parallel one.
    pub fn find(&self, name: &str) -> Result<(&Definition, Option<&Copy>), Box<Diagnostic>> {
        if let Some(definition) = self.jobs.get(name) {
            if definition.copies.is_empty() {
                return Ok((definition, None));
            }
            let names: Vec<&str> = definition.copies.iter().map(|copy| copy.name.as_str()).collect();
            let shown =
                names.iter().take(NAMES_SHOWN).map(|name| quote(name)).collect::<Vec<_>>().join("\", \"");
            let more = if names.len() > NAMES_SHOWN { " and so on" } else { "" };
            let parts = if names.len() == 1 { "part" } else { "parts" };
            let message = format!("\"{}\" is a parallel job of {} {parts}", quote(name), names.len());
            return Err(Box::new(
                definition.place.error(message).with_help(format!("name one: \"{shown}\"{more}")),
            ));
        }
        for definition in self.jobs.values() {
            if let Some(copy) = definition.copies.iter().find(|copy| copy.name == name) {
                return Ok((definition, Some(copy)));
            }
        }
        let place = self.jobs.values().next().map(|job| job.place.clone());
        let place = place.unwrap_or_else(|| Place { file: "".into(), at: Position::START });
        let finding = Diagnostic::error(
            Class::NotFound,
            &place.file,
            Position::START,
            format!("there is no job \"{}\"", quote(name)),
        );
        let help = if name.starts_with('.') {
            "a hidden job is a template for others".to_owned()
        } else if let Some(meant) = suggest(name, self.names()) {
            format!("did you mean \"{}\"?", quote(meant))
        } else {
            self.shown_names()
        };
        Err(Box::new(finding.with_help(help)))
    }

    /// Returns the names of jobs, without the parts of parallel ones.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.jobs.keys().map(String::as_str)
    }

    /// Returns the first names as a remedy.
    fn shown_names(&self) -> String {
        let shown: Vec<_> = self.names().take(NAMES_SHOWN).map(quote).collect();
        format!("jobs: {}", shown.join(", "))
    }

    /// Returns the full names of all jobs.
    pub fn full_names(&self) -> impl Iterator<Item = &str> {
        self.jobs.values().flat_map(Definition::full_names)
    }
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

/// Reads YAML of another kind than a CI file, such as a template, as JSON. Errors have positions in `file`.
pub fn plain(file: &str, text: &str) -> Result<Json, Vec<Diagnostic>> {
    let mut findings = Findings::default();
    let json = yaml::read(&Arc::from(file), text, &mut findings)
        .and_then(|documents| script::json(&documents.content, "", &mut findings));
    json.ok_or_else(|| findings.into_list())
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
