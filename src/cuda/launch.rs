//! Launching kernels.

use std::{ffi::c_void, sync::Arc};

use cudarc::driver::{CudaStream, result, sys};

use super::{
    compile::Kernel,
    error::{CudaError, During},
    watch,
};

/// How many blocks and threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) blocks: [u32; 3],
    pub(super) threads: [u32; 3],
    /// **Units**: bytes of dynamic shared memory a block.
    pub(super) shared: u32,
    pub(super) reads: Reads,
}

/// Weights that a launch reads: of one expert where it is the experts'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reads {
    /// **Units**: bytes.
    pub bytes: u64,
    /// How many they are.
    pub values: u64,
}

impl Grid {
    /// Blocks in up to three dimensions, threads in one.
    pub(super) fn new(blocks: [usize; 3], threads: usize) -> Self {
        Self {
            blocks: blocks.map(|count| count as u32),
            threads: [threads as u32, 1, 1],
            shared: 0,
            reads: Reads::default(),
        }
    }

    /// The same, of which it is known that it reads one matrix more.
    pub(super) fn reading(mut self, bytes: usize, values: usize) -> Self {
        self.reads.bytes += bytes as u64;
        self.reads.values += values as u64;
        self
    }

    /// The same with dynamic shared memory.
    pub(super) fn with_shared(self, bytes: usize) -> Self {
        Self {
            shared: bytes as u32,
            ..self
        }
    }
}

/// The stream that everything goes to, and how launches follow each other in it.
pub(super) struct Queue {
    pub(super) stream: Arc<CudaStream>,
    /// A kernel may begin before the one before it has ended: kernels that are launched so wait for it themselves (`wait_for_previous`), after they have asked
    /// for what does not depend on it.
    pub(super) overlap: bool,
}

/// Arguments of a kernel, each where it lies.
///
/// # Safety
/// `arguments` are as many, of the same types and in the same order as the kernel's parameters, and every address among them is of memory that the
/// kernel may use as it does until the stream has come past it. With `overlap` the kernel waits for the one before.
pub(super) unsafe fn enqueue(
    queue: &Queue,
    kernel: &Kernel,
    grid: Grid,
    arguments: &mut [*mut c_void],
) -> Result<(), CudaError> {
    if grid.blocks.contains(&0) || !watch::passes(kernel, grid) {
        return Ok(());
    }
    let ([x, y, z], [tx, ty, tz]) = (grid.blocks, grid.threads);
    let stream = queue.stream.cu_stream();
    let launched = if queue.overlap {
        use sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut attribute = sys::CUlaunchAttribute {
            id: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: tx,
            blockDimY: ty,
            blockDimZ: tz,
            sharedMemBytes: grid.shared,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        // SAFETY: the caller's promise; the configuration lives until the call returns.
        unsafe {
            sys::cuLaunchKernelEx(
                &config,
                kernel.function,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
    } else {
        // SAFETY: the caller's promise.
        unsafe {
            result::launch_kernel(
                kernel.function,
                (x, y, z),
                (tx, ty, tz),
                grid.shared,
                stream,
                arguments,
            )
        }
    };
    launched.during("launching a kernel")
}

/// `launch!(queue, kernel, grid; a, b, c)`: [`enqueue`] with these arguments. The caller makes its promises.
macro_rules! launch {
    ($queue:expr, $kernel:expr, $grid:expr; $($argument:expr),* $(,)?) => {
        $crate::cuda::launch::enqueue(
            $queue,
            $kernel,
            $grid,
            // each argument lies in a temporary until the call is over
            &mut [$(std::ptr::from_mut(&mut { $argument }).cast::<std::ffi::c_void>()),*],
        )
    };
}
pub(super) use launch;
