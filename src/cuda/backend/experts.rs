//! The experts of a window: chosen, grouped and computed on the device; the host never learns which.

use cudarc::driver::result;

use super::{
    Act, Cuda, CudaError, During, ExpertSums, ExpertWeights, Experts, Forms, Grid, Ready,
    RouteShape, RouteWeights, form_of, launch, mask,
    products::{From, GateBias, Target},
};
use crate::{
    backend::SharedExpert,
    cuda::{
        forms::Acts,
        kernels::{ExpertMatmulKernels, TileKernel},
    },
};

/// `struct Choices` of `kernels/route.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Choices {
    ids: u64,
    weights: u64,
}

/// `struct Groups` of `kernels/route.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Groups {
    places: u64,
    expert: u64,
    start: u64,
    count: u64,
}

/// `struct Groups` of `kernels/expert_matvec.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct UsedGroups {
    groups: Groups,
    ids: u64,
    used: u32,
    padding: u32,
}

/// `struct ExpertMatrix` of `kernels/expert_matvec.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ExpertMatrix {
    first: u64,
    bias: u64,
    /// **Units**: 16 bytes, to which experts are aligned.
    stride: u32,
    ty: u32,
}

/// `struct Vectors` of `kernels/route.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RouteVectors {
    bias: u64,
    choice_bias: u64,
    scale: u64,
}

/// `struct SharedMatrices` of `kernels/expert_matvec.cu`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct SharedMatrices {
    gate: u64,
    up: u64,
    down: u64,
    gate_ty: u32,
    up_ty: u32,
    down_ty: u32,
    width: u32,
    hidden: u64,
    outputs: u64,
}

/// `struct Acts` of `kernels/expert_matvec.cu`: rows in all forms.
#[derive(Clone, Copy)]
#[repr(C)]
struct AllForms {
    wide: Acts,
    narrow: Acts,
    floats: u64,
    stride: u64,
}

impl Ready {
    fn choices(&self) -> Choices {
        let experts = &self.layout.experts;
        Choices {
            ids: self.at(experts.ids),
            weights: self.at(experts.weights),
        }
    }

    fn groups(&self) -> Groups {
        let experts = &self.layout.experts;
        Groups {
            places: self.at(experts.places),
            expert: self.at(experts.group_expert),
            start: self.at(experts.group_start),
            count: self.at(experts.group_count),
        }
    }

    /// Chooses every row's experts, and groups the rows if that is one kernel with it.
    pub(super) fn route(&mut self, weights: &RouteWeights<Cuda>) -> Result<(), CudaError> {
        let now = self.now();
        let shape = &weights.shape;
        let vectors = RouteVectors {
            bias: self.vector(weights.bias.as_ref()),
            choice_bias: self.vector(weights.choice_bias.as_ref()),
            scale: self.vector(weights.expert_scale.as_ref()),
        };
        let kernels = self.kernels.route(shape);
        let (logits, normalise) = (self.act(Act::Router), u32::from(shape.normalise));
        let choices = self.choices();
        if now.few()
            && let Some(route_group) = &kernels.route_group
        {
            let grid = Grid::new([1, 1, 1], 32 * now.rows);
            // SAFETY: the parameters of `route_group`; choices and groups have room for the rows.
            return unsafe {
                launch!(&self.queue, route_group, grid;
                    logits, vectors, normalise, shape.scale, choices, self.groups(), now.tables)
            };
        }
        let blocks = now.rows.div_ceil(kernels.route_rows);
        let grid = Grid::new([blocks, 1, 1], kernels.route_threads);
        // SAFETY: the parameters of `route`, likewise.
        unsafe {
            launch!(&self.queue, &kernels.route, grid;
                logits, vectors, normalise, shape.scale, choices, now.tables)
        }
    }

    /// Experts that the layer computed last has read. Waits for the device.
    pub(in crate::cuda) fn experts_read(&self) -> Result<usize, CudaError> {
        if self.kernels.used() == 0 {
            return Ok(0);
        }
        self.queue
            .stream
            .synchronize()
            .during("computing a layer")?;
        let mut count = [0u32];
        // SAFETY: the word is the device's, and nobody writes it now.
        unsafe { result::memcpy_dtoh_sync(&mut count, self.groups().count) }
            .during("fetching a count of experts")?;
        Ok(count[0] as usize)
    }

