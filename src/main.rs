//! Entry point of the `step-runner` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    step_runner::cli::main()
}
