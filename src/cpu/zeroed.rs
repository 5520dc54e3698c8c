//! Large arrays that begin as zeros without being touched.

use std::ops::{Deref, DerefMut};

/// Elements to add so that a cache line's start is among the first.
const SLACK: usize = 64;

/// An array of zeros, aligned to a cache line. The system hands out its memory when it is first written.
#[derive(Debug)]
pub(crate) struct Zeroed<T> {
    data: Vec<T>,
    start: usize,
    len: usize,
}

impl Zeroed<f32> {
    /// `len` zeros.
    pub(crate) fn f32(len: usize) -> Self {
        Self::aligned(vec![0.0; len + SLACK], len)
    }
}

impl Zeroed<u16> {
    /// `len` zeros.
    pub(crate) fn u16(len: usize) -> Self {
        Self::aligned(vec![0; len + SLACK], len)
    }
}

impl Zeroed<i8> {
    /// `len` zeros.
    pub(crate) fn i8(len: usize) -> Self {
        Self::aligned(vec![0; len + SLACK], len)
    }
}

impl<T> Zeroed<T> {
    fn aligned(data: Vec<T>, len: usize) -> Self {
        let start = data.as_ptr().align_offset(64).min(SLACK);
        Self { data, start, len }
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.data[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Zeroed<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data[self.start..self.start + self.len]
    }
}
