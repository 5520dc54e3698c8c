//! Weight matrices times rows, norms and the dense activation.

use super::{Act, CudaError, Forms, Grid, Matrix, Now, Ready, Vector, form_of, launch, mask};
use crate::{cpu::kernels::ActKind, cuda::forms::Acts};

/// `struct Normed` of `kernels/norm.cuh`: where a normed row goes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Normed {
    floats: u64,
    wide: Acts,
    narrow: Acts,
    forms: u32,
    padding: u32,
}

impl Normed {
    /// These forms of rows, and floats.
    pub(super) fn new(floats: u64, forms: Forms, written: u32) -> Self {
        Self {
            floats,
            wide: forms.wide,
            narrow: forms.narrow,
            forms: written,
            padding: 0,
        }
    }
}

/// `struct Matrix` of `kernels/matrices.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct MatvecMatrix {
    weights: u64,
    to: u64,
    outputs: u32,
    to_stride: u32,
    ty: u32,
    first_block: u32,
    blocks: u32,
    unused: u32,
}

/// `struct GateBias` of `kernels/swiglu.cu`; zeros where there are no biases.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct GateBias {
    pub(super) gate: u64,
    pub(super) up: u64,
    pub(super) ids: u64,
}

/// Where rows come from: floats, a row every `stride` values, and their forms.
#[derive(Clone, Copy)]
pub(super) struct From {
    pub(super) floats: u64,
    pub(super) stride: usize,
    pub(super) forms: Forms,
    /// The device's count of rows.
    pub(super) live: u64,
    /// Rows at most.
    pub(super) rows: usize,
}

/// Where a product goes: a row every `outputs` values.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) to: u64,
}

impl Ready {
    /// `Normed` = rms norm of the residual, after what was put off has joined it.
    pub(super) fn norm(&mut self, weight: &Vector, eps: f32) -> Result<(), CudaError> {
        let normed = self.normed(self.act(Act::Normed), self.forms());
        self.norm_into(self.weight(weight.at), eps, normed)?;
        self.formed = Some(Act::Normed);
        Ok(())
    }

    /// The same into other buffers; without a weight nothing is normed.
    pub(super) fn norm_into(
        &mut self,
        weight: u64,
        eps: f32,
        normed: Normed,
    ) -> Result<(), CudaError> {
        let now = self.now();
        let joining = self.take_pending()?;
        let grid = Grid::new([now.rows, 1, 1], self.kernels.norms.threads);
        match joining.experts {
            // SAFETY: the parameters of `combine_norm`; all buffers have room for the rows.
            Some(sums) => unsafe {
                launch!(&self.queue, &self.kernels.norms.combine_norm, grid;
                    now.residual, sums, joining.around, weight, eps, normed, now.tables)
            },
            // SAFETY: the parameters of `rms_norm`, likewise.
            None => unsafe {
                launch!(&self.queue, &self.kernels.norms.norm, grid;
                    now.residual, joining.branch, joining.around, weight, eps, normed, now.tables)
            },
        }
    }

    /// The last norm, of the rows that are asked, packed; the residual stays without what was put off.
    pub(super) fn head_norm(&mut self, weight: &Vector, eps: f32) -> Result<From, CudaError> {
        let now = self.now();
        let head = self.at(self.layout.head);
        let forms = self.layout.head_forms.at(self.work.address());
        let normed = self.normed(head, forms);
        let grid = Grid::new([now.asked, 1, 1], self.kernels.norms.threads);
        let weight = self.weight(weight.at);
        let joining = self.take_pending()?;
        match joining.experts {
            // SAFETY: the parameters of `head_combine_norm`; the packed rows have room.
            Some(sums) => unsafe {
                launch!(&self.queue, &self.kernels.norms.head_combine_norm, grid;
                    now.residual, sums, joining.around, weight, eps, normed, now.tables)
            },
            // SAFETY: the parameters of `head_norm`, likewise.
            None => unsafe {
                launch!(&self.queue, &self.kernels.norms.head_norm, grid;
                    now.residual, joining.branch, joining.around, weight, eps, normed, now.tables)
            },
        }?;
        Ok(From {
            floats: head,
            stride: self.width,
            forms,
            live: now.tables.asked_count(),
            rows: now.asked,
        })
    }

    fn normed(&self, floats: u64, forms: Forms) -> Normed {
        Normed::new(floats, forms, self.forms_for(self.width))
    }

