//! step-runner: runs the steps of a CI job inside its environment and loses nothing.

pub mod actors;
pub mod app;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod error;
pub mod grpc;
pub mod job;
pub mod journal;
pub mod keeper;
pub mod lang;
pub mod log;
pub mod logging;
pub mod model;
pub mod net;
pub mod pb;
pub mod plan;
pub mod process;
pub mod proxy;
pub mod signal;
pub mod store;
pub mod variables;
