//! The worker pool: a region is `tasks` calls of one closure, shared out among pinned threads.
//!
//! Knows threads and task numbers; knows no op. The calling thread is worker 0 and takes part. Other workers join an open
//! region when they see it and leave when its tasks have run out; the region ends when the tasks have run out and everyone
//! who joined has left. So a worker that the system has put aside delays nobody unless it holds a task. Between regions a worker
//! spins for [`SPIN`], giving way to other threads for most of it, and then sleeps until it is woken.
//!
//! Absent on purpose: queues, allocation, nested regions (a pool cannot be shared with its own tasks, see [`Pool`]).

mod disjoint;
mod shared;

pub use disjoint::Disjoint;
pub use shared::SPIN;

use super::cores;
use shared::Shared;
use std::{
    cell::Cell,
    io,
    marker::PhantomData,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    thread::{self, JoinHandle},
};

/// Threads that run regions.
///
/// `Send` but not `Sync`: it belongs to one thread, and a task cannot start a region inside a region:
///
/// ```compile_fail
/// # use tidegate::cpu::pool::Pool;
/// let pool = Pool::new(&[0, 1]);
/// pool.run(4, |_, _| pool.run(4, |_, _| ()));
/// ```
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    caller_cpu: Option<usize>,
    not_sync: PhantomData<Cell<()>>,
}

impl Pool {
    /// One worker per entry of `cpus`, bound to it where the system permits. Worker 0 is whoever calls [`Pool::run`]; it is
    /// bound by [`Pool::pin_caller`] only.
    pub fn new(cpus: &[usize]) -> Self {
        Self::start(
            cpus.len(),
            |worker| cpus.get(worker).copied(),
            has_twin(cpus),
        )
    }

    /// `workers` threads that the system may move about.
    pub fn unpinned(workers: usize) -> Self {
        let crowded = thread::available_parallelism().is_ok_and(|cpus| cpus.get() < workers);
        Self::start(workers, |_| None, crowded)
    }

    fn start(workers: usize, cpu_of: impl Fn(usize) -> Option<usize>, crowded: bool) -> Self {
        let shared = Arc::new(Shared::new(workers, crowded));
        let threads = (1..workers)
            .map_while(|worker| {
                let (shared, cpu) = (shared.clone(), cpu_of(worker));
                let name = format!("tidegate-cpu-{worker}");
                // where the system refuses a thread the pool is smaller: slower, still right
                thread::Builder::new()
                    .name(name)
                    .spawn(move || shared.work(worker, cpu))
                    .ok()
            })
            .collect();
        Self {
            shared,
            threads,
            caller_cpu: cpu_of(0),
            not_sync: PhantomData,
        }
    }

    /// Workers, the caller included. Worker numbers are below this.
    pub fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Binds the calling thread to worker 0's CPU.
    ///
    /// **Errors**: the system refused; the pool works all the same.
    pub fn pin_caller(&self) -> io::Result<()> {
        self.caller_cpu.map_or(Ok(()), cores::pin)
    }

    /// Calls `task(number, worker)` once for every number below `tasks`, in any order, on any worker, and returns when all are
    /// done. One task, or one worker, runs on the calling thread without touching the others.
    ///
    /// **Panics** of a task are passed on after the region has ended; tasks not yet begun are skipped.
    pub fn run<F: Fn(usize, usize) + Sync>(&self, tasks: usize, task: F) {
        if tasks <= 1 || self.threads.is_empty() {
            (0..tasks).for_each(|number| task(number, 0));
            return;
        }
        self.shared
            .open(tasks, &task, self.threads.iter().map(JoinHandle::thread));
        let mine = panic::catch_unwind(AssertUnwindSafe(|| self.shared.drain(0, tasks, &task)));
        if mine.is_err() {
            self.shared.skip_rest();
        }
        self.shared.shut();
        if let Some(payload) = mine.err().or_else(|| self.shared.take_panic()) {
            panic::resume_unwind(payload);
        }
    }

    /// Cuts `out` into parts of `part_len` (the last may be shorter) and calls `task(number, part, worker)` for each.
    pub fn split<T: Send, F: Fn(usize, &mut [T], usize) + Sync>(
        &self,
        out: &mut [T],
        part_len: usize,
        task: F,
    ) {
        let len = out.len();
        let parts = Disjoint::new(out);
        self.run(len.div_ceil(part_len), |number, worker| {
            let start = number * part_len;
            // SAFETY: parts of different task numbers do not overlap, and each number runs once.
            let part = unsafe { parts.part(start..len.min(start + part_len)) };
            task(number, part, worker);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // a worker catches its tasks' panics, so it ends normally
            let _ = thread.join();
        }
    }
}

fn has_twin(cpus: &[usize]) -> bool {
    cpus.iter()
        .enumerate()
        .any(|(at, cpu)| cpus[..at].contains(cpu))
}

#[cfg(test)]
#[path = "pool/tests.rs"]
mod tests;
