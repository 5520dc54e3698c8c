//! The experts' results of a row, weighted and added.

use crate::cpu::{
    isa::Isa,
    math::{
        lanes::{LANES, Lanes, per_isa},
        sigmoid_of,
    },
    pool::Pool,
};

/// Rows that one task combines.
const TASK_ROWS: usize = 8;

/// An expert that every row goes to.
#[derive(Clone, Copy, Debug)]
pub struct SharedExpert<'a> {
    /// Its results `[rows, width] f32`.
    pub results: &'a [f32],
    /// `[rows] f32`: through a sigmoid, its weight; else it counts in full.
    pub gate: Option<&'a [f32]>,
}

/// What every row of an expert's results gets added.
#[derive(Clone, Copy, Debug)]
pub struct ExpertBias<'a> {
    /// `[experts, width] f32`.
    pub of: &'a [f32],
    /// `[rows, top_k] u16`: the experts.
    pub ids: &'a [u16],
}

/// What is to be added up.
#[derive(Clone, Copy, Debug)]
pub struct Combine<'a> {
    /// Channels of a row.
    pub width: usize,
    /// Experts of a row.
    pub top_k: usize,
    /// `[rows, top_k] f32`.
    pub weights: &'a [f32],
    /// `[rows, top_k, width] f32`.
    pub results: &'a [f32],
    /// Added to the results of each expert.
    pub bias: Option<ExpertBias<'a>>,
    /// Added last.
    pub shared: Option<SharedExpert<'a>>,
}

impl Combine<'_> {
    /// `out[row] = sum over ranks of weight * result`, one chain of fused multiply-adds per channel, ranks ascending, the shared expert last.
    ///
    /// **Shapes**: `out [rows, width] f32`.
    ///
    /// **Panics** if a slice is too short for the rows of `out`.
    pub fn run(&self, pool: &Pool, isa: Isa, out: &mut [f32]) {
        pool.split(out, TASK_ROWS * self.width, |task, out, _| {
            for (at, out) in out.chunks_mut(self.width).enumerate() {
                let row = task * TASK_ROWS + at;
                let weights = &self.weights[row * self.top_k..][..self.top_k];
                let results =
                    &self.results[row * self.top_k * self.width..][..self.top_k * self.width];
                let shared = self.shared.map(|shared| {
                    let weight = shared.gate.map_or(1.0, |gate| sigmoid_of(gate[row]));
                    (weight, &shared.results[row * self.width..][..self.width])
                });
                let bias = self.bias.map(|bias| ExpertBias {
                    ids: &bias.ids[row * self.top_k..][..self.top_k],
                    ..bias
                });
                combine_row(isa, weights, results, bias, shared, out);
            }
        });
    }
}

per_isa! {
    fn combine_row<'a>(
        weights: &[f32], results: &[f32], bias: Option<ExpertBias<'a>>, shared: Option<(f32, &'a [f32])>, out: &mut [f32],
    ) = combine_row_body;
}

#[inline(always)]
fn combine_row_body<L: Lanes>(
    weights: &[f32],
    results: &[f32],
    bias: Option<ExpertBias<'_>>,
    shared: Option<(f32, &[f32])>,
    out: &mut [f32],
) {
    let width = out.len();
    for at in (0..width).step_by(LANES) {
        let end = (at + LANES).min(width);
        let mut sum = L::splat(0.0);
        for (rank, weight) in weights.iter().enumerate() {
            let mut result = L::load_part(&results[rank * width + at..rank * width + end]);
            if let Some(bias) = bias {
                let first = usize::from(bias.ids[rank]) * width;
                result = result + L::load_part(&bias.of[first + at..first + end]);
            }
            sum = L::splat(*weight).mul_add(result, sum);
        }
        if let Some((weight, result)) = shared {
            sum = L::splat(weight).mul_add(L::load_part(&result[at..end]), sum);
        }
        sum.store_part(&mut out[at..end]);
    }
}
