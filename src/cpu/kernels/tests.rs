//! Kernels against scalar references that share no code with them: blocks are decoded by [`crate::quant`], sums are taken one
//! product at a time, and the canonical chains are spelled out.

use super::acts::{ActKind, Acts};
use super::{KernelScratch, Matmul, OutRows, matmul};
use crate::cpu::isa::Isa;
use crate::quant::{self, Block, BlockType, dequantise};

/// Deterministic noise.
struct Noise(u64);

impl Noise {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| (self.word() as i32 >> 8) as f32 / 1e6)
            .collect()
    }

    /// Rows whose scales are finite and of a sane size.
    fn weights(&mut self, ty: BlockType, rows: usize, k: usize) -> Vec<u8> {
        let mut bytes = self.bytes(rows * ty.row_bytes(k).expect("whole blocks"));
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            for &at in halves(ty) {
                let scale = half::f16::from_f32((self.word() as i8) as f32 / 500.0);
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
            match ty {
                BlockType::MXFP4 => block[0] = 118 + block[0] % 8,
                BlockType::IQ1_M => block[55] &= 0xbf,
                BlockType::BF16 | BlockType::F16 => block[1] &= 0xbf,
                BlockType::F32 => block[3] = 0x3f,
                _ => {}
            }
        }
        bytes
    }
}

/// Where a block keeps half floats.
fn halves(ty: BlockType) -> &'static [usize] {
    use BlockType as T;
    match ty {
        T::Q4_1 | T::Q5_1 | T::Q4_K | T::Q5_K => &[0, 2],
        T::Q2_K => &[80, 82],
        T::Q3_K => &[108],
        T::Q6_K => &[208],
        T::TQ1_0 => &[52],
        T::TQ2_0 => &[64],
        T::F32 | T::F16 | T::BF16 | T::MXFP4 | T::NVFP4 | T::IQ1_M => &[],
        _ => &[0],
    }
}

/// One dot product in canonical arithmetic. `codes` and `scales` of the activations as quantised.
fn canonical<B, const BYTES: usize, const VALUES: usize, const GROUPS: usize>(
    row: &[u8],
    codes: &[i8],
    scales: &[f32],
) -> f32
where
    B: Block<BYTES, VALUES, GROUPS>,
{
    let chains = if VALUES == 256 { 1 } else { 8 };
    let (mut main, mut least) = ([0f32; 8], [0f32; 8]);
    for (b, block) in row.as_chunks::<BYTES>().0.iter().enumerate() {
        let block = B::unpack(block);
        let acts = &codes[b * VALUES..][..VALUES];
        let (mut sum, mut minima) = (0i64, 0i64);
        for (e, act) in acts.iter().enumerate() {
            let group = e / (VALUES / GROUPS);
            sum += i64::from(block.scales[group]) * i64::from(block.codes[e]) * i64::from(*act);
            minima += i64::from(block.mins[group]) * i64::from(*act);
        }
        let (sum, minima) = (
            i32::try_from(sum).expect("fits"),
            i32::try_from(minima).expect("fits"),
        );
        main[b % chains] = (block.d * scales[b]).mul_add(sum as f32, main[b % chains]);
        least[b % chains] = (block.dmin * scales[b]).mul_add(minima as f32, least[b % chains]);
    }
    let join = |c: [f32; 8]| ((c[0] + c[4]) + (c[2] + c[6])) + ((c[1] + c[5]) + (c[3] + c[7]));
    if chains == 1 {
        main[0] - least[0]
    } else {
        join(main) - join(least)
    }
}

type Canonical = fn(&[u8], &[i8], &[f32]) -> f32;

