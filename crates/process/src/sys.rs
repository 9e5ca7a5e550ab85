//! System calls that no safe library offers, by subject.
//!
//! - `clone` starts a process without a copy of our memory; `child` runs in it until its program does;
//! - `memory` maps that process's stack, and gives free memory back;
//! - `queue` counts the unread bytes of a socket;
//! - `signal` ignores signals, tells which are ignored, and reads them from a descriptor;
//! - `wipe` is the allocator that leaves nothing in free memory;
//! - `wait` finds and reaps ended children;
//! - `descriptor` takes over descriptors we were started with;
//! - `peer` names the process at the other end of a socket.
#![expect(
    unsafe_code,
    reason = "the one module that talks to the kernel directly; every block says why it is sound"
)]

mod child;
mod clone;
mod descriptor;
mod memory;
mod peer;
mod queue;
mod signal;
mod wait;
mod wipe;

use std::ffi::c_int;

pub(super) use child::{ChildPlan, ChildStage, Inheritance, ProcessLimit};
pub(super) use clone::{CloneError, clone_exec};
pub(super) use descriptor::can_leave_table;
pub use descriptor::{close_on_exec_from, inherited_descriptor, quieten_standard_streams};
pub(super) use memory::ChildStack;
pub(super) use memory::page_size;
pub use memory::{EACH_THREAD_GIVES_BACK, bound_free_memory, give_back_idle_memory, give_back_memory};
pub use peer::{PeerHandle, peer_handle};
pub use queue::unread_bytes;
pub(super) use signal::signal_at_parents_end;
pub use signal::{Signals, ignore_file_size_signal, ignore_signals, is_signal_ignored};
pub use wait::peek_exited_child;
pub(super) use wait::{Child, Children, look_at_children, reap_ended};
pub use wipe::WipingAllocator;

fn errno() -> c_int {
    // SAFETY: the location of the calling thread's errno; in the child it is the suspended parent's, which reads its
    // own only after a call of its own.
    unsafe { *libc::__errno_location() }
}
