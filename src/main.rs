//! Entry point of the `step-runner` program.

use std::process::ExitCode;

use zeroizing_alloc::ZeroAlloc;

#[cfg(not(target_env = "musl"))]
use std::alloc::System as Allocator;

/// That of the C library is slow with several threads.
#[cfg(target_env = "musl")]
use mimalloc::MiMalloc as Allocator;

/// Memory is overwritten when it is given back: a secret does not outlive its owner, in whatever copies libraries made of
/// it (faults.md §2; docs/threat-model.md has the cost).
#[global_allocator]
static MEMORY: ZeroAlloc<Allocator> = ZeroAlloc(Allocator);

fn main() -> ExitCode {
    step_runner::failpoint::set_up();
    step_runner::cli::main()
}
