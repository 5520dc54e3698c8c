//! Prompt and decode speed of a model file on this machine: tokens a second, bytes a token, and the share of the memory's bandwidth.
//!
//! `cargo bench --bench decode -- FILE [--prompt N] [--tokens N] [--streams 1,4,8] [--threads N] [--reps N] [--json]`
//!
//! Drives the model itself, without HTTP. Checked inside every run: several streams give the tokens that each gives alone.

use std::{
    error::Error,
    hint::black_box,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use serde_json::json;
use tidegate::{
    backend::{Room, shape::KvType},
    cpu::backend::{Cpu, CpuSettings},
    engine::executor::{Capacity, Executor, PAGE_TOKENS, PageId, Progress, Slot, Span},
    gguf::Gguf,
    model::{Runner, family},
};

#[derive(Parser)]
struct Args {
    /// Model file; the bundled one if absent.
    file: Option<PathBuf>,
    /// Prompt tokens.
    #[arg(long, default_value_t = 512)]
    prompt: usize,
    /// Tokens to decode.
    #[arg(long, default_value_t = 32)]
    tokens: usize,
    /// Streams decoding at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8])]
    streams: Vec<usize>,
    /// Worker threads; the cores this process may use if absent.
    #[arg(long)]
    threads: Option<usize>,
    /// Runs, of which the median counts.
    #[arg(long, default_value_t = 3)]
    reps: usize,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Tokens that every stream begins with before it decodes.
const PROMPT: usize = 16;

type Failure = Box<dyn Error>;

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let bundled = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/tales/tales.gguf"
    ));
    let path = args.file.clone().unwrap_or(bundled);
    let mut bench = Bench::open(&path, &args)?;
    let bandwidth = bench.runner.backend().read_bandwidth();
    let prefill = median(args.reps, || bench.prefill(args.prompt))?;
    let mut rows = Vec::new();
    for &streams in &args.streams {
        rows.push(bench.decode(streams, args.tokens, args.reps)?);
    }
    if args.json {
        let decode: Vec<_> = rows.iter().map(|row| row.json(bandwidth)).collect();
        let report = json!({
            "file": path, "threads": bench.runner.backend().threads(), "bandwidth_gb_s": bandwidth / 1e9,
            "prefill": { "tokens": args.prompt, "tokens_s": args.prompt as f64 / prefill.as_secs_f64() },
            "decode": decode,
        });
        println!("{report}");
        return Ok(());
    }
    println!(
        "{}: {} threads, memory reads {:.1} GB/s",
        path.display(),
        bench.runner.backend().threads(),
        bandwidth / 1e9
    );
    println!(
        "prefill {} tokens: {:.0} tok/s",
        args.prompt,
        args.prompt as f64 / prefill.as_secs_f64()
    );
    println!(
        "{:>8} {:>10} {:>12} {:>12} {:>10}",
        "streams", "tok/s", "ms/window", "MB/window", "of limit"
    );
    rows.iter().for_each(|row| row.print(bandwidth));
    Ok(())
}

struct Bench {
    runner: Runner<Cpu>,
    vocab: u32,
}

/// What a run of windows gave.
struct Generated {
    /// Of each stream.
    outputs: Vec<Vec<u32>>,
    /// Of each window.
    times: Vec<Duration>,
    /// Weights, states, keys and values read by a window.
    bytes: f64,
}

struct Row {
    streams: usize,
    window: Duration,
    bytes: f64,
}

impl Row {
    fn share(&self, bandwidth: f64) -> f64 {
        self.bytes / self.window.as_secs_f64() / bandwidth
    }

    fn print(&self, bandwidth: f64) {
        let window = self.window.as_secs_f64();
        println!(
            "{:>8} {:>10.1} {:>12.3} {:>12.1} {:>9.1}%",
            self.streams,
            self.streams as f64 / window,
            window * 1e3,
            self.bytes / 1e6,
            100.0 * self.share(bandwidth)
        );
    }

    fn json(&self, bandwidth: f64) -> serde_json::Value {
        let window = self.window.as_secs_f64();
        json!({
            "streams": self.streams, "tokens_s": self.streams as f64 / window, "window_ms": window * 1e3,
            "window_bytes": self.bytes, "limit_share": self.share(bandwidth),
        })
    }
}

impl Bench {
    fn open(path: &std::path::Path, args: &Args) -> Result<Self, Failure> {
        let file = Arc::new(Gguf::open(path)?);
        let mut backend = Cpu::new(CpuSettings {
            threads: args.threads,
        });
        let model = family::load(&file, &mut backend)?;
        let streams = args.streams.iter().copied().max().unwrap_or(1).max(1);
        let positions = (args.prompt + args.tokens).max(64 + args.tokens) + 1;
        let pages = streams * positions.div_ceil(PAGE_TOKENS);
        let room = Room {
            rows: args.prompt.max(streams).max(PROMPT),
            logits_rows: streams,
            slots: streams,
            pages,
            kv_type: KvType::F16,
        };
        let runner = Runner::new(model, backend, room, positions)?;
        let vocab = runner.capacity().vocab as u32;
        Ok(Self { runner, vocab })
    }

