//! The kernels of a model, compiled for its shapes.

use std::path::Path;

use super::{
    backend::Rotations,
    compile::Kernel,
    device::Device,
    error::CudaError,
    layout::{CANDIDATES, SHORT_ROWS, SPLIT},
    set::{Macros, Modules, Set, UnitId},
    sources,
    tables::FEW_ROWS,
    weights::{Loading, Matrix},
};
use crate::{
    backend::{
        Act, Needs, Room, RouteShape,
        shape::{
            AttentionShape, BetaDecay, DeltaShape, Gating, HeadMap, KvType, QkNorm, RopePairs,
        },
    },
    cpu::kernels::ActKind,
    quant::BlockType,
};

/// Buckets of few rows: 1, 2, 4, 8, 16.
const BUCKETS: usize = FEW_ROWS.trailing_zeros() as usize + 1;

/// Everything that windows launch.
pub(super) struct Kernels {
    /// Experts a row.
    used: usize,
    pub(super) embed: Kernel,
    pub(super) quantise: Kernel,
    pub(super) swiglu: Kernel,
    pub(super) norms: NormKernels,
    pub(super) choose: Kernel,
    routes: Vec<RouteKernels>,
    attention: Vec<AttentionKernels>,
    delta: Option<DeltaKernels>,
    matvec: Vec<MatvecKernel>,
    float_matvec: Vec<FloatMatvecKernel>,
    /// Types that the experts' kernels for few rows know.
    expert_rows: Vec<BlockType>,
    matmul: Vec<(BlockType, MatmulKernel)>,
    expert_matvec: Vec<ExpertMatvecKernels>,
    expert_matmul: Vec<(BlockType, ExpertMatmulKernels)>,
    pub(super) expert_tiles: Option<Kernel>,
}

/// Norms, and what joins the residual.
pub(super) struct NormKernels {
    pub(super) threads: usize,
    pub(super) norm: Kernel,
    pub(super) combine_norm: Kernel,
    pub(super) head_norm: Kernel,
    pub(super) head_combine_norm: Kernel,
    pub(super) add: Kernel,
    pub(super) combine_add: Kernel,
}

/// One way to choose experts.
pub(super) struct RouteKernels {
    shape: RouteShape,
    pub(super) route: Kernel,
    pub(super) route_rows: usize,
    pub(super) route_threads: usize,
    pub(super) group: Kernel,
    /// Both in one for few rows, where there are few enough experts.
    pub(super) route_group: Option<Kernel>,
}

/// A kernel that works on tiles, and how it is launched.
pub(super) struct TileKernel {
    pub(super) kernel: Kernel,
    pub(super) tile_rows: usize,
    pub(super) threads: usize,
    /// **Units**: bytes.
    pub(super) shared: usize,
    /// Blocks that are on the device at the same time: kernels that walk over tiles take no more.
    pub(super) resident: usize,
}

/// One shape of attention.
pub(super) struct AttentionKernels {
    pub(super) shape: AttentionShape,
    pub(super) prepare: Kernel,
    /// Whether norms go over whole projections.
    pub(super) full_width: bool,
    pub(super) decode: Kernel,
    pub(super) decode_threads: usize,
    pub(super) combine: Kernel,
    pub(super) prompt: TileKernel,
    /// Where the rotations begin, in floats.
    pub(super) turns: usize,
}

/// The delta net. Bytes are of dynamic shared memory.
pub(super) struct DeltaKernels {
    shape: DeltaShape,
    pub(super) short_rows: usize,
    pub(super) step: Kernel,
    pub(super) step_bytes: usize,
    pub(super) blocks: Kernel,
    pub(super) blocks_bytes: usize,
    pub(super) scan: Kernel,
    pub(super) scan_bytes: usize,
    pub(super) scan_columns: usize,
    pub(super) gate: Kernel,
    pub(super) gate_bytes: usize,
    pub(super) gate_rows: usize,
    pub(super) gate_groups: usize,
}

/// Products of few rows, for one bucket.
pub(super) struct MatvecKernel {
    pub(super) kernel: Kernel,
    pub(super) threads: usize,
    warps: usize,
    rows: usize,
    /// **Units**: bytes of shared memory whatever the matrices.
    bytes: usize,
    kinds: Kinds,
    /// Blocks of the whole grid at most.
    blocks_max: usize,
}

