//! How fast this machine multiplies: what predictions are made of.

use std::time::Instant;

use super::{
    Cpu, bandwidth,
    mixers::{PARTIAL_BYTES, delta_shape, kernel_shape},
    products::task_outputs,
};
use crate::{
    backend::shape,
    cpu::{
        attention::{Attention, AttentionScratch, HeadRows},
        delta_net::{DeltaNet, DeltaRows, DeltaScratch, DeltaSpan, DeltaStates, Strengths, TAPS},
        kernels::{ActKind, Acts, Matmul, OutRows, matmul},
        kv::{KvCache, KvShape, KvSpan, KvType},
        pool::Disjoint,
    },
    engine::executor::{PAGE_TOKENS, PageId, Slot},
    estimate::{self, machine::ROWS},
    quant::BlockType,
};

/// Large enough to leave every cache.
const WEIGHT_BYTES: usize = 96 << 20;
/// Values of a row of weights.
const WIDTH: usize = 2048;
/// Of so many runs the median counts: what a machine does in its better moments is not what it does all day.
const RUNS: usize = 9;
/// Rows of a prompt that attention and delta nets are measured with.
const MIXER_ROWS: usize = 2 * PAGE_TOKENS;
/// Positions before them.
const MIXER_BEFORE: usize = 1024;

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
            let seconds = median(|| self.product_time(ty, &weights, outputs, rows));
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

    /// **Units**: multiply-adds a second of a prompt's attention.
    pub fn attention_speed(&mut self, shape: &shape::AttentionShape, kind: KvType) -> f64 {
        let isa = self.isa;
        let mut kernel = kernel_shape(shape);
        // what a window leaves out takes no time, and is not counted
        kernel.window = None;
        let positions = MIXER_BEFORE + MIXER_ROWS;
        let pages: Vec<PageId> = (0..(positions / PAGE_TOKENS) as u32).map(PageId).collect();
        let cached = KvShape {
            layers: 1,
            kv_heads: kernel.kv_heads,
            head_dim: kernel.head_dim,
        };
        let mut cache = KvCache::new(cached, kind, pages.len());
        let written = numbers(positions * kernel.kv_heads * kernel.head_dim);
        let span = |first: usize, rows| KvSpan {
            first_row: 0,
            rows,
            first: first as u32,
            pages: &pages,
        };
        cache.write(
            &self.pool,
            isa,
            0,
            &[span(0, positions)],
            &written,
            &written,
        );
        let query = numbers(MIXER_ROWS * kernel.heads * kernel.head_dim);
        let mut out = vec![0.0; query.len()];
        let mut scratch = AttentionScratch::new(kernel, self.pool.workers(), PARTIAL_BYTES);
        let attention = Attention {
            shape: kernel,
            layer: 0,
            spans: &[span(MIXER_BEFORE, MIXER_ROWS)],
            query: HeadRows::packed(&query, kernel.heads, kernel.head_dim),
            gate: None,
            sinks: None,
            selected: None,
            cache: &cache,
        };
        let seconds = median(|| timed(|| attention.run(&self.pool, isa, &mut scratch, &mut out)));
        let pairs = estimate::pairs(MIXER_ROWS, MIXER_BEFORE, None);
        pairs * estimate::attention_macs(shape) as f64 / seconds
    }

    /// **Units**: multiply-adds a second of a prompt's delta nets.
    pub fn delta_speed(&mut self, shape: &shape::DeltaShape) -> f64 {
        let isa = self.isa;
        let kernel = delta_shape(shape);
        let values = kernel.value_heads * kernel.value_dim;
        let (qkv, z) = (
            numbers(MIXER_ROWS * kernel.channels()),
            numbers(MIXER_ROWS * values),
        );
        let strength = numbers(MIXER_ROWS * kernel.value_heads);
        let (taps, norm) = (numbers(TAPS * kernel.channels()), numbers(kernel.value_dim));
        let (decay, dt_bias) = (
            vec![-1.0; kernel.value_heads],
            vec![0.0; kernel.value_heads],
        );
        let net = DeltaNet {
            shape: kernel,
            taps: &taps,
            decay: &decay,
            dt_bias: &dt_bias,
            norm: &norm,
            norm_eps: shape.eps,
            out_gate: shape.out_gate,
        };
        let rows = DeltaRows {
            qkv: &qkv,
            strengths: Strengths::Separate {
                b: &strength,
                a: &strength,
            },
            z: &z,
        };
        let span = DeltaSpan {
            slot: Slot(0),
            first_row: 0,
            rows: MIXER_ROWS,
        };
        let mut states = DeltaStates::new(kernel, 1, 1);
        let mut scratch = DeltaScratch::new(&kernel, self.pool.workers());
        let mut out = vec![0.0; MIXER_ROWS * values];
        let mut run = || {
            net.run(
                &self.pool,
                isa,
                0,
                &[span],
                &rows,
                &mut states,
                &mut scratch,
                &mut out,
            );
        };
        let seconds = median(|| timed(&mut run));
        MIXER_ROWS as f64 * estimate::delta_macs(shape) as f64 / seconds
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

/// Small numbers, none of them zero.
fn numbers(count: usize) -> Vec<f32> {
    (0..count)
        .map(|at| ((at * 37 % 127) as f32 - 62.5) / 64.0)
        .collect()
}

/// **Units**: seconds.
fn timed(run: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    run();
    begun.elapsed().as_secs_f64()
}

/// The median of what some runs took.
fn median(mut run: impl FnMut() -> f64) -> f64 {
    let mut seconds: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[RUNS / 2]
}