/// The types with integer kernels, each with its reference.
const INTEGER: &[(BlockType, Canonical)] = &[
    (BlockType::Q4_0, canonical::<quant::Q4_0, _, _, _>),
    (BlockType::Q4_1, canonical::<quant::Q4_1, _, _, _>),
    (BlockType::Q5_0, canonical::<quant::Q5_0, _, _, _>),
    (BlockType::Q5_1, canonical::<quant::Q5_1, _, _, _>),
    (BlockType::Q8_0, canonical::<quant::Q8_0, _, _, _>),
    (BlockType::IQ4_NL, canonical::<quant::Iq4Nl, _, _, _>),
    (BlockType::MXFP4, canonical::<quant::Mxfp4, _, _, _>),
    (BlockType::Q2_K, canonical::<quant::Q2K, _, _, _>),
    (BlockType::Q3_K, canonical::<quant::Q3K, _, _, _>),
    (BlockType::Q4_K, canonical::<quant::Q4K, _, _, _>),
    (BlockType::Q5_K, canonical::<quant::Q5K, _, _, _>),
    (BlockType::Q6_K, canonical::<quant::Q6K, _, _, _>),
    (BlockType::IQ4_XS, canonical::<quant::Iq4Xs, _, _, _>),
    (BlockType::IQ3_XXS, canonical::<quant::Iq3Xxs, _, _, _>),
    (BlockType::IQ3_S, canonical::<quant::Iq3S, _, _, _>),
    (BlockType::IQ2_XXS, canonical::<quant::Iq2Xxs, _, _, _>),
    (BlockType::IQ2_XS, canonical::<quant::Iq2Xs, _, _, _>),
    (BlockType::IQ2_S, canonical::<quant::Iq2S, _, _, _>),
];

/// The types that are multiplied as floats.
const FLOAT: &[BlockType] = &[
    BlockType::F32,
    BlockType::F16,
    BlockType::BF16,
    BlockType::IQ1_S,
    BlockType::IQ1_M,
    BlockType::TQ1_0,
    BlockType::TQ2_0,
    BlockType::NVFP4,
    BlockType::Q1_0,
    BlockType::Q2_0,
];

/// Sixteen chains, joined by halves.
fn canonical_float(weights: &[f32], acts: &[f32]) -> f32 {
    let mut chains = [0f32; 16];
    let whole = weights.len().next_multiple_of(16);
    for i in 0..whole {
        let (w, a) = (weights.get(i).unwrap_or(&0.0), acts.get(i).unwrap_or(&0.0));
        chains[i % 16] = w.mul_add(*a, chains[i % 16]);
    }
    let mut half = 8;
    while half > 0 {
        for i in 0..half {
            chains[i] += chains[i + half];
        }
        half /= 2;
    }
    chains[0]
}

/// The codes and scales of a quantised row.
fn quantised(acts: &Acts, row: usize) -> (Vec<i8>, Vec<f32>) {
    let units = acts.units(row);
    let codes = units
        .iter()
        .flat_map(|unit| unit.codes)
        .flat_map(|word| word.to_le_bytes().map(|byte| byte as i8));
    let scales = units.iter().flat_map(|unit| match acts.kind() {
        ActKind::Blocks32 => (0..8).map(|b| unit.scale32(b)).collect(),
        _ => vec![unit.scale],
    });
    (codes.collect(), scales.collect())
}

fn acts(isa: Isa, kind: ActKind, rows: &[Vec<f32>]) -> Acts {
    let mut acts = Acts::default();
    acts.reserve(kind, rows.len(), rows[0].len());
    for (i, row) in rows.iter().enumerate() {
        acts.write(isa, i, row);
    }
    acts
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// One matrix, `rows.len()` rows, `outputs` of it: every instruction set must give `expect(row, output)`.
fn check(
    ty: BlockType,
    k: usize,
    weights: &[u8],
    outputs: std::ops::Range<usize>,
    rows: &[Vec<f32>],
    picked: &[u32],
    expect: impl Fn(&Acts, usize, usize) -> f32,
) {
    for isa in Isa::available() {
        let acts = acts(isa, ActKind::of(ty), rows);
        let stride = outputs.end + 3;
        let mut out = vec![-7.5; picked.len() * stride];
        let (job, mut scratch) = (
            Matmul {
                ty,
                weights,
                k,
                outputs: outputs.clone(),
                acts: &acts,
                rows: picked,
                out: OutRows::new(&mut out, stride),
            },
            KernelScratch::default(),
        );
        matmul(isa, &job, &mut scratch);
        for (r, row) in picked.iter().enumerate() {
            for o in 0..stride {
                let got = out[r * stride + o];
                let want = if outputs.contains(&o) {
                    expect(&acts, *row as usize, o)
                } else {
                    -7.5
                };
                assert!(
                    same(got, want),
                    "{ty} {isa:?} k {k} outputs {outputs:?} row {r} of {}, output {o}: {got:e}, not {want:e}",
                    picked.len()
                );
            }
        }
    }
}

/// Widths that a type's rows are tried with.
fn widths(ty: BlockType) -> &'static [usize] {
    match ty.block_values() {
        256 => &[256, 768],
        32 => &[32, 64, 160, 256, 640],
        64 | 128 => &[128, 384],
        _ => &[5, 16, 100, 256],
    }
}

