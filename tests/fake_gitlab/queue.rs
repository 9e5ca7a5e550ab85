//! The queue of jobs that wait for runners, and what each runner was given.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::selection::{Kind, Waiting};
use super::{FakeGitlab, World};

/// A job that a runner was given.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) job: u64,
    pub(crate) project: u64,
    pub(crate) runner: u64,
    /// True if it was an instance runner then.
    of_instance: bool,
    /// Number of requests that the server had seen.
    seen: usize,
}

impl World {
    /// Takes the next job for a runner out of the queue.
    pub(super) fn take(&mut self, runner: u64) -> Option<Value> {
        let queue: Vec<Waiting> = self.queue.iter().map(|job| self.waiting(job)).collect();
        let mut running = BTreeMap::new();
        for given in self.given.iter().filter(|given| given.of_instance) {
            let is_live = self.jobs.get(&given.job).is_some_and(super::Job::is_live);
            *running.entry(given.project).or_default() += usize::from(is_live);
        }
        let chosen = self.selection.choose(runner, &queue, &running)?;
        let at = queue.iter().position(|job| job.id == chosen)?;
        let of_instance =
            self.selection.runners.get(&runner).is_some_and(|found| found.kind == Kind::Instance);
        self.given.push(Given {
            job: chosen,
            project: queue[at].project,
            runner,
            of_instance,
            seen: self.seen.len(),
        });
        self.queue.remove(at)
    }

    fn waiting(&self, job: &Value) -> Waiting {
        let id = job["id"].as_u64().unwrap_or_default();
        Waiting {
            id,
            project: job["job_info"]["project_id"].as_u64().unwrap_or_default(),
            tags: self.selection.tags.get(&id).cloned().unwrap_or_default(),
            is_protected: job["git_info"]["protected"] == true,
        }
    }
}

impl FakeGitlab {
    /// Puts a job of a project into the queue, with these tags. Returns its number.
    pub(crate) fn add_for(&self, project: u64, tags: &[&str], change: impl FnOnce(&mut Value)) -> u64 {
        let tags: BTreeSet<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
        self.add_tagged(tags, |job| {
            let path = format!("group/project-{project}");
            job["job_info"]["project_id"] = json!(project);
            let url =
                job["git_info"]["repo_url"].as_str().unwrap_or_default().replace("group/project", &path);
            job["git_info"]["repo_url"] = json!(url);
            change(job);
        })
    }

    /// Waits until a runner is given a job. Returns how many requests that begin with `start` had come until then.
    pub(crate) fn requests_before(&self, job: u64, start: &str) -> usize {
        self.wait_for(&format!("job {job} to be given"), |world| {
            let given = world.given.iter().find(|given| given.job == job)?;
            let calls = world.calls();
            Some(calls.iter().take(given.seen).filter(|call| call.starts_with(start)).count())
        })
    }

    /// Returns the jobs that runners were given, in this order.
    pub(crate) fn given(&self) -> Vec<u64> {
        self.world().given.iter().map(|given| given.job).collect()
    }
}
