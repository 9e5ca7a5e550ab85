//! step-runner: runs the steps of a CI job inside its environment and loses nothing.
//!
//! This crate is the program: actors, services, the keeper, fetching, commands. What these share is in the crates below
//! it, each under its short name here (docs/internals/architecture.md, "Crates"). A program that only follows jobs needs
//! [`client`], the crate `step-runner-client`, alone.

pub mod actors;
pub mod app;
pub mod bootstrap;
pub mod builtin;
pub mod cli;
pub mod clock;
pub mod custom_executor;
pub mod failpoint;
pub mod fetch;
pub mod files;
pub mod grpc;
pub mod keeper;
pub mod logging;
pub mod oci;
pub mod proxy;
pub mod signal;
pub mod store;
pub mod systemd;
pub mod threads;
pub mod web;

// The crates below this one.
pub use step_runner_client as client;
pub use step_runner_client::net;
pub use step_runner_core::{config, job, plan, queue, variables};
pub use step_runner_lang as lang;
pub use step_runner_log as log;
pub use step_runner_log::journal;
pub use step_runner_model as model;
pub use step_runner_model::error;
pub use step_runner_process as process;
pub use step_runner_proto as pb;
