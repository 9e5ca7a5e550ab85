//! `step-runner run --job`: a job of a CI file, here and now (ci.md §4). What the file means is decided by [`crate::ci`].

mod clone;
mod jobs;
mod listing;

use std::path::PathBuf;

use indexmap::IndexMap;

use super::ci_file::{self, Project};
use super::terminal;
use super::text_file::read_text;
use crate::ci::file::CiFile;
use crate::ci::plan::Images;
use crate::ci::variables::{Facts, Level, dotenv};
use crate::error::{Exit, Failure};

pub(super) use jobs::CiJobs;
pub(super) use listing::{ListFormat, list};

/// Options for a job of a CI file.
#[derive(clap::Args)]
#[command(next_help_heading = "Job of a CI file")]
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
pub(super) struct CiOptions {
    /// List the jobs of the CI file FILE, with what its rules say and what cannot run here; -q: their names, or --output json
    #[arg(long, env = "STEP_RUNNER_LIST_JOBS")]
    pub(super) list_jobs: bool,
    /// First run the jobs that it needs, in order, each once
    #[arg(long, env = "STEP_RUNNER_NEEDS")]
    pub(super) needs: bool,
    /// Run in a temporary clone of HEAD with the changes of the work tree
    #[arg(long, env = "STEP_RUNNER_CLONE")]
    pub(super) clone: bool,
    /// Run the job in this environment even if it asks for an image or services
    #[arg(long, env = "STEP_RUNNER_IGNORE_IMAGE")]
    pub(super) ignore_image: bool,
    /// Variables from a file of lines KEY=value
    #[arg(long, value_name = "FILE", env = "STEP_RUNNER_VAR_FILE")]
    pub(super) var_file: Vec<PathBuf>,
}

impl CiOptions {
    /// Returns how the job is planned if it asks for an image or services.
    pub(super) const fn images(&self) -> Images {
        if self.ignore_image { Images::Ignored } else { Images::Refused }
    }

    /// Returns the name of an option that only a job of a CI file can have, if one is given.
    pub(super) fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.needs, "--needs"),
            (self.clone, "--clone"),
            (self.ignore_image, "--ignore-image"),
            (!self.var_file.is_empty(), "--var-file"),
        ];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
    }

    /// Returns the variables of the files, of all in one level.
    fn variables(&self) -> Result<Level, Failure> {
        let mut all = Level::new();
        for path in &self.var_file {
            let option = format!("--var-file {}", path.display());
            let text = read_text(path, &option)?;
            let read = dotenv::read(&text);
            all.extend(read.map_err(|what| Failure::new(Exit::Usage, format!("{option}: {what}")))?);
        }
        Ok(all)
    }
}

/// A CI file that was read, with what it was read with.
pub(super) struct Configuration {
    pub(super) project: Project,
    pub(super) file: CiFile,
    pub(super) facts: Facts,
    pub(super) given: Level,
}

impl Configuration {
    /// Reads the CI file that `target` names. Shows all its errors.
    pub(super) fn read(
        target: &str,
        options: &CiOptions,
        given: Level,
        inputs: &IndexMap<String, String>,
    ) -> Result<Self, Failure> {
        let project = Project::of(target)?;
        let mut all = options.variables()?;
        all.extend(given);
        let facts = project.facts();
        match ci_file::read(&project, &facts, &all, inputs) {
            Ok(file) => Ok(Self { project, file, facts, given: all }),
            Err(findings) => Err(project.refused(&findings)),
        }
    }

    /// Warns of what is not known without git.
    pub(super) fn warn_without_git(&self) {
        if self.facts.commit.is_none() {
            terminal::say(
                "step-runner: warning: no commit of git is known here; variables such as CI_COMMIT_SHA are empty",
            );
        }
    }
}
