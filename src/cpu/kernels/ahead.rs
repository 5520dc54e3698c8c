//! Asking for bytes before they are needed.
//!
//! A processor core can wait for a few dozen cache lines at a time; more requests at once stop it. So they are spread evenly
//! over the work that goes on meanwhile. Knows addresses only.

use super::simd::Simd;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Bytes that will be wanted soon. They are never read through this, so they need not exist.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    at: *const u8,
    bytes: usize,
}

impl Ahead {
    /// Nothing to ask for.
    pub(super) const NOTHING: Self = Self {
        at: std::ptr::null(),
        bytes: 0,
    };

    /// The bytes from `at` on.
    pub(super) fn new(at: *const u8, bytes: usize) -> Self {
        Self { at, bytes }
    }

    /// Where they start, if there are any.
    pub(super) fn start(self) -> Option<*const u8> {
        (self.bytes > 0).then_some(self.at)
    }

    /// Part `i` of `count` about equal ones.
    pub(super) fn part(self, i: usize, count: usize) -> Self {
        let start = self.bytes * i / count;
        Self {
            at: self.at.wrapping_add(start),
            bytes: self.bytes * (i + 1) / count - start,
        }
    }

    /// Asks for the lines of part `i` of `count` about equal ones. What is asked for is not forgotten.
    #[inline(always)]
    pub(super) fn ask_part<S: Simd>(&self, s: S, i: usize, count: usize) {
        let lines = self.bytes / LINE;
        for line in lines * i / count..lines * (i + 1) / count {
            s.prefetch(self.at.wrapping_add(LINE * line));
        }
    }

    /// Lines to ask for at each of `steps` steps.
    #[inline(always)]
    pub(super) fn pace(self, steps: usize) -> usize {
        self.bytes.div_ceil(LINE * steps)
    }

    /// Asks for up to `lines` lines and forgets them.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, s: S, lines: usize) {
        for _ in 0..lines {
            if self.bytes == 0 {
                return;
            }
            s.prefetch(self.at);
            self.at = self.at.wrapping_add(LINE);
            self.bytes = self.bytes.saturating_sub(LINE);
        }
    }
}
