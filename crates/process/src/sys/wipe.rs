//! The allocator that wipes memory before it gives it back (threat-model.md §4.3).

use std::alloc::{GlobalAlloc, Layout};

/// Blocks from this size on lose their pages instead of being overwritten. Else a block that was reserved and hardly
/// used would be mapped and overwritten whole, such as one for a message of which only the length came.
const LARGE: usize = 1 << 20;

/// An allocator that wipes each block before `A` gets it back, whatever the block held.
pub struct WipingAllocator<A>(
    /// The allocator below.
    pub A,
);

// SAFETY: all work is done by `A`. The default `realloc` allocates, copies and deallocates by the functions below.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WipingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is the caller's to give up, and is as long as its layout says.
        unsafe {
            wipe(block, layout.size());
            self.0.dealloc(block, layout);
        }
    }
}

/// Wipes `len` bytes.
///
/// # Safety
/// The bytes are valid for writes, nobody else uses them, and they lie in private anonymous memory, as all of an
/// allocator does.
unsafe fn wipe(block: *mut u8, len: usize) {
    // SAFETY: the bytes are ours to write.
    unsafe {
        if len < LARGE {
            overwrite(block, len);
        } else {
            drop_pages(block, len);
        }
    }
}

/// Overwrites `len` bytes. That is never optimised away.
///
/// # Safety
/// The conditions of [`wipe`] hold.
unsafe fn overwrite(block: *mut u8, len: usize) {
    // SAFETY: the bytes are ours to write.
    unsafe { libc::explicit_bzero(block.cast(), len) }
}

/// Drops the pages that lie in a block, and overwrites the rest: dropped pages of private memory read as zeros.
///
/// # Safety
/// The conditions of [`wipe`] hold.
#[cold]
unsafe fn drop_pages(block: *mut u8, len: usize) {
    let (before, pages) = whole_pages(block, len);
    // SAFETY: all parts lie in the block.
    unsafe {
        overwrite(block, before);
        let (first, behind) = (block.add(before), before + pages);
        if pages > 0 && libc::madvise(first.cast(), pages, libc::MADV_DONTNEED) != 0 {
            overwrite(first, pages);
        }
        overwrite(block.add(behind), len - behind);
    }
}

/// Returns the bytes of the block before its first whole page, and those in whole pages.
fn whole_pages(block: *mut u8, len: usize) -> (usize, usize) {
    /// At least the size of a page: no Linux system has more than 64 KiB.
    const PAGE: usize = 64 << 10;
    let before = (block as usize).next_multiple_of(PAGE) - block as usize;
    (before, (len - before) / PAGE * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;

    #[test]
    fn nothing_is_left_of_a_block_of_any_size() {
        for len in [1, 24, 4_096, LARGE - 1, LARGE, LARGE + 1, 5 * LARGE + 12_345] {
            for offset in [0, 1, 4_095] {
                let mut block = vec![0xA5_u8; offset + len + 1];
                // SAFETY: the bytes lie in the vector, of which nobody else knows.
                unsafe { wipe(block.as_mut_ptr().add(offset), len) };
                assert!(block[..offset].iter().all(|&byte| byte == 0xA5), "{len} at {offset}");
                assert!(block[offset..offset + len].iter().all(|&byte| byte == 0), "{len} at {offset}");
                assert_eq!(block[offset + len], 0xA5, "{len} at {offset}");
            }
        }
    }

    #[test]
    fn a_large_block_that_was_not_used_is_not_touched() {
        const SIZE: usize = 64 << 20;
        const PAGE: usize = 4 << 10;
        let layout = Layout::from_size_align(SIZE, 64 << 10).unwrap();
        let mut states = vec![0_u8; SIZE / PAGE];
        // SAFETY: the block is aligned to pages, is wiped as it was allocated, and freed once; `states` has room for
        // all pages.
        let told = unsafe {
            let block = System.alloc(layout);
            wipe(block, SIZE);
            let told = libc::mincore(block.cast(), SIZE, states.as_mut_ptr());
            System.dealloc(block, layout);
            told
        };
        assert_eq!(told, 0);
        let resident = states.iter().filter(|&&state| state & 1 != 0).count();
        assert!(resident < states.len() / 2, "{resident} pages");
    }
}
