//! What the device gives at most, and moments on its stream: the measures that speeds are held against.

use std::{path::Path, time::Duration};

use cudarc::driver::{CudaEvent, result, sys::CUevent_flags};

use super::{
    compile::default_cache,
    device::Device,
    error::{CudaError, During},
    launch::{Grid, Queue, launch},
    memory::DeviceMemory,
    set::{Macros, Set},
    sources,
};

/// What a device gives at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// **Units**: bytes a second, read and written, of a copy within its memory.
    pub copy_bytes_s: f64,
    /// **Units**: bytes a second, of reading its memory.
    pub read_bytes_s: f64,
    /// **Units**: operations a second (a multiply-add is two), of 8-bit integer matrix instructions on registers.
    pub int8_ops_s: f64,
}

/// A moment on the device's stream: when it had done all that was enqueued before.
pub struct Mark(CudaEvent);

impl Mark {
    /// The time from here to a later moment. Waits for it.
    pub fn until(&self, later: &Mark) -> Result<Duration, CudaError> {
        let ms = self.0.elapsed_ms(&later.0).during("measuring time")?;
        Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }
}

impl Device {
    /// Marks what comes next on the stream.
    pub fn mark(&self) -> Result<Mark, CudaError> {
        let event = self
            .context
            .new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
            .during("making an event")?;
        event.record(&self.stream).during("marking a moment")?;
        Ok(Mark(event))
    }

    /// The least of several times that `work` takes on the stream, in seconds.
    fn fastest(&self, work: impl Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            let begun = self.mark()?;
            work()?;
            best = best.min(begun.until(&self.mark()?)?.as_secs_f64());
        }
        Ok(best.max(1e-9))
    }
}

/// Repetitions, of which the fastest counts.
const RUNS: usize = 7;
/// **Units**: bytes. A buffer at most: many times the caches.
const BUFFER_MAX: u64 = 2 << 30;
/// **Units**: seconds. Long enough for launches not to count.
const LONG_ENOUGH: f64 = 1e-3;
/// Matrix instructions of a warp in a round, and operations of each: as `kernels/limits.cu` has them.
const PRODUCTS: usize = 8;
const PRODUCT_OPS: usize = 2 * 16 * 8 * 32;

/// Measures them.
pub(super) fn limits(device: &Device, cache: Option<&Path>) -> Result<Limits, CudaError> {
    let mut set = Set::default();
    let unit = set.add(sources::LIMITS, Macros::default());
    let default = default_cache();
    let modules = set.load(device, cache.or(default.as_deref()))?;
    let read = modules.kernel(unit, "read_memory", 0)?;
    let multiply = modules.kernel(unit, "multiply_registers", 0)?;

    let (free, _) = device.memory()?;
    let bytes = ((free / 16).min(BUFFER_MAX) as usize).next_multiple_of(1 << 20);
    let [from, to] = [bytes; 2].map(|bytes| DeviceMemory::new(&device.context, bytes));
    let (from, to) = (from?, to?);
    fill(&from, bytes)?;
    let queue = Queue {
        stream: device.stream.clone(),
        overlap: false,
    };
    let stream = device.stream.cu_stream();
    let copied = device.fastest(|| {
        // SAFETY: both buffers are as long; the stream is waited for before they go.
        unsafe { result::memcpy_dtod_async(to.address(), from.address(), bytes, stream) }
            .during("copying memory")
    })?;
    let processors = device.processors as usize;
    let grid = Grid::new([2 * processors, 1, 1], 1024);
    let words = (bytes / 16) as u64;
    // SAFETY: the parameters of `read_memory`; the buffer has as many words.
    let read_in = device
        .fastest(|| unsafe { launch!(&queue, &read, grid; from.address(), words, to.address()) })?;
    let grid = Grid::new([4 * processors, 1, 1], 256);
    let multiplied = |rounds: u32| {
        // SAFETY: the parameters of `multiply_registers`.
        device.fastest(|| unsafe { launch!(&queue, &multiply, grid; rounds, to.address()) })
    };
    let mut rounds = 1;
    while multiplied(rounds)? < LONG_ENOUGH {
        rounds *= 2;
    }
    let warps = 4 * processors * 256 / 32;
    let ops = (warps * rounds as usize * PRODUCTS * PRODUCT_OPS) as f64;
    Ok(Limits {
        copy_bytes_s: 2.0 * bytes as f64 / copied,
        read_bytes_s: bytes as f64 / read_in,
        int8_ops_s: ops / multiplied(rounds)?,
    })
}

/// Fills a buffer with noise: memory and arithmetic may be faster on zeros.
fn fill(buffer: &DeviceMemory, bytes: usize) -> Result<(), CudaError> {
    let mut state = 1u64;
    let noise: Vec<u64> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 29
    })
    .take((1 << 20) / 8)
    .collect();
    for at in (0..bytes).step_by(1 << 20) {
        // SAFETY: the buffer is a multiple of this long.
        unsafe { result::memcpy_htod_sync(buffer.address() + at as u64, &noise) }
            .during("writing noise")?;
    }
    Ok(())
}
