//! The agent: takes jobs from a GitLab instance, has a daemon run each, and reports trace and result (agent.md §11).
//!
//! The crate [`agent`](crate::agent) decides everything; this module performs its actions. One task a job owns the job's
//! record ([`job`]), one owns scheduler and configuration ([`agency`]); they exchange messages. Nothing here is part of
//! daemon or keeper: a job reaches a daemon through [`client`](crate::client), as from any other client.

pub(crate) mod agency;
mod answers;
pub(crate) mod api;
mod clock;
pub(crate) mod configuration;
mod daemons;
mod docker;
mod engine;
mod environment;
mod folder;
mod follow;
pub(crate) mod info;
mod job;
mod kube;
pub(crate) mod place;
mod program;
pub(crate) mod register;
mod request;
pub(crate) mod rights;
mod rotation;
pub(crate) mod settings;
pub(crate) mod users;
mod wanted;
