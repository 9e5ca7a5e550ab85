//! The jobs of one command: those that are needed, then the one that was named.

use std::path::{Path, PathBuf};

use super::clone::Clone as ProjectClone;
use super::{CiOptions, Configuration};
use crate::builtin::ci::store::{ArtifactStore, caches_of};
use crate::ci::job::{Circumstances, Dependency, Job, Pipeline, Standing, of_file};
use crate::ci::plan::{Artifacts, Plan, Stores, plan};
use crate::ci::variables::{Level, dotenv};
use crate::cli::job::{JobOptions, Jobs, Phrases};
use crate::cli::states::printable;
use crate::cli::{Verbosity, terminal};
use crate::client::Request;
use crate::error::{Exit, Failure};
use crate::model::text;

/// Jobs to run, one after another.
pub(in crate::cli) struct CiJobs<'c> {
    configuration: Configuration,
    options: &'c CiOptions,
    job: &'c JobOptions,
    phrases: Phrases,
    verbosity: Verbosity,
    /// Full names in order; the last is the one that was named.
    order: Vec<String>,
    /// Number of jobs that have begun.
    begun: usize,
    store: ArtifactStore,
    clone: Option<ProjectClone>,
}

impl<'c> CiJobs<'c> {
    /// Finds out what has to run for the job `name`.
    pub(in crate::cli) fn new(
        name: &str,
        mut configuration: Configuration,
        options: &'c CiOptions,
        job: &'c JobOptions,
        phrases: Phrases,
        verbosity: Verbosity,
    ) -> Result<Self, Failure> {
        if !verbosity.quiet {
            configuration.warn_without_git();
        }
        if let Err(finding) = configuration.file.find(name) {
            let ci_file = configuration.project.ci_file();
            let message = text::for_people(&finding.message).into_owned();
            let failure = Failure::new(Exit::Refused, format!("{ci_file}: {message}"));
            let help = finding.help.as_deref().map(|help| text::for_people(help).into_owned());
            return Err(match help {
                Some(help) => failure.with_remedy(help),
                None => failure,
            });
        }
        let store = ArtifactStore::of_project(configuration.project.root());
        let clone = options.clone.then(|| ProjectClone::of(configuration.project.root())).transpose()?;
        if let Some(clone) = &clone {
            configuration.facts.project_dir = clone.root().display().to_string();
        }
        let mut jobs = Self {
            configuration,
            options,
            job,
            phrases,
            verbosity,
            order: vec![name.to_owned()],
            begun: 0,
            store,
            clone,
        };
        if options.needs {
            let before = jobs.in_pipeline(|pipeline| pipeline.needed(name));
            let before = before.map_err(|findings| jobs.configuration.project.refused(&findings))?;
            jobs.order.splice(0..0, before);
        }
        // Nothing runs for a job that cannot run itself.
        for name in &jobs.order {
            jobs.plan(&jobs.read(name)?)?;
        }
        Ok(jobs)
    }

    /// Returns the steps of the job that was named, without running anything.
    pub(in crate::cli) fn steps(&self) -> Result<String, Failure> {
        let name = self.order.last().map(String::as_str).unwrap_or_default();
        let plan = self.plan(&self.read(name)?)?;
        self.tell(&plan);
        Ok(plan.steps)
    }

