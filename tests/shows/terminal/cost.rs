//! The time that a job with very much output loses because a terminal shows it.

use super::session::Session;
use crate::verdict::{Check, percentile};

/// Rounds of a job without and a job with a viewer.
const ROUNDS: usize = 7;

/// Most that a viewer can cost a job that prints a million lines each second, in percent.
const MOST: u64 = 3;

/// Lines that are printed at once. A step at a pace prints them each tenth of a second.
const CHUNK: u64 = 100_000;

/// Compares the time of steps that print so many chunks of lines, without and with a viewer. Returns figures.
///
/// One step keeps a pace of a million lines a second, which its viewer must not change. The other is as fast as it can:
/// there the terminal and the viewer take processors that the step would use, so its times are told without a verdict.
pub(super) fn measured(chunks: u64, judges: bool) -> Check<String> {
    let tenth = "until [ $(date +%s%N) -ge $((start + n * 100000000)) ]; do sleep 0.01; done";
    let (without, with) = medians(tenth, chunks)?;
    let (free, shown) = medians(":", chunks)?;
    let figures = format!(
        "{} lines: at a million a second {without} ms without a viewer, {with} ms with one; \
         as fast as can be {free} ms and {shown} ms",
        chunks * CHUNK
    );
    if judges && with > without + without * MOST / 100 { Err(figures) } else { Ok(figures) }
}

/// Returns the median milliseconds of a step without and with a viewer. It runs `pause` after each chunk, the `n`-th.
fn medians(pause: &str, chunks: u64) -> Check<(u64, u64)> {
    let session = Session::open(100, 40)?;
    session.write(
        "step.sh",
        &format!(
            "start=$(date +%s%N); n=0\nwhile [ $n -lt {chunks} ]; do cat lines; n=$((n + 1)); {pause}; done\n\
             echo $((($(date +%s%N) - start) / 1000000)) >> took\n"
        ),
    )?;
    session.write("job.yml", "spec: {}\n---\nrun:\n  - {name: step, script: sh step.sh}\n")?;
    // The viewer ends with its job: a terminal takes many times as long to show so many lines.
    let line = format!(
        "yes 'a line of a job with very much output' | head -n {CHUNK} > lines; \
         step-runner serve --socket d.sock --state-dir state 2>/dev/null & daemon=$!; \
         until [ -S d.sock ]; do sleep 0.05; done; export STEP_RUNNER_SOCKET=$PWD/d.sock; \
         succeeded() {{ until step-runner status $1 | grep -q success; do sleep 0.05; done; }}; \
         for n in $(seq {ROUNDS}); do \
         step-runner submit job.yml --id a$n --work-dir $PWD; succeeded a$n; \
         step-runner submit job.yml --id b$n --work-dir $PWD; (succeeded b$n; kill $(cat viewer)) & \
         sh -c 'echo $$ > viewer; exec step-runner follow b'$n; \
         for id in a$n b$n; do step-runner finish $id; done; done; kill $daemon; wait"
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
    match (median(0), median(1)) {
        (Some(without), Some(with)) => Ok((without, with)),
        _ => Err(format!("the jobs did not run:\n{}", session.screen()?)),
    }
}