/// Products of few rows with float matrices, for one bucket.
pub(super) struct FloatMatvecKernel {
    pub(super) kernel: Kernel,
    pub(super) threads: usize,
    pub(super) shared: usize,
    /// Outputs of a block at once.
    outputs: usize,
    resident: usize,
}

impl FloatMatvecKernel {
    /// Blocks that work on `outputs` outputs: one each, if they are all on the device at once.
    pub(super) fn blocks(&self, outputs: usize) -> usize {
        if outputs <= self.resident {
            outputs
        } else {
            outputs.div_ceil(self.outputs)
        }
    }
}

/// Products of many rows with a matrix of one type.
pub(super) struct MatmulKernel {
    pub(super) kernel: Kernel,
    pub(super) tile_outputs: usize,
    pub(super) tile_rows: usize,
    pub(super) threads: usize,
    pub(super) shared: usize,
    /// Blocks that are on the device at the same time: kernels that walk over tiles take no more.
    pub(super) resident: usize,
}

/// Products of experts with few rows a expert, for one bucket.
pub(super) struct ExpertMatvecKernels {
    pub(super) gate_up: Kernel,
    pub(super) down: Kernel,
    pub(super) threads: usize,
    gate_up_bytes: usize,
    down_bytes: usize,
    rows: usize,
    kinds: Kinds,
}

/// Products of experts of one type with many rows.
pub(super) struct ExpertMatmulKernels {
    pub(super) tile_outputs: usize,
    pub(super) gate_up: TileKernel,
    pub(super) matrix: TileKernel,
}

/// The kinds of activations that a model's products read.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    wide: bool,
    narrow: bool,
    float: bool,
}

impl Kinds {
    fn of(types: &[BlockType]) -> Self {
        let has = |kind| types.iter().any(|ty| ActKind::of(*ty) == kind);
        Self {
            wide: has(ActKind::Blocks256),
            narrow: has(ActKind::Blocks32),
            float: has(ActKind::Float),
        }
    }

    /// Bytes that rows of `k` values take in shared memory, in each of the kinds there are.
    fn staged(self, rows: usize, k: usize) -> [usize; 3] {
        [
            usize::from(self.wide) * rows * (k / 256) * 320,
            usize::from(self.narrow) * (rows * k * 19 / 16).next_multiple_of(16),
            usize::from(self.float) * rows * k * 4,
        ]
    }
}

/// Outputs of a matrix that a warp takes at once: see `kernels/matvec.cuh`.
fn batch(kind: ActKind, k: usize) -> usize {
    match kind {
        ActKind::Blocks256 => 32 / (k / 256).next_power_of_two().clamp(1, 8),
        ActKind::Blocks32 => 4,
        ActKind::Float => 2,
    }
}

impl MatvecKernel {
    /// Blocks that work on a matrix which shares the launch with others of `outputs` outputs in all.
    pub(super) fn blocks(&self, matrix: &Matrix, outputs: usize) -> usize {
        let batches = matrix
            .outputs
            .div_ceil(batch(matrix.kind(), matrix.inputs))
            .div_ceil(self.warps);
        if self.rows < 4 {
            return batches;
        }
        let share = (self.blocks_max * matrix.outputs / outputs.max(1)).max(1);
        batches.min(share)
    }

    /// **Units**: bytes of shared memory for rows of `k` values.
    pub(super) fn shared(&self, k: usize) -> usize {
        let staged = self.kinds.staged(self.rows, k);
        self.bytes + staged.into_iter().max().unwrap_or(0).next_multiple_of(16)
    }
}

impl ExpertMatvecKernels {
    pub(super) fn gate_up_shared(&self, k: usize) -> usize {
        self.gate_up_bytes + self.kinds.staged(self.rows, k).iter().sum::<usize>()
    }

    pub(super) fn down_shared(&self, k: usize) -> usize {
        self.down_bytes + self.kinds.staged(self.rows, k).iter().sum::<usize>()
    }

    /// Blocks of a group: every warp has a batch.
    pub(super) fn parts(&self, outputs: usize, batch: usize) -> usize {
        outputs.div_ceil(batch).div_ceil(self.threads / 32)
    }
}

