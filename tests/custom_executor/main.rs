//! Tests the driver for GitLab Runner's Custom executor. A fake Runner calls the real program, which uses the real
//! daemon (custom-executor.md §15).
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken scene fails the test")]

mod abandoned;
mod bad_input;
mod bounds;
mod cleanup;
mod delivery;
mod lost_lines;
mod runner;
mod signals;
mod stages;
mod stopped;
#[path = "../support/mod.rs"]
mod support;
mod survival;
