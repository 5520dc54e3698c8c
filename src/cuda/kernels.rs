//! The kernels of a model, compiled for its shapes.

use std::path::Path;

use super::{
    backend::Rotations, compile::Kernel, device::Device, error::CudaError, set::Set,
    tables::FEW_ROWS, weights::Loading,
};
use crate::{
    backend::{
        Act, Needs, Room, RouteShape,
        shape::{AttentionShape, DeltaShape, QkNorm},
    },
    quant::BlockType,
};

mod layers;
mod loader;
mod macros;
mod products;
mod units;

use layers::{DeltaKernels, NgramKernels, NormKernels, RouteKernels, StreamKernels};
use loader::Loader;
use products::{ExpertMatvecKernels, FloatMatvecKernel, MatmulKernel, MatvecKernel};
use units::{Types, Units};

pub(super) use layers::AttentionKernels;
pub(super) use products::{ExpertMatmulKernels, TileKernel};

/// Buckets of few rows: 1, 2, 4, 8, 16.
const BUCKETS: usize = FEW_ROWS.trailing_zeros() as usize + 1;

/// Which of them windows of this many rows are in.
fn bucket_of(rows: usize) -> usize {
    rows.next_power_of_two().trailing_zeros() as usize
}

/// Everything that windows launch.
pub(super) struct Kernels {
    /// Experts a row.
    used: usize,
    /// **Units**: bytes of shared memory that a block may have.
    shared_bytes: usize,
    pub(super) embed: Kernel,
    pub(super) quantise: Kernel,
    pub(super) swiglu: Kernel,
    pub(super) bias: Kernel,
    pub(super) norms: NormKernels,
    pub(super) choose: Kernel,
    /// If logits may be capped.
    pub(super) softcap: Option<Kernel>,
    /// If tokens are predicted.
    pub(super) draw: Option<Kernel>,
    routes: Vec<RouteKernels>,
    attention: Vec<AttentionKernels>,
    /// If the residual has streams.
    streams: Option<StreamKernels>,
    /// If n-grams add to them.
    ngram: Option<NgramKernels>,
    delta: Option<DeltaKernels>,
    /// For one row, by the length of the matrices' rows; for buckets of more.
    matvec_one: Vec<(usize, MatvecKernel)>,
    matvec: Vec<MatvecKernel>,
    float_matvec: Vec<FloatMatvecKernel>,
    /// Types that the experts' kernels for few rows know.
    expert_rows: Vec<BlockType>,
    matmul: Vec<(BlockType, MatmulKernel)>,
    expert_matvec: Vec<ExpertMatvecKernels>,
    expert_matmul: Vec<(BlockType, ExpertMatmulKernels)>,
    pub(super) expert_tiles: Option<Kernel>,
}

/// What no kernel is made for.
fn check(needs: &Needs) -> Result<(), CudaError> {
    let wrong = |what, got, allowed| Err(CudaError::Shape { what, got, allowed });
    if !needs.residual.is_multiple_of(32) || needs.residual > 12_224 {
        return wrong("a width", needs.residual, "of multiples of 32 up to 12224");
    }
    if let Some(shape) = needs
        .routes
        .iter()
        .find(|shape| shape.used != needs.experts_used)
    {
        return wrong("experts a row", shape.used, "the same for all layers");
    }
    if needs.experts_used > 32 {
        return wrong("experts a row", needs.experts_used, "up to 32");
    }
    if needs.widths.of(Act::Streams) > 0 && needs.sandwich {
        return Err(CudaError::NoKernels {
            what: "norms of blocks' outputs in a residual of several streams",
        });
    }
    if needs.ngram.is_some() && needs.residual > 4064 {
        return wrong("n-grams a width", needs.residual, "up to 4064");
    }
    if needs.activations.len() > 1 {
        return wrong("activations", needs.activations.len(), "1");
    }
    for shape in &needs.attention {
        let head = shape.kv.head_dim;
        if head > 256 && (head > 512 || !head.is_multiple_of(64)) {
            return wrong(
                "a head",
                head,
                "of up to 256 channels, or of 320, 384, 448 or 512",
            );
        }
        if shape.heads > 16 * shape.kv.heads {
            return wrong(
                "query heads",
                shape.heads / shape.kv.heads,
                "up to 16 for a KV head",
            );
        }
        if let Some(index) = &shape.index {
            let rotated = 2 * shape.rope.frequencies.len();
            if index.head_dim > 256 || index.head_dim < rotated || index.budget == 0 {
                return wrong(
                    "an index's heads",
                    index.head_dim,
                    "of as many channels as are rotated or more, up to 256, and a budget",
                );
            }
            if index.heads * index.head_dim > 8192 {
                return wrong(
                    "an index's queries",
                    index.heads * index.head_dim,
                    "of up to 8192 values",
                );
            }
        }
        if shape.gated && (shape.clamp.is_some() || shape.qk_norm == Some(QkNorm::FullWidth)) {
            return wrong(
                "gated heads",
                shape.heads,
                "without a clamp or a norm of full width",
            );
        }
    }
    if let Some(shape) = needs.delta.iter().find(|shape| *shape != &needs.delta[0]) {
        return wrong("delta nets", shape.v_heads, "of one shape");
    }
    Ok(())
}

