//! The agent: takes jobs from a GitLab instance, has a daemon run each, and reports trace and result (agent.md §11).
//!
//! The crate [`agent`](step_runner_agent) decides everything; this one performs its actions. One task a job owns the job's
//! record ([`job`]), one owns scheduler and configuration ([`agency`]); they exchange messages. Nothing here is part of
//! daemon or keeper: a job reaches a daemon through [`client`](step_runner_client), as from any other client.

pub mod agency;
mod answers;
pub mod api;
pub mod check;
mod clock;
pub mod configuration;
mod container;
mod daemons;
mod docker;
mod engine;
mod environment;
mod folder;
mod follow;
pub mod info;
mod job;
mod kube;
mod mask;
mod order;
pub mod place;
mod program;
pub mod register;
mod request;
pub mod rights;
mod rotation;
pub mod settings;
pub mod users;
mod wanted;
