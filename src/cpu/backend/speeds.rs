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
        math::{axpy, rms_norm_into, swiglu},
        pool::Disjoint,
    },
    engine::executor::{PAGE_TOKENS, PageId, Slot},
    estimate::{self, MatrixShape, machine::ROWS},
};

/// Weights of a measurement with one row; with many rows arithmetic binds, so fewer tell as much.
const WEIGHT_BYTES: usize = 96 << 20;
/// Of so many runs the median counts: what a machine does in its better moments is not what it does all day.
const RUNS: usize = 9;
/// Rows of a prompt that attention and delta nets are measured with.
const MIXER_ROWS: usize = 2 * PAGE_TOKENS;
/// Positions before them.
const MIXER_BEFORE: usize = 1024;

/// Weights to measure with: as many as a model has, or as no cache holds, so that they come from where a model's come from.
pub struct Cold {
    size: usize,
    /// Made when something is measured: mostly all is known.
    bytes: Vec<u8>,
    at: usize,
}

impl Cold {
    /// For a model of so many bytes.
    pub fn new(model_bytes: usize) -> Self {
        Self {
            size: model_bytes.clamp(1 << 20, bandwidth::beyond_caches()),
            bytes: Vec::new(),
            at: 0,
        }
    }

    /// **Units**: bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The next whole pieces, at most so many bytes and at least one piece.
    fn next(&mut self, most: usize, piece: usize) -> &[u8] {
        let bytes = (most.min(self.size) / piece).max(1) * piece;
        if self.at + bytes > self.bytes.len() {
            self.at = 0;
            // small scales, but not zeros: the system would give one page for all of them
            let size = bytes.max(self.size).max(self.bytes.len());
            self.bytes.resize(size, 0x11);
        }
        let from = self.at;
        self.at += bytes;
        &self.bytes[from..self.at]
    }
}

impl Cpu {
    /// **Units**: seconds. What a byte of weights of such matrices takes in a product with each of [`ROWS`] rows.
    pub fn kernel_speed(&mut self, shape: MatrixShape, cold: &mut Cold) -> [f64; ROWS.len()] {
        let MatrixShape { ty, k, outputs } = shape;
        let matrix = k / ty.block_values() * ty.block_bytes() * outputs;
        ROWS.map(|rows| {
            median(|| {
                let weights = cold.next(WEIGHT_BYTES / rows.div_ceil(8), matrix);
                self.product_time(shape, weights, rows) / weights.len() as f64
            })
        })
    }

    /// **Units**: seconds. Products of all the matrices that the weights are, each as the backend cuts it.
    fn product_time(&mut self, shape: MatrixShape, weights: &[u8], rows: usize) -> f64 {
        let (isa, MatrixShape { ty, k, outputs }) = (self.isa, shape);
        let mut acts = Acts::default();
        acts.reserve(ActKind::of(ty), rows, k);
        (numbers(rows * k).chunks_exact(k).enumerate())
            .for_each(|(row, values)| acts.write(isa, row, values));
        let numbers: Vec<u32> = (0..rows as u32).collect();
        let workers = self.pool.workers();
        let row_bytes = k / ty.block_values() * ty.block_bytes();
        let step = task_outputs(outputs, row_bytes, workers);
        let (parts, matrix) = (outputs.div_ceil(step), row_bytes * outputs);
        let mut out = vec![0.0; workers * rows * outputs];
        let out = Disjoint::new(&mut out);
        let scratch = Disjoint::new(&mut self.scratch);
        let begun = Instant::now();
        self.pool
            .run(weights.len() / matrix * parts, |task, worker| {
                // SAFETY: a worker runs one task at a time, so what it has has one user.
                let (scratch, out) = unsafe {
                    (
                        &mut scratch.nth(worker, 1)[0],
                        out.nth(worker, rows * outputs),
                    )
                };
                let (at, part) = (task / parts * matrix, task % parts);
                let job = Matmul {
                    ty,
                    weights: &weights[at..at + matrix],
                    k,
                    outputs: part * step..outputs.min((part + 1) * step),
                    acts: &acts,
                    rows: &numbers,
                    out: OutRows::new(out, outputs),
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

    /// **Units**: seconds. What all workers together take for a value of work that is no product: the mean of a norm, a quantisation, an activation and a
    /// weighted sum, over rows of this width. A row of a prompt is quantised and normed where it fits the second-level cache, so these are too.
    pub fn pass_time(&mut self, width: usize) -> f64 {
        let (isa, width) = (self.isa, width.next_multiple_of(32));
        let (values, weight) = (numbers(MIXER_ROWS * width), numbers(width));
        let (mut normed, mut summed) = (values.clone(), values.clone());
        let mut acts = Acts::default();
        acts.reserve(ActKind::Blocks32, MIXER_ROWS, width);
        let writer = acts.writer();
        let (normed, summed) = (Disjoint::new(&mut normed), Disjoint::new(&mut summed));
        let passes = || {
            self.pool.run(MIXER_ROWS, |row, _| {
                let of = row * width..(row + 1) * width;
                // SAFETY: a task has a row of its own of each.
                let (normed, summed) = unsafe { (normed.nth(row, width), summed.nth(row, width)) };
                rms_norm_into(isa, &values[of.clone()], &weight, 1e-6, normed);
                // SAFETY: the same.
                unsafe { writer.write(isa, row, normed) };
                swiglu(isa, &values[of], normed);
                axpy(isa, 0.5, normed, summed);
            });
        };
        median(|| timed(passes)) / (4 * MIXER_ROWS * width) as f64
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
