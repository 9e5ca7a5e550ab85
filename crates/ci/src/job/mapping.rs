//! A job as a mapping of keywords: the `ci_job` of the first draft (service.md §5, ci.md §2.2).

use std::sync::Arc;

use step_runner_lang::diagnostic::{Class, Diagnostic, Position};

use super::{Circumstances, Job, of_file};
use crate::file::{CiFile, Noted, of_text};
use crate::files::{Files, ReadError};
use crate::node::Place;
use crate::variables::Level;

/// Keywords that a mapping cannot have an effect of: there are no sources, no caches and no artifacts.
const WITHOUT_EFFECT: [&str; 2] = ["artifacts", "cache"];

/// A repository without files.
struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &str) -> Result<String, ReadError> {
        Err(ReadError::NotFound)
    }

    fn list(&self) -> Result<Vec<String>, ReadError> {
        Ok(Vec::new())
    }
}

/// Reads a job: a mapping of keywords, or a configuration with one job that is not hidden. `file` is its name in
/// messages. Returns all errors at once.
pub fn of_mapping(file: &str, text: &str) -> Result<Job, Vec<Diagnostic>> {
    let mut configuration = of_text(file, text)?;
    let mut names = configuration.jobs.keys().cloned();
    let (Some(name), None) = (names.next(), names.next()) else {
        let place = Place { file: Arc::from(file), at: Position::START };
        return Err(vec![
            (place.error_of(Class::Schema, "the text has several jobs"))
                .with_help("keep one, or hide the others with a dot before the name"),
        ]);
    };
    without_stages(&mut configuration);
    let level = Level::new();
    let circumstances = Circumstances { facts: None, files: &NoFiles, given: &level, dotenv: &level };
    of_file(&configuration, &name, &circumstances)
}

/// Takes out what only a pipeline or a repository can give.
fn without_stages(configuration: &mut CiFile) {
    for job in configuration.jobs.values_mut() {
        let place = job.place.clone();
        let has = [job.artifacts.take().is_some(), !std::mem::take(&mut job.caches).is_empty()];
        let noted = WITHOUT_EFFECT.iter().zip(has).filter(|(_, has)| *has);
        job.noted
            .extend(noted.map(|(keyword, _)| Noted { keyword: (*keyword).to_owned(), place: place.clone() }));
        job.copies.clear();
        job.needs = Some(Vec::new());
        job.dependencies = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_has_no_files() {
        assert_eq!(NoFiles.read("a"), Err(ReadError::NotFound));
        assert_eq!(NoFiles.list(), Ok(Vec::new()));
    }
}
