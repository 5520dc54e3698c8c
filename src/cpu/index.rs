//! Which positions a row of attention sees: an index scores groups of positions, and past a budget the best are kept.
//!
//! A group's key is the mean of its positions' keys, normed and turned as its first position; it never changes once the group is complete, so it is kept, page by
//! page as keys and values are. Keys of single positions are kept in a ring a slot, by position, until their group is complete and for as long as rows may
//! be taken back. A row's score of a group is the sum over the heads of relu(query . key), over the root of a head's width. Of equal scores the earlier group
//! counts more. So what a row sees depends on its own sequence and position only.

use crate::{
    backend::{CUT_ROWS, HIDDEN_ROWS, shape::IndexShape},
    cpu::{
        isa::Isa,
        kv::KvSpan,
        math::{self, Rope, RopeRows},
        pool::{Disjoint, Pool},
    },
    engine::executor::{PAGE_TOKENS, PageId, Slot},
};

/// Keys of one layer's index.
#[derive(Debug)]
pub(super) struct IndexCache {
    shape: IndexShape,
    /// `[pages, groups of a page, head_dim] f32`
    pooled: Vec<f32>,
    /// `[slots, ring, head_dim] f32`
    single: Vec<f32>,
    ring: usize,
}

/// How keys are made comparable.
pub(super) struct KeyNorm<'a> {
    pub(super) weight: &'a [f32],
    pub(super) eps: f32,
    pub(super) rope: &'a Rope,
}

/// What the rows of a window see: of row `r` and page `p` of its sequence the positions whose bits are set in `masks[r * pages + p]`.
#[derive(Clone, Copy, Debug)]
pub struct Selected<'a> {
    /// `[rows, pages] u64`
    pub masks: &'a [u64],
    /// Pages of the longest sequence.
    pub pages: usize,
}

impl Selected<'_> {
    /// Positions of page `page` that row `row` of the window sees.
    pub(super) fn of(&self, row: usize, page: usize) -> u64 {
        self.masks[row * self.pages + page]
    }
}

impl IndexCache {
    /// `late` as in [`ring`](Self::ring).
    pub(super) fn new(shape: IndexShape, pages: usize, slots: usize, late: bool) -> Self {
        let groups = PAGE_TOKENS / shape.group;
        let ring = Self::ring(&shape, late);
        Self {
            shape,
            pooled: vec![0.0; pages * groups * shape.head_dim],
            single: vec![0.0; slots * ring * shape.head_dim],
            ring,
        }
    }

    /// Positions whose own keys are kept of a slot. `late`: whether some, up to [`HIDDEN_ROWS`], are taken in again after others behind them were.
    pub(super) fn ring(shape: &IndexShape, late: bool) -> usize {
        shape.group + CUT_ROWS + usize::from(late) * HIDDEN_ROWS
    }

    fn group_at(&self, page: PageId, position: usize) -> usize {
        let groups = PAGE_TOKENS / self.shape.group;
        (page.0 as usize * groups + position % PAGE_TOKENS / self.shape.group) * self.shape.head_dim
    }

    fn single_at(&self, slot: Slot, position: usize) -> usize {
        (slot.0 as usize * self.ring + position % self.ring) * self.shape.head_dim
    }

    /// Takes in a span's keys, `[window rows, head_dim] f32`, and makes the keys of the groups that they complete.
    pub(super) fn append(
        &mut self,
        isa: Isa,
        slot: Slot,
        span: &KvSpan<'_>,
        keys: &[f32],
        norm: &KeyNorm<'_>,
    ) {
        let IndexShape {
            head_dim, group, ..
        } = self.shape;
        let first = span.first as usize;
        let keys = &keys[span.first_row * head_dim..][..span.rows * head_dim];
        let starts = (first / group..(first + span.rows) / group).map(|number| number * group);
        let mut turns = RopeRows::default();
        norm.rope
            .fill(starts.clone().map(|start| start as u32), &mut turns);
        for (row, start) in starts.enumerate() {
            let to = self.group_at(span.pages[start / PAGE_TOKENS], start);
            let mut pooled = vec![0.0; head_dim];
            for position in start..start + group {
                let key = match position.checked_sub(first) {
                    Some(row) => &keys[row * head_dim..][..head_dim],
                    None => &self.single[self.single_at(slot, position)..][..head_dim],
                };
                math::add(isa, key, &mut pooled);
            }
            pooled.iter_mut().for_each(|x| *x /= group as f32);
            math::rms_norm(isa, &mut pooled, norm.weight, norm.eps);
            norm.rope.turn(isa, &turns, row, &mut pooled);
            self.pooled[to..to + head_dim].copy_from_slice(&pooled);
        }
        let skip = span.rows.saturating_sub(group + CUT_ROWS);
        for (row, key) in keys.chunks_exact(head_dim).enumerate().skip(skip) {
            let to = self.single_at(slot, first + row);
            self.single[to..to + head_dim].copy_from_slice(key);
        }
    }

    /// Fills `masks` with what every row sees; tells whether that is less than everything for any.
    ///
    /// **Shapes**: `queries [window rows, heads * head_dim] f32`, normed and turned; `masks [window rows, pages] u64`.
    pub(super) fn select(
        &self,
        (pool, isa): (&Pool, Isa),
        spans: &[KvSpan<'_>],
        queries: &[f32],
        pages: usize,
        masks: &mut [u64],
    ) -> bool {
        let IndexShape { group, budget, .. } = self.shape;
        if spans.iter().all(|span| (span.last() + 1) / group <= budget) {
            return false;
        }
        let masks = Disjoint::new(masks);
        let rows: usize = spans.iter().map(|span| span.rows).sum();
        pool.run(rows, |row, _| {
            let span = spans
                .iter()
                .find(|span| (span.first_row..span.first_row + span.rows).contains(&row));
            let Some(span) = span else { return };
            // SAFETY: a row's masks are its task's.
            let masks = unsafe { masks.nth(row, pages) };
            let position = span.first as usize + row - span.first_row;
            let complete = (position + 1) / group;
            if complete <= budget {
                masks.fill(u64::MAX);
                return;
            }
            masks.fill(0);
            let mut see = |from: usize, to: usize| {
                for position in from..to {
                    masks[position / PAGE_TOKENS] |= 1 << (position % PAGE_TOKENS);
                }
            };
            for number in self.best(isa, span, row, queries, complete) {
                see(number * group, (number + 1) * group);
            }
            see(complete * group, position + 1);
        });
        true
    }

    /// The `budget` best of the first `complete` groups.
    fn best(
        &self,
        isa: Isa,
        span: &KvSpan<'_>,
        row: usize,
        queries: &[f32],
        complete: usize,
    ) -> Vec<usize> {
        let IndexShape {
            heads,
            head_dim,
            group,
            budget,
        } = self.shape;
        let query = &queries[row * heads * head_dim..][..heads * head_dim];
        let root = (head_dim as f32).sqrt();
        let mut scored: Vec<(f32, usize)> = (0..complete)
            .map(|number| {
                let start = number * group;
                let at = self.group_at(span.pages[start / PAGE_TOKENS], start);
                let key = &self.pooled[at..at + head_dim];
                let mut score = 0.0;
                for query in query.chunks_exact(head_dim) {
                    score += math::dot(isa, query, key).max(0.0);
                }
                (score / root, number)
            })
            .collect();
        scored.select_nth_unstable_by(budget - 1, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        scored.truncate(budget);
        scored.into_iter().map(|(_, number)| number).collect()
    }
}
