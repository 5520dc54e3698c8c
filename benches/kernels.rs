//! Speed of the matrix kernels as shares of what the machine can do: bytes a second over a plain read's, multiply-adds a
//! second over what the 8-bit dot product's instructions give by themselves, both measured in the same run.
//!
//! `cargo bench --bench kernels -- [--threads N] [--isa avx2|portable] [--rows N,...] [--k N,...] [--json] [TYPE ...]`

use std::hint::black_box;
use std::time::Duration;
use tidegate::cpu::isa::Isa;
use tidegate::cpu::kernels::{ActKind, Acts, KernelScratch, Matmul, OutRows, matmul};
use tidegate::quant::{BlockType, dequantise};

/// Bytes of weights that a run streams through: far more than the caches hold.
const WEIGHT_BYTES: usize = 192 << 20;
/// Outputs of one matrix.
const OUTPUTS: usize = 768;
/// Repetitions, of which the fastest counts: the machine may have other work.
const RUNS: usize = 9;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let numbers = |name: &str, default: &[usize]| match arguments.windows(2).find(|a| a[0] == name)
    {
        Some(a) => a[1]
            .split(',')
            .map(|n| n.parse().expect("numbers, separated by commas"))
            .collect(),
        None => default.to_vec(),
    };
    let json = arguments.iter().any(|a| a == "--json");
    let threads = numbers("--threads", &[2])[0];
    let (widths, rows) = (
        numbers("--k", &[2048, 768]),
        numbers("--rows", &[1, 2, 4, 8, 16, 32, 64, 512]),
    );
    let isa = match arguments.windows(2).find(|a| a[0] == "--isa") {
        Some(a) if a[1] == "portable" => Isa::Portable,
        Some(a) if a[1] == "avx2" => Isa::Avx2.usable(),
        _ => Isa::detect(),
    };
    let mut types: Vec<BlockType> = BlockType::ALL
        .iter()
        .copied()
        .filter(|ty| arguments.iter().any(|a| a == ty.label()))
        .collect();
    if types.is_empty() {
        types = vec![
            BlockType::Q4_K,
            BlockType::Q5_K,
            BlockType::Q6_K,
            BlockType::Q8_0,
            BlockType::Q5_0,
            BlockType::MXFP4,
        ];
    }

    let mut weights = noise(WEIGHT_BYTES);
    let bandwidth = read_speed(&weights, threads);
    let clock = clock();
    let peak = peak(isa, threads);
    if !json {
        println!(
            "{:?}, {threads} threads, read {:.1} GB/s, clock {clock:.2} GHz, peak {peak:.0} GMAC/s",
            isa, bandwidth
        );
        println!(
            "{:8} {:>5} {:>5} {:>9} {:>7} {:>9} {:>7}",
            "type", "k", "rows", "GB/s", "share", "GMAC/s", "share"
        );
    }
    for ty in types {
        if ty == BlockType::MXFP4 {
            // powers of two that leave no subnormal products, which cost time
            weights
                .chunks_exact_mut(ty.block_bytes())
                .for_each(|block| block[0] = 112 | block[0] & 15);
        }
        for &k in &widths {
            for &rows in &rows {
                let (bytes, macs) = speed(isa, ty, k, rows, &weights, threads);
                if json {
                    println!(
                        "{{\"type\":\"{ty}\",\"k\":{k},\"rows\":{rows},\"threads\":{threads},\"gb_s\":{bytes:.2},\"read_gb_s\":{bandwidth:.2},\"gmac_s\":{macs:.1},\"peak_gmac_s\":{peak:.1}}}"
                    );
                } else {
                    println!(
                        "{:8} {k:>5} {rows:>5} {bytes:>9.1} {:>6.0}% {macs:>9.1} {:>6.0}%",
                        ty.label(),
                        100.0 * bytes / bandwidth,
                        100.0 * macs / peak
                    );
                }
            }
        }
    }
}

/// Deterministic bytes. Scales made of them may be anything, which hardly changes the work.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut out = Vec::with_capacity(bytes);
    while out.len() < bytes {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        out.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    out
}

/// Processor time of this thread: other programs on the machine disturb it less than they disturb the clock on the wall.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the struct; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The fastest of several runs of `work` on every thread, in seconds.
fn fastest(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let barrier = std::sync::Barrier::new(threads);
        let took = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|t| {
                    let (work, barrier) = (&work, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        let start = thread_time();
                        work(t);
                        thread_time() - start
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|h| h.join().expect("no panic"))
                .max()
                .expect("a thread")
        });
        best = best.min(took);
    }
    best.as_secs_f64()
}

/// GB/s of a plain read.
fn read_speed(bytes: &[u8], threads: usize) -> f64 {
    let seconds = fastest(threads, |t| {
        let part = bytes.len() / threads;
        let words = bytes[t * part..(t + 1) * part].as_chunks::<256>().0;
        let mut sum = [0u64; 32];
        for line in words {
            for (sum, word) in sum.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum ^= u64::from_le_bytes(*word);
            }
        }
        black_box(sum);
    });
    bytes.len() as f64 / seconds / 1e9
}

/// GHz, from chains of 64 dependent one-cycle operations.
fn clock() -> f64 {
    let (rounds, chain) = (100_000, 64);
    let seconds = fastest(1, |_| {
        let (mut x, y) = (1u64, black_box(3u64));
        for _ in 0..rounds {
            for _ in 0..chain / 2 {
                x = (x ^ y).wrapping_add(y);
            }
            x = black_box(x);
        }
    });
    (rounds * chain) as f64 / seconds / 1e9
}

