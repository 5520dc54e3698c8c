use super::*;
use crate::{
    cpu::{
        kv::{KvShape, KvType},
        test_numbers::{bits, chunks, numbers},
    },
    engine::executor::{PAGE_TOKENS, PageId},
};

/// One layer of one sequence, computed several ways.
struct Case {
    shape: AttentionShape,
    kind: KvType,
    positions: usize,
    gated: bool,
    /// Whether heads have sinks.
    sunk: bool,
}

/// How a case is computed.
#[derive(Debug, Clone, Copy)]
struct Way {
    isa: Isa,
    workers: usize,
    chunk: usize,
    partial_bytes: usize,
}

impl Case {
    fn inputs(&self) -> [Vec<f32>; 4] {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let rows = |heads, seed| numbers(self.positions * heads * head_dim, seed);
        [
            rows(heads, 1),
            rows(kv_heads, 2),
            rows(kv_heads, 3),
            rows(heads, 4),
        ]
    }

    fn sinks(&self) -> Option<Vec<f32>> {
        self.sunk.then(|| numbers(self.shape.heads, 5))
    }

    /// Query and gate lie side by side in a row, head by head, as some models project them.
    fn projected(&self, query: &[f32], gate: &[f32]) -> Vec<f32> {
        let heads = query
            .chunks(self.shape.head_dim)
            .zip(gate.chunks(self.shape.head_dim));
        heads
            .flat_map(|(query, gate)| [query, gate].concat())
            .collect()
    }

    fn run(&self, way: Way) -> Vec<f32> {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let [query, keys, values, gate] = self.inputs();
        let projected = self.projected(&query, &gate);
        let part = |offset| HeadRows {
            data: &projected,
            row: 2 * heads * head_dim,
            head: 2 * head_dim,
            offset,
        };
        let pool = Pool::unpinned(way.workers);
        // another layer and scattered pages, so that addressing matters
        let pages: Vec<PageId> = (0..self.positions.div_ceil(PAGE_TOKENS))
            .map(|page| PageId(page as u32 * 7 % 101))
            .collect();
        let mut cache = KvCache::new(
            KvShape {
                layers: 2,
                kv_heads,
                head_dim,
            },
            self.kind,
            101,
        );
        let mut scratch = AttentionScratch::new(self.shape, way.workers, way.partial_bytes);
        let sinks = self.sinks();
        let mut out = vec![f32::NAN; self.positions * heads * head_dim];
        for (first, rows) in chunks(self.positions, way.chunk) {
            let spans = [KvSpan {
                first_row: 0,
                rows,
                first: first as u32,
                pages: &pages,
            }];
            let at = first * kv_heads * head_dim;
            cache.write(&pool, way.isa, 1, &spans, &keys[at..], &values[at..]);
            let query = HeadRows {
                data: &projected[first * 2 * heads * head_dim..],
                ..part(0)
            };
            let gate = HeadRows {
                data: query.data,
                ..part(head_dim)
            };
            let gate = self.gated.then_some(gate);
            let attention = Attention {
                shape: self.shape,
                layer: 1,
                spans: &spans,
                query,
                gate,
                sinks: sinks.as_deref(),
                selected: None,
                cache: &cache,
            };
            attention.run(
                &pool,
                way.isa,
                &mut scratch,
                &mut out[first * heads * head_dim..],
            );
        }
        out
    }

