use super::*;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// Every task of `regions` regions runs exactly once, on a worker that exists.
fn check(workers: usize, regions: usize, tasks: usize) {
    let pool = Pool::unpinned(workers);
    let mut counts = vec![0u32; tasks];
    for region in 0..regions {
        let parts = Disjoint::new(&mut counts);
        pool.run(tasks, |number, worker| {
            assert!(worker < workers.max(1));
            // SAFETY: one element a task.
            unsafe { parts.nth(number, 1)[0] += 1 };
        });
        assert!(
            counts.iter().all(|count| *count as usize == region + 1),
            "{workers} workers, region {region}"
        );
    }
}

#[test]
fn every_task_runs_once() {
    for workers in [0, 1, 2, 3, 5] {
        for (regions, tasks) in [(3, 0), (50, 1), (2000, 2), (500, 7), (20, 1000)] {
            check(workers, regions, tasks);
        }
    }
}

#[test]
fn sleeping_workers_are_woken() {
    let pool = Pool::unpinned(2);
    for _ in 0..20 {
        while !pool.shared.asleep[0].load(Ordering::SeqCst) {
            thread::yield_now(); // it falls asleep by itself
        }
        // a task waits for the other, so it is done before its time only if the other worker comes
        let met = AtomicUsize::new(0);
        let deadline = Instant::now() + Duration::from_secs(20);
        pool.run(2, |_, _| {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 2 && Instant::now() < deadline {
                thread::yield_now();
            }
        });
        assert!(Instant::now() < deadline, "the other worker slept on");
    }
}

#[test]
fn a_panic_ends_the_region_and_is_passed_on() {
    let pool = Pool::unpinned(3);
    for bad in [0usize, 1, 17, 63] {
        let caught = panic::catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, |number, _| {
                if number == bad {
                    panic::resume_unwind(Box::new(bad));
                }
            });
        }));
        assert_eq!(caught.unwrap_err().downcast_ref::<usize>(), Some(&bad));
        // the pool still works
        let ran = AtomicUsize::new(0);
        pool.run(10, |_, _| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 10);
    }
}

#[test]
fn split_covers_a_ragged_buffer() {
    let pool = Pool::unpinned(3);
    let mut out = vec![0usize; 103];
    pool.split(&mut out, 10, |number, part, _| {
        assert_eq!(part.len(), if number == 10 { 3 } else { 10 });
        part.iter_mut()
            .enumerate()
            .for_each(|(at, value)| *value = number * 10 + at);
    });
    assert!(out.iter().enumerate().all(|(at, value)| at == *value));
}

#[test]
#[should_panic(expected = "of 4 elements")]
fn a_part_outside_the_buffer_is_refused() {
    let mut buffer = [0u8; 4];
    let parts = Disjoint::new(&mut buffer);
    // SAFETY: the only part.
    let _ = unsafe { parts.part(2..5) };
}
