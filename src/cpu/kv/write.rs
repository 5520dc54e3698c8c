//! Writing a window's keys and values.

use super::{GROUPS, KvCache, KvShape, KvSpan, Store, quantise};
use crate::{
    cpu::{
        isa::Isa,
        math::lanes::LANES,
        pool::{Disjoint, Pool},
    },
    engine::executor::{PAGE_TOKENS, PageId},
};

/// Below this many numbers a window is written by the calling thread alone.
const ALONE: usize = 16 * 1024;

/// The most channels of a head, so that a row fits the stack.
const HEAD_DIM_MAX: usize = 1024;

/// Rows of a span that lie in one page.
#[derive(Clone, Copy)]
struct Run {
    page: PageId,
    /// Place of the first row in the page.
    offset: usize,
    first_row: usize,
    rows: usize,
}

impl KvCache {
    /// Writes the rows of `spans` into their pages.
    ///
    /// **Shapes**: `keys`, `values` `[window rows, kv_heads * head_dim] f32`, keys rotated already.
    ///
    /// **Panics** if a span's pages do not reach its rows or lie outside the cache, or a head is wider than 1024 channels. Two
    /// spans must not share a page.
    pub fn write(
        &mut self,
        pool: &Pool,
        isa: Isa,
        layer: usize,
        spans: &[KvSpan<'_>],
        keys: &[f32],
        values: &[f32],
    ) {
        let shape = self.shape;
        assert!(
            shape.head_dim <= HEAD_DIM_MAX,
            "{} channels a head",
            shape.head_dim
        );
        assert!(
            runs(spans).all(|run| runs(spans).filter(|other| other.page == run.page).count() == 1),
            "a page in two spans"
        );
        let width = shape.kv_heads * shape.head_dim;
        let rows: usize = spans.iter().map(|span| span.rows).sum();
        let tasks = runs(spans).count() * shape.kv_heads;
        let store = self.store.shared();
        let task = |number: usize| {
            let (run, head) = (number / shape.kv_heads, number % shape.kv_heads);
            let Some(run) = runs(spans).nth(run) else {
                return;
            };
            let unit = shape.unit(run.page, layer, head);
            for row in 0..run.rows {
                let at = (run.first_row + row) * width + head * shape.head_dim;
                let (key, value) = (
                    &keys[at..at + shape.head_dim],
                    &values[at..at + shape.head_dim],
                );
                // SAFETY: a unit is written by the one task of its page and head.
                unsafe { store.write(isa, &shape, unit, run.offset + row, key, value) };
            }
        };
        if 2 * rows * width < ALONE {
            (0..tasks).for_each(task);
        } else {
            pool.run(tasks, |number, _| task(number));
        }
    }
}

/// The spans' rows, page by page.
fn runs<'a>(spans: &'a [KvSpan<'_>]) -> impl Iterator<Item = Run> + 'a {
    spans.iter().flat_map(|span| {
        let first = span.first as usize;
        (first / PAGE_TOKENS..=span.last() / PAGE_TOKENS).map(move |page| {
            let start = first.max(page * PAGE_TOKENS);
            let end = (span.last() + 1).min((page + 1) * PAGE_TOKENS);
            Run {
                page: span.pages[page],
                offset: start % PAGE_TOKENS,
                first_row: span.first_row + start - first,
                rows: end - start,
            }
        })
    })
}

/// A [`Store`] that tasks write in units.
enum Shared<'a> {
    F32(Disjoint<'a, f32>),
    F16(Disjoint<'a, u16>),
    Q8 {
        codes: Disjoint<'a, i8>,
        scales: Disjoint<'a, u16>,
    },
}

impl Store {
    fn shared(&mut self) -> Shared<'_> {
        match self {
            Self::F32(data) => Shared::F32(Disjoint::new(data)),
            Self::F16(data) => Shared::F16(Disjoint::new(data)),
            Self::Q8 { codes, scales } => Shared::Q8 {
                codes: Disjoint::new(codes),
                scales: Disjoint::new(scales),
            },
        }
    }
}

impl Shared<'_> {
    /// Writes one head's row at `offset` in its page.
    ///
    /// # Safety
    /// No other thread touches the unit.
    unsafe fn write(
        &self,
        isa: Isa,
        shape: &KvShape,
        unit: usize,
        offset: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (head_dim, width, blocks) = (shape.head_dim, shape.value_width(), shape.blocks());
        match self {
            Self::F32(data) => {
                // SAFETY: the caller's promise.
                let unit = unsafe { data.nth(unit, shape.key_len() + shape.value_len()) };
                let (keys, values) = unit.split_at_mut(shape.key_len());
                scatter(key, offset, keys);
                values[offset * width..][..head_dim].copy_from_slice(value);
            }
            Self::F16(data) => {
                // SAFETY: the caller's promise.
                let unit = unsafe { data.nth(unit, shape.key_len() + shape.value_len()) };
                let (keys, values) = unit.split_at_mut(shape.key_len());
                let mut row = [0; HEAD_DIM_MAX];
                quantise::to_f16(isa, key, &mut row[..head_dim]);
                scatter(&row[..head_dim], offset, keys);
                quantise::to_f16(isa, value, &mut values[offset * width..][..head_dim]);
            }
            Self::Q8 { codes, scales } => {
                // SAFETY: the caller's promise.
                let (codes, scales) = unsafe {
                    (
                        codes.nth(unit, shape.key_len() + shape.value_len()),
                        scales.nth(unit, shape.key_scales() + shape.value_scales()),
                    )
                };
                let (keys, values) = codes.split_at_mut(shape.key_len());
                let (key_scales, value_scales) = scales.split_at_mut(shape.key_scales());
                let (mut row, mut row_scales) =
                    ([0; HEAD_DIM_MAX], [0; HEAD_DIM_MAX / super::BLOCK]);
                quantise::to_q8(isa, key, &mut row[..head_dim], &mut row_scales[..blocks]);
                scatter(&row[..head_dim], offset, keys);
                scatter(&row_scales[..blocks], offset, key_scales);
                let value_scales = &mut value_scales[offset * blocks..][..blocks];
                quantise::to_q8(
                    isa,
                    value,
                    &mut values[offset * width..][..head_dim],
                    value_scales,
                );
            }
        }
    }
}

/// Puts a row into its lane of `[GROUPS, row.len(), LANES]`.
fn scatter<T: Copy>(row: &[T], offset: usize, keys: &mut [T]) {
    debug_assert_eq!(keys.len(), GROUPS * row.len() * LANES);
    let group = &mut keys[offset / LANES * row.len() * LANES..][..row.len() * LANES];
    for (lanes, x) in group.chunks_exact_mut(LANES).zip(row) {
        lanes[offset % LANES] = *x;
    }
}
