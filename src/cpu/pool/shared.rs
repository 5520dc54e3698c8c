//! The workers' side of a pool: when to look, when to sleep, when to take a task.

use crate::cpu::cores;
use std::{
    any::Any,
    cell::UnsafeCell,
    hint, mem,
    panic::{self, AssertUnwindSafe},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

/// What a task is, whatever its closure.
pub(super) type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// How long a worker looks for the next region before it sleeps. Waking one costs 5 to 50 us, so regions of one window should
/// follow each other faster than this.
pub const SPIN: Duration = Duration::from_micros(60);

/// The part of [`SPIN`] in which a worker does not offer its core to others.
const KEEN: Duration = Duration::from_micros(10);

/// Pauses between two looks at the clock, 1 to 2 us.
const PAUSES: u32 = 32;

/// What the workers see.
pub(super) struct Shared {
    gate: Gate,
    next: Next,
    /// The open region. Written by the caller while the gate is shut and nobody is inside.
    region: UnsafeCell<Region>,
    /// For every worker but the caller, whether it sleeps.
    pub(super) asleep: Box<[AtomicBool]>,
    stop: AtomicBool,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
    /// Whether workers share CPUs, so that spinning would take time from each other.
    crowded: bool,
}

/// Region number (high half), open bit, and how many workers are inside (low bits).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Gate(AtomicU64);

/// The next task to take.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Next(AtomicUsize);

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

#[derive(Clone, Copy)]
struct Region {
    task: *const Task<'static>,
    tasks: usize,
}

// SAFETY: `region` is the only part that is not thread-safe by itself. The caller writes it while the gate is shut and empty; a
// worker reads it between entering an open gate and leaving. The gate's orderings make the one happen before the other.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `region` is used inside a region only, whose closure is `Sync` and outlives the region.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("gate", &self.gate)
            .field("asleep", &self.asleep)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// A shut gate for `workers` workers, the caller included.
    pub(super) fn new(workers: usize, crowded: bool) -> Self {
        Self {
            gate: Gate::default(),
            next: Next::default(),
            region: UnsafeCell::new(Region {
                task: &|_, _| (),
                tasks: 0,
            }),
            asleep: (1..workers).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panicked: Mutex::new(None),
            crowded,
        }
    }

    /// Begins a region and wakes as many sleepers as it has tasks for. The caller must [`Shared::shut`] it before `task` ends, panics
    /// included, and not begin another before.
    pub(super) fn open<'t>(
        &self,
        tasks: usize,
        task: &Task<'_>,
        threads: impl Iterator<Item = &'t Thread>,
    ) {
        // SAFETY: only the lifetime changes. The region is shut, with nobody inside, before the closure ends.
        let task: *const Task<'static> = unsafe { mem::transmute(ptr_of(task)) };
        // SAFETY: the gate is shut and empty between regions, so nobody else looks at `region`.
        unsafe { *self.region.get() = Region { task, tasks } };
        self.next.0.store(0, Ordering::Relaxed);
        let number = (self.gate.0.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        // SeqCst here, at `asleep` below and in `doze`: either the worker sees the region or we see it asleep
        self.gate.0.store(number << 32 | OPEN, Ordering::SeqCst);
        for (asleep, thread) in self.asleep.iter().zip(threads).take(tasks - 1) {
            if asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }

    /// What a worker's task panicked with, in the last region.
    pub(super) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panicked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Tells the workers to end; those that sleep have to be woken.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// A worker's life.
    pub(super) fn work(&self, worker: usize, cpu: Option<usize>) {
        if let Some(Err(error)) = cpu.map(cores::pin) {
            tracing::debug!(worker, cpu, %error, "worker not bound to its CPU");
        }
        let mut seen = 0;
        while let Some(gate) = self.wait(worker, seen) {
            // entering can fail because the caller shuts the gate or another worker enters; look again then
            if self
                .gate
                .0
                .compare_exchange(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            seen = gate >> 32;
            // SAFETY: we are inside the gate, so the caller neither changes the region nor lets its closure end.
            let (tasks, task) = unsafe {
                let region = *self.region.get();
                (region.tasks, &*region.task)
            };
            if let Err(payload) =
                panic::catch_unwind(AssertUnwindSafe(|| self.drain(worker, tasks, task)))
            {
                self.skip_rest();
                *self.panicked.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
            self.gate.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Takes tasks until none is left.
    pub(super) fn drain(&self, worker: usize, tasks: usize, task: &Task<'_>) {
        loop {
            let number = self.next.0.fetch_add(1, Ordering::Relaxed);
            if number >= tasks {
                return;
            }
            task(number, worker);
        }
    }

    /// Marks every task as taken. Far from `usize::MAX`, because each worker adds one more.
    pub(super) fn skip_rest(&self) {
        self.next.0.store(usize::MAX / 2, Ordering::Relaxed);
    }

    /// Ends the region: nobody may enter any more, and everyone inside has left.
    pub(super) fn shut(&self) {
        let mut gate = self.gate.0.fetch_and(!OPEN, Ordering::Acquire);
        let mut turns = 0u32;
        while gate & INSIDE != 0 {
            turns += 1;
            // someone inside may be waiting for this very core
            if self.crowded || turns.is_multiple_of(1024) {
                thread::yield_now()
            } else {
                hint::spin_loop()
            }
            gate = self.gate.0.load(Ordering::Acquire);
        }
    }

    /// The gate of an open region other than `seen`, or `None` when the pool ends.
    fn wait(&self, worker: usize, seen: u64) -> Option<u64> {
        let fresh = |order| {
            Some(self.gate.0.load(order)).filter(|gate| gate & OPEN != 0 && gate >> 32 != seen)
        };
        let mut begun = None;
        loop {
            for _ in 0..PAUSES {
                if let Some(gate) = fresh(Ordering::Relaxed) {
                    return Some(gate);
                }
                hint::spin_loop();
            }
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if self.crowded || waited > SPIN {
                self.doze(worker, || fresh(Ordering::SeqCst).is_some());
                begun = None;
            } else if waited > KEEN {
                thread::yield_now();
            }
        }
    }

    /// Sleeps until woken, unless `ready`.
    fn doze(&self, worker: usize, ready: impl Fn() -> bool) {
        let asleep = &self.asleep[worker - 1];
        asleep.store(true, Ordering::SeqCst);
        if !ready() && !self.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
    }
}

fn ptr_of<'a>(task: &Task<'a>) -> *const Task<'a> {
    task
}
