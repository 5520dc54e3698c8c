//! The kernels that a window consists of on a device: how long each takes, and how near it comes to what the device gives.
//!
//! `cargo bench --bench window -- [FILE | --like MODEL [--layers N] [--quant TYPE]] [--device N] [--vram SIZE]
//! [--decode 1x500,8x500,..] [--prompt 512@0,2048@0,..] [--json]`
//!
//! A window is recorded as it is computed, with everything; then once more for each kernel with nothing else in it, and replayed without the host in between.
//! A kernel runs on every layer in turn, so caches do not hold its weights. Times are by the device's clock.

use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use tidegate::{
    cuda::Launch,
    engine::executor::{Ask, Executor, Lane, PAGE_TOKENS, PageId, Slot, Span},
};

mod common;
use common::{Common, Failure, Limits, Machine, Measure, account::Account, rig::Rig};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: Common,
    /// Decode windows: streams x positions that each has.
    #[arg(long, value_delimiter = ',', default_values = ["1x500", "8x500", "1x8192", "8x8192"])]
    decode: Vec<String>,
    /// Prompt windows: rows @ position of the first.
    #[arg(long, value_delimiter = ',', default_values = ["512@0", "2048@0"])]
    prompt: Vec<String>,
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    args.common.run(Windows(&args))
}

/// Rows of one window.
#[derive(Clone, Copy, Debug)]
struct Shape {
    lane: Lane,
    sequences: usize,
    /// Rows of each sequence.
    rows: usize,
    /// Position of its first row.
    first: usize,
}

impl Shape {
    fn parse(text: &str, lane: Lane) -> Result<Self, Failure> {
        let (mark, form) = match lane {
            Lane::Decode => ('x', "STREAMSxPOSITIONS"),
            Lane::Prompt => ('@', "ROWS@POSITION"),
        };
        let numbers = text
            .split_once(mark)
            .and_then(|(a, b)| Some((a.parse::<usize>().ok()?, b.parse::<usize>().ok()?)));
        let Some((count, first)) = numbers.filter(|(count, _)| *count > 0) else {
            return Err(format!("`{text}` is not {form}").into());
        };
        // replays give the same positions again and again: that is right only where no recurrent state is about to be moved on to the next page
        let first = if first == 0 {
            0
        } else {
            first / PAGE_TOKENS * PAGE_TOKENS + PAGE_TOKENS / 4
        };
        let (sequences, rows) = match lane {
            Lane::Decode => (count, 1),
            Lane::Prompt => (1, count),
        };
        Ok(Self {
            lane,
            sequences,
            rows,
            first,
        })
    }

    /// All rows.
    fn count(self) -> usize {
        self.sequences * self.rows
    }

    /// Positions that all rows together look at.
    fn looks(self) -> usize {
        self.sequences * (self.rows * self.first + self.rows * (self.rows + 1) / 2)
    }

    fn label(self) -> String {
        match self.lane {
            Lane::Decode => format!("decode, {} streams at {}", self.sequences, self.first),
            Lane::Prompt => format!("prompt, {} rows from {}", self.rows, self.first),
        }
    }
}

struct Windows<'a>(&'a Args);

impl Measure for Windows<'_> {
    fn run<B: Machine>(self, common: &Common, backend: B) -> Result<bool, Failure> {
        if backend.cuda().is_none() {
            return Err("windows are recorded on a device only".into());
        }
        let decode = self
            .0
            .decode
            .iter()
            .map(|text| Shape::parse(text, Lane::Decode));
        let prompt = self
            .0
            .prompt
            .iter()
            .map(|text| Shape::parse(text, Lane::Prompt));
        let shapes = decode.chain(prompt).collect::<Result<Vec<_>, _>>()?;
        let most = |of: fn(&Shape) -> usize| shapes.iter().map(of).max().unwrap_or(1);
        let (sequences, positions) = (
            most(|shape| shape.sequences),
            most(|shape| shape.first + shape.rows),
        );
        let (name, file) = common.open()?;
        let mut rig = Rig::load(common, &file, backend, sequences, positions + 1)?;
        let (machine, limits) = (rig.backend().name(), rig.backend().limits()?);
        if !common.json {
            println!("{name}: {machine}");
            limits.print();
        }
        read_contexts(&mut rig, &shapes)?;
        let mut windows = Vec::new();
        for shape in shapes {
            let window = measure(&mut rig, shape)?;
            if !common.json {
                window.print(limits);
            }
            windows.push(window.json(limits));
        }
        if common.json {
            println!(
                "{}",
                json!({ "bench": "window", "model": name, "machine": machine, "limits": limits.json(), "windows": windows })
            );
        }
        Ok(true)
    }
}

