//! Faults that need a program with failpoints (docs/internals/failpoints.md). Run them with the feature `failpoints`:
//! `cargo test --features failpoints --test behaviour faults_injected`.

mod defects;
mod masking;
mod storage;
mod terminal;
