//! Kernels of products, and how they are launched: the sizes of their grids and what they take of shared memory.

use crate::{
    cpu::kernels::ActKind,
    cuda::{compile::Kernel, weights::Matrix},
    quant::BlockType,
};

/// A kernel that works on tiles, and how it is launched.
pub(in crate::cuda) struct TileKernel {
    pub(in crate::cuda) kernel: Kernel,
    pub(in crate::cuda) tile_rows: usize,
    pub(in crate::cuda) threads: usize,
    /// **Units**: bytes.
    pub(in crate::cuda) shared: usize,
    /// Blocks that are on the device at the same time: kernels that walk over tiles take no more.
    pub(in crate::cuda) resident: usize,
}

/// Products of few rows with quantised matrices, for one bucket or, of one row, for one length of inputs.
pub(in crate::cuda) struct MatvecKernel {
    pub(in crate::cuda) kernel: Kernel,
    pub(in crate::cuda) threads: usize,
    pub(in crate::cuda) rows: usize,
    /// **Units**: bytes of shared memory whatever the matrices.
    pub(in crate::cuda) bytes: usize,
    /// Kinds of activations that a block brings to shared memory.
    pub(in crate::cuda) staged: Kinds,
    /// Blocks that a multiprocessor holds at most, by its registers; multiprocessors; bytes of shared memory of each.
    pub(in crate::cuda) held: usize,
    pub(in crate::cuda) processors: usize,
    pub(in crate::cuda) shared_bytes: usize,
}

/// Products of few rows with float matrices, for one bucket.
pub(in crate::cuda) struct FloatMatvecKernel {
    pub(in crate::cuda) kernel: Kernel,
    pub(in crate::cuda) threads: usize,
    pub(in crate::cuda) shared: usize,
    /// Outputs of a block at once.
    pub(in crate::cuda) outputs: usize,
    pub(in crate::cuda) rows: usize,
    /// Blocks among which outputs are spread: what is on the device at once, or, of kernels of more rows than one, its multiprocessors.
    pub(in crate::cuda) spread: usize,
}

impl FloatMatvecKernel {
    /// Blocks that work on `outputs` outputs of so many rows: all of them at once, where a block's outputs allow it.
    pub(in crate::cuda) fn blocks(&self, outputs: usize, rows: usize) -> usize {
        let spread = (self.spread / rows.div_ceil(self.rows)).max(1);
        outputs.div_ceil(outputs.div_ceil(spread).min(self.outputs))
    }
}

/// Products of many rows with a matrix of one type.
pub(in crate::cuda) struct MatmulKernel {
    pub(in crate::cuda) tile_outputs: usize,
    pub(in crate::cuda) matrix: TileKernel,
}

/// Products of experts with few rows an expert, for one bucket.
pub(in crate::cuda) struct ExpertMatvecKernels {
    pub(in crate::cuda) gate_up: Kernel,
    pub(in crate::cuda) down: Kernel,
    pub(in crate::cuda) threads: usize,
    /// **Units**: bytes of shared memory whatever the matrices.
    pub(in crate::cuda) gate_up_bytes: usize,
    pub(in crate::cuda) down_bytes: usize,
    pub(in crate::cuda) rows: usize,
    /// Kinds of activations that a block brings to shared memory.
    pub(in crate::cuda) gate_up_staged: Kinds,
    pub(in crate::cuda) down_staged: Kinds,
}

/// Products of experts of one type with many rows.
pub(in crate::cuda) struct ExpertMatmulKernels {
    pub(in crate::cuda) tile_outputs: usize,
    pub(in crate::cuda) gate_up: TileKernel,
    pub(in crate::cuda) matrix: TileKernel,
}

/// Kinds of activations.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cuda) struct Kinds {
    pub(in crate::cuda) wide: bool,
    narrow: bool,
    float: bool,
}