fn reference(ty: BlockType) -> Option<Canonical> {
    INTEGER
        .iter()
        .find(|(other, _)| *other == ty)
        .map(|(_, canonical)| *canonical)
}

/// The expected value, whatever the type.
fn expected(
    ty: BlockType,
    k: usize,
    weights: &[u8],
    rows: &[Vec<f32>],
    acts: &Acts,
    row: usize,
    output: usize,
) -> f32 {
    let bytes = ty.row_bytes(k).expect("whole blocks");
    let weights = &weights[output * bytes..][..bytes];
    match reference(ty) {
        Some(canonical) => {
            let (codes, scales) = quantised(acts, row);
            canonical(weights, &codes, &scales)
        }
        None => {
            let mut values = vec![0.0; k];
            dequantise(ty, weights, &mut values).expect("lengths fit");
            canonical_float(&values, &rows[row])
        }
    }
}

fn all_types() -> impl Iterator<Item = BlockType> {
    INTEGER
        .iter()
        .map(|(ty, _)| *ty)
        .chain(FLOAT.iter().copied())
}

#[test]
fn every_type_width_and_row_count_gives_the_canonical_bits() {
    let mut noise = Noise(1);
    for ty in all_types() {
        for &k in widths(ty) {
            let outputs = 37;
            let weights = noise.weights(ty, outputs, k);
            let rows: Vec<_> = (0..20).map(|_| noise.floats(k)).collect();
            for count in [1, 2, 3, 4, 5, 6, 7, 13, 20] {
                let picked: Vec<u32> = (0..count).map(|i| (i * 7 + 3) % 20).collect();
                check(
                    ty,
                    k,
                    &weights,
                    0..outputs,
                    &rows,
                    &picked,
                    |acts, row, output| expected(ty, k, &weights, &rows, acts, row, output),
                );
            }
        }
    }
}

/// Sums of products may be taken in 16 bits on the way: the largest there are must fit, with either sign.
#[test]
fn the_largest_products_do_not_overflow() {
    let mut noise = Noise(5);
    let k = 512;
    let signs = |bits: u64| move |i: usize| if bits >> (i % 64) & 1 == 1 { 1.0 } else { -1.0 };
    let rows: Vec<Vec<f32>> = [u64::MAX, 0, 0x5555_5555_5555_5555, 0x0f0f_f0f0_3333_cccc]
        .map(|bits| (0..k).map(signs(bits)).collect())
        .to_vec();
    for ty in INTEGER.iter().map(|(ty, _)| *ty) {
        for fill in [0xff, 0x00, 0x77, 0x80] {
            let mut weights = vec![fill; 16 * ty.row_bytes(k).expect("whole blocks")];
            let scales = noise.weights(ty, 16, k);
            let blocks = weights.chunks_exact_mut(ty.block_bytes());
            for (block, from) in blocks.zip(scales.chunks_exact(ty.block_bytes())) {
                for &at in halves(ty) {
                    block[at..at + 2].copy_from_slice(&from[at..at + 2]);
                }
                if ty == BlockType::MXFP4 {
                    block[0] = from[0];
                }
            }
            for picked in [&[2][..], &[0, 1, 2, 3], &[3, 1, 0, 2, 2, 0, 1, 3, 0]] {
                check(
                    ty,
                    k,
                    &weights,
                    0..16,
                    &rows,
                    picked,
                    |acts, row, output| expected(ty, k, &weights, &rows, acts, row, output),
                );
            }
        }
    }
}

