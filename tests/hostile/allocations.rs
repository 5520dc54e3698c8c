//! Counts what the thread under test asks of the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allocated {
    /// Allocations and reallocations.
    pub(crate) count: usize,
    /// The largest of them. **Units**: bytes.
    pub(crate) largest: usize,
}

thread_local! {
    static ALLOCATED: Cell<Allocated> = const { Cell::new(Allocated { count: 0, largest: 0 }) };
}

/// Runs `work` and says what it allocated on this thread.
pub(crate) fn during<T>(work: impl FnOnce() -> T) -> (T, Allocated) {
    ALLOCATED.set(Allocated::default());
    let result = work();
    (result, ALLOCATED.get())
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: usize) {
    let so_far = ALLOCATED.get();
    ALLOCATED.set(Allocated {
        count: so_far.count + 1,
        largest: so_far.largest.max(bytes),
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches a thread-local cell that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.realloc(block, layout, bytes) }
    }
}