    /// `Gate` = silu(`Gate`) * `Up`.
    pub(super) fn swiglu(&mut self, width: usize) -> Result<(), CudaError> {
        let now = self.now();
        let (gate, up, forms) = (self.act(Act::Gate), self.act(Act::Up), self.forms());
        self.swiglu_of(now, gate, up, width, forms)?;
        self.formed = Some(Act::Gate);
        Ok(())
    }

    /// Adds `bias` to every row of `act`.
    pub(super) fn bias(&mut self, act: Act, bias: &Vector) -> Result<(), CudaError> {
        let now = self.now();
        let grid = Grid::new([bias.len.div_ceil(1024), now.rows, 1], 128);
        // SAFETY: the parameters of `bias`; the buffer has room for the rows.
        unsafe {
            launch!(&self.queue, &self.kernels.bias, grid;
                self.act(act), self.weight(bias.at), 0u64, bias.len as u32, now.tables)
        }
    }

    pub(super) fn swiglu_of(
        &self,
        now: Now,
        gate: u64,
        up: u64,
        width: usize,
        forms: Forms,
    ) -> Result<(), CudaError> {
        let grid = Grid::new([width.div_ceil(512), now.rows, 1], 64);
        // SAFETY: the parameters of `swiglu`; gate, up and forms have room for the rows.
        unsafe {
            launch!(&self.queue, &self.kernels.swiglu, grid;
                gate, up, width as u32, GateBias::default(), forms.wide, forms.narrow, self.forms_for(width), now.tables)
        }
    }

    /// `to = matrix . from` for every pair.
    pub(super) fn matmul(&mut self, from: Act, to: &[(&Matrix, Act)]) -> Result<(), CudaError> {
        let forms = to
            .iter()
            .fold(0, |all, (matrix, _)| all | form_of(matrix.kind()));
        let source = self.source(from, to[0].0.inputs, forms)?;
        let mut targets = [Target {
            matrix: to[0].0,
            to: 0,
        }; 4];
        for (target, (matrix, act)) in targets.iter_mut().zip(to) {
            *target = Target {
                matrix,
                to: self.act(*act),
            };
        }
        if to.iter().any(|(_, act)| self.formed == Some(*act)) {
            self.formed = None;
        }
        self.products(source, &targets[..to.len()])
    }

    /// residual = `matrix . from`, for every stream by itself.
    pub(super) fn project(&mut self, from: Act, matrix: &Matrix) -> Result<(), CudaError> {
        let now = self.now();
        // blocks of a row with all its streams are those of the streams
        let source = self.source(from, self.streams * matrix.inputs, form_of(matrix.kind()))?;
        let source = From {
            stride: matrix.inputs,
            live: now.tables.stream_count(),
            rows: self.streams * now.rows,
            ..source
        };
        self.formed = None;
        let to = now.residual;
        self.products(source, &[Target { matrix, to }])
    }

    /// Rows of `inputs` values, in these forms.
    fn source(&mut self, from: Act, inputs: usize, forms: u32) -> Result<From, CudaError> {
        let now = self.now();
        let source = From {
            floats: self.act(from),
            stride: inputs,
            forms: self.forms(),
            live: now.tables.row_count(),
            rows: now.rows,
        };
        let needed = forms & !mask::FLOAT;
        if needed != 0 && self.formed != Some(from) {
            self.quantise(source, inputs, needed)?;
            // other products of the same rows may need the other form
            self.formed = (needed | mask::FLOAT == self.forms_for(inputs)).then_some(from);
        }
        Ok(source)
    }

    pub(super) fn quantise(&self, from: From, inputs: usize, forms: u32) -> Result<(), CudaError> {
        let grid = Grid::new([inputs.div_ceil(1024), from.rows, 1], 128);
        // SAFETY: the parameters of `quantise_rows`; the forms have room for the rows.
        unsafe {
            launch!(&self.queue, &self.kernels.quantise, grid;
                from.floats, from.stride as u64, inputs as u32, forms, from.forms.wide, from.forms.narrow, from.live)
        }
    }

