//! A prediction block's own ops: hidden states that are kept, and its input.

use super::{Cpu, CpuError, Matrix};
use crate::{
    backend::{Act, Backend, HIDDEN_ROWS, Needs, Room, States},
    cpu::math,
    engine::executor::Slot,
    model::window::{Rows, Window},
    quant,
};

/// Numbers that final hidden states take.
pub(super) fn hidden_len(needs: &Needs, room: &Room) -> usize {
    let width = needs.residual * (1 + needs.more_streams);
    usize::from(needs.predicts) * room.slots * HIDDEN_ROWS * width
}

/// The row in which a position's hidden state is kept.
fn hidden_at(slot: Slot, position: usize) -> usize {
    slot.0 as usize * HIDDEN_ROWS + position % HIDDEN_ROWS
}

/// Slot and position of every row.
fn places(rows: &Rows) -> impl Iterator<Item = (Slot, usize)> + '_ {
    let spans = rows.spans().iter();
    spans.flat_map(|span| {
        (span.first..)
            .take(span.rows.len())
            .map(|at| (span.slot, at))
    })
}

impl Cpu {
    /// Keeps the residual of a window's rows, normed or as it is, for positions `ahead` of theirs.
    pub(super) fn keep_states(
        &mut self,
        window: &Window<Self>,
        ahead: usize,
        norm: Option<(&Vec<f32>, f32)>,
    ) {
        let all = self.streams * self.width;
        for span in window.rows().spans() {
            let rows = span.rows.len();
            for nth in rows.saturating_sub(HIDDEN_ROWS)..rows {
                let from = &window.residual()[(span.rows.start + nth) * all..][..all];
                let at = hidden_at(span.slot, span.first + nth + ahead) * all;
                let to = &mut self.hidden[at..at + all];
                match norm {
                    Some((weight, eps)) => math::rms_norm_into(self.isa, from, weight, eps, to),
                    None => to.copy_from_slice(from),
                }
            }
        }
    }

    /// `Paired`, of the states that are kept or of the window's own.
    pub(super) fn pair_states(
        &mut self,
        window: &mut Window<Self>,
        states: States<'_, Self>,
        table: &Matrix,
        [embedding_norm, hidden_norm]: [&Vec<f32>; 2],
        eps: f32,
    ) -> Result<(), CpuError> {
        let (isa, width, count) = (self.isa, self.width, window.rows().count());
        let all = self.streams * width;
        if let States::Own(Some((norm, eps))) = states {
            self.norm(window, norm, eps)?;
        }
        let mut paired = self.acts.take(Act::Paired);
        let own = match states {
            States::Kept => None,
            States::Own(Some(_)) => Some(self.acts.rows(Act::Normed, count, width)),
            States::Own(None) => Some(&window.residual()[..count * all]),
        };
        let (rows, hidden) = (window.rows(), &self.hidden);
        let places: &Vec<_> = &places(rows).collect();
        Self::each_row(
            &self.pool,
            &mut paired[..count * 2 * all],
            2 * all,
            4 * all,
            |row, out| {
                let (token, state) = match own {
                    Some(own) => ((row + 1) % count, &own[row * all..]),
                    None => {
                        let (slot, position) = places[row];
                        (row, &hidden[hidden_at(slot, position) * all..])
                    }
                };
                let embedding = &mut out[..width];
                let token = rows.tokens()[token] as usize;
                quant::dequantise(table.ty(), table.row(token), embedding)
                    .expect("a row of the table has the residual's width");
                math::rms_norm(isa, embedding, embedding_norm, eps);
                // each stream stands beside the same embedding
                for pair in (2 * width..2 * all).step_by(2 * width) {
                    out.copy_within(..width, pair);
                }
                let streams = state[..all].chunks_exact(width);
                for ((pair, state), weight) in out
                    .chunks_exact_mut(2 * width)
                    .zip(streams)
                    .zip(hidden_norm.chunks_exact(width))
                {
                    math::rms_norm_into(isa, state, weight, eps, &mut pair[width..]);
                }
            },
        );
        self.acts.put(Act::Paired, paired);
        Ok(())
    }
}
