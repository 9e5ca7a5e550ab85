//! Faults that only a program with failpoints can be given (docs/failpoints.md). Needs the feature `failpoints`:
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
