//! Memory: `mmap`, `mprotect` and `munmap` for the stack of a new process, `malloc_trim`.

use std::ffi::c_void;
use std::{io, ptr};

/// Bytes of the stack a new process runs on until its `execve`. The functions it calls are thin wrappers of system
/// calls; 64 KiB is what the C library's own `posix_spawn` is generous with.
pub(super) const CHILD_STACK: usize = 64 << 10;

/// Unmapped bytes below the stack, so that an overflow is a fault and not silent damage.
const STACK_GUARD: usize = 64 << 10;

/// Stack for the child of one [`clone_exec`](super::clone::clone_exec) at a time.
pub(in crate::process) struct ChildStack {
    base: *mut c_void,
}

impl ChildStack {
    /// Maps the stack. Its pages cost memory only once they are used.
    pub(in crate::process) fn new() -> io::Result<Self> {
        // SAFETY: a new private anonymous mapping touches no memory that exists.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                STACK_GUARD + CHILD_STACK,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base };
        // SAFETY: the range lies within the mapping made above.
        let made = unsafe { libc::mprotect(stack.lowest(), CHILD_STACK, libc::PROT_READ | libc::PROT_WRITE) };
        if made == 0 { Ok(stack) } else { Err(io::Error::last_os_error()) }
    }

    /// The lowest byte a child may use.
    pub(super) fn lowest(&self) -> *mut c_void {
        // SAFETY: the mapping is STACK_GUARD + CHILD_STACK bytes long.
        unsafe { self.base.byte_add(STACK_GUARD) }
    }

    /// One past the highest.
    pub(super) fn top(&self) -> *mut c_void {
        // SAFETY: one past the end of the mapping.
        unsafe { self.base.byte_add(STACK_GUARD + CHILD_STACK) }
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no child uses it: `clone_exec` returns only once its child is gone from it.
        unsafe { libc::munmap(self.base, STACK_GUARD + CHILD_STACK) };
    }
}

// SAFETY: the mapping is plain memory without ties to the thread that made it.
unsafe impl Send for ChildStack {}

/// Gives free memory of the heap back to the system, also that between blocks in use. The C library does so by itself
/// only at the heap's end, where after a burst of jobs something always lives on.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator locks what it looks at; blocks in use stay where they are.
    unsafe {
        libc::malloc_trim(0);
    }
}
