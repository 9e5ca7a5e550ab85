//! Random schedules of calls, ends, deaths, defects and clock jumps against the daemon's real actors.
//!
//! `simulate [--seeds N] [--from S] [--seed X] [--seconds N] [--jobs N]`: runs the seeds S … S+N-1 on virtual time.
//! `--seed` runs one and prints its trace. The schedule of a failing seed is shortened, printed with the command that
//! repeats it, and added to `tests/simulate/seeds.txt`, whose seeds come first in every run. The exit code is then 1.
//! `--races N` and `--abandoned N` run two single proofs with large counts. Without these options it acts as a normal
//! test program.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the figures are what this program is for")]
#![expect(clippy::unwrap_used, reason = "a simulator that cannot set itself up ends at once")]
#![expect(clippy::needless_pass_by_value, reason = "notes and answers are made to be handed over")]

mod arguments;
mod keeper;
mod oracle;
mod program;
mod proofs;
#[path = "../shows/random.rs"]
#[expect(dead_code, reason = "shared with the proofs")]
mod random;
mod request;
mod runs;
mod schedule;
mod world;

use std::process::ExitCode;

use arguments::Arguments;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("simulate: {error}");
            return ExitCode::from(2);
        }
    };
    let passed = match &arguments {
        Arguments { tests: true, .. } => return proofs::run(),
        Arguments { seed: Some(seed), .. } => runs::show(*seed, &arguments),
        Arguments { worker: true, .. } => runs::work(&arguments),
        Arguments { races: Some(count), .. } => proofs::shown("races", proofs::races(*count)),
        Arguments { abandoned: Some(count), .. } => proofs::shown("abandoned", proofs::abandoned(*count)),
        arguments => runs::all(arguments),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
