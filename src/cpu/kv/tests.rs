use super::*;
use crate::cpu::{
    isa::Isa,
    math::lanes::{Lanes, Portable},
    pool::Pool,
    test_numbers::numbers,
    tile::Panel,
};

/// Writes rows at awkward places and reads every element back through the panels.
fn check(kind: KvType, head_dim: usize, bound: f32) {
    let shape = KvShape {
        layers: 3,
        kv_heads: 2,
        head_dim,
    };
    let mut cache = KvCache::new(shape, kind, 3);
    let pages = [PageId(2), PageId(0)];
    let width = shape.kv_heads * head_dim;
    let (keys, values) = (numbers(100 * width, 1), numbers(100 * width, 2));
    let spans = [KvSpan {
        first_row: 0,
        rows: 100,
        first: 13,
        pages: &pages,
    }];
    cache.write(&Pool::unpinned(2), Isa::detect(), 1, &spans, &keys, &values);
    for row in 0..100 {
        let position = 13 + row;
        for head in 0..2 {
            for channel in 0..head_dim {
                let (key, value) = read(
                    &cache,
                    pages[position / 64],
                    1,
                    head,
                    position % 64,
                    channel,
                );
                let at = row * width + head * head_dim + channel;
                assert!(
                    (key - keys[at]).abs() <= bound,
                    "{kind:?} {head_dim}: {key} for {}",
                    keys[at]
                );
                assert!(
                    (value - values[at]).abs() <= bound,
                    "{kind:?} {head_dim}: {value} for {}",
                    values[at]
                );
            }
        }
    }
    // nothing else was written
    let untouched = [
        (pages[0], 1, 12),
        (pages[1], 1, 49),
        (PageId(1), 1, 20),
        (pages[0], 0, 20),
        (pages[0], 2, 20),
    ];
    for (page, layer, position) in untouched {
        for channel in 0..head_dim {
            assert_eq!(read(&cache, page, layer, 1, position, channel), (0.0, 0.0));
        }
    }
}

fn read(
    cache: &KvCache,
    page: PageId,
    layer: usize,
    head: usize,
    offset: usize,
    channel: usize,
) -> (f32, f32) {
    fn of<C: Cells>(
        cache: &KvCache,
        page: PageId,
        layer: usize,
        head: usize,
        offset: usize,
        channel: usize,
    ) -> (f32, f32) {
        let (keys, values) = C::page(cache, page, layer, head);
        assert!(
            keys.holds(channel + 1, offset / 16 + 1) && values.holds(offset + 1, channel / 16 + 1)
        );
        let (mut key, mut value) = ([0.0; 16], [0.0; 16]);
        // SAFETY: checked just above.
        unsafe { keys.load::<Portable>(channel, offset / 16) }.store(&mut key);
        // SAFETY: as above.
        unsafe { values.load::<Portable>(offset, channel / 16) }.store(&mut value);
        (key[offset % 16], value[channel % 16])
    }
    match cache.kind() {
        KvType::F32 => of::<F32Cells>(cache, page, layer, head, offset, channel),
        KvType::F16 => of::<F16Cells>(cache, page, layer, head, offset, channel),
        KvType::Q8_0 => of::<Q8Cells>(cache, page, layer, head, offset, channel),
    }
}

#[test]
fn what_is_written_is_read() {
    for head_dim in [8, 64, 72, 80, 128, 256] {
        // half a unit in the last place below 2; half a step of 2/127
        check(KvType::F32, head_dim, 0.0);
        check(KvType::F16, head_dim, 0.0005);
        check(KvType::Q8_0, head_dim, 0.0081);
    }
}

#[test]
fn page_bytes_are_what_a_page_takes() {
    let shape = KvShape {
        layers: 48,
        kv_heads: 4,
        head_dim: 128,
    };
    assert_eq!(shape.page_bytes(KvType::F16), 48 * 4 * 2 * 64 * 128 * 2);
    assert_eq!(
        shape.page_bytes(KvType::Q8_0),
        48 * 4 * 2 * 64 * (128 + 4 * 2)
    );
}

#[test]
fn extreme_numbers_are_stored_as_finite_ones() {
    let shape = KvShape {
        layers: 1,
        kv_heads: 1,
        head_dim: 32,
    };
    for kind in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let mut cache = KvCache::new(shape, kind, 1);
        let row: Vec<f32> = numbers(32, 5).iter().map(|x| x * 1e9).collect();
        let spans = [KvSpan {
            first_row: 0,
            rows: 1,
            first: 0,
            pages: &[PageId(0)],
        }];
        cache.write(
            &Pool::unpinned(1),
            Isa::detect(),
            0,
            &spans,
            &row,
            &[0.0; 32],
        );
        for (channel, x) in row.iter().enumerate() {
            let (key, value) = read(&cache, PageId(0), 0, 0, 0, channel);
            assert!(
                key.is_finite() && key.signum() == x.signum() && value == 0.0,
                "{kind:?}: {key} for {x}"
            );
        }
    }
}

#[test]
#[should_panic(expected = "a page in two spans")]
fn two_spans_cannot_write_one_page() {
    let mut cache = KvCache::new(
        KvShape {
            layers: 1,
            kv_heads: 1,
            head_dim: 8,
        },
        KvType::F16,
        1,
    );
    let span = KvSpan {
        first_row: 0,
        rows: 1,
        first: 0,
        pages: &[PageId(0)],
    };
    cache.write(
        &Pool::unpinned(1),
        Isa::detect(),
        0,
        &[span, span],
        &[0.0; 16],
        &[0.0; 16],
    );
}