#[test]
fn outputs_can_be_cut_anywhere() {
    let mut noise = Noise(2);
    for ty in [
        BlockType::Q4_K,
        BlockType::Q5_0,
        BlockType::Q8_0,
        BlockType::IQ2_XS,
        BlockType::BF16,
        BlockType::TQ2_0,
    ] {
        let k = 512;
        let weights = noise.weights(ty, 70, k);
        let rows = vec![noise.floats(k), noise.floats(k)];
        for outputs in [0..1, 0..16, 5..6, 5..37, 33..70, 69..70, 8..8, 16..48] {
            check(
                ty,
                k,
                &weights,
                outputs,
                &rows,
                &[1, 0, 1],
                |acts, row, output| expected(ty, k, &weights, &rows, acts, row, output),
            );
        }
    }
}

#[test]
fn more_rows_than_a_block_of_rows() {
    let mut noise = Noise(3);
    for ty in [BlockType::Q6_K, BlockType::MXFP4, BlockType::F16] {
        let k = 256;
        let weights = noise.weights(ty, 17, k);
        let rows: Vec<_> = (0..5).map(|_| noise.floats(k)).collect();
        let picked: Vec<u32> = (0..131).map(|i| i % 5).collect();
        check(
            ty,
            k,
            &weights,
            0..17,
            &rows,
            &picked,
            |acts, row, output| expected(ty, k, &weights, &rows, acts, row, output),
        );
    }
}

#[test]
fn results_equal_the_dequantised_product() {
    let mut noise = Noise(4);
    for ty in all_types() {
        let (k, outputs) = (*widths(ty).last().expect("some"), 20);
        let weights = noise.weights(ty, outputs, k);
        let rows = vec![noise.floats(k)];
        let acts = acts(Isa::detect(), ActKind::of(ty), &rows);
        // the activations as the kernel sees them
        let seen: Vec<f64> = match acts.kind() {
            ActKind::Float => rows[0].iter().map(|x| f64::from(*x)).collect(),
            _ => {
                let (codes, scales) = quantised(&acts, 0);
                let block = if acts.kind() == ActKind::Blocks32 {
                    32
                } else {
                    256
                };
                codes
                    .iter()
                    .take(k)
                    .enumerate()
                    .map(|(i, code)| f64::from(*code) * f64::from(scales[i / block]))
                    .collect()
            }
        };
        let mut out = vec![0.0; outputs];
        let job = Matmul {
            ty,
            weights: &weights,
            k,
            outputs: 0..outputs,
            acts: &acts,
            rows: &[0],
            out: OutRows::new(&mut out, outputs),
        };
        matmul(Isa::detect(), &job, &mut KernelScratch::default());
        let mut values = vec![0.0; outputs * k];
        dequantise(ty, &weights, &mut values).expect("lengths fit");
        for (o, got) in out.iter().enumerate() {
            let products = values[o * k..][..k]
                .iter()
                .zip(&seen)
                .map(|(w, a)| f64::from(*w) * a);
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            // a rounding of 2^-24 a step, over at most 48 steps of a chain
            assert!(
                (f64::from(*got) - sum).abs() <= 3e-6 * size,
                "{ty} output {o}: {got}, not {sum}"
            );
        }
    }
}

#[test]
fn any_bytes_are_weights() {
    let mut noise = Noise(5);
    for ty in all_types() {
        for &k in widths(ty) {
            let mut weights = noise.bytes(9 * ty.row_bytes(k).expect("whole blocks"));
            // and one row of each extreme
            let row = weights.len() / 9;
            weights[..row].fill(0xff);
            weights[row..2 * row].fill(0x7f);
            weights[2 * row..3 * row].fill(0x80);
            let rows = vec![noise.floats(k), vec![0.0; k]];
            check(
                ty,
                k,
                &weights,
                0..9,
                &rows,
                &[0, 1],
                |acts, row, output| expected(ty, k, &weights, &rows, acts, row, output),
            );
        }
    }
}