impl Kinds {
    /// Those that matrices of these types read.
    pub(in crate::cuda) fn of(types: &[BlockType]) -> Self {
        let has = |kind| types.iter().any(|ty| ActKind::of(*ty) == kind);
        Self {
            wide: has(ActKind::Blocks256),
            narrow: has(ActKind::Blocks32),
            float: has(ActKind::Float),
        }
    }

    /// Whether there are none but blocks of 256.
    pub(in crate::cuda) fn only_wide(self) -> bool {
        self.wide && !self.narrow && !self.float
    }

    /// Bytes that rows of `k` values take in shared memory, in each of the kinds there are.
    pub(in crate::cuda) fn bytes(self, rows: usize, k: usize) -> [usize; 3] {
        let record = if rows == 1 { 320 } else { 304 };
        [
            usize::from(self.wide) * rows * (k / 256) * record,
            usize::from(self.narrow) * (rows * k * 19 / 16).next_multiple_of(16),
            usize::from(self.float) * rows * k * 4,
        ]
    }
}

/// Outputs of a matrix that a warp takes at once: see `kernels/matvec.cuh`.
fn batch(kind: ActKind, k: usize, rows: usize) -> usize {
    match kind {
        ActKind::Blocks256 if rows > 1 => 16,
        ActKind::Blocks256 => 32 / (k / 256).next_power_of_two().clamp(1, 8),
        ActKind::Blocks32 => 4,
        ActKind::Float => 2,
    }
}

impl MatvecKernel {
    /// Blocks that work on a matrix which shares the launch with others of `outputs` outputs in all.
    pub(in crate::cuda) fn blocks(&self, matrix: &Matrix, outputs: usize) -> usize {
        let batches = matrix
            .outputs
            .div_ceil(batch(matrix.kind(), matrix.inputs, self.rows));
        // the warps of a block share a tile, or have a batch each
        let batches = if self.rows > 1 && matrix.kind() == ActKind::Blocks256 {
            batches
        } else {
            batches.div_ceil(self.threads / 32)
        };
        if self.rows == 1 {
            return batches;
        }
        // 1 KiB of each block is the driver's
        let held = (self.shared_bytes + 1024) / (self.shared(matrix.inputs) + 1024);
        let most = held.clamp(1, self.held) * self.processors;
        let share = (most * matrix.outputs / outputs.max(1)).max(1);
        batches.min(share)
    }

    /// **Units**: bytes of shared memory for rows of `k` values.
    pub(in crate::cuda) fn shared(&self, k: usize) -> usize {
        let staged = self.staged.bytes(self.rows, k);
        self.bytes + staged.into_iter().max().unwrap_or(0).next_multiple_of(16)
    }
}

impl ExpertMatvecKernels {
    pub(in crate::cuda) fn gate_up_shared(&self, k: usize) -> usize {
        self.gate_up_bytes
            + self
                .gate_up_staged
                .bytes(self.rows, k)
                .iter()
                .sum::<usize>()
    }

    pub(in crate::cuda) fn down_shared(&self, k: usize) -> usize {
        self.down_bytes + self.down_staged.bytes(self.rows, k).iter().sum::<usize>()
    }

    /// Blocks of a group for matrices of rows of `k` values that are taken together: every warp has a batch, or, of tiles that are short, as many as make
    /// `TILE_BLOCKS` blocks.
    pub(in crate::cuda) fn parts(&self, outputs: usize, k: usize, types: &[BlockType]) -> usize {
        let kinds = types.iter().map(|ty| ActKind::of(*ty));
        let batch = kinds.map(|kind| batch(kind, k, self.rows)).min();
        let each = if self.rows > 1 && Kinds::of(types).only_wide() {
            TILE_BLOCKS.div_ceil(types.len() * (k / 256).max(1))
        } else {
            1
        };
        outputs
            .div_ceil(batch.unwrap_or(1))
            .div_ceil(self.threads / 32 * each)
    }
}

/// Blocks of 256 values of tiles that a warp has at least.
const TILE_BLOCKS: usize = 6;