    /// Fixed pseudo-random tokens, different for every stream.
    fn prompt(&self, stream: usize, count: usize) -> Vec<u32> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(stream as u64 + 1);
        (0..count)
            .map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                ((state >> 33) as u32) % self.vocab
            })
            .collect()
    }

    fn pages(&self, slot: usize) -> Vec<PageId> {
        let Capacity { pages, slots, .. } = self.runner.capacity();
        (slot * pages / slots..(slot + 1) * pages / slots)
            .map(|page| PageId(page as u32))
            .collect()
    }

    fn window(&mut self, spans: &[Span<'_>]) -> Result<Vec<u32>, Failure> {
        let mut pass = self.runner.begin(spans)?;
        while self.runner.advance(&mut pass)? == Progress::More {}
        let vocab = self.vocab as usize;
        let logits = self.runner.finish(pass)?;
        if !logits.iter().all(|logit| logit.is_finite()) {
            return Err("logits are not finite".into());
        }
        Ok(logits.chunks_exact(vocab).map(greedy).collect())
    }

    fn prefill(&mut self, count: usize) -> Result<Duration, Failure> {
        let (tokens, pages) = (self.prompt(0, count), self.pages(0));
        self.runner.reset(Slot(0));
        let begun = Instant::now();
        black_box(self.window(&[Span {
            slot: Slot(0),
            first: 0,
            tokens: &tokens,
            pages: &pages,
            logits: 1,
        }])?);
        Ok(begun.elapsed())
    }

    /// `count` windows of one row for each stream, after a short prompt each.
    fn generate(&mut self, streams: &[usize], count: usize) -> Result<Generated, Failure> {
        let pages: Vec<_> = streams.iter().map(|&stream| self.pages(stream)).collect();
        let mut outputs = Vec::new();
        for (&stream, pages) in streams.iter().zip(&pages) {
            let tokens = self.prompt(stream, PROMPT);
            let slot = Slot(stream as u32);
            self.runner.reset(slot);
            outputs.push(self.window(&[Span {
                slot,
                first: 0,
                tokens: &tokens,
                pages,
                logits: 1,
            }])?);
        }
        let (mut times, before) = (Vec::new(), self.runner.backend().moved_bytes());
        for step in 0..count {
            let last: Vec<_> = outputs.iter().map(|tokens| [tokens[step]]).collect();
            let spans: Vec<_> = streams
                .iter()
                .zip(&last)
                .zip(&pages)
                .map(|((&stream, tokens), pages)| Span {
                    slot: Slot(stream as u32),
                    first: (PROMPT + step) as u32,
                    tokens,
                    pages,
                    logits: 1,
                })
                .collect();
            let begun = Instant::now();
            let next = self.window(&spans)?;
            times.push(begun.elapsed());
            outputs
                .iter_mut()
                .zip(next)
                .for_each(|(tokens, token)| tokens.push(token));
        }
        let bytes = (self.runner.backend().moved_bytes() - before) as f64 / count as f64;
        Ok(Generated {
            outputs,
            times,
            bytes,
        })
    }

    fn decode(&mut self, streams: usize, count: usize, reps: usize) -> Result<Row, Failure> {
        let all: Vec<usize> = (0..streams).collect();
        let mut windows = Vec::new();
        let mut bytes = 0.0;
        let mut together = Vec::new();
        for _ in 0..reps {
            let run = self.generate(&all, count)?;
            windows.extend(run.times);
            (together, bytes) = (run.outputs, run.bytes);
        }
        let probe = streams - 1;
        let alone = self.generate(&[probe], count)?.outputs;
        if alone[0] != together[probe] {
            return Err(
                format!("stream {probe} of {streams} gives other tokens than alone").into(),
            );
        }
        windows.sort();
        Ok(Row {
            streams,
            window: windows[windows.len() / 2],
            bytes,
        })
    }
}

fn greedy(logits: &[f32]) -> u32 {
    let best = logits
        .iter()
        .enumerate()
        .fold((0, f32::MIN), |best, (id, &logit)| {
            if logit > best.1 { (id, logit) } else { best }
        });
    best.0 as u32
}

fn median(
    reps: usize,
    mut run: impl FnMut() -> Result<Duration, Failure>,
) -> Result<Duration, Failure> {
    let mut times = (0..reps.max(1))
        .map(|_| run())
        .collect::<Result<Vec<_>, _>>()?;
    times.sort();
    Ok(times[times.len() / 2])
}
