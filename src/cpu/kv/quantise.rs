//! One head's row as it is stored.

use super::BLOCK;
use crate::cpu::math::lanes::{LANES, Lanes, Real, per_isa};

/// The greatest number that half precision holds; greater ones are stored as this.
const F16_MAX: f32 = 65504.0;

/// Adding and subtracting it rounds a number below 2^22 to the nearest integer, ties to even.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

per_isa! {
    /// Half-precision bits of `row`, rounded to nearest even. Numbers beyond the range become its ends, so no infinity is stored.
    pub(super) fn to_f16(row: &[f32], out: &mut [u16]) = to_f16_body;

    /// q8_0 of `row`: `d = f16(max abs / 127)`, `code = round(x / d)`. The last block may be short.
    ///
    /// **Shapes**: `codes [row.len()]`, `scales [blocks] f16`.
    pub(super) fn to_q8(row: &[f32], codes: &mut [i8], scales: &mut [u16]) = to_q8_body;
}

#[inline(always)]
fn to_f16_body<L: Lanes>(row: &[f32], out: &mut [u16]) {
    for (row, out) in row.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let bounded = L::splat(F16_MAX).less(L::splat(-F16_MAX).greater(L::load_part(row)));
        let mut whole = [0; LANES];
        bounded.store_f16(&mut whole);
        out.copy_from_slice(&whole[..out.len()]);
    }
}

#[inline(always)]
fn to_q8_body<L: Lanes>(row: &[f32], codes: &mut [i8], scales: &mut [u16]) {
    for ((row, codes), scale) in row.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)).zip(scales) {
        let mut greatest = 0.0f32;
        for x in row {
            greatest = x.abs().greater(greatest);
        }
        let d = half::f16::from_f32((greatest / 127.0).less(F16_MAX));
        *scale = d.to_bits();
        let d = d.to_f32();
        let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
        for (x, code) in row.iter().zip(codes) {
            let rounded = (x * inverse).clamp(-127.0, 127.0) + ROUND - ROUND;
            *code = rounded as i8;
        }
    }
}
