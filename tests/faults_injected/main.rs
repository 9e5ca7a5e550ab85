//! Faults that need a program with failpoints (docs/internals/failpoints.md). Run them with the feature `failpoints`:
//! `cargo test --features failpoints --test faults_injected`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::allow_attributes,
    reason = "a test"
)]

#[path = "../support/mod.rs"]
mod support;

mod defects;
mod masking;
mod storage;
mod terminal;

#[path = "../shows/terminal/session.rs"]
#[expect(dead_code, reason = "the proof `terminal` uses the rest")]
mod session;

/// Module that the included `session` expects in its test program.
mod verdict {
    /// A check that failed.
    pub(crate) type Check<T = ()> = Result<T, String>;
}
