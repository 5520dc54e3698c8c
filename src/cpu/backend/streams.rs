//! A residual of several streams.

use super::Cpu;
use crate::{
    backend::{Act, StreamWeights},
    cpu::math,
    model::window::Window,
};

impl Cpu {
    /// `Normed` = the mean over the streams of `sigmoid(gate) * norm(stream)`, for all rows of a window or, packed, those named.
    pub(super) fn gather_streams(
        &mut self,
        window: &Window<Self>,
        only: Option<&[u32]>,
        weights: &StreamWeights<Self>,
    ) {
        let (isa, width, streams) = (self.isa, self.width, self.streams);
        let count = only.map_or(window.rows().count(), <[u32]>::len);
        let all = streams * width;
        let residual = window.residual();
        let normed = self.acts.rows_mut(Act::Streams, count, all);
        Self::each_row(&self.pool, normed, all, 2 * all, |row, out| {
            let row = only.map_or(row, |only| only[row] as usize);
            let parts = residual[row * all..][..all].chunks_exact(width);
            for ((x, weight), out) in parts
                .zip(weights.norm.chunks_exact(width))
                .zip(out.chunks_exact_mut(width))
            {
                math::rms_norm_into(isa, x, weight, weights.eps, out);
            }
        });
        match &weights.inject {
            Some(inject) => self.products(
                count,
                Act::Streams,
                &[(&weights.down, Act::StreamLow), (inject, Act::Inject)],
            ),
            None => self.products(count, Act::Streams, &[(&weights.down, Act::StreamLow)]),
        }
        let rank = weights.down.outputs();
        let part = (streams as f32).recip();
        let low = self.acts.rows_mut(Act::StreamLow, count, rank);
        Self::each_row(&self.pool, low, rank, 8 * rank, |_, row| {
            row.iter_mut().for_each(|x| *x = math::silu(*x * part));
        });
        self.products(count, Act::StreamLow, &[(&weights.up, Act::StreamGate)]);
        let mut out = self.acts.take(Act::Normed);
        let (gates, normed) = (
            self.acts.rows(Act::StreamGate, count, all),
            self.acts.rows(Act::Streams, count, all),
        );
        Self::each_row(
            &self.pool,
            &mut out[..count * width],
            width,
            8 * all,
            |row, out| {
                let of = row * all..(row + 1) * all;
                math::gated_mean(isa, &gates[of.clone()], &normed[of], out);
            },
        );
        self.acts.put(Act::Normed, out);
    }

    /// Every stream += 2 sigmoid(its weight) * `Branch`.
    pub(super) fn spread(&mut self, window: &mut Window<Self>) {
        let (isa, width, streams) = (self.isa, self.width, self.streams);
        let (rows, residual) = window.parts_mut();
        let count = rows.count();
        let part = (streams as f32).recip();
        let (branch, inject) = (
            self.acts.rows(Act::Branch, count, width),
            self.acts.rows(Act::Inject, count, streams),
        );
        let all = streams * width;
        Self::each_row(
            &self.pool,
            &mut residual[..count * all],
            all,
            all,
            |row, out| {
                let branch = &branch[row * width..][..width];
                let inject = &inject[row * streams..][..streams];
                for (out, weight) in out.chunks_exact_mut(width).zip(inject) {
                    math::axpy(isa, 2.0 * math::sigmoid(*weight * part), branch, out);
                }
            },
        );
    }
}
