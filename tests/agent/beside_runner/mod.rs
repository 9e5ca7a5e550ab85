//! Gives a real GitLab Runner (shell executor) and the agent the same jobs. Requests, results and traces must be the same,
//! but for the list of its release, which has a reason for each line. `scripts/agent-compare` builds the Runner.

mod cases;
mod differences;
mod observed;

use std::fs;
use std::path::Path;
use std::process::Command;

use self::cases::{CASES, Case};
use self::observed::Observed;
use crate::fake_gitlab::{FakeGitlab, RUNNER, clients};
use crate::git_server::GitServer;
use crate::gitlab_runner::{self, Runner};
use crate::scene::Scene;

/// Gives all jobs, one after the other, and returns what was observed of each.
fn observe(gitlab: &FakeGitlab, git: &GitServer, folder: &Path) -> Vec<Observed> {
    let mut given = Vec::new();
    for Case { name, change, cancels, is_answered } in &CASES {
        let earlier = gitlab.world().jobs.last_key_value().map(|(id, job)| (*id, job.token.clone()));
        let job = gitlab.add(|job| change(job, &cases::Given { earlier, git }));
        given.push((*name, job));
        if *cancels {
            gitlab.wait_for("the output", |world| world.jobs[&job].text().contains("begun\n").then_some(()));
            gitlab.change(|world| clients::cancel(world, job));
        }
        // The end of the next job is that of one that a program drops without a word.
        if *is_answered {
            gitlab.wait_for("the result", |world| observed::is_over(world, job).then_some(()));
        }
    }
    let names = names(gitlab, git, folder);
    let world = gitlab.world();
    given.into_iter().map(|(name, job)| Observed::of(&world, name, job, &names)).collect()
}

/// Returns the texts that are others in each run or on each machine, with the names that they have in the list.
fn names(gitlab: &FakeGitlab, git: &GitServer, folder: &Path) -> Vec<(String, &'static str)> {
    let system = fs::read_to_string(folder.join(".runner_system_id")).unwrap_or_default();
    // The folder of the builds is named by the Runner's token, in ways of their own.
    let token = crate::support::names(&folder.join("builds")).pop().unwrap_or_default();
    let mut names = vec![
        (folder.display().to_string(), "FOLDER"),
        (gitlab.url(), "SERVER"),
        (gitlab.url().replace("http://", ""), "SERVER"),
        (git.host(), "GIT"),
        (RUNNER.to_owned(), "RUNNER"),
        (token, "SHORT"),
        (std::env::var("PATH").unwrap(), "PATH_OF_THE_PROGRAM"),
        (env!("CARGO_PKG_VERSION").to_owned(), "VERSION"),
        (rustix::system::uname().nodename().to_string_lossy().into_owned(), "HOST"),
        (system.trim().to_owned(), "SYSTEM"),
    ];
    names.retain(|(text, _)| !text.is_empty());
    names
}

/// Returns the release of a Runner.
fn release(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("Version:")).unwrap().trim().to_owned()
}

/// Runs all jobs with the Runner.
fn with_runner(program: &Path, git: &GitServer) -> Vec<Observed> {
    let folder = tempfile::tempdir().unwrap();
    let gitlab = FakeGitlab::start();
    let _runner = Runner::start(program, folder.path(), &gitlab, 1, 1);
    let observed = observe(&gitlab, git, folder.path());
    gitlab.assert_clean();
    observed
}

/// Runs all jobs with the agent.
fn with_agent(git: &GitServer) -> Vec<Observed> {
    let mut scene = Scene::bare(FakeGitlab::start());
    let folder = scene.path("agent.toml").parent().unwrap().to_owned();
    gitlab_runner::make_folders(&folder);
    let (url, path) = (scene.gitlab.url(), folder.display());
    scene.configure(&format!(
        "concurrent = 1\ncheck_interval = 1\n[[runners]]\nname = \"shell\"\nid = 11\nurl = \"{url}\"\ntoken = \"{RUNNER}\"\n\
        builds_dir = \"{path}/builds\"\ncache_dir = \"{path}/cache\"\n"
    ));
    let (config, state) = (scene.path("agent.toml"), scene.path("state"));
    scene.start_with(|command| {
        let command = gitlab_runner::environment(command, &folder);
        command.env("STEP_RUNNER_AGENT_CONFIG", config).env("STEP_RUNNER_AGENT_STATE_DIR", state);
    });
    let observed = observe(&scene.gitlab, git, &folder);
    scene.wait_until_closed();
    scene.gitlab.assert_clean();
    observed
}

#[test]
fn jobs_are_the_same_as_with_a_gitlab_runner_but_for_a_list() {
    let Some(program) = gitlab_runner::program() else {
        println!("skipped: no GitLab Runner (scripts/agent-compare builds one)");
        return;
    };
    let Some(git) = GitServer::start("jobs_are_the_same_as_with_a_gitlab_runner") else { return };
    cases::repository(&git);
    let there = with_runner(&program, &git);
    let here = with_agent(&git);
    differences::check(&release(&program), &there, &here);
}