#[test]
fn activations_are_rounded_half_to_even_and_hostile_ones_stay_visible() {
    let tiny = f32::from_bits(3);
    let cases: &[(&str, Vec<f32>, &[i8], f32)] = &[
        ("zeros", vec![0.0, -0.0], &[0, 0], 0.0),
        (
            "ties",
            vec![127.0, 0.5, 1.5, -0.5, -2.5, 126.5],
            &[127, 0, 2, 0, -2, 126],
            1.0,
        ),
        ("extremes", vec![-254.0, 254.0, 1.0], &[-127, 127, 0], 2.0),
        ("a tiny block", vec![tiny, -tiny], &[0, 0], 0.0),
        (
            "an infinity",
            vec![f32::NEG_INFINITY, 1.0],
            &[0, 0],
            f32::INFINITY,
        ),
        ("not a number", vec![1.0, f32::NAN], &[0, 0], f32::NAN),
    ];
    for (name, values, codes, scale) in cases {
        for (kind, width) in [(ActKind::Blocks32, 32), (ActKind::Blocks256, 256)] {
            for isa in Isa::available() {
                let mut row = values.clone();
                row.resize(width, 0.0);
                let acts = acts(isa, kind, &[row]);
                let (got, scales) = quantised(&acts, 0);
                assert_eq!(&got[..codes.len()], *codes, "{name} {kind:?} {isa:?}");
                assert!(
                    same(scales[0], *scale),
                    "{name} {kind:?} {isa:?}: scale {}",
                    scales[0]
                );
            }
        }
    }
}

#[test]
fn activations_are_the_same_on_every_instruction_set() {
    let mut noise = Noise(6);
    for kind in [ActKind::Blocks32, ActKind::Blocks256] {
        let rows: Vec<_> = (0..50).map(|_| noise.floats(512)).collect();
        let [first, rest @ ..] = &Isa::available()
            .map(|isa| acts(isa, kind, &rows))
            .collect::<Vec<_>>()[..]
        else {
            panic!("the portable set is always there");
        };
        for (row, values) in rows.iter().enumerate() {
            let (codes, scales) = quantised(first, row);
            for (i, x) in values.iter().enumerate() {
                let block = if kind == ActKind::Blocks32 { 32 } else { 256 };
                let amax = values[i / block * block..][..block]
                    .iter()
                    .fold(0f32, |a, x| a.max(x.abs()));
                assert_eq!(f32::from(codes[i]), (x * (127.0 / amax)).round_ties_even());
                assert_eq!(scales[i / block], amax / 127.0);
            }
            for other in rest {
                assert_eq!(
                    (&codes, &scales),
                    (&quantised(other, row).0, &quantised(other, row).1)
                );
                assert!(
                    first
                        .units(row)
                        .iter()
                        .zip(other.units(row))
                        .all(|(a, b)| a.sums32 == b.sums32 && a.sums16() == b.sums16())
                );
            }
        }
    }
}

/// Weights that end where a page without access begins.
#[cfg(unix)]
#[test]
fn nothing_is_read_past_the_weights() {
    let mut noise = Noise(7);
    for ty in all_types() {
        for &k in widths(ty) {
            let weights = noise.weights(ty, 33, k);
            let page = 4096 * 16;
            let size = weights.len().next_multiple_of(page);
            // SAFETY: a fresh private mapping; its last page is only made inaccessible, and it is unmapped after use.
            let base = unsafe {
                let (access, flags) = (
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANON,
                );
                let base = libc::mmap(std::ptr::null_mut(), size + page, access, flags, -1, 0);
                assert!(base != libc::MAP_FAILED);
                assert_eq!(
                    libc::mprotect(base.byte_add(size), page, libc::PROT_NONE),
                    0
                );
                base
            };
            // SAFETY: the bytes before the inaccessible page are mapped, readable and writable, and belong to nobody else.
            let copy = unsafe {
                std::slice::from_raw_parts_mut(
                    base.cast::<u8>().add(size - weights.len()),
                    weights.len(),
                )
            };
            copy.copy_from_slice(&weights);
            let rows = vec![noise.floats(k)];
            check(ty, k, copy, 0..33, &rows, &[0], |acts, row, output| {
                expected(ty, k, &weights, &rows, acts, row, output)
            });
            // SAFETY: the mapping made above; `copy` is not used any more.
            unsafe { libc::munmap(base, size + page) };
        }
    }
}
