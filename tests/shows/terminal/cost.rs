//! The time that a job with very much output loses because a terminal shows it.

use super::session::Session;
use crate::verdict::{Check, percentile};

/// Rounds of a job without and a job with a viewer.
const ROUNDS: usize = 5;

/// Most that a viewer can cost, in percent.
const MOST: u64 = 3;

/// Compares the time of a step that prints this many lines, without and with a viewer. Returns figures.
pub(super) fn measured(lines: u64, judges: bool) -> Check<String> {
    let session = Session::open(100, 40)?;
    let script = format!(
        "a=$(date +%s%N); yes 'a line of a job with very much output' | head -n {lines}; b=$(date +%s%N); echo $((b - a)) >> took"
    );
    session
        .write("job.yml", &format!("spec: {{}}\n---\nrun:\n  - {{name: step, script: \"{script}\"}}\n"))?;
    let line = format!(
        "step-runner serve --socket d.sock --state-dir state 2>/dev/null & \
         until [ -S d.sock ]; do sleep 0.05; done; export STEP_RUNNER_SOCKET=$PWD/d.sock; \
         for n in $(seq {ROUNDS}); do \
         step-runner submit job.yml --id a$n --work-dir $PWD; until step-runner status a$n | grep -q success; do sleep 0.05; done; \
         step-runner submit job.yml --id b$n --work-dir $PWD; step-runner follow b$n; \
         for id in a$n b$n; do step-runner finish $id; done; done; kill $!; wait"
    );
    session.start("", &line)?;
    session.over()?;
    let took = std::fs::read_to_string(session.path("took")).map_err(|error| error.to_string())?;
    let took: Vec<u64> = took.lines().filter_map(|line| line.parse().ok()).collect();
    let median = |first: usize| {
        let mut times: Vec<_> = took.iter().skip(first).step_by(2).copied().collect();
        times.sort_unstable();
        percentile(&times, 50)
    };
    let (Some(without), Some(with)) = (median(0), median(1)) else {
        return Err(format!("the jobs did not run:\n{}", session.screen()?));
    };
    let figures = format!(
        "{lines} lines: {} ms without a viewer, {} ms with one",
        without / 1_000_000,
        with / 1_000_000
    );
    if judges && with > without + without * MOST / 100 { Err(figures) } else { Ok(figures) }
}
