//! The paged KV cache: keys and values of every attention layer, a page of 64 positions at a time.
//!
//! Knows pages, layers and heads; knows no sequence, and not who owns a page. A page is addressed by its number, the positions inside
//! it by `position mod 64`. Taking rows back is moving an end, so nothing here does it: what is written at a position replaces
//! what was there, and no reader looks past its own position.
//!
//! One (page, layer, KV head) is laid out so that attention reads vectors in order:
//!
//! | part | f16 (f32 likewise) | q8_0 |
//! | --- | --- | --- |
//! | keys | `[4 groups, head_dim, 16 positions] f16` | the same `i8`, and scales `[4, blocks, 16 positions] f16` |
//! | values | `[64 positions, head_dim up to 16s] f16` | the same `i8`, and scales `[64, blocks] f16` |
//!
//! A block is 32 channels of one position. Keys have positions in lanes, so a score needs no sum across lanes.

mod cells;
mod quantise;
mod write;

pub use crate::backend::shape::KvType;
pub(crate) use cells::{Cells, F16Cells, F32Cells, Q8Cells};

use super::{math::lanes::LANES, zeroed::Zeroed};
use crate::engine::executor::{PAGE_TOKENS, PageId};

/// Channels that share a scale in q8_0.
pub(crate) const BLOCK: usize = 32;

/// Groups of [`LANES`] positions in a page.
pub(crate) const GROUPS: usize = PAGE_TOKENS / LANES;

/// How many of what a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Attention layers, counted without the other layers.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Channels of a head, of keys and of values.
    pub head_dim: usize,
}

/// Consecutive rows of one sequence, and where its cache is.
#[derive(Clone, Copy, Debug)]
pub struct KvSpan<'a> {
    /// The span's first row among the window's.
    pub first_row: usize,
    /// Rows, at least one.
    pub rows: usize,
    /// Position of the first row.
    pub first: u32,
    /// The sequence's pages, page `i` for positions `64 i ..`, up to the last row's at least.
    pub pages: &'a [PageId],
}

impl KvSpan<'_> {
    /// Position of the last row.
    pub fn last(&self) -> usize {
        self.first as usize + self.rows - 1
    }
}

/// Keys and values of all pages.
#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    store: Store,
}

#[derive(Debug)]
enum Store {
    F32(Zeroed<f32>),
    F16(Zeroed<u16>),
    Q8 {
        codes: Zeroed<i8>,
        scales: Zeroed<u16>,
    },
}

impl KvShape {
    /// Bytes of one page, all layers.
    pub fn page_bytes(&self, kind: KvType) -> usize {
        let cells = self.key_len() + self.value_len();
        let scales = self.key_scales() + self.value_scales();
        let head = match kind {
            KvType::F32 => 4 * cells,
            KvType::F16 => 2 * cells,
            KvType::Q8_0 => cells + 2 * scales,
        };
        self.layers * self.kv_heads * head
    }

    /// Channels of a value as stored: whole vectors.
    pub(crate) fn value_width(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Elements of one head's keys in a page.
    fn key_len(&self) -> usize {
        PAGE_TOKENS * self.head_dim
    }

    /// Elements of one head's values in a page.
    fn value_len(&self) -> usize {
        PAGE_TOKENS * self.value_width()
    }

    fn blocks(&self) -> usize {
        self.head_dim.div_ceil(BLOCK)
    }

    fn key_scales(&self) -> usize {
        PAGE_TOKENS * self.blocks()
    }

    fn value_scales(&self) -> usize {
        PAGE_TOKENS * self.blocks()
    }

    /// Number of (page, layer, head) among all.
    fn unit(&self, page: PageId, layer: usize, head: usize) -> usize {
        assert!(
            layer < self.layers && head < self.kv_heads,
            "layer {layer}, head {head} of {self:?}"
        );
        (page.0 as usize * self.layers + layer) * self.kv_heads + head
    }
}

impl KvCache {
    /// A cache of `pages` empty pages. Memory is taken when pages are first written.
    pub fn new(shape: KvShape, kind: KvType, pages: usize) -> Self {
        let units = pages * shape.layers * shape.kv_heads;
        let cells = units * (shape.key_len() + shape.value_len());
        let store = match kind {
            KvType::F32 => Store::F32(Zeroed::f32(cells)),
            KvType::F16 => Store::F16(Zeroed::u16(cells)),
            KvType::Q8_0 => Store::Q8 {
                codes: Zeroed::i8(cells),
                scales: Zeroed::u16(units * (shape.key_scales() + shape.value_scales())),
            },
        };
        Self { shape, store }
    }

    /// What it was made for.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// How its elements are stored.
    pub fn kind(&self) -> KvType {
        match self.store {
            Store::F32(_) => KvType::F32,
            Store::F16(_) => KvType::F16,
            Store::Q8 { .. } => KvType::Q8_0,
        }
    }
}

#[cfg(test)]
mod tests;
