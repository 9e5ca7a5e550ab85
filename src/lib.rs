//! step-runner: runs the steps of a CI job inside its environment and loses nothing.

pub mod actors;
pub mod app;
pub mod bootstrap;
pub mod builtin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod custom_executor;
pub mod failpoint;
pub mod fetch;
pub mod files;
pub mod grpc;
pub mod job;
pub mod keeper;
pub mod logging;
pub mod oci;
pub mod plan;
pub mod proxy;
pub mod queue;
pub mod signal;
pub mod store;
pub mod systemd;
pub mod threads;
pub mod variables;
pub mod web;

// Crates of their own, under their short names (docs/internals/architecture.md, "Crates").
pub use step_runner_client as client;
pub use step_runner_client::net;
pub use step_runner_lang as lang;
pub use step_runner_log as log;
pub use step_runner_log::journal;
pub use step_runner_model as model;
pub use step_runner_model::error;
pub use step_runner_process as process;
pub use step_runner_proto as pb;
