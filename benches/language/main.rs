//! Speed of the language: from the text to a job's first process, and the cost of each further step without its
//! process.
//!
//! Run it with `cargo bench --bench language`.

mod fixtures;

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use step_runner::lang::document::parse_request;
use step_runner::lang::eval::{evaluate_native, evaluate_text};
use step_runner::lang::output_file::{read_exports, read_outputs};

use fixtures::{TEMPLATE, World, drive, parsed, plan, request, steps};

/// Numbers of steps of a job.
const STEPS: [usize; 3] = [1, 10, 1_000];

/// Templates as used in practice.
const TEMPLATES: [&str; 6] = [
    TEMPLATE,
    "plain text without an expression",
    "${{ inputs.A }}",
    "--image=${{ vars.CI_VARIABLE_50 }}/${{ env.CI_VARIABLE_3 }}:${{ steps.build.outputs.digest }}",
    "${{ inputs.missing || vars.A + '-' + vars.B }}",
    "${{ vars.A == 'x' && steps.test.outputs.path || [1, 2, {a: env.B}] }}",
];

/// Numbers of lines of an output file.
const LINES: [usize; 3] = [1, 10, 1_000];

fn main() {
    divan::main();
}

#[divan::bench(args = STEPS)]
fn parse(bencher: Bencher<'_, '_>, count: usize) {
    let text = steps(count);
    bencher.counter(BytesCount::of_str(&text)).bench_local(|| parse_request(black_box(&text), "").is_ok());
}

#[divan::bench(args = STEPS)]
fn parse_and_plan(bencher: Bencher<'_, '_>, count: usize) {
    let spec = request(steps(count));
    bencher.counter(ItemsCount::new(count)).bench_local(|| plan(black_box(&spec)).1.len());
}

#[divan::bench(args = STEPS)]
fn all_steps(bencher: Bencher<'_, '_>, count: usize) {
    let spec = request(steps(count));
    bencher.counter(ItemsCount::new(count)).with_inputs(|| plan(&spec)).bench_local_values(
        |(machine, effects)| {
            assert_eq!(drive(machine, effects), count, "a step did not start");
        },
    );
}

#[divan::bench(args = TEMPLATES)]
fn text(bencher: Bencher<'_, '_>, template: &str) {
    let (world, template) = (World::new(), parsed(template));
    let context = world.context();
    bencher
        .counter(ItemsCount::new(1_usize))
        .bench_local(|| evaluate_text(black_box(&template), &context).is_ok());
}

#[divan::bench(args = TEMPLATES)]
fn native(bencher: Bencher<'_, '_>, template: &str) {
    let (world, template) = (World::new(), parsed(template));
    let context = world.context();
    bencher
        .counter(ItemsCount::new(1_usize))
        .bench_local(|| evaluate_native(black_box(&template), &context).is_ok());
}

#[divan::bench]
fn environment_of_a_process(bencher: Bencher<'_, '_>) {
    let environment = World::new().environment();
    bencher.bench_local(|| black_box(&environment).to_process());
}

fn output_file(count: usize) -> String {
    let line =
        |number| format!("{{\"name\": \"output_{number}\", \"value\": \"text of output {number}\"}}\n");
    (0..count).map(line).collect()
}

#[divan::bench(args = LINES)]
fn outputs(bencher: Bencher<'_, '_>, count: usize) {
    let (text, none) = (output_file(count), indexmap::IndexMap::new());
    bencher
        .counter(ItemsCount::new(count))
        .bench_local(|| read_outputs(black_box(text.as_bytes()), &none).is_ok());
}

#[divan::bench(args = LINES)]
fn exports(bencher: Bencher<'_, '_>, count: usize) {
    let text = output_file(count);
    bencher.counter(ItemsCount::new(count)).bench_local(|| read_exports(black_box(text.as_bytes())).is_ok());
}
