//! What the memory gives: the measure that speeds are held against.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use crate::cpu::pool::Pool;

/// Large enough to leave every cache.
const BUFFER_BYTES: usize = 512 << 20;
/// Read by one task.
const PART_WORDS: usize = 128 << 10;

/// Bytes a second that all workers together read: the best of five passes over a buffer larger than the caches.
pub(super) fn measure(pool: &Pool) -> f64 {
    let buffer = vec![1u64; BUFFER_BYTES / 8];
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
        BUFFER_BYTES as f64 / begun.elapsed().as_secs_f64()
    };
    (0..5).map(|_| pass()).fold(0.0, f64::max)
}
