//! Memory: `mmap`, `mprotect` and `munmap` for the stack of a new process; `mallopt` at the start; `malloc_trim` and
//! `madvise` when idle.

use std::ffi::{c_int, c_void};
use std::{io, ptr, slice};

/// Bytes of the stack that a new process uses until its `execve`. It calls thin wrappers of system calls only; the C
/// library's own `posix_spawn` is generous with 64 KiB.
pub(super) const CHILD_STACK: usize = 64 << 10;

/// Unmapped bytes below the stack, so that an overflow is a fault and not silent damage.
const STACK_GUARD: usize = 64 << 10;

/// Bytes of a page on processors with the smallest ones.
const SMALLEST_PAGE: usize = 4096;

/// Stack for the child of one [`clone_exec`](super::clone::clone_exec) at a time.
pub(crate) struct ChildStack {
    base: *mut c_void,
}

impl ChildStack {
    /// Maps the stack. Its pages cost memory only once they are used.
    pub(crate) fn new() -> io::Result<Self> {
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

    /// Returns the lowest byte a child may use.
    pub(super) fn lowest(&self) -> *mut c_void {
        // SAFETY: the mapping is STACK_GUARD + CHILD_STACK bytes long.
        unsafe { self.base.byte_add(STACK_GUARD) }
    }

    /// Returns the address behind the highest byte.
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

/// Returns the bytes of a page of memory.
pub(crate) fn page_size() -> usize {
    // SAFETY: reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(SMALLEST_PAGE)
}

/// Bounds the free memory that each thread's heap keeps at its end to 1 MiB, and maps blocks of this size one by one.
/// Call it once, at the start of the program.
///
/// The C library raises both bounds with each larger block that is freed, to 64 MiB, and [`give_back_memory`] cannot
/// take the end of a heap from a thread that has become idle: a few large jobs would leave their memory behind for ever.
pub fn bound_free_memory() {
    #[cfg(target_env = "gnu")]
    {
        const BOUND: c_int = 1 << 20;
        // SAFETY: sets two numbers of the allocator, which locks them.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, BOUND);
            libc::mallopt(libc::M_TRIM_THRESHOLD, BOUND);
        }
    }
}

/// True if [`give_back_memory`] leaves what other threads have freed or may use again: each must call it.
pub const EACH_THREAD_GIVES_BACK: bool = cfg!(target_env = "musl");

/// Gives free memory of the heap back to the system, also that between blocks in use. The C library by itself gives
/// back only the heap's end, where after a burst of jobs something always lives on. The static program's allocator gives
/// back nothing while the thread is idle.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator locks what it looks at; blocks in use stay where they are.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(target_env = "musl")]
    // SAFETY: the call works on this thread's heap and on memory that no thread uses; blocks in use stay where they are.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}

/// Gives back free memory of the heap, and the mapped pages of this program's file. The kernel maps a page of the file
/// again when it is used; 16 of them come with one fault. Call it when there is nothing to do.
pub fn give_back_idle_memory() {
    give_back_memory();
    // SAFETY: the function gets what it asks for and no data.
    unsafe {
        libc::dl_iterate_phdr(Some(unmap_program), ptr::null_mut());
    }
}

/// Drops the pages of the program's segments that nothing can write to. The first object is the program: returns 1, so
/// that no other follows.
unsafe extern "C" fn unmap_program(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description, whose headers lie in the mapped program.
    let (base, headers) = unsafe {
        let object = &*object;
        (object.dlpi_addr as usize, slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)))
    };
    // SAFETY: the call reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    for header in
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0)
    {
        let start = base + header.p_vaddr as usize;
        // Whole pages: the first and the last one may hold parts of other segments.
        let (first, end) = (start.next_multiple_of(page), (start + header.p_memsz as usize) / page * page);
        if first < end {
            // SAFETY: a page of a segment that was never writable is that of the file, from which it is read again.
            // What the loader relocates lies in segments with PF_W, even where it is protected afterwards.
            unsafe { libc::madvise(ptr::without_provenance_mut(first), end - first, libc::MADV_DONTNEED) };
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_env = "gnu")]
    #[test]
    fn a_thread_that_has_freed_its_blocks_keeps_no_large_end_of_its_heap() {
        const COUNT: usize = 500;
        const SIZE: usize = 100_000;
        bound_free_memory();
        // Without the bound, this block would raise those of the C library.
        drop(vec![1_u8; 30 << 20]);
        let is_resident = |address: usize| {
            let mut state = 0_u8;
            let page = ptr::without_provenance_mut::<c_void>(address.next_multiple_of(64 << 10));
            // SAFETY: the kernel writes one byte for one page, and says ENOMEM where nothing is mapped.
            unsafe { libc::mincore(page, 1, &raw mut state) == 0 && state & 1 != 0 }
        };
        let resident = std::thread::spawn(move || {
            // No block of this thread lies behind these: what is free then is the end of its heap.
            let mut addresses = Vec::with_capacity(COUNT);
            let blocks: Vec<_> = (0..COUNT).map(|_| vec![1_u8; SIZE]).collect();
            addresses.extend(blocks.iter().map(|block| block.as_ptr() as usize));
            drop(blocks);
            addresses.into_iter().filter(|&address| is_resident(address)).count()
        });
        let resident = resident.join().unwrap();
        assert!(resident * SIZE < 4 << 20, "{resident} of {COUNT} blocks");
    }

    #[test]
    fn the_program_goes_on_after_its_pages_were_given_back() {
        for _ in 0..100 {
            give_back_idle_memory();
            assert_eq!(format!("{:?}", [1.5, 2.0]), "[1.5, 2.0]");
        }
    }
}
