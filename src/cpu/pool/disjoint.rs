//! Parts of one buffer, written by different tasks.

use std::{marker::PhantomData, ops::Range};

/// A buffer that the tasks of a region write in parts that do not overlap.
#[derive(Debug)]
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    buffer: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Disjoint` hands out exclusive parts of an exclusive borrow; sharing it sends those parts to other threads.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Takes the buffer for as long as parts of it are written.
    pub fn new(buffer: &'a mut [T]) -> Self {
        Self {
            start: buffer.as_mut_ptr(),
            len: buffer.len(),
            buffer: PhantomData,
        }
    }

    /// The elements of `range`.
    ///
    /// **Panics** if the range leaves the buffer.
    ///
    /// # Safety
    /// No element of the range may be in another part that is alive at the same time.
    #[allow(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} elements",
            self.len
        );
        // SAFETY: in bounds by the check above, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Part `number` of parts of `len` elements.
    ///
    /// **Panics** if the part leaves the buffer.
    ///
    /// # Safety
    /// As for [`Disjoint::part`].
    #[allow(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub unsafe fn nth(&self, number: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { self.part(number * len..(number + 1) * len) }
    }
}
