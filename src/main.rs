//! Entry point of the `step-runner` program.

use std::process::ExitCode;

use step_runner::process::{self, WipingAllocator};

#[cfg(not(target_env = "musl"))]
use std::alloc::System as Allocator;

/// The allocator of the C library is slow with several threads.
#[cfg(target_env = "musl")]
use mimalloc::MiMalloc as Allocator;

/// Wipes memory when it is given back, so that no copy of a secret outlives its owner, not even one made by a library
/// (threat-model.md §4.3, with the cost).
#[global_allocator]
static MEMORY: WipingAllocator<Allocator> = WipingAllocator(Allocator);

fn main() -> ExitCode {
    process::bound_free_memory();
    step_runner::failpoint::set_up();
    step_runner::cli::main()
}
