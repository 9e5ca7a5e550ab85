//! The keeper as a process, driven over its socket with real children (service.md §6).
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails right there")]

mod daemon;
mod ends;
mod groups;
mod logs;
mod output;
#[path = "../support/parts.rs"]
mod parts;
mod peers;
mod reaper;
mod start;
mod support;