/// GMAC/s of 8-bit dot products whose operands stay in registers, enough of them at once that none waits for another.
fn peak(isa: Isa, threads: usize) -> f64 {
    let rounds = match isa {
        Isa::Portable => 400_000,
        Isa::Avx2 | Isa::Avx512 => 4_000_000,
    };
    let width = dots(isa, 1);
    let seconds = fastest(threads, |_| {
        dots(isa, rounds);
    });
    (rounds * CHAINS * width * threads) as f64 / seconds / 1e9
}

/// Dot products under way at once.
const CHAINS: usize = 8;

/// Rounds of [`CHAINS`] dot products; says how many multiply-adds one is.
#[cfg(target_arch = "x86_64")]
fn dots(isa: Isa, rounds: usize) -> usize {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn wide(rounds: usize) {
        let (a, b) = (
            _mm512_set1_epi32(black_box(3)),
            _mm512_set1_epi32(black_box(5)),
        );
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2")]
    fn narrow(rounds: usize) {
        let (a, b) = (
            _mm256_set1_epi32(black_box(3)),
            _mm256_set1_epi32(black_box(5)),
        );
        let one = _mm256_set1_epi16(black_box(1));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                // SAFETY: registers only. Written out, as the compiler would multiply once for all rounds.
                unsafe {
                    std::arch::asm!(
                        "vpmaddubsw {t}, {a}, {b}", "vpmaddwd {t}, {t}, {one}", "vpaddd {sum}, {sum}, {t}",
                        t = out(ymm_reg) _, a = in(ymm_reg) a, b = in(ymm_reg) b, one = in(ymm_reg) one, sum = inout(ymm_reg) *sum,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
            }
        }
        black_box(sums);
    }

    match isa {
        Isa::Avx512 if std::arch::is_x86_feature_detected!("avx512vnni") => {
            // SAFETY: the processor has been asked, by `isa` for all but the line above.
            unsafe { wide(rounds) };
            64
        }
        Isa::Avx512 | Isa::Avx2 => {
            // SAFETY: `isa` is a level that the processor has.
            unsafe { narrow(rounds) };
            32
        }
        Isa::Portable => {
            plain(rounds);
            1
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn dots(_: Isa, rounds: usize) -> usize {
    plain(rounds);
    1
}

fn plain(rounds: usize) {
    let (a, b) = (black_box(3i32), black_box(5i32));
    let mut sums = [0i32; CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = black_box(*sum).wrapping_add(a.wrapping_mul(b));
        }
    }
    black_box(sums);
}

/// A few outputs against a plain sum over the dequantised weights, before speed is believed.
fn check(isa: Isa, ty: BlockType, k: usize, weights: &[u8]) {
    let row_bytes = ty.row_bytes(k).expect("whole blocks");
    let values: Vec<f32> = (0..k).map(|i| (i % 127) as f32 - 63.0).collect();
    let mut acts = Acts::default();
    acts.reserve(ActKind::of(ty), 1, k);
    acts.write(Isa::detect(), 0, &values);
    let mut out = [0.0; 40];
    let job = Matmul {
        ty,
        weights,
        k,
        outputs: 0..40,
        acts: &acts,
        rows: &[0],
        out: OutRows::new(&mut out, 40),
    };
    matmul(isa, &job, &mut KernelScratch::default());
    let mut row = vec![0.0; k];
    for (o, got) in out.iter().enumerate() {
        dequantise(ty, &weights[o * row_bytes..][..row_bytes], &mut row).expect("lengths fit");
        let products = row.iter().zip(&values).map(|(w, a)| f64::from(w * a));
        let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
        // eight-bit activations: half a step in 127 for every product, far less on average
        let close = (f64::from(*got) - sum).abs() <= 0.004 * size;
        assert!(
            close || !sum.is_finite(),
            "{ty} output {o}: {got}, not {sum}"
        );
    }
}

/// GB/s of weights and GMAC/s of a product with `rows` rows.
fn speed(
    isa: Isa,
    ty: BlockType,
    k: usize,
    rows: usize,
    weights: &[u8],
    threads: usize,
) -> (f64, f64) {
    check(isa, ty, k, weights);
    let matrix = OUTPUTS * ty.row_bytes(k).expect("whole blocks");
    // about 20 ms of work
    let count = (weights.len() / matrix)
        .min(8_000_000 / (rows + 12) / k)
        .max(threads * 2)
        / threads
        * threads;
    let mut acts = Acts::default();
    acts.reserve(ActKind::of(ty), rows, k);
    for row in 0..rows {
        let values: Vec<f32> = (0..k)
            .map(|i| ((i * 37 + row * 11) % 101) as f32 - 50.0)
            .collect();
        acts.write(Isa::detect(), row, &values);
    }
    let ids: Vec<u32> = (0..rows as u32).collect();
    let seconds = fastest(threads, |t| {
        let mut scratch = KernelScratch::default();
        let mut out = vec![0.0; rows * OUTPUTS];
        for i in (t * count / threads)..((t + 1) * count / threads) {
            let job = Matmul {
                ty,
                weights: &weights[i * matrix..][..matrix],
                k,
                outputs: 0..OUTPUTS,
                acts: &acts,
                rows: &ids,
                out: OutRows::new(&mut out, OUTPUTS),
            };
            matmul(isa, &job, &mut scratch);
        }
        black_box(&out);
    });
    let bytes = (count * matrix) as f64;
    let macs = (count * OUTPUTS * k * rows) as f64;
    (bytes / seconds / 1e9, macs / seconds / 1e9)
}
