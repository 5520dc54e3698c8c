use super::*;
use crate::cpu::test_numbers::{bits, chunks, numbers};

/// A layer with weights of sane size, and a sequence to run through it.
struct Case {
    shape: DeltaShape,
    out_gate: OutGate,
    rows: usize,
    taps: Vec<f32>,
    decay: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    qkv: Vec<f32>,
    b: Vec<f32>,
    a: Vec<f32>,
    z: Vec<f32>,
}

#[derive(Debug, Clone, Copy)]
struct Way {
    isa: Isa,
    workers: usize,
    chunk: usize,
    fused: bool,
}

const PLAIN: Way = Way {
    isa: Isa::Avx512,
    workers: 1,
    chunk: usize::MAX,
    fused: false,
};

impl Case {
    fn new(
        key_heads: usize,
        value_heads: usize,
        key_dim: usize,
        value_dim: usize,
        head_map: HeadMap,
        rows: usize,
    ) -> Self {
        let shape = DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            head_map,
        };
        let channels = shape.channels();
        Self {
            shape,
            out_gate: if head_map == HeadMap::Tiled {
                OutGate::Silu
            } else {
                OutGate::Sigmoid
            },
            rows,
            taps: numbers(TAPS * channels, 1)
                .iter()
                .map(|x| x * 0.5)
                .collect(),
            // from slow to fast decay
            decay: numbers(value_heads, 2)
                .iter()
                .map(|x| -0.02 - x * x)
                .collect(),
            dt_bias: numbers(value_heads, 3),
            norm: numbers(value_dim, 4),
            qkv: numbers(rows * channels, 5),
            b: numbers(rows * value_heads, 6),
            a: numbers(rows * value_heads, 7),
            z: numbers(rows * value_heads * value_dim, 8),
        }
    }

    fn net(&self) -> DeltaNet<'_> {
        let Self {
            shape,
            taps,
            decay,
            dt_bias,
            norm,
            out_gate,
            ..
        } = self;
        DeltaNet {
            shape: *shape,
            taps,
            decay,
            dt_bias,
            norm,
            norm_eps: 1e-6,
            out_gate: *out_gate,
        }
    }

    /// `b` and `a` as one projection gives them, for key heads that serve consecutive value heads.
    fn fused(&self) -> Vec<f32> {
        let group = self.shape.group();
        let pairs = self.b.chunks(group).zip(self.a.chunks(group));
        pairs.flat_map(|(b, a)| [b, a].concat()).collect()
    }

    /// Runs rows `first ..` of the sequence.
    fn window(&self, run: &mut Run, first: usize, rows: usize, out: &mut [f32]) {
        let spans = [DeltaSpan {
            slot: Slot(1),
            first_row: 0,
            rows,
        }];
        let heads = self.shape.value_heads;
        let fused = self.fused();
        let strengths = if run.way.fused {
            Strengths::Fused(&fused[first * 2 * heads..])
        } else {
            Strengths::Separate {
                b: &self.b[first * heads..],
                a: &self.a[first * heads..],
            }
        };
        let width = heads * self.shape.value_dim;
        let window = DeltaRows {
            qkv: &self.qkv[first * self.shape.channels()..],
            strengths,
            z: &self.z[first * width..],
        };
        let Run {
            way,
            pool,
            states,
            scratch,
        } = run;
        self.net().run(
            pool,
            way.isa,
            0,
            &spans,
            &window,
            states,
            scratch,
            &mut out[first * width..],
        );
    }

    fn run(&self, way: Way) -> Vec<f32> {
        let mut run = Run::new(self.shape, way);
        let mut out = vec![f32::NAN; self.rows * self.shape.value_heads * self.shape.value_dim];
        for (first, rows) in chunks(self.rows, way.chunk) {
            self.window(&mut run, first, rows, &mut out);
        }
        out
    }

    /// The recurrence, row by row, in f64.
    fn reference(&self) -> Vec<f64> {
        let DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            head_map,
        } = self.shape;
        let channels = self.shape.channels();
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let convolved = |row: usize, channel: usize| {
            let seen = (0..TAPS).filter(|tap| row + tap + 1 >= TAPS);
            let product = |tap| {
                f64::from(self.taps[tap * channels + channel])
                    * f64::from(self.qkv[(row + tap + 1 - TAPS) * channels + channel])
            };
            silu(seen.map(product).sum())
        };
        let unit = |x: Vec<f64>| {
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x / length).collect::<Vec<f64>>()
        };
        let mut out = vec![0.0; self.rows * value_heads * value_dim];
        for head in 0..value_heads {
            let key_head = match head_map {
                HeadMap::Grouped => head / (value_heads / key_heads),
                HeadMap::Tiled => head % key_heads,
            };
            let mut s = vec![vec![0.0; value_dim]; key_dim];
            for row in 0..self.rows {
                let part = |from: usize, len: usize| {
                    (from..from + len)
                        .map(|channel| convolved(row, channel))
                        .collect::<Vec<_>>()
                };
                let q = unit(part(key_head * key_dim, key_dim))
                    .iter()
                    .map(|q| q / (key_dim as f64).sqrt())
                    .collect::<Vec<_>>();
                let k = unit(part((key_heads + key_head) * key_dim, key_dim));
                let v = part(2 * key_heads * key_dim + head * value_dim, value_dim);
                let at = row * value_heads + head;
                let beta = sigmoid(f64::from(self.b[at]));
                let step = (f64::from(self.a[at]) + f64::from(self.dt_bias[head]))
                    .exp()
                    .ln_1p();
                let kept = (f64::from(self.decay[head]) * step).exp();
                s.iter_mut().flatten().for_each(|s| *s *= kept);
                let read = |s: &[Vec<f64>], x: &[f64], d: usize| {
                    (0..key_dim).map(|c| s[c][d] * x[c]).sum::<f64>()
                };
                let delta: Vec<f64> = (0..value_dim)
                    .map(|d| beta * (v[d] - read(&s, &k, d)))
                    .collect();
                for c in 0..key_dim {
                    for d in 0..value_dim {
                        s[c][d] += k[c] * delta[d];
                    }
                }
                let o: Vec<f64> = (0..value_dim).map(|d| read(&s, &q, d)).collect();
                let rms = (o.iter().map(|o| o * o).sum::<f64>() / value_dim as f64 + 1e-6).sqrt();
                for d in 0..value_dim {
                    let z = f64::from(self.z[at * value_dim + d]);
                    let open = if self.out_gate == OutGate::Silu {
                        silu(z)
                    } else {
                        sigmoid(z)
                    };
                    out[at * value_dim + d] = o[d] / rms * f64::from(self.norm[d]) * open;
                }
            }
        }
        out
    }
}

