//! Products of quantised weights: the loops over outputs, units and rows around the compiled functions of a target.
//!
//! For every `M * LANES` outputs and every unit along the row, the weights are unpacked once into a tile that stays in the
//! first-level cache and multiplied with all rows. Meanwhile the bytes of the next outputs are asked for, in the order in
//! which they lie in memory.

use super::acts::{UNIT, Unit};
use super::ahead::Ahead;
use super::codec::{Codec, Flow, Form, Tile};
use super::job::{KernelScratch, Matmul};
use super::product::ROWS;
use super::target::Target;

/// Rows whose chains are kept at once; more rows read the weights again.
const ROWS_MAX: usize = 128;

/// Bytes of a unit's row in a padded copy: the longest unit, in whole columns of 16.
const PADDED: usize = 272;

/// Where a job's weights lie.
struct Source<'a> {
    weights: &'a [u8],
    row_bytes: usize,
    outputs_end: usize,
}

/// Multiplies all rows of `job` with its outputs.
pub(super) fn run<T: Target, C: Codec, const M: usize>(
    t: T,
    job: &Matmul<'_>,
    scratch: &mut KernelScratch,
) {
    let source = Source {
        weights: job.weights,
        row_bytes: job.row_bytes(),
        outputs_end: job.outputs.end,
    };
    for (block, rows) in job.rows.chunks(ROWS_MAX).enumerate() {
        let mut acts: [&[Unit]; ROWS_MAX] = [&[]; ROWS_MAX];
        for (units, row) in acts.iter_mut().zip(rows) {
            *units = job.acts.units(*row as usize);
        }
        let acts = &acts[..rows.len()];
        let (tiles, sums) = scratch.panel::<T, M>(t, rows.len() * C::Form::CHAINS * M);
        for first in job.outputs.clone().step_by(T::LANES * M) {
            sums.fill(t.splat_float(0.0));
            for unit in 0..job.k.div_ceil(UNIT) {
                let values = (job.k - unit * UNIT).min(UNIT);
                let ahead = source.ahead::<T, C, M>(first, unit);
                // the products of one row are over too soon: `unpack` asks then
                let (early, late) = match acts.len() == 1 {
                    true => (ahead, Ahead::NOTHING),
                    false => (Ahead::NOTHING, ahead),
                };
                for (m, tile) in tiles.iter_mut().enumerate() {
                    let (first, next) = (first + m * T::LANES, early.part(m, M));
                    source.unpack::<T, C>(t, first, unit, values, next, tile);
                }
                multiply::<T, C, M>(t, tiles, acts, unit, values / 32, late, sums);
            }
            let outputs = first..job.outputs.end.min(first + M * T::LANES);
            t.finish::<C::Form, M>(sums, &job.out, block * ROWS_MAX, outputs);
        }
    }
}

/// The same for two to five rows that are multiplied with codes as they come.
pub(super) fn run_flows<T: Target, C: Flow>(t: T, job: &Matmul<'_>, scratch: &mut KernelScratch) {
    match job.rows.len() {
        2 => run_flow::<T, C, 2>(t, job, scratch),
        3 => run_flow::<T, C, 3>(t, job, scratch),
        4 => run_flow::<T, C, 4>(t, job, scratch),
        _ => run_flow::<T, C, 5>(t, job, scratch),
    }
}

/// The same for `N` rows that are multiplied with codes as they come.
pub(super) fn run_flow<T: Target, C: Flow, const N: usize>(
    t: T,
    job: &Matmul<'_>,
    scratch: &mut KernelScratch,
) {
    let source = Source {
        weights: job.weights,
        row_bytes: job.row_bytes(),
        outputs_end: job.outputs.end,
    };
    let acts: [&[Unit]; N] = std::array::from_fn(|n| job.acts.units(job.rows[n] as usize));
    let (tile, sums) = scratch.panel::<T, 1>(t, N * C::Form::CHAINS);
    for first in job.outputs.clone().step_by(T::LANES) {
        sums.fill(t.splat_float(0.0));
        for unit in 0..job.k / UNIT {
            let units = std::array::from_fn(|n| &acts[n][unit]);
            let next = source.ahead::<T, C, 1>(first, unit);
            source.visit::<T, C>(first, unit, UNIT, next, |base, stride, next| {
                let next = next.start().unwrap_or(base);
                // SAFETY: `visit` promises what is asked for.
                unsafe { t.flow::<C, N>(base, stride, next, tile, units, sums) }
            });
        }
        let outputs = first..job.outputs.end.min(first + T::LANES);
        t.finish::<C::Form, 1>(sums, &job.out, 0, outputs);
    }
}

