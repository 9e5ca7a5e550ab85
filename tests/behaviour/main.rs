//! Tests that start the real program and look at it from outside, as users, clients and operators do. Some compare the
//! repository's own files.
//!
//! The modules share one program, so that it is linked once and its tests wait side by side. A test may change nothing
//! that the whole process has: no variable, no working directory, no signal, no failpoint.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a broken scene fails the test")]

mod bad_input;
mod bootstrap;
mod builtins;
mod check;
mod ci;
mod cli;
mod client;
mod clock_jumps;
mod compatible;
mod connections;
mod connectors;
mod custom_executor;
mod doctor;
mod errexit;
mod events;
mod examples;
mod failpoints_are_listed;
mod fake;
mod faults_are_listed;
#[cfg(feature = "failpoints")]
mod faults_injected;
mod fetch_git;
mod fetch_oci;
mod fetching;
mod first_use;
#[path = "../support/git_server.rs"]
mod git_server;
mod hostile;
mod hostile_steps;
mod keeper;
mod kubectl;
mod language;
mod logs;
#[path = "../support/loop_disk.rs"]
mod loop_disk;
mod operator_log;
mod power;
mod processes;
mod proxy;
mod queue;
mod recovery;
mod reference;
mod references;
mod resources;
mod run_calls;
mod schema;
mod scripts;
mod secrets;
mod serve_command;
#[cfg(feature = "failpoints")]
#[path = "../shows/terminal/session.rs"]
#[expect(dead_code, reason = "the proof `terminal` uses the rest")]
mod session;
#[path = "../support/source.rs"]
mod source;
mod storage;
#[path = "../support/mod.rs"]
mod support;
mod systemd;

// Named by the included `git_server`.
use support::parts;

/// The part of the proofs' module `verdict` that `session` names.
#[cfg(feature = "failpoints")]
mod verdict {
    /// A check that failed.
    pub(crate) type Check<T = ()> = Result<T, String>;
}
