//! Sums, norms and element-wise steps over one row.

use super::{
    functions::{exp_of, gelu_of, sigmoid_of, silu_of},
    lanes::{LANES, Lanes, Real, per_isa},
};
use crate::{backend::shape::Activation, cpu::isa::Isa};

/// Partial sums of a row, in vectors.
const CHAINS: usize = 4;

/// `gate` = what `activation` makes of `gate` and `up`.
pub fn activate(isa: Isa, activation: Activation, up: &[f32], gate: &mut [f32]) {
    match activation {
        Activation::SwiGlu => swiglu(isa, up, gate),
        Activation::ClampedSwiGlu => clamped_swiglu(isa, up, gate),
        Activation::GeGlu => geglu(isa, up, gate),
    }
}

per_isa! {
    /// The sum of `a[i] b[i]`, over the shorter of the two.
    pub fn dot(a: &[f32], b: &[f32]) -> f32 = dot_body;

    /// `out[i] += weight * x[i]`, fused.
    pub fn axpy(weight: f32, x: &[f32], out: &mut [f32]) = axpy_body;

    /// `out[i] += x[i]`.
    pub fn add(x: &[f32], out: &mut [f32]) = add_body;

    /// `row[i] = row[i] / sqrt(mean(row^2) + eps) * weight[i]`.
    pub fn rms_norm(row: &mut [f32], weight: &[f32], eps: f32) = rms_norm_body;

    /// [`rms_norm`] of `x` into `out`.
    pub fn rms_norm_into(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_into_body;

    /// `row[i] = row[i] / sqrt(sum(row^2) + eps) * scale`.
    pub fn l2_norm(row: &mut [f32], eps: f32, scale: f32) = l2_norm_body;

    /// `gate[i] = silu(gate[i]) * up[i]`.
    pub fn swiglu(up: &[f32], gate: &mut [f32]) = swiglu_body;

    /// `gate[i] = (clamp(up[i], -7, 7) + 1) * (g * sigmoid(1.702 g))`, `g = min(gate[i], 7)`.
    pub fn clamped_swiglu(up: &[f32], gate: &mut [f32]) = clamped_swiglu_body;

    /// `gate[i] = gelu(gate[i]) * up[i]`.
    pub fn geglu(up: &[f32], gate: &mut [f32]) = geglu_body;

    /// `out` = the mean of rows `x`, as wide as it, each times the sigmoid of its `gate`: one chain a channel, rows ascending.
    pub fn gated_mean(gate: &[f32], x: &[f32], out: &mut [f32]) = gated_mean_body;

    /// `row[i] = cap * tanh(row[i] / cap)`.
    pub fn softcap(row: &mut [f32], cap: f32) = softcap_body;

    /// `out[i] *= sigmoid(gate[i])`.
    pub fn mul_sigmoid(gate: &[f32], out: &mut [f32]) = mul_sigmoid_body;

    /// `row[i] = exp(row[i] - max(row)) / sum`. An empty row stays empty.
    pub fn softmax(row: &mut [f32]) = softmax_body;
}

#[inline(always)]
pub(crate) fn dot_body<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let (strides_a, tail_a) = a.as_chunks::<{ CHAINS * LANES }>();
    let (strides_b, tail_b) = b.as_chunks::<{ CHAINS * LANES }>();
    let mut chains = [L::splat(0.0); CHAINS];
    for (a, b) in strides_a.iter().zip(strides_b) {
        for (chain, (a, b)) in chains
            .iter_mut()
            .zip(a.as_chunks().0.iter().zip(b.as_chunks().0))
        {
            *chain = L::load(a).mul_add(L::load(b), *chain);
        }
    }
    for (chain, (a, b)) in chains
        .iter_mut()
        .zip(tail_a.chunks(LANES).zip(tail_b.chunks(LANES)))
    {
        *chain = L::load_part(a).mul_add(L::load_part(b), *chain);
    }
    join(chains)
}

/// The one number that four chains of lanes add up to.
#[inline(always)]
fn join<L: Lanes>(chains: [L; CHAINS]) -> f32 {
    ((chains[0] + chains[2]) + (chains[1] + chains[3])).sum()
}

/// `a[i] = result`, over all of `a`. A macro, because a closure would not surely become part of the version it is used in.
macro_rules! map {
    ($out:expr, |$a:ident| $result:expr) => {{
        let (vectors, tail) = $out.as_chunks_mut::<LANES>();
        for out in vectors {
            let $a = L::load(out);
            $result.store(out);
        }
        if !tail.is_empty() {
            let $a = L::load_part(tail);
            $result.store_part(tail);
        }
    }};
}