    /// Groups the rows by expert.
    pub(super) fn place(&mut self, shape: &RouteShape) -> Result<(), CudaError> {
        let now = self.now();
        let kernels = self.kernels.route(shape);
        if now.few() && kernels.route_group.is_some() {
            return Ok(());
        }
        let experts = &self.layout.experts;
        let grid = Grid::new([shape.experts, 1, 1], 256);
        // SAFETY: the parameters of `group`; groups and scratch have room for all experts.
        unsafe {
            launch!(&self.queue, &kernels.group, grid;
                self.choices().ids, self.groups(), self.at(experts.expert_rows), self.at(experts.done), now.tables)
        }
    }

    /// The chosen experts' outputs, and the shared one's; their sum is put off.
    pub(super) fn run_experts(&mut self, weights: &ExpertWeights<Cuda>) -> Result<(), CudaError> {
        let now = self.now();
        let source = From {
            floats: self.act(Act::Normed),
            stride: self.width,
            forms: self.forms(),
            live: now.tables.row_count(),
            rows: now.rows,
        };
        debug_assert_eq!(self.formed, Some(Act::Normed), "experts follow a norm");
        if now.few() {
            let shared = weights.shared.as_ref();
            let together = shared.filter(|shared| {
                let mut matrices = [&shared.gate, &shared.up, &shared.down].into_iter();
                matrices.all(|matrix| self.kernels.expert_rows_take(matrix.ty))
            });
            if let (Some(shared), None) = (shared, together) {
                self.shared_expert(source, shared)?;
            }
            self.few_experts(source, weights, together)?;
        } else {
            if let Some(shared) = &weights.shared {
                self.shared_expert(source, shared)?;
            }
            if [weights.gate, weights.up, weights.down]
                .iter()
                .any(|matrix| form_of(crate::cpu::kernels::ActKind::of(matrix.ty)) == mask::FLOAT)
            {
                // experts of floats are rare: the kernels for few rows take any number
                self.few_experts(source, weights, None)?;
            } else {
                self.many_experts(source, weights)?;
            }
        }
        let experts = &self.layout.experts;
        let shared = weights.shared.as_ref();
        self.pending.experts = Some(ExpertSums {
            outputs: self.at(experts.outputs),
            weights: self.at(experts.weights),
            shared: shared.map_or(0, |_| self.at(experts.shared_outputs)),
            gate: match shared {
                Some(shared) if shared.gated => self.act(Act::SharedGate),
                _ => 0,
            },
        });
        Ok(())
    }

    /// Rows that the experts' kernels may have: places, and groups of them.
    fn most_groups(&self, weights: &ExpertWeights<Cuda>, used: usize) -> usize {
        weights.gate.count.min(self.now().rows * used)
    }

    fn few_experts(
        &self,
        from: From,
        weights: &ExpertWeights<Cuda>,
        shared: Option<&SharedExpert<Cuda>>,
    ) -> Result<(), CudaError> {
        let (now, used) = (self.now(), self.kernels.used());
        let experts = &self.layout.experts;
        let kernel = self.kernels.expert_matvec(now.rows);
        let groups = UsedGroups {
            groups: self.groups(),
            ids: self.choices().ids,
            used: used as u32,
            padding: 0,
        };
        let shared_matrices = shared.map_or(SharedMatrices::default(), |shared| SharedMatrices {
            gate: self.weight(shared.gate.at),
            up: self.weight(shared.up.at),
            down: self.weight(shared.down.at),
            gate_ty: shared.gate.ty as u32,
            up_ty: shared.up.ty as u32,
            down_ty: shared.down.ty as u32,
            width: shared.width as u32,
            hidden: self.at(experts.shared_gate),
            outputs: self.at(experts.shared_outputs),
        });
        let matrix = |experts: &Experts, part: usize| ExpertMatrix {
            first: self.weight(experts.at),
            bias: self.vector(weights.bias.as_ref().map(|bias| &bias[part])),
            stride: (experts.stride / 16) as u32,
            ty: experts.ty as u32,
        };
        let all_forms = AllForms {
            wide: from.forms.wide,
            narrow: from.forms.narrow,
            floats: from.floats,
            stride: from.stride as u64,
        };
        let rows = self.most_groups(weights, used) + usize::from(shared.is_some());
        let wider = shared.map_or(weights.width, |shared| shared.width.max(weights.width));
        let (inputs, hidden) = (weights.gate.inputs, self.at(experts.hidden));
        let gate_up_parts = kernel.parts(wider, inputs, &[weights.gate.ty, weights.up.ty]);
        let down_parts = kernel.parts(self.width, weights.width, &[weights.down.ty]);
        let grid = Grid::new([gate_up_parts, rows, 1], kernel.threads)
            .with_shared(kernel.gate_up_shared(inputs))
            .reading(weights.gate.bytes(), weights.gate.values())
            .reading(weights.up.bytes(), weights.up.values());
        // SAFETY: the parameters of `expert_gate_up`; the intermediates have room for all places.
        unsafe {
            launch!(&self.queue, &kernel.gate_up, grid;
                groups, matrix(&weights.gate, 0), matrix(&weights.up, 1), inputs as u32, weights.width as u32, all_forms, hidden,
                shared_matrices, from.live)
        }?;
        let grid = Grid::new([down_parts, rows, 1], kernel.threads)
            .with_shared(kernel.down_shared(wider))
            .reading(weights.down.bytes(), weights.down.values());
        // SAFETY: the parameters of `expert_down`; the outputs have room for all places.
        unsafe {
            launch!(&self.queue, &kernel.down, grid;
                groups, matrix(&weights.down, 2), self.width as u32, weights.width as u32, hidden, self.at(experts.outputs),
                shared_matrices, from.live)
        }
    }