    /// Softmax over all positions that the row sees, in f64, from the numbers as the cache rounds them.
    fn reference(&self) -> Vec<f64> {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale,
            window,
        } = self.shape;
        let [query, keys, values, gate] = self.inputs();
        let stored = |rows: &[f32]| {
            rows.chunks(head_dim)
                .flat_map(|head| stored(self.kind, head))
                .collect::<Vec<f64>>()
        };
        let (keys, values) = (stored(&keys), stored(&values));
        let sinks = self.sinks();
        let mut out = Vec::new();
        for row in 0..self.positions {
            let from = window.map_or(0, |window| (row + 1).saturating_sub(window));
            for head in 0..heads {
                let kv =
                    |position: usize| (position * kv_heads + head / (heads / kv_heads)) * head_dim;
                let at = (row * heads + head) * head_dim;
                let dot = |key: &[f64]| {
                    key.iter()
                        .zip(&query[at..])
                        .map(|(k, q)| k * f64::from(*q))
                        .sum::<f64>()
                };
                let scores: Vec<f64> = (from..=row)
                    .map(|position| dot(&keys[kv(position)..][..head_dim]) * f64::from(scale))
                    .collect();
                let greatest = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores
                    .iter()
                    .map(|score| (score - greatest).exp())
                    .collect();
                let mut total: f64 = weights.iter().sum();
                if let Some(sinks) = &sinks {
                    total += (f64::from(sinks[head]) - greatest).exp();
                }
                for channel in 0..head_dim {
                    let sum: f64 = weights
                        .iter()
                        .enumerate()
                        .map(|(at, weight)| weight * values[kv(from + at) + channel])
                        .sum();
                    let open = 1.0 / (1.0 + (-f64::from(gate[at + channel])).exp());
                    out.push(sum / total * if self.gated { open } else { 1.0 });
                }
            }
        }
        out
    }
}

/// A head's row as the documentation says it is stored.
fn stored(kind: KvType, head: &[f32]) -> Vec<f64> {
    match kind {
        KvType::F32 => head.iter().map(|x| f64::from(*x)).collect(),
        KvType::F16 => head
            .iter()
            .map(|x| half::f16::from_f32(*x).to_f64())
            .collect(),
        KvType::Q8_0 => head
            .chunks(32)
            .flat_map(|block| {
                let greatest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let d = half::f16::from_f32(greatest / 127.0).to_f64();
                block
                    .iter()
                    .map(move |x| (f64::from(*x) / d).round_ties_even().clamp(-127.0, 127.0) * d)
                    .collect::<Vec<_>>()
            })
            .collect(),
    }
}

const PLAIN: Way = Way {
    isa: Isa::Avx512,
    workers: 1,
    chunk: usize::MAX,
    partial_bytes: 0,
};

/// Right against f64 (absolute 4e-6; values are below 2), and the same bits every way.
fn check(case: &Case, ways: &[Way]) {
    let first = case.run(Way {
        chunk: case.positions,
        ..PLAIN
    });
    // q8_0: where x/d is a tie but for rounding, the f32 code may be the other neighbour
    let bound = if case.kind == KvType::F16 { 4e-6 } else { 2e-3 };
    for (got, want) in first.iter().zip(case.reference()) {
        assert!(
            (f64::from(*got) - want).abs() < bound,
            "{:?} {:?}: {got} for {want}",
            case.shape,
            case.kind
        );
    }
    for way in ways {
        assert!(
            bits(&case.run(*way)) == bits(&first),
            "{:?} {:?} {way:?}",
            case.shape,
            case.kind
        );
    }
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        heads,
        kv_heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        window: None,
    }
}

fn ways(chunks: &[usize], workers: &[usize], partials: &[usize]) -> Vec<Way> {
    let mut ways = Vec::new();
    for chunk in chunks {
        ways.extend(Isa::available().map(|isa| Way {
            isa,
            chunk: *chunk,
            ..PLAIN
        }));
        for workers in workers {
            ways.extend(partials.iter().map(|bytes| Way {
                workers: *workers,
                chunk: *chunk,
                partial_bytes: *bytes,
                ..PLAIN
            }));
        }
    }
    ways
}

#[test]
fn every_head_shape_and_type() {
    for (heads, kv_heads, head_dim) in [
        (4, 2, 64),
        (8, 1, 80),
        (6, 6, 128),
        (16, 2, 256),
        (3, 1, 8),
        (5, 5, 72),
        (12, 4, 96),
    ] {
        for (kind, gated) in [
            (KvType::F32, false),
            (KvType::F16, false),
            (KvType::F16, true),
            (KvType::Q8_0, false),
        ] {
            let case = Case {
                shape: shape(heads, kv_heads, head_dim),
                kind,
                positions: 70,
                gated,
                sunk: gated,
            };
            check(&case, &ways(&[17, 70], &[2], &[0]));
        }
    }
}