impl Kernels {
    /// Compiles what is not in the cache, and loads everything.
    ///
    /// **Errors**: a shape without kernels, or the compiler.
    pub(super) fn load(
        device: &Device,
        cache: Option<&Path>,
        loading: &Loading,
        needs: &Needs,
        room: &Room,
        rotations: &Rotations<'_>,
    ) -> Result<Self, CudaError> {
        check(needs)?;
        let types = Types::new(loading, needs);
        let mut shapes: Vec<AttentionShape> = Vec::new();
        for shape in &needs.attention {
            if !shapes.contains(shape) {
                shapes.push(shape.clone());
            }
        }
        let mut set = Set::default();
        let units = Units::new(&mut set, device, &types, needs, room, &shapes);
        let modules = set.load(device, cache)?;
        let loader = Loader {
            device,
            modules: &modules,
            types: &types,
        };
        loader.kernels(&units, (needs, room), shapes, rotations)
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn route(&self, shape: &RouteShape) -> &RouteKernels {
        let mut routes = self.routes.iter();
        routes
            .find(|kernels| kernels.shape == *shape)
            .expect("compiled for every shape of the model")
    }

    pub(super) fn attention(&self, shape: &AttentionShape) -> &AttentionKernels {
        let mut attention = self.attention.iter();
        attention
            .find(|kernels| kernels.shape == *shape)
            .expect("compiled for every shape of the model")
    }

    pub(super) fn streams(&self) -> &StreamKernels {
        let streams = self.streams.as_ref();
        streams.expect("compiled for models whose residual has streams")
    }

    /// Whether the residual has streams, be it one.
    pub(super) fn has_streams(&self) -> bool {
        self.streams.is_some()
    }

    pub(super) fn ngram(&self) -> &NgramKernels {
        let ngram = self.ngram.as_ref();
        ngram.expect("compiled for models that have n-grams")
    }

    pub(super) fn delta(&self, shape: &DeltaShape) -> &DeltaKernels {
        self.delta
            .as_ref()
            .filter(|kernels| kernels.shape == *shape)
            .expect("compiled for the model's delta net")
    }

    /// For windows of up to this many rows, as far as the rows of a block find room, and matrices whose rows have `inputs` values.
    pub(super) fn matvec(&self, rows: usize, inputs: usize) -> &MatvecKernel {
        let buckets = self.matvec[..bucket_of(rows)].iter().rev();
        let fits = |kernel: &&MatvecKernel| kernel.shared(inputs) <= self.shared_bytes;
        buckets.into_iter().find(fits).unwrap_or_else(|| {
            let found = self.matvec_one.iter().find(|(of, _)| *of == inputs);
            &found.expect("compiled for every matrix of the model").1
        })
    }

    /// For windows of this many rows; those of most go through the last more than once.
    pub(super) fn float_matvec(&self, rows: usize) -> &FloatMatvecKernel {
        &self.float_matvec[bucket_of(rows).min(self.float_matvec.len() - 1)]
    }

    /// Whether the experts' kernels for few rows know a type.
    pub(super) fn expert_rows_take(&self, ty: BlockType) -> bool {
        self.expert_rows.contains(&ty)
    }

    /// For windows of this many rows; those of more than few have rows enough for the last.
    pub(super) fn expert_matvec(&self, rows: usize) -> &ExpertMatvecKernels {
        &self.expert_matvec[bucket_of(rows).min(BUCKETS - 1)]
    }

    pub(super) fn matmul(&self, ty: BlockType) -> &MatmulKernel {
        let found = self.matmul.iter().find(|(of, _)| *of == ty);
        &found.expect("compiled for every type of the model").1
    }

    pub(super) fn expert_matmul(&self, ty: BlockType) -> &ExpertMatmulKernels {
        let found = self.expert_matmul.iter().find(|(of, _)| *of == ty);
        &found.expect("compiled for every type of the model").1
    }
}
