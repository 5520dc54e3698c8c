//! Time that this machine was ready to compute and did not: on a virtual machine its host gave the processors to others.

use std::time::{Duration, Instant};

/// How often the kernel's count is worth reading: it counts in steps of 10 ms.
const EVERY: Duration = Duration::from_millis(4);
/// Steps of the count in a second, on every Linux that programs see.
const STEPS: u32 = 100;

/// The kernel's count, as of a moment ago.
pub(crate) struct Stolen {
    read: Instant,
    so_far: Duration,
}

impl Stolen {
    pub(crate) fn new() -> Self {
        Self {
            read: Instant::now(),
            so_far: since_boot(),
        }
    }

    /// What has been taken so far, of all processors together; nothing where the system does not say.
    pub(crate) fn so_far(&mut self) -> Duration {
        if self.read.elapsed() >= EVERY {
            *self = Self::new();
        }
        self.so_far
    }
}

/// **Source**: proc_stat(5): the eighth number of the line `cpu`.
fn since_boot() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let steps = stat
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(8));
    let steps: u32 = steps.and_then(|steps| steps.parse().ok()).unwrap_or(0);
    Duration::from_secs(1) * steps / STEPS
}
