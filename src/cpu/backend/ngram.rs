//! What the last tokens of a row add to the streams of its residual.
//!
//! Everything a sequence leaves behind here is kept in rings by its absolute position, so that rows can be taken back by moving an end.

use super::Cpu;
use crate::{
    backend::{Act, CUT_ROWS, Needs, NgramWeights, Room, shape::NgramShape},
    cpu::{math, table::Table},
    engine::{executor::Slot, request::Token},
    model::window::{Rows, Window},
    quant,
};

/// Inputs of the convolution that are kept: as far as it looks back, and those that can be taken back.
const RING: usize = (NgramShape::TAPS_MAX - 1) * NgramShape::TOKENS_MAX + CUT_ROWS;
/// Tokens that are kept beside those of a window and those that are told ahead of it, likewise.
const BACK: usize = NgramShape::TOKENS_MAX - 1 + CUT_ROWS;

/// What sequences leave behind.
#[derive(Default)]
pub(super) struct Ngrams {
    shape: Option<NgramShape>,
    /// `[slots, kept] u32`: tokens of a window, and those told ahead of it, do not replace those before it, which are looked at again.
    tokens: Vec<u32>,
    /// Tokens kept of a slot.
    kept: usize,
    /// `[slots, RING, streams d] f32`: what the convolution has read.
    inputs: Vec<f32>,
    /// Values of an input.
    width: usize,
    /// A row's rows of the table: `[rows, rows of the table a row] u64`.
    found: Vec<u64>,
}

impl Ngrams {
    pub(super) fn new(needs: &Needs, room: &Room) -> Self {
        let Some(shape) = &needs.ngram else {
            return Self::default();
        };
        let width = needs.residual * (1 + needs.more_streams);
        let kept = 2 * room.rows + BACK;
        Self {
            shape: Some(shape.clone()),
            tokens: vec![0; room.slots * kept],
            kept,
            inputs: vec![0.0; room.slots * RING * width],
            width,
            found: Vec::with_capacity(room.rows * shape.rows()),
        }
    }

    fn input_at(slot: Slot, position: usize) -> usize {
        slot.0 as usize * RING + position % RING
    }

    fn token_at(&self, slot: Slot, position: usize) -> usize {
        slot.0 as usize * self.kept + position % self.kept
    }

    /// Finds the rows of the table for all rows of a window, and remembers the window's tokens.
    pub(super) fn find(&mut self, rows: &Rows) -> &[u64] {
        self.found.clear();
        for span in rows.spans() {
            let tokens = &rows.tokens()[span.rows.clone()];
            self.find_along(span.slot, span.first, tokens);
        }
        &self.found
    }

    /// The same for tokens that will be a slot's rows from this position on.
    pub(super) fn find_ahead(&mut self, slot: Slot, first: usize, tokens: &[Token]) -> &[u64] {
        self.found.clear();
        self.find_along(slot, first, tokens);
        &self.found
    }

    fn find_along(&mut self, slot: Slot, first: usize, tokens: &[Token]) {
        let Some(shape) = &self.shape else {
            return;
        };
        for row in 0..tokens.len() {
            let position = first + row;
            let mut last = [None; NgramShape::TOKENS_MAX];
            for (back, last) in last[..shape.tokens.min(position + 1)]
                .iter_mut()
                .enumerate()
            {
                *last = Some(match row.checked_sub(back) {
                    Some(row) => tokens[row],
                    None => self.tokens[self.token_at(slot, position - back)],
                });
            }
            shape.find(&last, |row| self.found.push(row));
        }
        for (row, token) in tokens.iter().enumerate() {
            let at = self.token_at(slot, first + row);
            self.tokens[at] = *token;
        }
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
        let table: &Table = &weights.table;
        let of = self.tables.rows(lane, found);
        let values = shape.rows() * shape.width;
        let out = self.acts.rows_mut(Act::Ngram, count, values);
        for (at, (to, row)) in out.chunks_exact_mut(shape.width).zip(found).enumerate() {
            match of.get(*row) {
                Some(bytes) => quant::dequantise(table.ty(), bytes, to)
                    .expect("a row of the table has its width"),
                None => {
                    to.fill(0.0);
                    self.torn.rows.push((at / shape.rows()) as u32);
                }
            }
        }
        if let Some(why) = of.why() {
            self.torn.why = Some(why.to_string());
        }
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
        let (shape, all) = (&weights.shape, self.ngrams.width);
        for span in rows.spans() {
            let kept = &self.ngrams.inputs;
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
                        None => &kept[Ngrams::input_at(span.slot, position) * all..][..all],
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
            let skip = span.rows.len().saturating_sub(RING);
            for row in skip..span.rows.len() {
                let to = Ngrams::input_at(span.slot, span.first + row) * all;
                self.ngrams.inputs[to..to + all]
                    .copy_from_slice(&inputs[(first + row) * all..][..all]);
            }
        }
    }
}

/// -1, 0 or 1.
fn sign(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { x.signum() }
}
