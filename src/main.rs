//! Entry point of the `step-runner` program.

use std::alloc::System;
use std::process::ExitCode;

use zeroizing_alloc::ZeroAlloc;

/// Memory is overwritten when it is given back: a secret does not outlive its owner, in whatever copies libraries made of
/// it (faults.md §2; docs/threat-model.md has the cost).
#[global_allocator]
static MEMORY: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> ExitCode {
    step_runner::failpoint::set_up();
    step_runner::cli::main()
}
