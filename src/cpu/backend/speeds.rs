//! How fast this machine multiplies: what predictions are made of.

use std::time::Instant;

use super::{Cpu, bandwidth, products::task_outputs};
use crate::{
    cpu::{
        kernels::{ActKind, Acts, Matmul, OutRows, matmul},
        pool::Disjoint,
    },
    estimate::machine::ROWS,
    quant::BlockType,
};

/// Large enough to leave every cache.
const WEIGHT_BYTES: usize = 96 << 20;
/// Values of a row of weights.
const WIDTH: usize = 2048;
/// The fastest of so many runs counts.
const RUNS: usize = 3;

impl Cpu {
    /// **Units**: seconds. What a byte of weights of a type takes in a product with each of [`ROWS`] rows.
    pub fn kernel_speed(&mut self, ty: BlockType) -> [f64; ROWS.len()] {
        let row_bytes = WIDTH / ty.block_values() * ty.block_bytes();
        let outputs = WEIGHT_BYTES / row_bytes;
        // small scales, but not zeros: the system would give one page for all of them
        let weights = vec![0x11_u8; outputs * row_bytes];
        ROWS.map(|rows| {
            // with many rows arithmetic binds, so fewer bytes tell as much
            let outputs = (outputs / rows.div_ceil(8))
                .next_multiple_of(32)
                .min(outputs);
            let seconds = (0..RUNS)
                .map(|_| self.product_time(ty, &weights, outputs, rows))
                .fold(f64::INFINITY, f64::min);
            seconds / (outputs * row_bytes) as f64
        })
    }

    /// **Units**: seconds.
    fn product_time(&mut self, ty: BlockType, weights: &[u8], outputs: usize, rows: usize) -> f64 {
        let isa = self.isa;
        let mut acts = Acts::default();
        acts.reserve(ActKind::of(ty), rows, WIDTH);
        let values: Vec<f32> = (0..WIDTH).map(|at| (at % 127) as f32 - 63.0).collect();
        (0..rows).for_each(|row| acts.write(isa, row, &values));
        let numbers: Vec<u32> = (0..rows as u32).collect();
        let mut out = vec![0.0; rows * outputs];
        let out = OutRows::new(&mut out, outputs);
        let step = task_outputs(outputs, weights.len() / outputs.max(1), self.pool.workers());
        let scratch = Disjoint::new(&mut self.scratch);
        let begun = Instant::now();
        self.pool.run(outputs.div_ceil(step), |task, worker| {
            // SAFETY: a worker runs one task at a time, so its scratch has one user.
            let scratch = unsafe { &mut scratch.nth(worker, 1)[0] };
            // SAFETY: tasks have different outputs.
            let out = unsafe { out.share() };
            let job = Matmul {
                ty,
                weights,
                k: WIDTH,
                outputs: task * step..outputs.min((task + 1) * step),
                acts: &acts,
                rows: &numbers,
                out,
            };
            matmul(isa, &job, scratch);
        });
        begun.elapsed().as_secs_f64()
    }

    /// **Units**: seconds. What sharing out a region's work takes, once the workers are awake.
    pub fn region_time(&self) -> f64 {
        const REGIONS: u32 = 2000;
        let begun = Instant::now();
        for _ in 0..REGIONS {
            self.pool.run(4 * self.pool.workers(), |task, _| {
                std::hint::black_box(task);
            });
        }
        begun.elapsed().as_secs_f64() / f64::from(REGIONS)
    }

    /// Bytes a second that the workers together read from memory, measured now.
    pub fn read_bandwidth(&self) -> f64 {
        bandwidth::measure(&self.pool)
    }
}
