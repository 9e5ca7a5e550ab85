//! step-runner: runs the steps of a CI job inside its environment and loses nothing.
//!
//! This crate is the program: actors, services, commands. What they use and share is in the crates below
//! it, each under its short name here (docs/internals/architecture.md, "Crates"). A program that only follows jobs needs
//! [`client`], the crate `step-runner-client`, alone.

pub mod actors;
mod app;
pub mod cli;
pub mod grpc;
mod logging;
mod proxy;
mod systemd;

// The crates below this one.
pub use step_runner_agent as agent;
pub use step_runner_ci as ci;
pub use step_runner_client as client;
pub use step_runner_client::net;
pub use step_runner_core::{config, job, plan, queue, request, variables};
use step_runner_custom_executor as custom_executor;
pub use step_runner_insight as insight;
pub use step_runner_keeper as keeper;
pub use step_runner_lang as lang;
pub use step_runner_log as log;
pub use step_runner_log::journal;
pub use step_runner_model as model;
pub use step_runner_model::error;
pub use step_runner_process as process;
pub use step_runner_proto as pb;
use step_runner_pull as pull;
pub use step_runner_store as store;
use step_runner_system::{bootstrap, files, signal};
pub use step_runner_system::{clock, failpoint, threads};
pub use step_runner_transfer::{builtin, fetch, oci};
pub use step_runner_web as web;
