//! From compiled modules to kernels that can be launched.

use super::{
    Kernels,
    layers::{
        AttentionKernels, DeltaKernels, IndexKernels, NgramKernels, NormKernels, RouteKernels,
        SelectKernels, StreamKernels,
    },
    products::{
        ExpertMatmulKernels, ExpertMatvecKernels, FloatMatvecKernel, Kinds, MatmulKernel,
        MatvecKernel, TileKernel,
    },
    units::{Types, Units, group_rows},
};
use crate::{
    backend::{
        Needs, Room, RouteShape,
        shape::{AttentionShape, DeltaShape, QkNorm},
    },
    cpu::kernels::ActKind,
    cuda::{
        backend::Rotations,
        compile::Kernel,
        device::Device,
        error::CudaError,
        layout,
        set::{Modules, UnitId},
    },
    quant::BlockType,
};

/// Finds kernels in compiled modules.
pub(super) struct Loader<'a> {
    pub(super) device: &'a Device,
    pub(super) modules: &'a Modules,
    pub(super) types: &'a Types,
}

impl Loader<'_> {
    fn plain(&self, unit: UnitId, name: &str) -> Result<Kernel, CudaError> {
        self.modules.kernel(unit, name, 0)
    }

    fn constants<const N: usize>(&self, unit: UnitId, name: &str) -> Result<[usize; N], CudaError> {
        self.modules.constants(self.device, unit, name)
    }

    /// All of them.
    pub(super) fn kernels(
        &self,
        units: &Units,
        (needs, room): (&Needs, &Room),
        shapes: Vec<AttentionShape>,
        rotations: &Rotations<'_>,
    ) -> Result<Kernels, CudaError> {
        let experts = units.experts.as_ref();
        let expert_tiles = experts
            .and_then(|experts| experts.matmul.first())
            .map(|(_, unit)| self.plain(*unit, "expert_tiles"))
            .transpose()?;
        Ok(Kernels {
            used: needs.experts_used,
            shared_bytes: self.device.shared_bytes as usize,
            embed: self.plain(units.embed, "embed")?,
            quantise: self.plain(units.quantise, "quantise_rows")?,
            swiglu: self.plain(units.swiglu, "swiglu")?,
            bias: self.plain(units.bias, "bias")?,
            norms: self.norms(units, needs)?,
            choose: self.plain(units.choose, "choose")?,
            softcap: (units.softcap)
                .map(|unit| self.plain(unit, "softcap"))
                .transpose()?,
            draw: (units.draw)
                .map(|unit| self.plain(unit, "draw"))
                .transpose()?,
            routes: needs
                .routes
                .iter()
                .zip(&units.routes)
                .map(|(shape, unit)| self.route(*unit, *shape))
                .collect::<Result<_, _>>()?,
            attention: shapes
                .into_iter()
                .zip(units.attention.iter().zip(&units.index))
                .map(|(shape, (units, index))| {
                    let index = match index {
                        Some(unit) => Some(self.index(*unit, layout::selects(&shape, room))?),
                        None => None,
                    };
                    self.attention(*units, shape, rotations, index)
                })
                .collect::<Result<_, _>>()?,
            streams: units.streams.map(|unit| self.streams(unit)).transpose()?,
            ngram: units.ngram.map(|unit| self.ngram(unit)).transpose()?,
            delta: match (needs.delta.first(), units.delta) {
                (Some(shape), Some(units)) => Some(self.delta(units, *shape)?),
                _ => None,
            },
            matvec_one: (self.types.by_inputs.iter())
                .zip(&units.matvec_one)
                .map(|((inputs, types), unit)| {
                    Ok((*inputs, self.matvec(*unit, 1, types, *inputs)?))
                })
                .collect::<Result<_, CudaError>>()?,
            matvec: (1..)
                .zip(&units.matvec)
                .map(|(at, unit)| {
                    self.matvec(*unit, 1 << at, &self.types.integers, longest_input(needs))
                })
                .collect::<Result<_, _>>()?,
            float_matvec: units
                .float_matvec
                .iter()
                .map(|unit| self.float_matvec(*unit))
                .collect::<Result<_, _>>()?,
            expert_rows: self.types.expert_rows.clone(),
            matmul: units
                .matmul
                .iter()
                .map(|(ty, unit)| Ok((*ty, self.matmul(*unit, *ty)?)))
                .collect::<Result<_, CudaError>>()?,
            expert_matvec: (0..)
                .zip(experts.map_or(&[][..], |experts| &experts.matvec))
                .map(|(at, unit)| self.expert_matvec(*unit, 1 << at, needs))
                .collect::<Result<_, _>>()?,
            expert_matmul: experts
                .map_or(&[][..], |experts| &experts.matmul)
                .iter()
                .map(|(ty, unit)| Ok((*ty, self.expert_matmul(*unit)?)))
                .collect::<Result<_, CudaError>>()?,
            expert_tiles,
        })
    }

    fn norms(&self, units: &Units, needs: &Needs) -> Result<NormKernels, CudaError> {
        let [threads] = self.constants(units.norm, "norm_launch")?;
        Ok(NormKernels {
            threads,
            norm: self.plain(units.norm, "rms_norm")?,
            combine_norm: self.plain(units.norm, "combine_norm")?,
            head_norm: self.plain(units.norm, "head_norm")?,
            head_combine_norm: self.plain(units.norm, "head_combine_norm")?,
            keep_norm: self.plain(units.norm, "keep_norm")?,
            keep_combine_norm: self.plain(units.norm, "keep_combine_norm")?,
            pair: self.plain(units.norm, "pair")?,
            branch_alone: (needs.sandwich)
                .then(|| self.plain(units.norm, "branch_alone"))
                .transpose()?,
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
        index: Option<IndexKernels>,
    ) -> Result<AttentionKernels, CudaError> {
        let [decode_threads] = self.constants(decode, "attention_decode_launch")?;
        let [tile_rows, threads, shared] = self.constants(prompt, "attention_prompt_launch")?;
        Ok(AttentionKernels {
            prepare: self.plain(prepare, "attention_prepare")?,
            full_width: shape.qk_norm == Some(QkNorm::FullWidth),
            decode: self.plain(decode, "attention_decode")?,
            decode_threads,
            combine: self.plain(decode, "attention_combine")?,
            prompt: self.tile(prompt, "attention_prompt", tile_rows, threads, shared)?,
            turns: rotations.start(&shape.rope),
            shape,
            index,
        })
    }

    fn index(&self, unit: UnitId, selects: bool) -> Result<IndexKernels, CudaError> {
        let select = || {
            let [tile_rows, score_threads] = self.constants(unit, "index_launch")?;
            Ok::<_, CudaError>(SelectKernels {
                scores: self.plain(unit, "index_scores")?,
                tile_rows,
                score_threads,
                select: self.plain(unit, "index_select")?,
            })
        };
        Ok(IndexKernels {
            prepare: self.plain(unit, "index_prepare")?,
            keep: self.plain(unit, "index_keep")?,
            select: selects.then(select).transpose()?,
        })
    }

    fn streams(&self, unit: UnitId) -> Result<StreamKernels, CudaError> {
        let [threads] = self.constants(unit, "streams_launch")?;
        Ok(StreamKernels {
            threads,
            norm: self.plain(unit, "streams_norm")?,
            low: self.plain(unit, "streams_low")?,
            mean: self.plain(unit, "streams_mean")?,
        })
    }

    fn ngram(&self, unit: UnitId) -> Result<NgramKernels, CudaError> {
        let [threads] = self.constants(unit, "ngram_launch")?;
        Ok(NgramKernels {
            threads,
            gate: self.plain(unit, "ngram_gate")?,
            convolve: self.plain(unit, "ngram_convolve")?,
            keep: self.plain(unit, "ngram_keep")?,
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

    fn float_matvec(&self, unit: UnitId) -> Result<FloatMatvecKernel, CudaError> {
        let [threads, shared, outputs, rows] = self.constants(unit, "float_matvec_launch")?;
        let kernel = self.modules.kernel(unit, "float_matvec", shared)?;
        Ok(FloatMatvecKernel {
            spread: if rows > 1 {
                self.device.processors as usize
            } else {
                kernel.resident_blocks(self.device, threads, shared)?
            },
            kernel,
            threads,
            shared,
            outputs,
            rows,
        })
    }

    /// Products of matrices of `types` whose rows have up to `inputs` values.
    fn matvec(
        &self,
        unit: UnitId,
        rows: usize,
        types: &[BlockType],
        inputs: usize,
    ) -> Result<MatvecKernel, CudaError> {
        let [threads, bytes, blocks] = self.constants(unit, "matvec_launch")?;
        let mut staged = Kinds::of(types);
        if rows == 1 {
            // comes straight to registers
            staged.wide = false;
        }
        let mut kernel = MatvecKernel {
            kernel: self.plain(unit, "matvec")?,
            threads,
            rows,
            bytes,
            staged,
            held: blocks,
            processors: self.device.processors as usize,
            shared_bytes: self.device.shared_bytes as usize,
        };
        // longer inputs go to kernels of fewer rows
        let most = kernel.shared(inputs).min(self.device.shared_bytes as usize);
        kernel.kernel = self.modules.kernel(unit, "matvec", most)?;
        Ok(kernel)
    }

    fn matmul(&self, unit: UnitId, ty: BlockType) -> Result<MatmulKernel, CudaError> {
        let (name, launch) = match ActKind::of(ty) {
            ActKind::Float => ("float_matmul", "float_matmul_launch"),
            _ => ("matmul_mma", "matmul_launch"),
        };
        let [tile_outputs, tile_rows, threads, shared] = self.constants(unit, launch)?;
        Ok(MatmulKernel {
            tile_outputs,
            matrix: self.tile(unit, name, tile_rows, threads, shared)?,
        })
    }

    fn tile(
        &self,
        unit: UnitId,
        name: &str,
        tile_rows: usize,
        threads: usize,
        shared: usize,
    ) -> Result<TileKernel, CudaError> {
        let kernel = self.modules.kernel(unit, name, shared)?;
        Ok(TileKernel {
            resident: kernel.resident_blocks(self.device, threads, shared)?,
            kernel,
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
        let staged = Kinds::of(&self.types.expert_rows);
        let rows = group_rows(bucket, self.device, self.types, needs);
        let straight = rows == 1 && staged.only_wide();
        let mut kernels = ExpertMatvecKernels {
            gate_up: self.plain(unit, "expert_gate_up")?,
            down: self.plain(unit, "expert_down")?,
            threads,
            gate_up_bytes,
            down_bytes,
            rows,
            gate_up_staged: if straight { Kinds::default() } else { staged },
            down_staged: staged,
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
        let tile = |name| self.tile(unit, name, tile_rows, threads, shared);
        Ok(ExpertMatmulKernels {
            tile_outputs,
            gate_up: tile("expert_gate_up_mma")?,
            matrix: tile("expert_mma")?,
        })
    }
}

/// Values of the longest input of a dense product.
fn longest_input(needs: &Needs) -> usize {
    layout::INPUTS
        .into_iter()
        .map(|act| needs.widths.of(act))
        .chain([needs.residual, needs.expert_width])
        .max()
        .unwrap_or(0)
}
