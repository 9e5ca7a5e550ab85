//! The test vectors of flow.md, queue.md and variables.md (`tests/vector_suites/harness.rs`).

use std::{path::Path, process::ExitCode};

mod flow;
#[path = "../../../../tests/vector_suites/harness.rs"]
mod harness;
mod queue;
mod variables;

const SUITES: &[harness::Suite] = &[
    ("flow", |vector, _| flow::both(vector)),
    ("queue", |vector, _| queue::run(vector)),
    ("variables", variables::run),
];

fn main() -> ExitCode {
    harness::run(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), SUITES)
}
