//! What the memory gives: the measure that speeds are held against.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use crate::cpu::{cores::Cores, pool::Pool};

/// The smallest and the largest buffer.
const BUFFER_BYTES: [usize; 2] = [256 << 20, 1 << 30];
/// Read by one task.
const PART_WORDS: usize = 128 << 10;

/// So many bytes, read in turns, are in no cache when they are read again.
pub(super) fn beyond_caches() -> usize {
    let [least, most] = BUFFER_BYTES;
    Cores::largest_cache().map_or(2 * least, |cache| (2 * cache).clamp(least, most))
}

/// Bytes a second that all workers together read: the best of five passes over a buffer larger than the caches.
pub(super) fn measure(pool: &Pool) -> f64 {
    let bytes = beyond_caches();
    let buffer = vec![1u64; bytes / 8];
    let pass = || {
        let begun = Instant::now();
        let sum = AtomicU64::new(0);
        pool.run(buffer.len() / PART_WORDS, |task, _| {
            let part = &buffer[task * PART_WORDS..][..PART_WORDS];
            let mut sums = [0u64; 16];
            for words in part.as_chunks::<16>().0 {
                sums.iter_mut()
                    .zip(words)
                    .for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
            }
            sum.fetch_add(sums.iter().sum(), Ordering::Relaxed);
        });
        black_box(sum);
        bytes as f64 / begun.elapsed().as_secs_f64()
    };
    (0..5).map(|_| pass()).fold(0.0, f64::max)
}