/// The smaller of two matrices' batches, for kernels that take both at once.
pub(super) fn batch_of(matrices: &[(BlockType, usize)]) -> usize {
    matrices
        .iter()
        .map(|(ty, k)| batch(ActKind::of(*ty), *k))
        .min()
        .unwrap_or(1)
}

fn gating(gating: Gating) -> usize {
    match gating {
        Gating::Softmax => 0,
        Gating::Sigmoid => 1,
        Gating::SoftmaxOfChosen => 2,
        Gating::SqrtSoftplus => 3,
    }
}

/// Warps that share a tile of `attention_prompt`: as many as shared memory allows. The kernel tells the exact bytes; these are for the choice.
fn line_warps(shape: &AttentionShape, kv: KvType, device: &Device) -> usize {
    let d = shape.kv.head_dim;
    let wide = d > 128;
    let unit = ((d / 8).min(16) * 1056).max((if wide { 4 } else { 8 }) * (16 * d + 32));
    let pages = if kv == KvType::Q8_0 {
        unit + 17_408
    } else {
        2 * unit
    };
    let each = 2048 * d.div_ceil(32) + if wide { 2176 } else { 0 };
    let fits = |warps: &usize| warps * each + pages <= device.shared_bytes as usize;
    [4, 2, 1].into_iter().find(fits).unwrap_or(1)
}

fn attention_macros(shape: &AttentionShape, kv: KvType, device: &Device) -> Macros {
    let kv_type = match kv {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 2,
    };
    let rope = &shape.rope;
    Macros::default()
        .with("HEAD_DIM", shape.kv.head_dim)
        .with("KV_HEADS", shape.kv.heads)
        .with("HEADS", shape.heads)
        .with("KV_TYPE", kv_type)
        .with("GATED", usize::from(shape.gated))
        .with("SPLIT", SPLIT)
        .with("LINE_WARPS", line_warps(shape, kv, device))
        .with(
            "QK_NORM",
            match shape.qk_norm {
                None => 0,
                Some(QkNorm::PerHead) => 1,
                Some(QkNorm::FullWidth) => 2,
            },
        )
        .with("ROPE_CHANNELS", 2 * rope.frequencies.len())
        .with("ROPE_HALVES", usize::from(rope.pairs == RopePairs::Halves))
        .with("CLAMP", usize::from(shape.clamp.is_some()))
}

fn delta_macros(shape: &DeltaShape, device: &Device) -> Macros {
    let macros = Macros::default()
        .with("K_HEADS", shape.k_heads)
        .with("V_HEADS", shape.v_heads)
        .with("KD", shape.k_dim)
        .with("VD", shape.v_dim)
        .with("TILED", usize::from(shape.head_map == HeadMap::Tiled))
        .with(
            "INTERLEAVED",
            usize::from(shape.beta_decay == BetaDecay::Interleaved),
        )
        .with("SHORT_ROWS", SHORT_ROWS);
    if device.shared_bytes >= 96 * 1024 {
        return macros;
    }
    macros
        .with("SCAN_COLUMNS", 16)
        .with("SCAN_STAGES", 2)
        .with("WEIGHTS_SHARED", 0)
        .with("QUERIES_SHARED", 0)
        .with("STEP_ROWS", 4)
}

/// The types of a model's matrices, by the kernels that read them.
struct Types {
    dense: Vec<BlockType>,
    integers: Vec<BlockType>,
    floats: Vec<BlockType>,
    experts: Vec<BlockType>,
    /// What the experts' kernels for few rows read: experts and, as far as that brings no floats, the shared expert.
    expert_rows: Vec<BlockType>,
}

impl Types {
    fn new(loading: &Loading) -> Self {
        let (dense, experts) = (loading.dense_types(), loading.expert_types());
        let float = |ty: &BlockType| ActKind::of(*ty) == ActKind::Float;
        let (floats, integers): (Vec<_>, Vec<_>) = dense.iter().partition(|ty| float(ty));
        let mut expert_rows = experts.clone();
        let both = experts.iter().any(float);
        let more = dense.iter().filter(|ty| both || !float(ty));
        expert_rows.extend(more.filter(|ty| !experts.contains(ty)));
        Self {
            dense,
            integers,
            floats,
            experts,
            expert_rows,
        }
    }
}