/// Reads as many positions of every sequence as some window has before it.
fn read_contexts<B: Machine>(rig: &mut Rig<B>, shapes: &[Shape]) -> Result<(), Failure> {
    let sequences = shapes
        .iter()
        .map(|shape| shape.sequences)
        .max()
        .unwrap_or(0);
    for sequence in 0..sequences {
        let first = shapes
            .iter()
            .filter(|shape| shape.sequences > sequence)
            .map(|shape| shape.first)
            .max();
        if let Some(first @ 1..) = first {
            let (tokens, chunk) = (rig.prompt(sequence, first), rig.chunk);
            rig.read(sequence, &tokens, chunk)?;
        }
    }
    Ok(())
}

/// A kernel with everything that tells its launches apart.
struct Part {
    launch: Launch,
    /// Launches in the window.
    count: usize,
    /// One of them.
    time: Duration,
    /// What one reads at the least, and its operations, where that is known.
    bytes: u64,
    ops: u64,
}

/// A window and what it consists of.
struct Measured {
    shape: Shape,
    whole: Duration,
    /// Experts that the last layer read.
    experts: usize,
    parts: Vec<Part>,
}

fn measure<B: Machine>(rig: &mut Rig<B>, shape: Shape) -> Result<Measured, Failure> {
    let pages: Vec<Vec<PageId>> = (0..shape.sequences).map(|slot| rig.pages(slot)).collect();
    let tokens: Vec<Vec<u32>> = (0..shape.sequences)
        .map(|sequence| rig.prompt(sequence + 1000, shape.rows))
        .collect();
    let spans: Vec<_> = tokens
        .iter()
        .zip(&pages)
        .enumerate()
        .map(|(slot, (tokens, pages))| Span {
            slot: Slot(slot as u32),
            first: shape.first as u32,
            tokens,
            pages,
            logits: 1,
            ask: Ask::Greedy,
            drafts: 0,
        })
        .collect();
    let mut window = rig.runner.begin(shape.lane, &spans)?;
    let mut record = |only: Option<Vec<Launch>>| -> Result<(Vec<Launch>, Duration), Failure> {
        rig.runner
            .backend_mut()
            .begin_recording(&mut window, only)?;
        let enqueued = rig.runner.enqueue(&mut window);
        let launches = rig.runner.backend_mut().end_recording()?;
        enqueued?;
        Ok((launches, replay(rig.runner.backend_mut())?))
    };
    let (launches, whole) = record(None)?;
    let mut kinds: Vec<(Launch, usize)> = Vec::new();
    for launch in launches {
        match kinds.iter_mut().find(|(known, _)| *known == launch) {
            Some((_, count)) => *count += 1,
            None => kinds.push((launch, 1)),
        }
    }
    // what a recording takes that holds no kernel
    let (_, nothing) = record(Some(Vec::new()))?;
    let mut times = Vec::new();
    for (launch, count) in &kinds {
        let (_, time) = record(Some(vec![launch.clone()]))?;
        times.push(time.saturating_sub(nothing) / *count as u32);
    }
    // the last layer's choices are still there
    record(None)?;
    let experts = rig
        .backend()
        .cuda()
        .map_or(Ok(0), |cuda| cuda.experts_read())?;
    rig.runner.abandon(window);
    let parts = kinds.into_iter().zip(times).map(|((launch, count), time)| {
        let (bytes, ops) = work(&rig.account, shape, &launch, experts);
        Part {
            launch,
            count,
            time,
            bytes,
            ops,
        }
    });
    Ok(Measured {
        shape,
        whole,
        experts,
        parts: parts.collect(),
    })
}

/// One replay of what was recorded last, of as many as take a while.
fn replay<B: Machine>(backend: &mut B) -> Result<Duration, Failure> {
    const A_WHILE: Duration = Duration::from_millis(10);
    let once = backend.replay(1)?.max(Duration::from_micros(1));
    let times = (A_WHILE.as_nanos() / once.as_nanos()).clamp(2, 200) as usize;
    backend.replay(1)?;
    Ok(backend.replay(times)? / times as u32)
}

