//! What the last tokens of a row add to the streams of its residual.
//!
//! Everything a sequence leaves behind here is kept in rings by its absolute position, so that rows can be taken back by moving an end.

use super::Cpu;
use crate::{
    backend::{Act, Needs, NgramWeights, Room, shape::NgramShape},
    cpu::math,
    engine::executor::Slot,
    model::window::{Rows, Window},
};

/// What the convolution has read of every sequence.
#[derive(Default)]
pub(super) struct NgramInputs {
    /// `[slots, kept, streams d] f32`
    inputs: Vec<f32>,
    /// Values of an input.
    width: usize,
}

/// Inputs that are kept of a slot.
const KEPT: usize = NgramShape::INPUTS_KEPT;

impl NgramInputs {
    pub(super) fn new(needs: &Needs, room: &Room) -> Self {
        if needs.ngram.is_none() {
            return Self::default();
        }
        let width = needs.residual * (1 + needs.more_streams);
        Self {
            inputs: vec![0.0; room.slots * KEPT * width],
            width,
        }
    }

    fn input_at(slot: Slot, position: usize) -> usize {
        slot.0 as usize * KEPT + position % KEPT
    }
}

impl Cpu {
    /// Every stream += gated rows of the table + their convolution over time. Rows whose rows of the table cannot be read are torn.
    pub(super) fn ngrams(&mut self, window: &mut Window<Self>, weights: &NgramWeights<Self>) {
        let lane = window.lane();
        let (rows, residual) = window.parts_mut();
        let (isa, width, count) = (self.isa, self.width, rows.count());
        let (all, shape) = (self.streams * width, &weights.shape);
        // rows may have been withdrawn since the window began: what is left is found again
        let found = self.ngrams.find(rows);
        let values = shape.rows() * shape.width;
        let out = self.acts.rows_mut(Act::Ngram, count, values);
        self.tables
            .values(lane, (found, shape.rows()), out, &mut self.torn);
        self.products(
            count,
            Act::Ngram,
            &[
                (&weights.key, Act::StreamGate),
                (&weights.value, Act::Branch),
            ],
        );
        let [norm_key, norm_query, norm_conv] = &weights.norms;
        // keys become what is added, streams what the convolution reads
        let mut keys = self.acts.take(Act::StreamGate);
        let mut inputs = self.acts.take(Act::Streams);
        let value = self.acts.rows(Act::Branch, count, width);
        let root = (width as f32).sqrt().recip();
        let mut query = vec![0.0; width];
        for row in 0..count {
            let of = row * all..(row + 1) * all;
            let parts = keys[of.clone()]
                .chunks_exact_mut(width)
                .zip(inputs[of.clone()].chunks_exact_mut(width))
                .zip(residual[of].chunks_exact(width));
            let norms = norm_key
                .chunks_exact(width)
                .zip(norm_query.chunks_exact(width))
                .zip(norm_conv.chunks_exact(width));
            let value = &value[row * width..][..width];
            for (((key, input), x), ((of_key, of_query), of_conv)) in parts.zip(norms) {
                math::rms_norm(isa, key, of_key, weights.eps);
                math::rms_norm_into(isa, x, of_query, weights.eps, &mut query);
                let score = math::dot(isa, key, &query) * root;
                let open = math::sigmoid(score.abs().max(1e-6).sqrt() * sign(score));
                for (key, value) in key.iter_mut().zip(value) {
                    *key = open * value;
                }
                math::rms_norm_into(isa, key, of_conv, weights.eps, input);
            }
        }
        self.convolve(
            rows,
            weights,
            &inputs[..count * all],
            &keys[..count * all],
            residual,
        );
        self.acts.put(Act::Streams, inputs);
        self.acts.put(Act::StreamGate, keys);
    }

    /// residual += gated + silu(convolution of the inputs), taps `tokens` rows apart; remembers the inputs.
    fn convolve(
        &mut self,
        rows: &Rows,
        weights: &NgramWeights<Self>,
        inputs: &[f32],
        gated: &[f32],
        residual: &mut [f32],
    ) {
        let (shape, all) = (&weights.shape, self.ngram_inputs.width);
        for span in rows.spans() {
            let kept = &self.ngram_inputs.inputs;
            let first = span.rows.start;
            let out = &mut residual[first * all..span.rows.end * all];
            Self::each_row(&self.pool, out, all, 8 * all, |row, out| {
                let mut sum = vec![0.0; all];
                // the oldest tap first
                for (tap, taps) in weights.conv.chunks_exact(all).enumerate() {
                    let back = (shape.taps - 1 - tap) * shape.tokens;
                    let Some(position) = (span.first + row).checked_sub(back) else {
                        continue;
                    };
                    let input = match row.checked_sub(back) {
                        Some(row) => &inputs[(first + row) * all..][..all],
                        None => &kept[NgramInputs::input_at(span.slot, position) * all..][..all],
                    };
                    for ((sum, tap), x) in sum.iter_mut().zip(taps).zip(input) {
                        *sum = tap.mul_add(*x, *sum);
                    }
                }
                let gated = &gated[(first + row) * all..][..all];
                for ((out, sum), gated) in out.iter_mut().zip(&sum).zip(gated) {
                    *out += gated + math::silu(*sum);
                }
            });
            let skip = span.rows.len().saturating_sub(KEPT);
            for row in skip..span.rows.len() {
                let to = NgramInputs::input_at(span.slot, span.first + row) * all;
                self.ngram_inputs.inputs[to..to + all]
                    .copy_from_slice(&inputs[(first + row) * all..][..all]);
            }
        }
    }
}

/// -1, 0 or 1.
fn sign(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { x.signum() }
}