    fn with<T>(&self, dotenv: &Level, look: impl FnOnce(&Circumstances<'_>) -> T) -> T {
        let Configuration { project, facts, given, .. } = &self.configuration;
        look(&Circumstances { facts: Some(facts), files: project, given, dotenv })
    }

    /// Asks about jobs as a pipeline would have them.
    fn in_pipeline<T>(&self, ask: impl FnOnce(&mut Pipeline<'_>) -> T) -> T {
        self.with(&Level::new(), |circumstances| {
            ask(&mut Pipeline::new(&self.configuration.file, circumstances))
        })
    }

    /// Reads a job, with the variables that the jobs it needs have left.
    fn read(&self, name: &str) -> Result<Job, Failure> {
        let read = |dotenv: &Level| {
            let job =
                self.with(dotenv, |circumstances| of_file(&self.configuration.file, name, circumstances));
            job.map_err(|findings| self.configuration.project.refused(&findings))
        };
        let job = read(&Level::new())?;
        let left = self.left_variables(&job.dependencies)?;
        if left.is_empty() { Ok(job) } else { read(&left) }
    }

    fn left_variables(&self, dependencies: &[Dependency]) -> Result<Level, Failure> {
        let mut all = Level::new();
        for dependency in dependencies {
            let path = self.store.dotenv(&dependency.name);
            if path.exists() {
                let failed = |what: String| {
                    Failure::new(Exit::Failure, format!("cannot read {}: {what}", path.display()))
                };
                let text = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
                all.extend(dotenv::read(&text).map_err(failed)?);
            }
        }
        Ok(all)
    }

    fn plan(&self, job: &Job) -> Result<Plan, Failure> {
        let project = self.configuration.project.root();
        let caches = caches_of(project, |name| std::env::var_os(name).map(PathBuf::from));
        let shown = |path: &Path| path.display().to_string();
        let stores = Stores {
            artifacts: Artifacts::Folder(shown(self.store.root())),
            // Without a directory for caches the stages fail, which does not fail the job.
            caches: caches.as_deref().map(shown).unwrap_or_default(),
        };
        plan(job, self.options.images(), Some(&stores))
            .map_err(|refused| Failure::new(Exit::Refused, text::for_people(&refused.0).into_owned()))
    }

    /// Tells what the user should know of a job before it runs.
    fn tell(&self, plan: &Plan) {
        let messages = plan.messages.iter().filter(|_| !self.verbosity.quiet);
        for message in messages {
            let kind = if message.is_warning { "warning: " } else { "" };
            terminal::say(&format!("step-runner: {kind}{}", text::for_people(&message.text)));
        }
    }

    /// Checks that the artifacts of other jobs are there.
    fn check_artifacts(&self, job: &Job) -> Result<(), Failure> {
        let missing = job.dependencies.iter().filter(|found| !self.store.files(&found.name).is_dir());
        let (required, others): (Vec<_>, Vec<_>) = missing.partition(|found| found.required);
        if !required.is_empty() && !self.options.needs {
            let message = format!(
                "{} needs the artifacts of {}, which have not run here",
                printable(&job.name),
                listed(&required)
            );
            return Err(
                Failure::new(Exit::Refused, message).with_remedy("run them first, or let --needs run them")
            );
        }
        if !self.verbosity.quiet {
            self.tell_missing(job, &[required, others].concat());
        }
        Ok(())
    }

    /// Warns of artifacts that a job does without. Those of a job that a pipeline would not have are missing there, too.
    fn tell_missing(&self, job: &Job, missing: &[&Dependency]) {
        let is_absent = |found: &Dependency, standing: &Standing| !found.required && standing.is_absent();
        let present: Vec<(&Dependency, Standing)> = self.in_pipeline(|pipeline| {
            let with_standing = missing.iter().filter_map(|found| {
                // A job whose rules cannot be evaluated is told of when it is to run.
                let (standing, _) = pipeline.standing(&found.name).ok()?;
                Some((*found, standing))
            });
            with_standing.filter(|(found, standing)| !is_absent(found, standing)).collect()
        });
        if present.is_empty() {
            return;
        }
        let of_needs = present.iter().all(|(_, standing)| standing.starts_by_itself());
        let them = if present.len() == 1 { "it" } else { "them" };
        let remedy = match (of_needs, self.options.needs) {
            (true, true) => String::new(),
            (true, false) => format!(": run {them} first, or use --needs"),
            (false, _) => format!(": run {them} first"),
        };
        let names: Vec<&Dependency> = present.into_iter().map(|(found, _)| found).collect();
        terminal::say(&format!(
            "step-runner: warning: there are no artifacts of {}, so {} runs without them{remedy}",
            listed(&names),
            printable(&job.name)
        ));
    }

    /// Makes the request of a job, and removes what it left in an earlier run.
    fn request(&self, name: &str, is_named: bool) -> Result<Request, Failure> {
        let job = self.read(name)?;
        let plan = self.plan(&job)?;
        self.tell(&plan);
        self.check_artifacts(&job)?;
        self.store.clear(name).map_err(|error| {
            Failure::new(Exit::Failure, format!("cannot remove the artifacts of an earlier run: {error}"))
        })?;
        let project = self.clone.as_ref().map_or(self.configuration.project.root(), ProjectClone::root);
        self.job.planned(plan, &self.phrases, project, is_named)
    }

    /// True if a failure of the job with this exit code does not count.
    fn may_fail(&self, name: &str, code: u8) -> bool {
        self.in_pipeline(|pipeline| pipeline.standing(name)).is_ok_and(|(_, allowed)| allowed.allows(code))
    }
}

/// Returns the names of jobs for a message.
fn listed(dependencies: &[&Dependency]) -> String {
    dependencies.iter().map(|found| printable(&found.name)).collect::<Vec<_>>().join(", ")
}

impl Jobs for CiJobs<'_> {
    fn next(&mut self, code: Option<u8>) -> Result<Option<Request>, Failure> {
        let Some(name) = self.order.get(self.begun) else { return Ok(None) };
        let before = self.begun.checked_sub(1).and_then(|before| self.order.get(before));
        if let (Some(before), Some(code @ 1..)) = (before, code) {
            let failed = printable(before);
            if !self.may_fail(before, code) {
                let last = self.order.last().map_or_else(String::new, |name| printable(name));
                terminal::say(&format!("step-runner: {failed} has failed, so {last} does not start"));
                return Ok(None);
            }
            if !self.verbosity.quiet {
                terminal::say(&format!("step-runner: {failed} has failed, which its allow_failure permits"));
            }
        }
        let count = self.order.len();
        if count > 1 && !self.verbosity.quiet {
            terminal::say(&format!("step-runner: job {} ({} of {count})", printable(name), self.begun + 1));
        }
        let request = self.request(name, self.begun + 1 == count)?;
        self.begun += 1;
        Ok(Some(request))
    }

    fn has_next(&self) -> bool {
        self.begun < self.order.len()
    }
}