    /// The shared expert of many rows: dense products.
    fn shared_expert(&self, from: From, shared: &SharedExpert<Cuda>) -> Result<(), CudaError> {
        let now = self.now();
        let experts = &self.layout.experts;
        let (gate, up) = (self.at(experts.shared_gate), self.at(experts.shared_up));
        let target = |matrix, to| Target { matrix, to };
        self.products(from, &[target(&shared.gate, gate), target(&shared.up, up)])?;
        let forms = self.hidden_forms();
        self.swiglu_of(now, gate, up, shared.width, forms)?;
        let hidden = From {
            floats: gate,
            stride: shared.width,
            forms,
            ..from
        };
        let outputs = self.at(experts.shared_outputs);
        self.products(hidden, &[target(&shared.down, outputs)])
    }

    fn hidden_forms(&self) -> Forms {
        self.layout.experts.hidden_forms.at(self.work.address())
    }

    fn many_experts(&self, from: From, weights: &ExpertWeights<Cuda>) -> Result<(), CudaError> {
        let used = self.kernels.used();
        let experts = &self.layout.experts;
        let (hidden, width) = (self.at(experts.hidden), weights.width);
        let gate_kernels = self.kernels.expert_matmul(weights.gate.ty);
        let down_kernels = self.kernels.expert_matmul(weights.down.ty);
        self.tiles(gate_kernels.matrix.tile_rows)?;
        let kind = |experts: &Experts| form_of(crate::cpu::kernels::ActKind::of(experts.ty));
        let acts = |forms: Forms, kind| {
            if kind == mask::WIDE {
                forms.wide
            } else {
                forms.narrow
            }
        };
        let fused = weights.gate.ty == weights.up.ty && weights.bias.is_none();
        if fused {
            let kernel = &gate_kernels.gate_up;
            let blocks = width.div_ceil(gate_kernels.tile_outputs / 2);
            let grid = self
                .expert_grid(kernel, blocks, weights, used)
                .reading(weights.gate.bytes(), weights.gate.values())
                .reading(weights.up.bytes(), weights.up.values());
            // SAFETY: the parameters of `expert_gate_up_mma`; the intermediates have room for all places.
            unsafe {
                launch!(&self.queue, &kernel.kernel, grid;
                    self.weight(weights.gate.table), self.weight(weights.up.table), acts(from.forms, kind(&weights.gate)),
                    self.at(experts.places), self.at(experts.tiles), self.at(experts.tile_count), hidden, width as u32,
                    weights.gate.inputs as u32, used as u32)
            }?;
        } else {
            let up = self.at(experts.outputs);
            for (matrix, to) in [(&weights.gate, hidden), (&weights.up, up)] {
                let kernels = self.kernels.expert_matmul(matrix.ty);
                self.tiles(kernels.matrix.tile_rows)?;
                self.expert_product(
                    kernels,
                    matrix,
                    acts(from.forms, kind(matrix)),
                    to,
                    weights,
                    used,
                )?;
            }
            let all = used * self.now().rows;
            let grid = Grid::new([width.div_ceil(512), all, 1], 64);
            let places = self.place_tables();
            let [gate_bias, up_bias] = match &weights.bias {
                Some([gate, up, _]) => [gate, up].map(|bias| self.vector(Some(bias))),
                None => [0; 2],
            };
            let bias = GateBias {
                gate: gate_bias,
                up: up_bias,
                ids: self.choices().ids,
            };
            // SAFETY: the parameters of `swiglu`, over places in place of rows; only floats are written.
            unsafe {
                launch!(&self.queue, &self.kernels.swiglu, grid;
                    hidden, up, width as u32, bias, Acts::default(), Acts::default(), mask::FLOAT, places)
            }?;
        }
        let (forms, form) = (self.hidden_forms(), kind(&weights.down));
        let grid = Grid::new([width.div_ceil(1024), used * self.now().rows, 1], 128);
        let live_places = self.at(experts.tile_count) + 4;
        // SAFETY: the parameters of `quantise_rows`; the forms have room for all places.
        unsafe {
            launch!(&self.queue, &self.kernels.quantise, grid;
                hidden, width as u64, width as u32, form, forms.wide, forms.narrow, live_places)
        }?;
        if down_kernels.matrix.tile_rows != gate_kernels.matrix.tile_rows || !fused {
            self.tiles(down_kernels.matrix.tile_rows)?;
        }
        self.expert_product(
            down_kernels,
            &weights.down,
            acts(forms, form),
            self.at(experts.outputs),
            weights,
            1,
        )?;
        let Some([_, _, bias]) = &weights.bias else {
            return Ok(());
        };
        let all = used * self.now().rows;
        let grid = Grid::new([self.width.div_ceil(1024), all, 1], 128);
        let (ids, places) = (self.choices().ids, self.place_tables());
        // SAFETY: the parameters of `bias`, over places in place of rows; the outputs have room for all places.
        unsafe {
            launch!(&self.queue, &self.kernels.bias, grid;
                self.at(experts.outputs), self.vector(Some(bias)), ids, self.width as u32, places)
        }
    }

