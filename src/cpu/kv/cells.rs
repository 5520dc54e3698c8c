//! Reading a page: panels of keys and of values, for each way of storing them.

use super::{BLOCK, KvCache, KvShape, Store};
use crate::{
    cpu::{
        math::lanes::{LANES, Lanes},
        tile::{Panel, chunk, strides_hold},
    },
    engine::executor::{PAGE_TOKENS, PageId},
};

/// How a cache's elements are read.
pub(crate) trait Cells {
    /// Steps are channels, vectors are groups of 16 positions.
    type Keys<'a>: Panel;
    /// Steps are positions, vectors are groups of 16 channels.
    type Values<'a>: Panel;

    /// Keys and values of one (page, layer, KV head).
    ///
    /// **Panics** if the cache has no such page, or stores its elements otherwise.
    fn page(
        cache: &KvCache,
        page: PageId,
        layer: usize,
        head: usize,
    ) -> (Self::Keys<'_>, Self::Values<'_>);
}

/// [`KvType::F32`](super::KvType::F32).
pub(crate) struct F32Cells;

/// [`KvType::F16`](super::KvType::F16).
pub(crate) struct F16Cells;

/// [`KvType::Q8_0`](super::KvType::Q8_0).
pub(crate) struct Q8Cells;

/// Elements with strides, a word each.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a, T> {
    data: &'a [T],
    step: usize,
    vector: usize,
}

/// Bytes `[groups, head_dim, 16]` with scales `[groups, blocks, 16] f16`.
#[derive(Clone, Copy)]
pub(crate) struct Q8Keys<'a> {
    codes: &'a [i8],
    scales: &'a [u16],
    head_dim: usize,
    blocks: usize,
}

/// Bytes `[64, width]` with scales `[64, blocks] f16`.
#[derive(Clone, Copy)]
pub(crate) struct Q8Values<'a> {
    codes: &'a [i8],
    scales: &'a [u16],
    width: usize,
    blocks: usize,
}

impl Cells for F32Cells {
    type Keys<'a> = Words<'a, f32>;
    type Values<'a> = Words<'a, f32>;

    fn page(
        cache: &KvCache,
        page: PageId,
        layer: usize,
        head: usize,
    ) -> (Words<'_, f32>, Words<'_, f32>) {
        let Store::F32(data) = &cache.store else {
            unreachable!("asked for f32 of {:?}", cache.kind())
        };
        words(data, &cache.shape, page, layer, head)
    }
}

impl Cells for F16Cells {
    type Keys<'a> = Words<'a, u16>;
    type Values<'a> = Words<'a, u16>;

    fn page(
        cache: &KvCache,
        page: PageId,
        layer: usize,
        head: usize,
    ) -> (Words<'_, u16>, Words<'_, u16>) {
        let Store::F16(data) = &cache.store else {
            unreachable!("asked for f16 of {:?}", cache.kind())
        };
        words(data, &cache.shape, page, layer, head)
    }
}

/// Keys and values of one (page, layer, KV head) that are stored an element a word.
fn words<'a, T>(
    data: &'a [T],
    shape: &KvShape,
    page: PageId,
    layer: usize,
    head: usize,
) -> (Words<'a, T>, Words<'a, T>) {
    let number = shape.unit(page, layer, head);
    let (keys, values) = unit(data, shape, number, shape.key_len(), shape.value_len());
    (
        Words {
            data: keys,
            step: LANES,
            vector: LANES * shape.head_dim,
        },
        Words {
            data: values,
            step: shape.value_width(),
            vector: LANES,
        },
    )
}

impl Cells for Q8Cells {
    type Keys<'a> = Q8Keys<'a>;
    type Values<'a> = Q8Values<'a>;

    fn page(
        cache: &KvCache,
        page: PageId,
        layer: usize,
        head: usize,
    ) -> (Q8Keys<'_>, Q8Values<'_>) {
        let Store::Q8 { codes, scales } = &cache.store else {
            unreachable!("asked for q8_0 of {:?}", cache.kind())
        };
        let shape = &cache.shape;
        let number = shape.unit(page, layer, head);
        let (keys, values) = unit(codes, shape, number, shape.key_len(), shape.value_len());
        let (key_scales, value_scales) = unit(
            scales,
            shape,
            number,
            shape.key_scales(),
            shape.value_scales(),
        );
        let (head_dim, width, blocks) = (shape.head_dim, shape.value_width(), shape.blocks());
        (
            Q8Keys {
                codes: keys,
                scales: key_scales,
                head_dim,
                blocks,
            },
            Q8Values {
                codes: values,
                scales: value_scales,
                width,
                blocks,
            },
        )
    }
}

/// The two parts of unit `number`.
fn unit<'a, T>(
    data: &'a [T],
    shape: &KvShape,
    number: usize,
    keys: usize,
    values: usize,
) -> (&'a [T], &'a [T]) {
    let start = number * (keys + values);
    assert!(
        start + keys + values <= data.len(),
        "page outside the cache of {shape:?}"
    );
    data[start..start + keys + values].split_at(keys)
}

impl Panel for Words<'_, f32> {
    fn holds(&self, steps: usize, vectors: usize) -> bool {
        strides_hold(self.data.len(), (self.step, steps), (self.vector, vectors))
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, step: usize, vector: usize) -> L {
        // SAFETY: inside the storage by the caller's promise.
        L::load(unsafe { chunk(self.data, step * self.step + vector * self.vector) })
    }
}

impl Panel for Words<'_, u16> {
    fn holds(&self, steps: usize, vectors: usize) -> bool {
        strides_hold(self.data.len(), (self.step, steps), (self.vector, vectors))
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, step: usize, vector: usize) -> L {
        // SAFETY: inside the storage by the caller's promise.
        L::load_f16(unsafe { chunk(self.data, step * self.step + vector * self.vector) })
    }
}

impl Panel for Q8Keys<'_> {
    fn holds(&self, steps: usize, vectors: usize) -> bool {
        steps <= self.head_dim
            && strides_hold(
                self.codes.len(),
                (LANES, steps),
                (LANES * self.head_dim, vectors),
            )
            && strides_hold(
                self.scales.len(),
                (LANES, steps.div_ceil(BLOCK)),
                (LANES * self.blocks, vectors),
            )
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, step: usize, vector: usize) -> L {
        // SAFETY: inside the storage by the caller's promise.
        let codes = unsafe { chunk(self.codes, (vector * self.head_dim + step) * LANES) };
        // SAFETY: as above; a step's block exists if the step does.
        let scales = unsafe { chunk(self.scales, (vector * self.blocks + step / BLOCK) * LANES) };
        L::load_i8(codes) * L::load_f16(scales)
    }
}

impl Panel for Q8Values<'_> {
    fn holds(&self, steps: usize, vectors: usize) -> bool {
        steps <= PAGE_TOKENS
            && vectors * LANES <= self.width
            && strides_hold(self.codes.len(), (self.width, steps), (LANES, vectors))
            && self.scales.len() >= steps * self.blocks
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, step: usize, vector: usize) -> L {
        // SAFETY: inside the storage by the caller's promise.
        let codes = unsafe { chunk(self.codes, step * self.width + vector * LANES) };
        // SAFETY: as above; a vector's block exists if the vector does.
        let scale = unsafe {
            *self
                .scales
                .get_unchecked(step * self.blocks + vector * LANES / BLOCK)
        };
        L::load_i8(codes) * L::splat_f16(scale)
    }
}