    /// Products of up to four matrices with the same rows, whose forms are there.
    pub(super) fn products(&self, from: From, to: &[Target<'_>]) -> Result<(), CudaError> {
        if from.rows <= super::FEW_ROWS {
            // floats and the others have kernels of their own
            for float in [false, true] {
                let mut these = [to[0]; 4];
                let mut count = 0;
                for target in to {
                    if (target.matrix.kind() == ActKind::Float) == float {
                        these[count] = *target;
                        count += 1;
                    }
                }
                match (count, float) {
                    (0, _) => {}
                    (_, false) => self.few_products(from, &these[..count])?,
                    (_, true) => self.few_float_products(from, &these[..count])?,
                }
            }
            return Ok(());
        }
        to.iter()
            .try_for_each(|target| self.many_products(from, *target))
    }

    /// The matrices of a launch with the blocks that work on each, and all blocks.
    fn matrices(
        &self,
        to: &[Target<'_>],
        blocks_of: impl Fn(&Matrix) -> usize,
    ) -> ([MatvecMatrix; 4], usize) {
        let mut matrices = [MatvecMatrix::default(); 4];
        let mut blocks = 0;
        for (entry, target) in matrices.iter_mut().zip(to) {
            let own = blocks_of(target.matrix);
            *entry = MatvecMatrix {
                weights: self.weight(target.matrix.at),
                to: target.to,
                outputs: target.matrix.outputs as u32,
                to_stride: target.matrix.outputs as u32,
                ty: target.matrix.ty as u32,
                first_block: blocks as u32,
                blocks: own as u32,
                unused: 0,
            };
            blocks += own;
        }
        (matrices, blocks)
    }

    fn few_float_products(&self, from: From, to: &[Target<'_>]) -> Result<(), CudaError> {
        let kernel = self.kernels.float_matvec(from.rows);
        let inputs = to[0].matrix.inputs;
        let (matrices, blocks) =
            self.matrices(to, |matrix| kernel.blocks(matrix.outputs, from.rows));
        let grid = Grid::new([blocks, from.rows.div_ceil(kernel.rows), 1], kernel.threads)
            .with_shared(kernel.shared);
        let grid = to.iter().fold(grid, |grid, target| {
            grid.reading(target.matrix.bytes(), target.matrix.values())
        });
        // SAFETY: the parameters of `float_matvec`; every output has room for the rows.
        unsafe {
            launch!(&self.queue, &kernel.kernel, grid;
                matrices, to.len() as u32, inputs as u32, from.floats, from.stride as u64, from.live)
        }
    }

    fn few_products(&self, from: From, to: &[Target<'_>]) -> Result<(), CudaError> {
        let inputs = to[0].matrix.inputs;
        let kernel = self.kernels.matvec(from.rows, inputs);
        let outputs = to.iter().map(|target| target.matrix.outputs).sum();
        let (matrices, blocks) = self.matrices(to, |matrix| kernel.blocks(matrix, outputs));
        let grid = Grid::new([blocks, from.rows.div_ceil(kernel.rows), 1], kernel.threads)
            .with_shared(kernel.shared(inputs));
        let grid = to.iter().fold(grid, |grid, target| {
            grid.reading(target.matrix.bytes(), target.matrix.values())
        });
        // SAFETY: the parameters of `matvec`; every output has room for the rows.
        unsafe {
            launch!(&self.queue, &kernel.kernel, grid;
                matrices, to.len() as u32, inputs as u32, from.forms.wide, from.forms.narrow, from.live)
        }
    }

    fn many_products(&self, from: From, target: Target<'_>) -> Result<(), CudaError> {
        let matrix = target.matrix;
        let (weights, outputs) = (self.weight(matrix.at), matrix.outputs as u32);
        let kernel = self.kernels.matmul(matrix.ty);
        let tiles = [
            matrix.outputs.div_ceil(kernel.tile_outputs),
            from.rows.div_ceil(kernel.matrix.tile_rows),
        ];
        let kernel = &kernel.matrix;
        if form_of(matrix.kind()) == mask::FLOAT {
            let grid = Grid::new([tiles[0], tiles[1], 1], kernel.threads)
                .reading(matrix.bytes(), matrix.values());
            // SAFETY: the parameters of `float_matmul`; the output has room for the rows.
            return unsafe {
                launch!(&self.queue, &kernel.kernel, grid;
                    weights, from.floats, target.to, outputs, matrix.inputs as u32, outputs, from.live)
            };
        }
        let acts = if form_of(matrix.kind()) == mask::WIDE {
            from.forms.wide
        } else {
            from.forms.narrow
        };
        let blocks = kernel.resident.min(tiles[0] * tiles[1]);
        let grid = Grid::new([blocks, 1, 1], kernel.threads)
            .with_shared(kernel.shared)
            .reading(matrix.bytes(), matrix.values());
        // SAFETY: the parameters of `matmul_mma`, likewise.
        unsafe {
            launch!(&self.queue, &kernel.kernel, grid;
                weights, acts, target.to, outputs, matrix.inputs as u32, outputs, from.live)
        }
    }
}
