//! One task's way through the pages of a segment.

use super::{
    SEGMENT,
    online::{self, Online},
};
use crate::{
    cpu::{
        index::Selected,
        isa::Isa,
        kv::{Cells, F16Cells, F32Cells, KvCache, KvType, Q8Cells},
        math::lanes::{LANES, Lanes, per_isa},
        tile::Product,
    },
    engine::executor::{PAGE_TOKENS, PageId},
};

/// Consecutive rows of one sequence, with the heads that share a KV head. Line `row * group + head` is one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile<'a> {
    pub(super) cache: &'a KvCache,
    pub(super) pages: &'a [PageId],
    pub(super) layer: usize,
    pub(super) kv_head: usize,
    /// Position of row 0.
    pub(super) first: usize,
    /// Positions that a row sees.
    pub(super) window: usize,
    /// What rows see of these.
    pub(super) selected: Option<Selected<'a>>,
    /// Row 0's number in the window.
    pub(super) window_row: usize,
    pub(super) rows: usize,
    pub(super) group: usize,
    pub(super) head_dim: usize,
}

impl Tile<'_> {
    /// Runs every line over the pages of a segment, from a fresh state. Lines before [`Tile::skip`] stay as they are.
    ///
    /// **Shapes**: `query [lines, head_dim]`, `weights [lines, 64]`.
    pub(super) fn sweep(
        &self,
        isa: Isa,
        kind: KvType,
        segment: usize,
        query: &[f32],
        weights: &mut [f32],
        state: &mut Online<'_>,
    ) {
        state.clear();
        match kind {
            KvType::F32 => sweep_f32(isa, self, segment, query, weights, state),
            KvType::F16 => sweep_f16(isa, self, segment, query, weights, state),
            KvType::Q8_0 => sweep_q8(isa, self, segment, query, weights, state),
        }
    }

    /// Calls `each` with every line that sees a position of the segment.
    pub(super) fn each_line(&self, segment: usize, each: impl FnMut(usize)) {
        (self.skip(segment * SEGMENT) * self.group..self.rows * self.group).for_each(each);
    }

    /// The first position that a row sees.
    fn sees_from(&self, row: usize) -> usize {
        (self.first + row + 1).saturating_sub(self.window)
    }

    /// Positions of a page that a row may see.
    fn chosen(&self, row: usize, start: usize) -> u64 {
        self.selected.map_or(u64::MAX, |selected| {
            selected.of(self.window_row + row, start / PAGE_TOKENS)
        })
    }

    /// The first position that any row sees.
    pub(super) fn begin(&self) -> usize {
        self.sees_from(0)
    }

    /// Rows that do not reach position `start`.
    fn skip(&self, start: usize) -> usize {
        start.saturating_sub(self.first)
    }
}

per_isa! {
    fn sweep_f32<'a>(tile: &Tile<'a>, segment: usize, query: &[f32], weights: &mut [f32], state: &mut Online<'_>)
        = sweep::<_, F32Cells>;
    fn sweep_f16<'a>(tile: &Tile<'a>, segment: usize, query: &[f32], weights: &mut [f32], state: &mut Online<'_>)
        = sweep::<_, F16Cells>;
    fn sweep_q8<'a>(tile: &Tile<'a>, segment: usize, query: &[f32], weights: &mut [f32], state: &mut Online<'_>)
        = sweep::<_, Q8Cells>;
}

#[inline(always)]
fn sweep<L: Lanes, C: Cells>(
    tile: &Tile<'_>,
    segment: usize,
    query: &[f32],
    weights: &mut [f32],
    state: &mut Online<'_>,
) {
    let last = tile.first + tile.rows - 1;
    let end = ((segment + 1) * SEGMENT).min(last + 1);
    let begin = (segment * SEGMENT).max(tile.begin() / PAGE_TOKENS * PAGE_TOKENS);
    for start in (begin..end).step_by(PAGE_TOKENS) {
        let row = tile.skip(start);
        if (row..tile.rows).all(|row| tile.chosen(row, start) == 0) {
            continue;
        }
        let (keys, values) = C::page(
            tile.cache,
            tile.pages[start / PAGE_TOKENS],
            tile.layer,
            tile.kv_head,
        );
        let from = tile.skip(start) * tile.group;
        let lines = tile.rows * tile.group - from;
        let seen = (last + 1 - start).min(PAGE_TOKENS);
        let weights = &mut weights[from * PAGE_TOKENS..];
        Product {
            a: &query[from * tile.head_dim..],
            a_stride: tile.head_dim,
            lines,
            panel: keys,
            steps: 0..tile.head_dim,
            vectors: seen.div_ceil(LANES),
        }
        .compute::<L, true>(weights, PAGE_TOKENS);
        for line in from..from + lines {
            let visible = (tile.first + line / tile.group + 1 - start).min(PAGE_TOKENS);
            let scores =
                &mut weights[(line - from) * PAGE_TOKENS..][..seen.next_multiple_of(LANES)];
            let values = &mut state.values[line * state.width..][..state.width];
            let hidden = tile
                .sees_from(line / tile.group)
                .saturating_sub(start)
                .min(visible);
            let chosen = tile.chosen(line / tile.group, start);
            if hidden == visible || chosen & (u64::MAX >> (PAGE_TOKENS - visible)) == 0 {
                // this line sees nothing of the page
                scores.fill(0.0);
                continue;
            }
            if chosen != u64::MAX {
                for (at, score) in scores.iter_mut().enumerate() {
                    if chosen >> at & 1 == 0 {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
            // weights of positions that other lines of the tile see, and this one does not, are zero
            scores[..hidden].fill(f32::NEG_INFINITY);
            scores[visible..].fill(f32::NEG_INFINITY);
            online::step::<L>(
                scores,
                &mut state.maxima[line],
                &mut state.sums[line],
                values,
            );
        }
        Product {
            a: weights,
            a_stride: PAGE_TOKENS,
            lines,
            panel: values,
            steps: 0..seen,
            vectors: state.width / LANES,
        }
        .compute::<L, false>(&mut state.values[from * state.width..], state.width);
    }
}
