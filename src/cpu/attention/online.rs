//! The running state of an online softmax: for each line a maximum, a sum of weights and the weighted values.

use crate::cpu::{
    kv::GROUPS,
    math::{
        exp_of,
        lanes::{LANES, Lanes, Real, per_isa},
    },
};

/// States of the lines of a task.
#[derive(Debug)]
pub(super) struct Online<'s> {
    /// `[lines]`; minus infinity before the first page.
    pub(super) maxima: &'s mut [f32],
    /// `[lines]`: sums of `exp(score - maximum)`.
    pub(super) sums: &'s mut [f32],
    /// `[lines, width]`: values weighted by `exp(score - maximum)`.
    pub(super) values: &'s mut [f32],
    /// Channels of a value, whole vectors.
    pub(super) width: usize,
}

impl<'s> Online<'s> {
    /// Numbers that `lines` states take.
    pub(super) fn len(lines: usize, width: usize) -> usize {
        lines * (2 + width)
    }

    /// States in `memory`, of [`Online::len`] numbers; not yet begun.
    pub(super) fn new(memory: &'s mut [f32], lines: usize, width: usize) -> Self {
        let (maxima, memory) = memory.split_at_mut(lines);
        let (sums, values) = memory.split_at_mut(lines);
        Self {
            maxima,
            sums,
            values,
            width,
        }
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) {
        self.maxima.fill(f32::NEG_INFINITY);
        self.sums.fill(0.0);
        self.values.fill(0.0);
    }

    /// The weighted values of a line.
    fn value(&self, line: usize) -> &[f32] {
        &self.values[line * self.width..][..self.width]
    }

    /// Copies a line's state to `to [width + 2 at least]`.
    pub(super) fn save(&self, line: usize, to: &mut [f32]) {
        to[..self.width].copy_from_slice(self.value(line));
        to[self.width] = self.maxima[line];
        to[self.width + 1] = self.sums[line];
    }

    /// The opposite of [`Online::save`].
    pub(super) fn load(&mut self, line: usize, from: &[f32]) {
        self.values[line * self.width..][..self.width].copy_from_slice(&from[..self.width]);
        self.maxima[line] = from[self.width];
        self.sums[line] = from[self.width + 1];
    }

    /// Joins the later segment `next` to a line.
    pub(super) fn join(&mut self, isa: crate::cpu::isa::Isa, line: usize, next: &Online<'_>) {
        if next.maxima[line] == f32::NEG_INFINITY {
            return; // it has seen nothing
        }
        let values = &mut self.values[line * self.width..][..self.width];
        let mut state = (self.maxima[line], self.sums[line]);
        join(
            isa,
            &mut state,
            values,
            (next.maxima[line], next.sums[line]),
            next.value(line),
        );
        (self.maxima[line], self.sums[line]) = state;
    }

    /// A line's weighted mean of values, `sink` a logit more among the weights.
    pub(super) fn finish(
        &self,
        isa: crate::cpu::isa::Isa,
        line: usize,
        sink: Option<f32>,
        out: &mut [f32],
    ) {
        let Some(sink) = sink else {
            return divided(isa, self.value(line), self.sums[line], out);
        };
        let maximum = sink.greater(self.maxima[line]);
        let (kept, added) = (exp_of(self.maxima[line] - maximum), exp_of(sink - maximum));
        let sum = self.sums[line].mul_add(kept, added);
        scaled(isa, self.value(line), kept, out);
        out.iter_mut().for_each(|value| *value /= sum);
    }
}

per_isa! {
    /// `out = x * factor`.
    pub(super) fn scaled(x: &[f32], factor: f32, out: &mut [f32]) = scaled_body;

    fn divided(x: &[f32], divisor: f32, out: &mut [f32]) = divided_body;

    fn join(state: &mut (f32, f32), values: &mut [f32], next: (f32, f32), next_values: &[f32]) = join_body;
}

#[inline(always)]
fn scaled_body<L: Lanes>(x: &[f32], factor: f32, out: &mut [f32]) {
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        (L::load_part(x) * L::splat(factor)).store_part(out);
    }
}

#[inline(always)]
fn divided_body<L: Lanes>(x: &[f32], divisor: f32, out: &mut [f32]) {
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        (L::load_part(&x[..out.len()]) / L::splat(divisor)).store_part(out);
    }
}

#[inline(always)]
fn join_body<L: Lanes>(
    state: &mut (f32, f32),
    values: &mut [f32],
    next: (f32, f32),
    next_values: &[f32],
) {
    let maximum = next.0.greater(state.0);
    let (kept, added) = (exp_of(state.0 - maximum), exp_of(next.0 - maximum));
    *state = (maximum, next.1.mul_add(added, state.1 * kept));
    for (value, next) in values
        .as_chunks_mut()
        .0
        .iter_mut()
        .zip(next_values.as_chunks().0)
    {
        L::load(next)
            .mul_add(L::splat(added), L::load(value) * L::splat(kept))
            .store(value);
    }
}

/// Takes one page's scores into a line's state and turns them into weights.
///
/// **Shapes**: `scores [16 to 64]`, whole vectors; at least one is not minus infinity. What is missing of 64 counts as such.
#[inline(always)]
pub(super) fn step<L: Lanes>(
    scores: &mut [f32],
    maximum: &mut f32,
    sum: &mut f32,
    values: &mut [f32],
) {
    let vectors = scores.as_chunks_mut::<LANES>().0;
    let mut greatest = L::splat(f32::NEG_INFINITY);
    for scores in vectors.iter() {
        greatest = L::load(scores).greater(greatest);
    }
    let before = *maximum;
    *maximum = greatest.greatest().greater(before);
    let mut weights = [L::splat(0.0); GROUPS];
    for (scores, weight) in vectors.iter_mut().zip(&mut weights) {
        *weight = exp_of(L::load(scores) - L::splat(*maximum));
        weight.store(scores);
    }
    let added = ((weights[0] + weights[2]) + (weights[1] + weights[3])).sum();
    if *maximum == before {
        // the factor would be exactly one
        *sum += added;
        return;
    }
    let kept = exp_of(before - *maximum);
    *sum = sum.mul_add(kept, added);
    for value in values.as_chunks_mut().0 {
        (L::load(value) * L::splat(kept)).store(value);
    }
}
