//! Weight matrices times rows: quantise the rows once, share the outputs out over the workers.

use super::{Cpu, INLINE, Matrix, Quantised};
use crate::{
    backend::Act,
    cpu::{
        isa::Isa,
        kernels::{ActKind, KernelScratch, Matmul, OutRows, matmul},
        pool::{Disjoint, Pool},
    },
};

/// Weight bytes of a task. The kernels ask for the bytes of a job's next outputs while they compute, so a job's first outputs come slowly:
/// tasks are long enough that this does not count (at 48 KiB a large matrix reached half of the memory's bandwidth), and short
/// enough that workers end together.
const TASK_BYTES: usize = 384 * 1024;
/// Outputs of a task are a multiple of this, so that no kernel panel is cut.
const PANEL: usize = 32;

/// How a matrix is cut into tasks.
pub(super) fn task_outputs(outputs: usize, row_bytes: usize, workers: usize) -> usize {
    let by_bytes = (TASK_BYTES / row_bytes.max(1)).next_multiple_of(PANEL);
    // small matrices are cut so that every worker has something to do
    let by_workers = outputs.div_ceil(2 * workers).next_multiple_of(PANEL);
    by_bytes.min(by_workers).max(PANEL)
}

impl Cpu {
    /// Brings `count` rows of `width` values into the form that each of `kinds` asks for.
    pub(super) fn quantise(&mut self, count: usize, from: Act, width: usize, kinds: &[ActKind]) {
        for (index, kind) in kinds.iter().enumerate() {
            if kinds[..index].contains(kind) {
                continue;
            }
            let isa = self.isa;
            let values = self.acts.rows(from, count, width);
            let form = self.quantised.form_mut(*kind);
            form.reserve(*kind, count, width);
            if count * width <= INLINE {
                for (row, values) in values.chunks_exact(width).enumerate() {
                    form.write(isa, row, values);
                }
                continue;
            }
            let writer = form.writer();
            self.pool.run(count, |row, _| {
                // SAFETY: every row is one task's.
                unsafe { writer.write(isa, row, &values[row * width..][..width]) };
            });
        }
    }

    /// `to = matrix . from` for every pair.
    pub(super) fn products(&mut self, count: usize, from: Act, to: &[(&Matrix, Act)]) {
        let mut kinds = [ActKind::Float; 4];
        for (kind, (matrix, _)) in kinds.iter_mut().zip(to) {
            *kind = matrix.kind();
        }
        self.quantise(count, from, to[0].0.inputs(), &kinds[..to.len()]);
        let mut outs: [Vec<f32>; 4] = Default::default();
        for (out, (_, act)) in outs.iter_mut().zip(to) {
            *out = self.acts.take(*act);
        }
        self.run_products(count, to.iter().map(|(matrix, _)| *matrix), &mut outs);
        for (out, (_, act)) in outs.into_iter().zip(to) {
            self.acts.put(*act, out);
        }
    }

    /// One matrix, rows already quantised: `out [count, outputs] f32`.
    pub(super) fn product_into(&mut self, matrix: &Matrix, count: usize, out: &mut Vec<f32>) {
        let mut outs = [std::mem::take(out), Vec::new(), Vec::new(), Vec::new()];
        self.run_products(count, std::iter::once(matrix), &mut outs);
        [*out, ..] = outs;
    }

    fn run_products<'a>(
        &mut self,
        count: usize,
        matrices: impl Iterator<Item = &'a Matrix>,
        outs: &mut [Vec<f32>; 4],
    ) {
        let (workers, rows) = (self.pool.workers(), &self.row_numbers[..count]);
        let mut parts: [Option<Part<'_, '_>>; 4] = [None, None, None, None];
        for ((part, matrix), out) in parts.iter_mut().zip(matrices).zip(outs.iter_mut()) {
            let out = OutRows::new(&mut out[..count * matrix.outputs()], matrix.outputs());
            *part = Some(Part::new(matrix, rows, out, workers));
        }
        self.moved_bytes += parts.iter().flatten().map(Part::weight_bytes).sum::<u64>();
        run_parts(
            &self.pool,
            self.isa,
            &self.quantised,
            &mut self.scratch,
            &parts,
        );
    }
}

/// Computes products, their tasks in one region.
pub(super) fn run_parts(
    pool: &Pool,
    isa: Isa,
    quantised: &Quantised,
    scratch: &mut [KernelScratch],
    parts: &[Option<Part<'_, '_>>],
) {
    let tasks = parts.iter().flatten().map(Part::tasks).sum();
    let work: usize = parts.iter().flatten().map(Part::work).sum();
    let scratch = Disjoint::new(scratch);
    let run = |mut task: usize, worker: usize| {
        // SAFETY: a worker runs one task at a time, so its scratch has one user.
        let scratch = unsafe { &mut scratch.nth(worker, 1)[0] };
        for part in parts.iter().flatten() {
            let here = part.tasks();
            if task < here {
                part.run(isa, task, quantised, scratch);
                return;
            }
            task -= here;
        }
    };
    if work <= INLINE {
        (0..tasks).for_each(|task| run(task, 0));
    } else {
        pool.run(tasks, run);
    }
}

/// One matrix of a region.
pub(super) struct Part<'a, 'o> {
    matrix: &'a Matrix,
    weights: &'a [u8],
    /// Which rows it is multiplied with.
    rows: &'a [u32],
    /// Outputs of a task.
    step: usize,
    out: OutRows<'o>,
}

impl<'a, 'o> Part<'a, 'o> {
    /// `out` = matrix . rows of what is quantised.
    pub(super) fn new(
        matrix: &'a Matrix,
        rows: &'a [u32],
        out: OutRows<'o>,
        workers: usize,
    ) -> Self {
        let weights = matrix.bytes();
        Self {
            matrix,
            weights,
            rows,
            step: task_outputs(matrix.outputs(), weights.len() / matrix.outputs(), workers),
            out,
        }
    }

    /// **Units**: bytes. What it reads.
    pub(super) fn weight_bytes(&self) -> u64 {
        match self.rows {
            [] => 0,
            _ => self.weights.len() as u64,
        }
    }

    fn tasks(&self) -> usize {
        match self.rows {
            [] => 0,
            _ => self.matrix.outputs().div_ceil(self.step),
        }
    }

    fn work(&self) -> usize {
        self.rows.len() * self.matrix.outputs() * self.matrix.inputs()
    }

    fn run(&self, isa: Isa, task: usize, quantised: &Quantised, scratch: &mut KernelScratch) {
        let outputs = task * self.step..self.matrix.outputs().min((task + 1) * self.step);
        let acts = quantised.form(self.matrix.kind());
        // SAFETY: tasks have different outputs, or, of different parts, different rows.
        let out = unsafe { self.out.share() };
        let job = Matmul {
            ty: self.matrix.ty(),
            weights: self.weights,
            k: self.matrix.inputs(),
            outputs,
            acts,
            rows: self.rows,
            out,
        };
        matmul(isa, &job, scratch);
    }
}