struct Run {
    way: Way,
    pool: Pool,
    states: DeltaStates,
    scratch: DeltaScratch,
}

impl Run {
    fn new(shape: DeltaShape, way: Way) -> Self {
        let mut states = DeltaStates::new(shape, 1, 2);
        // what a former owner left behind
        states.spoil();
        Self {
            way,
            pool: Pool::unpinned(way.workers),
            states,
            scratch: DeltaScratch::new(&shape, way.workers),
        }
    }
}

/// Within 5e-5 of the recurrence in f64 (outputs are normalised to a root mean square of 1, times weights below 2), and the same bits every way.
fn check(case: &Case, ways: &[Way]) {
    let first = case.run(Way {
        chunk: case.rows,
        ..PLAIN
    });
    for (at, (got, want)) in first.iter().zip(case.reference()).enumerate() {
        assert!(
            (f64::from(*got) - want).abs() < 5e-5,
            "{:?} element {at}: {got} for {want}",
            case.shape
        );
    }
    for way in ways {
        assert!(
            bits(&case.run(*way)) == bits(&first),
            "{:?} {way:?}",
            case.shape
        );
    }
}

#[test]
fn every_shape_and_head_map() {
    for map in [HeadMap::Grouped, HeadMap::Tiled] {
        for (key_heads, value_heads, key_dim, value_dim) in [
            (2, 4, 64, 64),
            (1, 1, 128, 128),
            (2, 6, 16, 8),
            (3, 3, 8, 24),
        ] {
            let case = Case::new(key_heads, value_heads, key_dim, value_dim, map, 150);
            let fused = map == HeadMap::Grouped;
            check(
                &case,
                &[
                    Way {
                        chunk: 150,
                        fused,
                        ..PLAIN
                    },
                    Way {
                        chunk: 11,
                        workers: 2,
                        ..PLAIN
                    },
                ],
            );
        }
    }
}

#[test]
fn any_chunk_size_level_and_number_of_workers() {
    let case = Case::new(2, 4, 32, 32, HeadMap::Tiled, 203);
    let mut ways = Vec::new();
    for chunk in [1, 3, 17, 64, 71, 100, 203] {
        ways.extend(Isa::available().map(|isa| Way {
            isa,
            chunk,
            ..PLAIN
        }));
        ways.extend([2, 3].map(|workers| Way {
            workers,
            chunk,
            ..PLAIN
        }));
    }
    check(&case, &ways);
}

/// A state that forgets slowly is summed up over thousands of rows: in sixteen bits a state would be off by a hundred times as much as is allowed here.
#[test]
fn trap_19_states_do_not_drift() {
    let mut case = Case::new(1, 2, 16, 16, HeadMap::Grouped, 3000);
    case.decay.fill(-1e-3);
    check(&case, &[Way { chunk: 64, ..PLAIN }]);
}