/// One tile with all rows, in even groups of at most [`ROWS`].
fn multiply<T: Target, C: Codec, const M: usize>(
    t: T,
    tiles: &[Tile<T>; M],
    acts: &[&[Unit]],
    unit: usize,
    blocks: usize,
    ahead: Ahead,
    sums: &mut [T::F],
) {
    let bias = if C::Form::WIDE { T::WIDE_BIAS } else { C::BIAS };
    let (count, groups) = (acts.len(), acts.len().div_ceil(ROWS));
    let mut rest = sums;
    for group in 0..groups {
        let acts = &acts[count * group / groups..count * (group + 1) / groups];
        let (sums, others) = rest.split_at_mut(acts.len() * C::Form::CHAINS * M);
        rest = others;
        let ahead = ahead.part(group, groups);
        macro_rules! rows {
            ($n:literal) => {{
                let units: [&Unit; $n] = std::array::from_fn(|i| &acts[i][unit]);
                t.multiply::<C::Form, M, $n>(tiles, units, bias, blocks, ahead, sums)
            }};
        }
        match acts.len() {
            1 => rows!(1),
            2 => rows!(2),
            3 => rows!(3),
            4 => rows!(4),
            5 => rows!(5),
            _ => rows!(6),
        }
    }
}

/// Bytes that are read of a unit which has `values` values: all, or of a 32-wide type half of them where that is enough.
fn bytes<C: Codec>(values: usize) -> usize {
    match C::Form::SCALED || values > UNIT / 2 {
        true => C::UNIT_BYTES,
        false => C::UNIT_BYTES / 2,
    }
}

impl Source<'_> {
    /// This unit's share of the bytes of the next outputs, in the order in which they lie in memory.
    fn ahead<T: Target, C: Codec, const M: usize>(&self, first: usize, unit: usize) -> Ahead {
        let bytes = M * T::LANES * C::UNIT_BYTES;
        let at = (first + M * T::LANES) * self.row_bytes + unit * bytes;
        Ahead::new(self.weights.as_ptr().wrapping_add(at), bytes)
    }

    /// Fills a tile with the unit of the outputs `first ..`; what lies past the last output is left as it is.
    fn unpack<T: Target, C: Codec>(
        &self,
        t: T,
        first: usize,
        unit: usize,
        values: usize,
        next: Ahead,
        tile: &mut Tile<T>,
    ) {
        if first < self.outputs_end {
            let bytes = bytes::<C>(values);
            self.visit::<T, C>(first, unit, values, next, |base, stride, next| {
                // SAFETY: `visit` promises what is asked for.
                unsafe { t.unpack::<C>(base, stride, bytes, next, tile) }
            });
        }
    }

    /// Calls `with` with the place and stride of `LANES` rows of which [`bytes`] can be read: the outputs `first ..`, what
    /// lies past the last one, and past a row's last value, being anything; and with the bytes to ask for.
    #[inline(always)]
    fn visit<T: Target, C: Codec>(
        &self,
        first: usize,
        unit: usize,
        values: usize,
        next: Ahead,
        with: impl FnOnce(*const u8, usize, Ahead),
    ) {
        let count = (self.outputs_end - first).min(T::LANES);
        let start = first * self.row_bytes + unit * C::UNIT_BYTES;
        let end = start + (T::LANES - 1) * self.row_bytes + bytes::<C>(values);
        if count == T::LANES && end <= self.weights.len() {
            // the last row's bytes end at `end`, the other rows' before it
            let base = self.weights[start..].as_ptr();
            with(base, self.row_bytes, next);
        } else {
            // for the last outputs, and the last bytes of the weights
            let copy = self.padded::<T>(start, count, C::UNIT_BYTES * values / UNIT);
            const { assert!(C::UNIT_BYTES <= PADDED && T::LANES <= 16) };
            let base = copy.as_ptr().cast();
            with(base, PADDED, Ahead::NOTHING);
        }
    }

    /// A copy of `bytes` bytes of `count` rows from `start` on, with zeros around it.
    #[cold]
    fn padded<T: Target>(&self, start: usize, count: usize, bytes: usize) -> [[u8; PADDED]; 16] {
        let mut copy = [[0u8; PADDED]; 16];
        for (row, to) in copy.iter_mut().enumerate().take(count) {
            to[..bytes].copy_from_slice(&self.weights[start + row * self.row_bytes..][..bytes]);
        }
        copy
    }
}
