//! The two figures of the language that have aims. `cargo bench --bench language` shows the others.

#[path = "../language/fixtures.rs"]
#[expect(dead_code, reason = "the other benchmark uses the rest")]
mod fixtures;

use std::hint::black_box;
use std::time::Instant;

use step_runner::lang::eval::evaluate_text;

use self::fixtures::{TEMPLATE, World, parsed, plan, request, steps};
use super::report::{Aim, Report, median};
use super::{Failure, Size};

/// Number of steps of the large job.
const STEPS: usize = 1_000;

/// Evaluations between two readings of the clock.
const EVALUATIONS: usize = 10_000;

pub(crate) fn measure(report: &mut Report, size: Size) -> Result<(), Failure> {
    let spec = request(steps(STEPS));
    let mut times = Vec::new();
    for _ in 0..size.pick(20, 200) {
        let began = Instant::now();
        black_box(plan(black_box(&spec)));
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    report.figure(&format!("parse and plan {STEPS} steps"), median(times), "ms", Aim::AtMost(20.0));
    let (world, template) = (World::new(), parsed(TEMPLATE));
    let context = world.context();
    let mut speeds = Vec::new();
    for _ in 0..size.pick(5, 50) {
        let began = Instant::now();
        for _ in 0..EVALUATIONS {
            evaluate_text(black_box(&template), &context).map_err(|finding| finding.to_string())?;
        }
        speeds.push(EVALUATIONS as f64 / began.elapsed().as_secs_f64());
    }
    report.figure("evaluations of two references", median(speeds), "/s", Aim::AtLeast(1e5));
    Ok(())
}
