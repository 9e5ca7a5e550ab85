//! The decisions of step-runner, as pure functions and state machines.
//!
//! - [`job`] decides what a job does next: events in, effects out;
//! - [`plan`] turns a step, its function and values into what to call with which inputs;
//! - [`queue`] decides which job starts next;
//! - [`request`] is what a client asks for, checked;
//! - [`variables`] turns a request into environment, files and phrases;
//! - [`config`] turns options, environment and files into checked settings.
//!
//! The crate may use `model`, `lang` and `log` of the project. It has no runtime, file system, clock or environment:
//! callers pass in facts and times, and perform what it decides.

pub mod config;
pub mod job;
pub mod plan;
pub mod queue;
pub mod request;
pub mod variables;
