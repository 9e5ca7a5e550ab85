//! Which job a runner gets, as GitLab chooses: a value without tokens, connections or time.
//!
//! A runner without settings takes every job in the order of the queue. Most tests want no more than that.

use std::collections::{BTreeMap, BTreeSet};

/// Type of a runner: the projects that it works for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All projects that want instance runners.
    Instance,
    /// The projects below the group with this path that want group runners.
    Group(String),
    /// The projects that it is enabled for.
    Project(BTreeSet<u64>),
}

/// Settings of a runner.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the settings of GitLab, by their names")]
pub(crate) struct Runner {
    pub(crate) kind: Kind,
    pub(crate) is_paused: bool,
    pub(crate) tags: BTreeSet<String>,
    pub(crate) run_untagged: bool,
    /// True if it takes jobs of protected branches and tags only.
    pub(crate) ref_protected: bool,
    /// True if it cannot be enabled for more projects.
    pub(crate) is_locked: bool,
}

impl Runner {
    /// Makes a runner without tags that takes untagged jobs.
    pub(crate) fn new(kind: Kind) -> Self {
        let tags = BTreeSet::new();
        Self { kind, is_paused: false, tags, run_untagged: true, ref_protected: false, is_locked: false }
    }
}

/// Settings of a project.
#[derive(Clone, Debug)]
pub(crate) struct Project {
    /// Path of its group; empty for none.
    pub(crate) group: String,
    pub(crate) shared_runners_enabled: bool,
    pub(crate) group_runners_enabled: bool,
}

impl Default for Project {
    fn default() -> Self {
        Self { group: String::new(), shared_runners_enabled: true, group_runners_enabled: true }
    }
}

/// A job that waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) id: u64,
    pub(crate) project: u64,
    pub(crate) tags: BTreeSet<String>,
    pub(crate) is_protected: bool,
}

/// Settings of all runners and projects, by their numbers. Projects that are not here have the defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) runners: BTreeMap<u64, Runner>,
    pub(crate) projects: BTreeMap<u64, Project>,
    /// Tags of jobs, which their payloads do not have.
    pub(crate) tags: BTreeMap<u64, BTreeSet<String>>,
}

impl Selection {
    /// Returns the job that a runner gets. `running` counts, for each project, its jobs on instance runners.
    pub(crate) fn choose(
        &self,
        runner: u64,
        queue: &[Waiting],
        running: &BTreeMap<u64, usize>,
    ) -> Option<u64> {
        let Some(runner) = self.runners.get(&runner) else { return queue.first().map(|job| job.id) };
        let fitting = queue.iter().filter(|job| self.fits(runner, job));
        // Fair usage: the project with the fewest jobs comes first, but only among instance runners.
        let load = |job: &Waiting| match runner.kind {
            Kind::Instance => running.get(&job.project).copied().unwrap_or_default(),
            Kind::Group(_) | Kind::Project(_) => 0,
        };
        fitting.min_by_key(|job| (load(job), job.id)).map(|job| job.id)
    }

    fn fits(&self, runner: &Runner, job: &Waiting) -> bool {
        let tags_fit =
            if job.tags.is_empty() { runner.run_untagged } else { job.tags.is_subset(&runner.tags) };
        let project = self.projects.get(&job.project).cloned().unwrap_or_default();
        let is_reached = match &runner.kind {
            Kind::Instance => project.shared_runners_enabled,
            Kind::Group(group) => {
                let below = project.group.strip_prefix(group.as_str());
                project.group_runners_enabled
                    && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            Kind::Project(projects) => projects.contains(&job.project),
        };
        !runner.is_paused && tags_fit && is_reached && (job.is_protected || !runner.ref_protected)
    }

    /// Enables a project runner for one more project. The error says why it cannot be.
    pub(crate) fn enable(&mut self, runner: u64, project: u64) -> Result<(), &'static str> {
        let runner = self.runners.get_mut(&runner).ok_or("there is no such runner")?;
        match &mut runner.kind {
            Kind::Project(_) if runner.is_locked => Err("the runner is locked"),
            Kind::Project(projects) => {
                projects.insert(project);
                Ok(())
            }
            Kind::Instance | Kind::Group(_) => Err("only project runners are enabled for projects"),
        }
    }

    /// Makes an instance runner one of a project. There is no way back.
    pub(crate) fn make_project_runner(&mut self, runner: u64, project: u64) -> Result<(), &'static str> {
        let runner = self.runners.get_mut(&runner).ok_or("there is no such runner")?;
        if runner.kind != Kind::Instance {
            return Err("only instance runners become project runners");
        }
        runner.kind = Kind::Project(BTreeSet::from([project]));
        Ok(())
    }

    /// Makes a fork of a project below a group. It has the project's settings, and none of its project runners.
    pub(crate) fn fork(&mut self, project: u64, fork: u64, group: &str) {
        let settings = self.projects.get(&project).cloned().unwrap_or_default();
        self.projects.insert(fork, Project { group: group.to_owned(), ..settings });
    }
}