/// Bytes that a launch reads at the least, and its operations: of weights, and of keys, values and states where a kernel is all about those.
fn work(account: &Account, shape: Shape, launch: &Launch, experts: usize) -> (u64, u64) {
    let rows = shape.count() as u64;
    let (reads, kernel) = (launch.reads, &*launch.kernel);
    if kernel.starts_with("expert_") {
        let places = rows * account.experts_used as u64;
        return (reads.bytes * experts as u64, 2 * reads.values * places);
    }
    let attention = account.attention_layers.max(1) as u64;
    match kernel {
        "attention_decode" => {
            let positions = shape.sequences as u64 * (shape.first + 1) as u64;
            (positions * account.position_bytes / attention, 0)
        }
        "attention_prompt" => (0, account.attention_ops / attention * shape.looks() as u64),
        // in a prompt's window it only looks that there is nothing for it to do
        "delta_step" if shape.lane == Lane::Decode => {
            let layers = account.state_layers.max(1) as u64;
            (shape.sequences as u64 * account.state_bytes / layers, 0)
        }
        // the head multiplies only rows that have logits
        _ if reads.values == account.head => {
            (reads.bytes, 2 * reads.values * shape.sequences as u64)
        }
        _ => (reads.bytes, 2 * reads.values * rows),
    }
}

impl Part {
    fn all(&self) -> Duration {
        self.time * self.count as u32
    }

    fn rate(&self, amount: u64) -> f64 {
        amount as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

impl Measured {
    fn sum(&self) -> Duration {
        self.parts.iter().map(Part::all).sum()
    }

    fn print(&self, limits: Limits) {
        let us = |time: Duration| 1e6 * time.as_secs_f64();
        println!(
            "\n{}: {:.1} us, its kernels one by one {:.1} us, {} experts read in the last layer",
            self.shape.label(),
            us(self.whole),
            us(self.sum()),
            self.experts
        );
        println!(
            "{:<26} {:>16} {:>6} {:>9} {:>10} {:>6} {:>9} {:>6} {:>9} {:>6}",
            "kernel",
            "blocks x threads",
            "count",
            "us each",
            "us window",
            "share",
            "GB/s",
            "limit",
            "TOP/s",
            "limit"
        );
        for part in &self.parts {
            let [x, y, z] = part.launch.blocks;
            let share = |rate: f64, limit: f64| format!("{:.0}%", 100.0 * rate / limit);
            let (bytes, ops) = (part.rate(part.bytes), part.rate(part.ops));
            println!(
                "{:<26} {:>16} {:>6} {:>9.2} {:>10.1} {:>5.1}% {:>9} {:>6} {:>9} {:>6}",
                part.launch.kernel,
                format!("{x},{y},{z}x{}", part.launch.threads),
                part.count,
                us(part.time),
                us(part.all()),
                100.0 * part.all().as_secs_f64() / self.sum().as_secs_f64().max(1e-9),
                if part.bytes > 0 {
                    format!("{:.0}", bytes / 1e9)
                } else {
                    String::new()
                },
                if part.bytes > 0 {
                    share(bytes, limits.memory)
                } else {
                    String::new()
                },
                if part.ops > 0 {
                    format!("{:.2}", ops / 1e12)
                } else {
                    String::new()
                },
                match limits.int8 {
                    Some(limit) if part.ops > 0 => share(ops, limit),
                    _ => String::new(),
                },
            );
        }
    }

    fn json(&self, limits: Limits) -> Value {
        let parts: Vec<_> = self
            .parts
            .iter()
            .map(|part| {
                json!({
                    "kernel": &*part.launch.kernel, "source": part.launch.source, "blocks": part.launch.blocks, "threads": part.launch.threads,
                    "count": part.count, "us": 1e6 * part.time.as_secs_f64(), "bytes": part.bytes, "ops": part.ops,
                    "gb_s": part.rate(part.bytes) / 1e9, "memory_share": part.rate(part.bytes) / limits.memory, "tops": part.rate(part.ops) / 1e12,
                    "int8_share": limits.int8.map(|limit| part.rate(part.ops) / limit),
                })
            })
            .collect();
        json!({
            "window": self.shape.label(), "us": 1e6 * self.whole.as_secs_f64(), "sum_us": 1e6 * self.sum().as_secs_f64(), "experts_read": self.experts,
            "kernels": parts,
        })
    }
}
