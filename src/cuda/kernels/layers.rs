//! Kernels of norms, routing, attention and the delta net.

use super::products::TileKernel;
use crate::{
    backend::{
        RouteShape,
        shape::{AttentionShape, DeltaShape},
    },
    cuda::compile::Kernel,
};

/// Norms, and what joins the residual.
pub(in crate::cuda) struct NormKernels {
    pub(in crate::cuda) threads: usize,
    pub(in crate::cuda) norm: Kernel,
    pub(in crate::cuda) combine_norm: Kernel,
    pub(in crate::cuda) head_norm: Kernel,
    pub(in crate::cuda) head_combine_norm: Kernel,
    pub(in crate::cuda) keep_norm: Kernel,
    pub(in crate::cuda) keep_combine_norm: Kernel,
    pub(in crate::cuda) pair: Kernel,
    /// If something stands around blocks' outputs.
    pub(in crate::cuda) branch_alone: Option<Kernel>,
}

/// A residual of several streams.
pub(in crate::cuda) struct StreamKernels {
    pub(in crate::cuda) threads: usize,
    pub(in crate::cuda) norm: Kernel,
    pub(in crate::cuda) low: Kernel,
    pub(in crate::cuda) mean: Kernel,
}

/// What n-grams add.
pub(in crate::cuda) struct NgramKernels {
    pub(in crate::cuda) threads: usize,
    pub(in crate::cuda) gate: Kernel,
    pub(in crate::cuda) convolve: Kernel,
    pub(in crate::cuda) keep: Kernel,
}

/// An index that chooses what rows see.
pub(in crate::cuda) struct IndexKernels {
    pub(in crate::cuda) prepare: Kernel,
    pub(in crate::cuda) keep: Kernel,
    /// Where sequences may be longer than what rows see of them.
    pub(in crate::cuda) select: Option<SelectKernels>,
}

/// What is done past the budget.
pub(in crate::cuda) struct SelectKernels {
    pub(in crate::cuda) scores: Kernel,
    pub(in crate::cuda) tile_rows: usize,
    pub(in crate::cuda) score_threads: usize,
    pub(in crate::cuda) select: Kernel,
}

/// One way to choose experts.
pub(in crate::cuda) struct RouteKernels {
    pub(in crate::cuda) shape: RouteShape,
    pub(in crate::cuda) route: Kernel,
    pub(in crate::cuda) route_rows: usize,
    pub(in crate::cuda) route_threads: usize,
    pub(in crate::cuda) group: Kernel,
    /// Both in one for few rows, where there are few enough experts.
    pub(in crate::cuda) route_group: Option<Kernel>,
}

/// One shape of attention.
pub(in crate::cuda) struct AttentionKernels {
    pub(in crate::cuda) shape: AttentionShape,
    pub(in crate::cuda) prepare: Kernel,
    /// Whether norms go over whole projections.
    pub(in crate::cuda) full_width: bool,
    pub(in crate::cuda) decode: Kernel,
    pub(in crate::cuda) decode_threads: usize,
    pub(in crate::cuda) combine: Kernel,
    pub(in crate::cuda) prompt: TileKernel,
    /// Where the rotations begin, in floats.
    pub(in crate::cuda) turns: usize,
    pub(in crate::cuda) index: Option<IndexKernels>,
}

/// The delta net. Bytes are of dynamic shared memory.
pub(in crate::cuda) struct DeltaKernels {
    pub(in crate::cuda) shape: DeltaShape,
    pub(in crate::cuda) short_rows: usize,
    pub(in crate::cuda) step: Kernel,
    pub(in crate::cuda) step_bytes: usize,
    pub(in crate::cuda) blocks: Kernel,
    pub(in crate::cuda) blocks_bytes: usize,
    pub(in crate::cuda) scan: Kernel,
    pub(in crate::cuda) scan_bytes: usize,
    pub(in crate::cuda) scan_columns: usize,
    pub(in crate::cuda) gate: Kernel,
    pub(in crate::cuda) gate_bytes: usize,
    pub(in crate::cuda) gate_rows: usize,
    pub(in crate::cuda) gate_groups: usize,
}