/// `a[i] = result` with `b[i]` in it, over the shorter of the two.
macro_rules! zip {
    ($out:expr, $other:expr, |$a:ident, $b:ident| $result:expr) => {{
        let len = $out.len().min($other.len());
        let (vectors, tail) = $out[..len].as_chunks_mut::<LANES>();
        let (others, others_tail) = $other[..len].as_chunks::<LANES>();
        for (out, other) in vectors.iter_mut().zip(others) {
            let ($a, $b) = (L::load(out), L::load(other));
            $result.store(out);
        }
        if !tail.is_empty() {
            let ($a, $b) = (L::load_part(tail), L::load_part(others_tail));
            $result.store_part(tail);
        }
    }};
}

#[inline(always)]
fn axpy_body<L: Lanes>(weight: f32, x: &[f32], out: &mut [f32]) {
    zip!(out, x, |out, x| L::splat(weight).mul_add(x, out));
}

#[inline(always)]
pub(crate) fn add_body<L: Lanes>(x: &[f32], out: &mut [f32]) {
    zip!(out, x, |out, x| out + x);
}

#[inline(always)]
pub(crate) fn rms_norm_body<L: Lanes>(row: &mut [f32], weight: &[f32], eps: f32) {
    let scale = rms_scale::<L>(row, eps);
    zip!(row, weight, |x, weight| x * L::splat(scale) * weight);
}

#[inline(always)]
fn rms_norm_into_body<L: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = rms_scale::<L>(x, eps);
    out.copy_from_slice(x);
    zip!(out, weight, |x, weight| x * L::splat(scale) * weight);
}

#[inline(always)]
fn rms_scale<L: Lanes>(row: &[f32], eps: f32) -> f32 {
    1.0 / (dot_body::<L>(row, row) / row.len() as f32 + eps).sqrt()
}

#[inline(always)]
pub(crate) fn l2_norm_body<L: Lanes>(row: &mut [f32], eps: f32, scale: f32) {
    let scale = scale / (dot_body::<L>(row, row) + eps).sqrt();
    map!(row, |x| x * L::splat(scale));
}

#[inline(always)]
fn swiglu_body<L: Lanes>(up: &[f32], gate: &mut [f32]) {
    zip!(gate, up, |gate, up| silu_of(gate) * up);
}

#[inline(always)]
fn clamped_swiglu_body<L: Lanes>(up: &[f32], gate: &mut [f32]) {
    let one = L::splat(1.0);
    zip!(gate, up, |gate, up| {
        // constants come first, so that a NaN stays
        let gate = L::splat(7.0).less(gate);
        let up = L::splat(-7.0).greater(L::splat(7.0).less(up));
        (up + one) * (gate * sigmoid_of(gate * L::splat(1.702)))
    });
}

#[inline(always)]
fn gated_mean_body<L: Lanes>(gate: &[f32], x: &[f32], out: &mut [f32]) {
    let width = out.len();
    out.fill(0.0);
    for (gate, x) in gate.chunks_exact(width).zip(x.chunks_exact(width)) {
        for ((gate, x), out) in gate
            .chunks(LANES)
            .zip(x.chunks(LANES))
            .zip(out.chunks_mut(LANES))
        {
            let open = sigmoid_of(L::load_part(gate));
            open.mul_add(L::load_part(x), L::load_part(out))
                .store_part(out);
        }
    }
    let part = (x.len() as f32 / width as f32).recip();
    map!(out, |sum| sum * L::splat(part));
}

#[inline(always)]
fn softcap_body<L: Lanes>(row: &mut [f32], cap: f32) {
    let (one, two) = (L::splat(1.0), L::splat(2.0));
    map!(row, |x| {
        let y = x / L::splat(cap);
        // tanh y is twice the sigmoid of 2 y, less one
        L::splat(cap) * (two * sigmoid_of(two * y) - one)
    });
}

#[inline(always)]
fn geglu_body<L: Lanes>(up: &[f32], gate: &mut [f32]) {
    zip!(gate, up, |gate, up| gelu_of(gate) * up);
}

#[inline(always)]
pub(crate) fn mul_sigmoid_body<L: Lanes>(gate: &[f32], out: &mut [f32]) {
    zip!(out, gate, |out, gate| out * sigmoid_of(gate));
}

#[inline(always)]
pub(crate) fn softmax_body<L: Lanes>(row: &mut [f32]) {
    let greatest = row.iter().copied().fold(f32::NEG_INFINITY, f32::greater);
    map!(row, |x| exp_of(x - L::splat(greatest)));
    let sum = sum_body::<L>(row);
    map!(row, |x| x / L::splat(sum));
}

#[inline(always)]
fn sum_body<L: Lanes>(row: &[f32]) -> f32 {
    let mut chains = [L::splat(0.0); CHAINS];
    for (at, part) in row.chunks(LANES).enumerate() {
        chains[at % CHAINS] = chains[at % CHAINS] + L::load_part(part);
    }
    join(chains)
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
