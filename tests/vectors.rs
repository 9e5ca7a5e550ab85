//! The test vectors of language.md, logs.md and masking.md (`vector_suites/harness.rs`). Those of the decisions are tests
//! of the crate `core`, so its mutants meet them.

use std::{path::Path, process::ExitCode};

#[path = "vector_suites/harness.rs"]
mod harness;
#[path = "vector_suites/language.rs"]
mod language;
#[path = "vector_suites/logs.rs"]
mod logs;
#[path = "vector_suites/masking.rs"]
mod masking;

const SUITES: &[harness::Suite] = &[
    ("language", |vector, _| language::run(vector)),
    ("logs", |vector, _| logs::run(vector)),
    ("masking", |vector, _| masking::run(vector)),
];

fn main() -> ExitCode {
    harness::run(Path::new(env!("CARGO_MANIFEST_DIR")), SUITES)
}
