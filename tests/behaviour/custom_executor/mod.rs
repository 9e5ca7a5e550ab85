//! Tests the driver for GitLab Runner's Custom executor. A fake Runner calls the real program, which uses the real
//! daemon (custom-executor.md §15).

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
mod survival;