/// The units of everything, before they are compiled.
struct Units {
    embed: UnitId,
    quantise: UnitId,
    swiglu: UnitId,
    norm: UnitId,
    combine: UnitId,
    choose: UnitId,
    routes: Vec<UnitId>,
    attention: Vec<[UnitId; 3]>,
    delta: Option<[UnitId; 2]>,
    /// Of integer types, if there are any, and of floats.
    matvec: Option<[UnitId; BUCKETS]>,
    float_matvec: Option<[UnitId; BUCKETS]>,
    matmul: Vec<(BlockType, UnitId)>,
    experts: Option<ExpertUnits>,
}

struct ExpertUnits {
    matvec: [UnitId; BUCKETS],
    matmul: Vec<(BlockType, UnitId)>,
}

/// Rows of a group that a window of this bucket multiplies at once.
fn group_rows(bucket: usize) -> usize {
    bucket.min(4)
}

impl Units {
    fn new(
        set: &mut Set,
        device: &Device,
        types: &Types,
        needs: &Needs,
        room: &Room,
        shapes: &[AttentionShape],
    ) -> Self {
        let typed = |types: &[BlockType]| {
            let ids: u64 = types.iter().fold(0, |all, ty| all | 1 << *ty as u32);
            Macros::default().with("TYPES", format!("{ids}ull"))
        };
        let used = needs.experts_used.max(1);
        let rows = || {
            Macros::default()
                .with("WIDTH", needs.residual)
                .with("USED", used)
        };
        let source = |ty: BlockType| match ActKind::of(ty) {
            ActKind::Float => (
                sources::FLOAT_MATMUL,
                Macros::default().with("ELEMENT", ty as u32),
            ),
            _ => (sources::MATMUL, Macros::default().with("TYPE", ty.label())),
        };
        let matmul = types
            .dense
            .iter()
            .map(|ty| {
                let (source, macros) = source(*ty);
                (*ty, set.add(source, macros))
            })
            .collect();
        let experts = (needs.experts_used > 0).then(|| ExpertUnits {
            matvec: std::array::from_fn(|at| {
                let macros = typed(&types.expert_rows)
                    .with("ROWS_MAX", group_rows(1 << at))
                    .with("FIXED_K", needs.residual);
                let macros = match needs.routed_widths[..] {
                    [width] => macros.with("FIXED_WIDTH", width),
                    _ => macros,
                };
                set.add(sources::EXPERT_MATVEC, macros)
            }),
            matmul: types
                .experts
                .iter()
                .filter(|ty| ActKind::of(**ty) != ActKind::Float)
                .map(|ty| {
                    let macros = Macros::default().with("TYPE", ty.label());
                    (*ty, set.add(sources::EXPERT_MATMUL, macros))
                })
                .collect(),
        });
        Self {
            embed: set.add(sources::EMBED, typed(&types.dense)),
            quantise: set.add(sources::QUANTISE, Macros::default()),
            swiglu: set.add(sources::SWIGLU, Macros::default()),
            norm: set.add(sources::NORM, rows()),
            combine: set.add(sources::COMBINE, rows()),
            choose: set.add(
                sources::CHOOSE,
                Macros::default()
                    .with("VOCAB", needs.vocab)
                    .with("CANDIDATES", CANDIDATES),
            ),
            routes: needs
                .routes
                .iter()
                .map(|shape| {
                    let macros = Macros::default()
                        .with("EXPERTS", shape.experts)
                        .with("USED", shape.used)
                        .with("GATING", gating(shape.gating));
                    set.add(sources::ROUTE, macros)
                })
                .collect(),
            attention: shapes
                .iter()
                .map(|shape| {
                    [
                        sources::ATTENTION_PREPARE,
                        sources::ATTENTION_DECODE,
                        sources::ATTENTION_PROMPT,
                    ]
                    .map(|source| set.add(source, attention_macros(shape, room.kv_type, device)))
                })
                .collect(),
            delta: needs.delta.first().map(|shape| {
                [sources::DELTA_NET, sources::DELTA_PROMPT]
                    .map(|source| set.add(source, delta_macros(shape, device)))
            }),
            matvec: (!types.integers.is_empty()).then(|| {
                std::array::from_fn(|at| {
                    set.add(
                        sources::MATVEC,
                        typed(&types.integers).with("ROWS", 1 << at),
                    )
                })
            }),
            float_matvec: (!types.floats.is_empty()).then(|| {
                std::array::from_fn(|at| {
                    let macros = typed(&types.floats).with("ROWS", 1 << at);
                    set.add(sources::FLOAT_MATVEC, macros)
                })
            }),
            matmul,
            experts,
        }
    }
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
    for shape in &needs.attention {
        if shape.kv.head_dim > 256 {
            return wrong("a head", shape.kv.head_dim, "of up to 256 channels");
        }
        if shape.heads > 16 * shape.kv.heads {
            return wrong(
                "query heads",
                shape.heads / shape.kv.heads,
                "up to 16 for a KV head",
            );
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
        let types = Types::new(loading);
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
        loader.kernels(&units, needs, shapes, rotations)
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

    pub(super) fn delta(&self, shape: &DeltaShape) -> &DeltaKernels {
        self.delta
            .as_ref()
            .filter(|kernels| kernels.shape == *shape)
            .expect("compiled for the model's delta net")
    }

    /// For windows of this many rows.
    pub(super) fn matvec(&self, rows: usize) -> &MatvecKernel {
        &self.matvec[rows.next_power_of_two().trailing_zeros() as usize]
    }

    /// For windows of this many rows.
    pub(super) fn float_matvec(&self, rows: usize) -> &FloatMatvecKernel {
        &self.float_matvec[rows.next_power_of_two().trailing_zeros() as usize]
    }

    /// Whether the experts' kernels for few rows know a type.
    pub(super) fn expert_rows_take(&self, ty: BlockType) -> bool {
        self.expert_rows.contains(&ty)
    }

    /// For windows of this many rows; those of more than few have rows enough for the last.
    pub(super) fn expert_matvec(&self, rows: usize) -> &ExpertMatvecKernels {
        let bucket = rows.next_power_of_two().trailing_zeros() as usize;
        &self.expert_matvec[bucket.min(BUCKETS - 1)]
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

/// Finds kernels in compiled modules.
struct Loader<'a> {
    device: &'a Device,
    modules: &'a Modules,
    types: &'a Types,
}

impl Loader<'_> {
    fn plain(&self, unit: UnitId, name: &str) -> Result<Kernel, CudaError> {
        self.modules.kernel(unit, name, 0)
    }

    fn constants<const N: usize>(&self, unit: UnitId, name: &str) -> Result<[usize; N], CudaError> {
        self.modules.constants(self.device, unit, name)
    }

    fn kernels(
        &self,
        units: &Units,
        needs: &Needs,
        shapes: Vec<AttentionShape>,
        rotations: &Rotations<'_>,
    ) -> Result<Kernels, CudaError> {
        let experts = units.experts.as_ref();
        let expert_tiles = experts
            .and_then(|experts| experts.matmul.first())
            .map(|(_, unit)| self.plain(*unit, "expert_tiles"))
            .transpose()?;
        let all = |experts: Option<&ExpertUnits>| -> Result<Vec<ExpertMatvecKernels>, CudaError> {
            let Some(experts) = experts else {
                return Ok(Vec::new());
            };
            (0..BUCKETS)
                .map(|at| self.expert_matvec(experts.matvec[at], 1 << at, needs))
                .collect()
        };
        Ok(Kernels {
            used: needs.experts_used,
            embed: self.plain(units.embed, "embed")?,
            quantise: self.plain(units.quantise, "quantise_rows")?,
            swiglu: self.plain(units.swiglu, "swiglu")?,
            norms: self.norms(units)?,
            choose: self.plain(units.choose, "choose")?,
            routes: needs
                .routes
                .iter()
                .zip(&units.routes)
                .map(|(shape, unit)| self.route(*unit, *shape))
                .collect::<Result<_, _>>()?,
            attention: shapes
                .into_iter()
                .zip(&units.attention)
                .map(|(shape, units)| self.attention(*units, shape, rotations))
                .collect::<Result<_, _>>()?,
            delta: match (needs.delta.first(), units.delta) {
                (Some(shape), Some(units)) => Some(self.delta(units, *shape)?),
                _ => None,
            },
            matvec: self.matvecs(units.matvec.as_ref(), needs)?,
            float_matvec: units
                .float_matvec
                .as_ref()
                .map_or(&[][..], |units| units)
                .iter()
                .map(|unit| self.float_matvec(*unit))
                .collect::<Result<_, _>>()?,
            expert_rows: self.types.expert_rows.clone(),
            matmul: units
                .matmul
                .iter()
                .map(|(ty, unit)| Ok((*ty, self.matmul(*unit, *ty)?)))
                .collect::<Result<_, CudaError>>()?,
            expert_matvec: all(experts)?,
            expert_matmul: experts
                .map_or(&[][..], |experts| &experts.matmul)
                .iter()
                .map(|(ty, unit)| Ok((*ty, self.expert_matmul(*unit)?)))
                .collect::<Result<_, CudaError>>()?,
            expert_tiles,
        })
    }

    fn norms(&self, units: &Units) -> Result<NormKernels, CudaError> {
        let [threads] = self.constants(units.norm, "norm_launch")?;
        Ok(NormKernels {
            threads,
            norm: self.plain(units.norm, "rms_norm")?,
            combine_norm: self.plain(units.norm, "combine_norm")?,
            head_norm: self.plain(units.norm, "head_norm")?,
            head_combine_norm: self.plain(units.norm, "head_combine_norm")?,
            add: self.plain(units.combine, "add")?,
            combine_add: self.plain(units.combine, "combine_add")?,
        })
    }

    fn route(&self, unit: UnitId, shape: RouteShape) -> Result<RouteKernels, CudaError> {
        let [route_rows, route_threads] = self.constants(unit, "route_launch")?;
        Ok(RouteKernels {
            shape,
            route: self.plain(unit, "route")?,
            route_rows,
            route_threads,
            group: self.plain(unit, "group")?,
            route_group: if shape.experts <= 1024 {
                Some(self.plain(unit, "route_group")?)
            } else {
                None
            },
        })
    }

    fn attention(
        &self,
        [prepare, decode, prompt]: [UnitId; 3],
        shape: AttentionShape,
        rotations: &Rotations<'_>,
    ) -> Result<AttentionKernels, CudaError> {
        let [decode_threads] = self.constants(decode, "attention_decode_launch")?;
        let [tile_rows, threads, shared] = self.constants(prompt, "attention_prompt_launch")?;
        let prompt = self.modules.kernel(prompt, "attention_prompt", shared)?;
        Ok(AttentionKernels {
            prepare: self.plain(prepare, "attention_prepare")?,
            full_width: shape.qk_norm == Some(QkNorm::FullWidth),
            decode: self.plain(decode, "attention_decode")?,
            decode_threads,
            combine: self.plain(decode, "attention_combine")?,
            prompt: TileKernel {
                resident: prompt.resident_blocks(self.device, threads, shared)?,
                kernel: prompt,
                tile_rows,
                threads,
                shared,
            },
            turns: rotations.start(&shape.rope.frequencies),
            shape,
        })
    }

    fn delta(
        &self,
        [few, many]: [UnitId; 2],
        shape: DeltaShape,
    ) -> Result<DeltaKernels, CudaError> {
        let [step_bytes, short_rows] = self.constants(few, "delta_net_launch")?;
        let [
            blocks_bytes,
            scan_bytes,
            scan_columns,
            gate_bytes,
            gate_rows,
            gate_groups,
        ] = self.constants(many, "delta_prompt_launch")?;
        Ok(DeltaKernels {
            shape,
            short_rows,
            step: self.modules.kernel(few, "delta_step", step_bytes)?,
            step_bytes,
            blocks: self.modules.kernel(many, "delta_blocks", blocks_bytes)?,
            blocks_bytes,
            scan: self.modules.kernel(many, "delta_scan", scan_bytes)?,
            scan_bytes,
            scan_columns,
            gate: self.modules.kernel(many, "delta_gate", gate_bytes)?,
            gate_bytes,
            gate_rows,
            gate_groups,
        })
    }

    fn matvecs(
        &self,
        units: Option<&[UnitId; BUCKETS]>,
        needs: &Needs,
    ) -> Result<Vec<MatvecKernel>, CudaError> {
        let units = units.map_or(&[][..], |units| units);
        (0..units.len())
            .map(|at| self.matvec(units[at], 1 << at, needs))
            .collect()
    }

    fn float_matvec(&self, unit: UnitId) -> Result<FloatMatvecKernel, CudaError> {
        let [threads, shared, outputs] = self.constants(unit, "float_matvec_launch")?;
        let kernel = self.modules.kernel(unit, "float_matvec", shared)?;
        Ok(FloatMatvecKernel {
            resident: kernel.resident_blocks(self.device, threads, shared)?,
            kernel,
            threads,
            shared,
            outputs,
        })
    }

    fn matvec(&self, unit: UnitId, rows: usize, needs: &Needs) -> Result<MatvecKernel, CudaError> {
        let [threads, bytes, blocks] = self.constants(unit, "matvec_launch")?;
        let mut kernel = MatvecKernel {
            kernel: self.plain(unit, "matvec")?,
            threads,
            warps: threads / 32,
            rows,
            bytes,
            kinds: Kinds::of(&self.types.integers),
            blocks_max: blocks * self.device.processors as usize,
        };
        let longest = kernel.shared(longest_input(needs));
        kernel.kernel = self.modules.kernel(unit, "matvec", longest)?;
        Ok(kernel)
    }

    fn matmul(&self, unit: UnitId, ty: BlockType) -> Result<MatmulKernel, CudaError> {
        let (name, launch) = match ActKind::of(ty) {
            ActKind::Float => ("float_matmul", "float_matmul_launch"),
            _ => ("matmul_mma", "matmul_launch"),
        };
        let [tile_outputs, tile_rows, threads, shared] = self.constants(unit, launch)?;
        let kernel = self.modules.kernel(unit, name, shared)?;
        Ok(MatmulKernel {
            resident: kernel.resident_blocks(self.device, threads, shared)?,
            kernel,
            tile_outputs,
            tile_rows,
            threads,
            shared,
        })
    }

    fn expert_matvec(
        &self,
        unit: UnitId,
        bucket: usize,
        needs: &Needs,
    ) -> Result<ExpertMatvecKernels, CudaError> {
        let [threads, gate_up_bytes, down_bytes] = self.constants(unit, "expert_matvec_launch")?;
        let mut kernels = ExpertMatvecKernels {
            gate_up: self.plain(unit, "expert_gate_up")?,
            down: self.plain(unit, "expert_down")?,
            threads,
            gate_up_bytes,
            down_bytes,
            rows: group_rows(bucket),
            kinds: Kinds::of(&self.types.expert_rows),
        };
        let (gate_up, down) = (
            kernels.gate_up_shared(needs.residual),
            kernels.down_shared(needs.expert_width),
        );
        kernels.gate_up = self.modules.kernel(unit, "expert_gate_up", gate_up)?;
        kernels.down = self.modules.kernel(unit, "expert_down", down)?;
        Ok(kernels)
    }

    fn expert_matmul(&self, unit: UnitId) -> Result<ExpertMatmulKernels, CudaError> {
        let [tile_outputs, tile_rows, threads, shared] =
            self.constants(unit, "expert_matmul_launch")?;
        let tile = |name| -> Result<TileKernel, CudaError> {
            let kernel = self.modules.kernel(unit, name, shared)?;
            Ok(TileKernel {
                resident: kernel.resident_blocks(self.device, threads, shared)?,
                kernel,
                tile_rows,
                threads,
                shared,
            })
        };
        Ok(ExpertMatmulKernels {
            tile_outputs,
            gate_up: tile("expert_gate_up_mma")?,
            matrix: tile("expert_mma")?,
        })
    }
}

/// Values of the longest input of a dense product.
fn longest_input(needs: &Needs) -> usize {
    [Act::Mixed, Act::Gate]
        .into_iter()
        .map(|act| needs.widths.of(act))
        .chain([needs.residual, needs.expert_width])
        .max()
        .unwrap_or(0)
}