/// Rows taken back and computed again, whatever was in their place, leave no trace.
fn check_cuts(windows: &[(usize, usize)]) {
    let total: usize = windows.iter().map(|(rows, cut)| rows - cut).sum();
    let mut case = Case::new(1, 2, 16, 16, HeadMap::Grouped, total + CUT_ROWS);
    let want = case.run(Way {
        chunk: case.rows,
        ..PLAIN
    });
    let mut run = Run::new(case.shape, PLAIN);
    let mut out = vec![f32::NAN; want.len()];
    let mut first = 0;
    for (rows, cut) in windows {
        // the rows that will be taken back are wrong ones
        let wrong =
            (first + rows - cut) * case.shape.channels()..(first + rows) * case.shape.channels();
        let right = case.qkv[wrong.clone()].to_vec();
        case.qkv[wrong.clone()]
            .iter_mut()
            .for_each(|x| *x = 1.5 - *x);
        case.window(&mut run, first, *rows, &mut out);
        case.qkv[wrong].copy_from_slice(&right);
        run.states.cut(Slot(1), *cut).unwrap();
        first += rows - cut;
    }
    let width = case.shape.value_heads * case.shape.value_dim;
    assert!(
        bits(&out[..first * width]) == bits(&want[..first * width]),
        "{windows:?}"
    );
}

#[test]
fn rows_taken_back_leave_no_trace() {
    check_cuts(&[(60, 0), (8, 7), (8, 4), (8, 8), (3, 1), (8, 0), (50, 2)]);
    check_cuts(&[
        (64, 1),
        (1, 0),
        (8, 8),
        (1, 1),
        (70, 8),
        (6, 6),
        (130, 7),
        (1, 0),
    ]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]
    #[test]
    fn any_windows_with_any_cuts(windows in proptest::collection::vec((1usize..80, 0usize..9), 1..12)) {
        check_cuts(&windows.iter().map(|(rows, cut)| (*rows, *cut.min(rows))).collect::<Vec<_>>());
    }
}

#[test]
fn slots_in_one_window_do_not_meet() {
    let case = Case::new(2, 4, 16, 16, HeadMap::Tiled, 90);
    let want = case.run(Way { chunk: 90, ..PLAIN });
    let two = Way {
        workers: 2,
        ..PLAIN
    };
    let mut run = Run::new(case.shape, two);
    let pool = Pool::unpinned(two.workers);
    let (channels, heads, width) = (case.shape.channels(), 4, 4 * 16);
    // slot 0 reads rows 50.. while slot 1 reads rows 0..40, which lie before them in the window
    let mut first = vec![0.0; want.len()];
    let spans = [DeltaSpan {
        slot: Slot(0),
        first_row: 0,
        rows: 50,
    }];
    let part = |rows: std::ops::Range<usize>| DeltaRows {
        qkv: &case.qkv[rows.start * channels..rows.end * channels],
        strengths: Strengths::Separate {
            b: &case.b[rows.start * heads..],
            a: &case.a[rows.start * heads..],
        },
        z: &case.z[rows.start * width..],
    };
    case.net().run(
        &pool,
        PLAIN.isa,
        0,
        &spans,
        &part(0..50),
        &mut run.states,
        &mut run.scratch,
        &mut first,
    );
    let spans = [
        DeltaSpan {
            slot: Slot(1),
            first_row: 0,
            rows: 50,
        },
        DeltaSpan {
            slot: Slot(0),
            first_row: 50,
            rows: 40,
        },
    ];
    let mut both = vec![0.0; want.len()];
    case.net().run(
        &pool,
        PLAIN.isa,
        0,
        &spans,
        &part(0..90),
        &mut run.states,
        &mut run.scratch,
        &mut both,
    );
    assert!(bits(&both) == bits(&want));
    assert_eq!(
        (
            run.states.position(Slot(0), 0),
            run.states.position(Slot(1), 0)
        ),
        (90, 50)
    );
    // and a slot that begins anew begins at zero
    run.states.reset(Slot(0));
    case.net().run(
        &pool,
        PLAIN.isa,
        0,
        &[DeltaSpan {
            slot: Slot(0),
            first_row: 0,
            rows: 90,
        }],
        &part(0..90),
        &mut run.states,
        &mut run.scratch,
        &mut both,
    );
    assert!(bits(&both) == bits(&want));
}

#[test]
fn taps_are_turned() {
    assert_eq!(
        taps_by_channel(&[0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]),
        [0.0, 10.0, 1.0, 11.0, 2.0, 12.0, 3.0, 13.0]
    );
}