    /// Lists the tiles of at most `tile_rows` places of one expert each.
    fn tiles(&self, tile_rows: usize) -> Result<(), CudaError> {
        let experts = &self.layout.experts;
        let groups = self.groups();
        let kernel = self
            .kernels
            .expert_tiles
            .as_ref()
            .expect("a model with experts has the kernel");
        // SAFETY: the parameters of `expert_tiles`; the list has room for all tiles.
        unsafe {
            launch!(&self.queue, kernel, Grid::new([1, 1, 1], 256);
                groups.expert, groups.start, groups.count, tile_rows as u32, self.at(experts.tiles), self.at(experts.tile_count))
        }
    }

    /// The window's tables with places in place of rows.
    fn place_tables(&self) -> crate::cuda::tables::RowTables {
        let live_places = self.at(self.layout.experts.tile_count) + 4;
        self.now().tables.counting(live_places)
    }

    fn expert_grid(
        &self,
        kernel: &TileKernel,
        blocks: usize,
        weights: &ExpertWeights<Cuda>,
        used: usize,
    ) -> Grid {
        let places = used * self.now().rows;
        let tiles = places / kernel.tile_rows + self.most_groups(weights, used);
        let blocks = kernel.resident.min(blocks * tiles);
        Grid::new([blocks, 1, 1], kernel.threads).with_shared(kernel.shared)
    }

    /// `out[place] = matrix of its expert . acts[place / div]`.
    fn expert_product(
        &self,
        kernels: &ExpertMatmulKernels,
        matrix: &Experts,
        acts: Acts,
        out: u64,
        weights: &ExpertWeights<Cuda>,
        div: usize,
    ) -> Result<(), CudaError> {
        let experts = &self.layout.experts;
        let kernel = &kernels.matrix;
        let blocks = matrix.outputs.div_ceil(kernels.tile_outputs);
        let grid = self
            .expert_grid(kernel, blocks, weights, self.kernels.used())
            .reading(matrix.bytes(), matrix.values());
        // SAFETY: the parameters of `expert_mma`; the output has room for all places.
        unsafe {
            launch!(&self.queue, &kernel.kernel, grid;
                self.weight(matrix.table), acts, self.at(experts.places), self.at(experts.tiles), self.at(experts.tile_count),
                out, matrix.outputs as u32, matrix.inputs as u32, div as u32)
        }
    }
}
