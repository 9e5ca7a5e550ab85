//! System calls that no safe library offers, by what they are about.
//!
//! - `clone` starts a process without a copy of our memory, `child` is what runs in it until its program does;
//! - `memory` maps that process's stack and gives free memory back;
//! - `signal` ignores signals, tells which are, and reads them from a descriptor;
//! - `wait` tells and reaps children that have ended;
//! - `descriptor` takes over descriptors we were started with.
#![expect(
    unsafe_code,
    reason = "the one module that talks to the kernel directly; every block says why it is sound"
)]

mod child;
mod clone;
mod descriptor;
mod memory;
mod signal;
mod wait;

use std::ffi::c_int;

pub(super) use child::{ChildPlan, ChildStage, Inheritance, ProcessLimit};
pub(super) use clone::{CloneError, clone_exec};
pub use descriptor::{close_on_exec_from, inherited_descriptor, quieten_standard_streams};
pub(super) use memory::ChildStack;
pub use memory::give_back_memory;
pub use signal::{Signals, ignore_file_size_signal, ignore_signals, is_signal_ignored};
pub use wait::peek_exited_child;
pub(super) use wait::{Child, reap_ended};

fn errno() -> c_int {
    // SAFETY: the location of the calling thread's errno; in the child it is the suspended parent's, which reads its
    // own only after a call of its own.
    unsafe { *libc::__errno_location() }
}
