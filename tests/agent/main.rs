//! The agent against a double of GitLab, with the real program (docs/spec/agent.md). Names of tests begin with the row of
//! the specification that they show.
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

mod artifacts;
mod beside_runner;
mod cell_outages;
#[path = "../cell_router/mod.rs"]
mod cell_router;
mod cell_routes;
mod cell_scene;
mod cells;
mod docker;
#[path = "../fake_gitlab/mod.rs"]
mod fake_gitlab;
#[path = "../support/git_server.rs"]
mod git_server;
#[path = "../gitlab_runner/runner.rs"]
mod gitlab_runner;
mod jobs;
mod kube;
mod runners;
mod scene;
mod secrets;
mod selection;
mod sources;
#[path = "../support/mod.rs"]
mod support;
mod survival;

// Named by the included `git_server`.
use support::parts;