#[test]
fn any_chunk_size_and_any_number_of_workers() {
    let case = Case {
        shape: shape(4, 2, 64),
        kind: KvType::F16,
        positions: 203,
        gated: true,
        sunk: false,
    };
    check(&case, &ways(&[1, 3, 17, 64, 100, 203], &[1, 2, 3], &[0]));
}

#[test]
fn segments_shared_out_or_not() {
    // the last rows are in the third segment; one row at a time would take too long, so the chunks are long
    for kind in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let case = Case {
            shape: shape(2, 1, 16),
            kind,
            positions: 2 * SEGMENT + 70,
            gated: false,
            sunk: false,
        };
        check(&case, &ways(&[1000, 2100], &[1, 2, 3], &[0, 1 << 22]));
        let tail = Way {
            workers: 3,
            chunk: 37,
            partial_bytes: 1 << 22,
            ..PLAIN
        };
        check(&case, &[tail]);
    }
}

/// Windows that end inside a page, span pages or segments, or are longer than the sequence.
#[test]
fn windows_and_sinks() {
    for (window, positions) in [(1, 70), (8, 150), (64, 203), (100, 203), (500, 203)] {
        let case = Case {
            shape: AttentionShape {
                window: Some(window),
                ..shape(8, 2, 16)
            },
            kind: KvType::F16,
            positions,
            gated: false,
            sunk: true,
        };
        check(&case, &ways(&[1, 3, 17, 203], &[1, 3], &[0, 1 << 22]));
    }
    let long = Case {
        shape: AttentionShape {
            window: Some(90),
            ..shape(2, 1, 16)
        },
        kind: KvType::F32,
        positions: 2 * SEGMENT + 70,
        gated: false,
        sunk: true,
    };
    check(&long, &ways(&[37, 1000, 2100], &[1, 3], &[0, 1 << 22]));
}

#[test]
fn several_spans_in_a_window() {
    let case = Case {
        shape: shape(4, 2, 32),
        kind: KvType::F16,
        positions: 90,
        gated: false,
        sunk: false,
    };
    let AttentionShape {
        heads,
        kv_heads,
        head_dim,
        ..
    } = case.shape;
    let alone = case.run(Way { chunk: 90, ..PLAIN });
    let [query, keys, values, _] = case.inputs();
    let pool = Pool::unpinned(2);
    let mut cache = KvCache::new(
        KvShape {
            layers: 1,
            kv_heads,
            head_dim,
        },
        KvType::F16,
        4,
    );
    let mut scratch = AttentionScratch::new(case.shape, 2, 0);
    // two sequences with the same contents, the second 50 rows behind, in the same windows
    let (ahead, behind) = ([PageId(3), PageId(0)], [PageId(1), PageId(2)]);
    let rows = |all: &[f32], width: usize, from: usize, rows: usize| {
        all[from * width..(from + rows) * width].to_vec()
    };
    for (first, later) in [(0..50, None), (50..90, Some(0..50)), (0..0, Some(50..90))] {
        let mut spans = vec![];
        let mut window = [vec![], vec![], vec![]];
        let mut want = vec![];
        for (range, pages) in [(Some(first), &ahead), (later, &behind)] {
            let Some(range) = range.filter(|range| !range.is_empty()) else {
                continue;
            };
            let first_row = spans.iter().map(|span: &KvSpan<'_>| span.rows).sum();
            spans.push(KvSpan {
                first_row,
                rows: range.len(),
                first: range.start as u32,
                pages,
            });
            for ((window, all), heads) in window
                .iter_mut()
                .zip([&query, &keys, &values])
                .zip([heads, kv_heads, kv_heads])
            {
                window.extend(rows(all, heads * head_dim, range.start, range.len()));
            }
            want.extend(rows(&alone, heads * head_dim, range.start, range.len()));
        }
        cache.write(&pool, Isa::detect(), 0, &spans, &window[1], &window[2]);
        let query = HeadRows::packed(&window[0], heads, head_dim);
        let attention = Attention {
            shape: case.shape,
            layer: 0,
            spans: &spans,
            query,
            gate: None,
            sinks: None,
            selected: None,
            cache: &cache,
        };
        let mut out = vec![0.0; want.len()];
        attention.run(&pool, Isa::detect(), &mut scratch, &mut out);
        assert!(bits(&out) == bits(&want));
    }
}
