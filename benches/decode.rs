//! Decode speed of a model on this machine: tokens a second, bytes a window must read and the share of the memory's bandwidth that this is, and how
//! much of a window the host or the device waits for the other.
//!
//! `cargo bench --bench decode -- [FILE | --like MODEL [--layers N] [--quant TYPE]] [--backend cpu|cuda|auto] [--device N] [--vram SIZE] [--threads N]
//! [--streams 1,4,8,16] [--context 16,..] [--tokens N] [--reps N] [--json]`
//!
//! Drives the model itself, without engine and HTTP. Checked inside every run: a stream's tokens are those that it gives alone, with its prompt read in
//! other chunks, and with its windows computed a layer at a time.

use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use tidegate::{
    cpu::backend::Cpu,
    cuda::Mark,
    engine::executor::{Ask, Executor, Lane, PageId, Slot, Span},
};

mod common;
use common::{
    Common, Failure, Limits, Machine, Measure,
    rig::{Rig, Spread, processor_time},
};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: Common,
    /// Streams decoding at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8])]
    streams: Vec<usize>,
    /// Positions that every stream has before it decodes.
    #[arg(long, value_delimiter = ',', default_values_t = [16])]
    context: Vec<usize>,
    /// Windows of a run.
    #[arg(long, default_value_t = 32)]
    tokens: usize,
    /// Runs, whose windows count together.
    #[arg(long, default_value_t = 3)]
    reps: usize,
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    args.common.run(Decode(&args))
}

struct Decode<'a>(&'a Args);

impl Measure for Decode<'_> {
    fn run<B: Machine>(self, common: &Common, backend: B) -> Result<bool, Failure> {
        let args = self.0;
        let (name, file) = common.open()?;
        let sequences = args.streams.iter().copied().max().unwrap_or(1).max(1);
        let longest = args.context.iter().copied().max().unwrap_or(1);
        let positions = longest + args.tokens + 1;
        let mut rig = Rig::load(common, &file, backend, sequences, positions)?;
        let (machine, limits) = (rig.backend().name(), rig.backend().limits()?);
        if !common.json {
            println!("{name}: {machine}");
            limits.print();
            Row::print_head();
        }
        let mut rows = Vec::new();
        for &context in &args.context {
            for &streams in &args.streams {
                let row = measure(&mut rig, streams, context.max(1), args)?;
                if !common.json {
                    row.print(limits);
                }
                rows.push(row);
            }
        }
        if common.json {
            let decode: Vec<_> = rows.iter().map(|row| row.json(limits)).collect();
            println!(
                "{}",
                json!({ "bench": "decode", "model": name, "backend": B::NAME, "machine": machine, "limits": limits.json(), "decode": decode })
            );
        }
        Ok(rows.iter().all(|row| row.right))
    }
}

/// How streams decode.
#[derive(Clone, Copy)]
struct Plan {
    context: usize,
    tokens: usize,
    /// Rows in which prompts are read.
    chunk: usize,
    lane: Lane,
    look: Look,
}

/// What is looked at besides tokens and times; looking costs time.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    Nothing,
    /// When the device has nothing to do.
    Moments,
    /// Which experts are read: windows go a layer at a time.
    Experts,
}

/// What streams gave that decoded together.
#[derive(Default)]
struct Generated {
    /// Of each stream.
    outputs: Vec<Vec<u32>>,
    /// From one window's tokens to the next one's.
    periods: Vec<Duration>,
    /// From when one window was computed to when the next was enqueued.
    gaps: Vec<Duration>,
    /// Processor time of all windows together.
    processor: Duration,
    /// What a CPU has counted that windows had to read. **Units**: bytes.
    moved: Option<u64>,
    /// From a window's end to the first command of the next, by the device's clock.
    idle: Vec<Duration>,
    /// Of each window, of each layer.
    experts: Vec<Vec<usize>>,
}

/// Reads a prompt for every stream, and decodes.
fn generate<B: Machine>(
    rig: &mut Rig<B>,
    streams: &[usize],
    plan: Plan,
) -> Result<Generated, Failure> {
    let pages: Vec<Vec<PageId>> = streams.iter().map(|&stream| rig.pages(stream)).collect();
    let mut generated = Generated::default();
    let mut last = Vec::new();
    for &stream in streams {
        let tokens = rig.prompt(stream, plan.context);
        let next = rig.read(stream, &tokens, plan.chunk)?;
        generated.outputs.push(vec![next]);
        last.push([next]);
    }
    let moved = |rig: &Rig<B>| rig.backend().cpu().map(Cpu::moved_bytes);
    let before = moved(rig);
    let (mut next, mut ended, mut settled) = (Vec::new(), None, None);
    let (processor, mut begun) = (processor_time(), Instant::now());
    for step in 0..plan.tokens {
        let spans: Vec<_> = streams
            .iter()
            .zip(&last)
            .zip(&pages)
            .map(|((&stream, tokens), pages)| Span {
                slot: Slot(stream as u32),
                first: (plan.context + step) as u32,
                tokens,
                pages,
                logits: 1,
                ask: Ask::Greedy,
                drafts: 0,
            })
            .collect();
        let moment = |backend: &B| match (plan.look, backend.cuda()) {
            (Look::Moments, Some(cuda)) => cuda.device().mark().map(Some),
            _ => Ok(None),
        };
        let starts = moment(rig.backend())?;
        let (mut ends, mut experts) = (None, Vec::new());
        let times = rig.window(plan.lane, (&spans, &[]), &mut next, |backend| {
            ends = moment(backend)?;
            if let (Look::Experts, Some(cuda)) = (plan.look, backend.cuda()) {
                experts.push(cuda.experts_read()?);
            }
            Ok(())
        })?;
        let now = Instant::now();
        generated.periods.push(now - begun);
        generated
            .gaps
            .extend(settled.map(|settled| times.launched - settled));
        (begun, settled) = (now, Some(times.settled));
        if let (Some(ended), Some(starts)) = (&ended, &starts) {
            generated.idle.push(Mark::until(ended, starts)?);
        }
        ended = ends;
        generated.experts.push(experts);
        for ((outputs, last), token) in generated.outputs.iter_mut().zip(&mut last).zip(&next) {
            outputs.push(*token);
            *last = [*token];
        }
    }
    generated.processor = processor_time() - processor;
    generated.moved = before.zip(moved(rig)).map(|(before, now)| now - before);
    Ok(generated)
}

/// How long the device needs for a window, replayed without the host in between: the one after the last of `generated`.
fn busy<B: Machine>(
    rig: &mut Rig<B>,
    plan: Plan,
    generated: &Generated,
) -> Result<Duration, Failure> {
    const REPLAYS: usize = 20;
    let streams = generated.outputs.len();
    let pages: Vec<Vec<PageId>> = (0..streams).map(|stream| rig.pages(stream)).collect();
    let spans: Vec<_> = generated
        .outputs
        .iter()
        .zip(&pages)
        .enumerate()
        .map(|(stream, (tokens, pages))| Span {
            slot: Slot(stream as u32),
            first: (plan.context + plan.tokens) as u32,
            tokens: &tokens[plan.tokens..],
            pages,
            logits: 1,
            ask: Ask::Greedy,
            drafts: 0,
        })
        .collect();
    let mut window = rig.runner.begin(Lane::Decode, &spans)?;
    rig.runner
        .backend_mut()
        .begin_recording(&mut window, None)?;
    let enqueued = rig.runner.enqueue(&mut window);
    let backend = rig.runner.backend_mut();
    backend.end_recording()?;
    enqueued?;
    backend.replay(2)?;
    let took = backend.replay(REPLAYS)? / REPLAYS as u32;
    rig.runner.abandon(window);
    Ok(took)
}

/// Speed of streams at a context.
struct Row {
    streams: usize,
    context: usize,
    period: Spread,
    /// What a window must read. **Units**: bytes.
    bytes: f64,
    /// Cores busy.
    cores: f64,
    device: Option<DeviceRow>,
    /// Every check was.
    right: bool,
}

/// What is known of a device besides.
struct DeviceRow {
    gap: Spread,
    idle: Spread,
    busy: Duration,
    /// Experts that a window read in a layer, on average.
    experts: f64,
}

fn measure<B: Machine>(
    rig: &mut Rig<B>,
    streams: usize,
    context: usize,
    args: &Args,
) -> Result<Row, Failure> {
    let all: Vec<usize> = (0..streams).collect();
    let plan = Plan {
        context,
        tokens: args.tokens,
        chunk: rig.chunk,
        lane: Lane::Decode,
        look: Look::Nothing,
    };
    let marked = Plan {
        look: Look::Moments,
        ..plan
    };
    // warms up as well
    let first = generate(rig, &all, marked)?;
    let mut runs = Vec::new();
    for _ in 0..args.reps.max(1) {
        runs.push(generate(rig, &all, plan)?);
    }
    let probe = streams - 1;
    let otherwise = Plan {
        chunk: rig.chunk.min(context) / 2 + 1,
        ..plan
    };
    let alone = generate(rig, &[probe], otherwise)?;
    let mut right = runs.iter().all(|run| run.outputs == first.outputs)
        && alone.outputs[0] == first.outputs[probe];
    let mut bytes = runs[0].moved.unwrap_or(0) as f64;
    let mut device = None;
    if rig.backend().cuda().is_some() {
        let layered = Plan {
            lane: Lane::Prompt,
            look: Look::Experts,
            ..plan
        };
        let layered = generate(rig, &all, layered)?;
        right &= layered.outputs == first.outputs;
        bytes = (context + 1..)
            .zip(&layered.experts)
            .map(|(context, experts)| rig.account.decode_bytes(streams, context, experts) as f64)
            .sum();
        let routed = rig.account.expert_bytes.iter().flatten().count().max(1);
        let read: usize = layered.experts.iter().flatten().sum();
        device = Some(DeviceRow {
            gap: Spread::of(runs.iter().flat_map(|run| run.gaps.clone()).collect()),
            idle: Spread::of(first.idle.clone()),
            busy: busy(rig, plan, &layered)?,
            experts: read as f64 / (args.tokens * routed) as f64,
        });
    }
    let wall: Duration = runs.iter().flat_map(|run| &run.periods).sum();
    let processor: Duration = runs.iter().map(|run| run.processor).sum();
    Ok(Row {
        streams,
        context,
        period: Spread::of(runs.into_iter().flat_map(|run| run.periods).collect()),
        bytes: bytes / args.tokens as f64,
        cores: processor.as_secs_f64() / wall.as_secs_f64(),
        device,
        right,
    })
}

impl Row {
    fn tokens_s(&self, period: Duration) -> f64 {
        self.streams as f64 / period.as_secs_f64()
    }

    fn share(&self, limits: Limits) -> f64 {
        self.bytes / self.period.median.as_secs_f64() / limits.memory
    }

    fn print_head() {
        println!(
            "{:>8} {:>8} {:>9} {:>17} {:>10} {:>10} {:>9} {:>6} {:>8} {:>8} {:>8} {:>8}",
            "context",
            "streams",
            "tok/s",
            "10 to 90 %",
            "ms/window",
            "MB/window",
            "of limit",
            "cores",
            "gap us",
            "idle us",
            "busy ms",
            "experts"
        );
    }

    fn print(&self, limits: Limits) {
        let us = |time: Duration| 1e6 * time.as_secs_f64();
        print!(
            "{:>8} {:>8} {:>9.1} {:>17} {:>10.3} {:>10.1} {:>8.1}% {:>6.2}",
            self.context,
            self.streams,
            self.tokens_s(self.period.median),
            format!(
                "{:.1}-{:.1}",
                self.tokens_s(self.period.greatest),
                self.tokens_s(self.period.least)
            ),
            1e3 * self.period.median.as_secs_f64(),
            self.bytes / 1e6,
            100.0 * self.share(limits),
            self.cores,
        );
        if let Some(device) = &self.device {
            print!(
                " {:>8.1} {:>8.1} {:>8.3} {:>8.1}",
                us(device.gap.median),
                us(device.idle.median),
                1e3 * device.busy.as_secs_f64(),
                device.experts,
            );
        }
        println!("{}", if self.right { "" } else { "  WRONG TOKENS" });
    }

    fn json(&self, limits: Limits) -> Value {
        let us = |time: Duration| 1e6 * time.as_secs_f64();
        let device = self.device.as_ref().map(|device| {
            json!({
                "gap_us": us(device.gap.median), "idle_us": us(device.idle.median), "busy_ms": 1e3 * device.busy.as_secs_f64(),
                "busy_share": device.busy.as_secs_f64() / self.period.median.as_secs_f64(), "experts_read": device.experts,
            })
        });
        json!({
            "context": self.context, "streams": self.streams, "tokens_s": self.tokens_s(self.period.median),
            "tokens_s_low": self.tokens_s(self.period.greatest), "tokens_s_high": self.tokens_s(self.period.least),
            "window_ms": 1e3 * self.period.median.as_secs_f64(), "window_bytes": self.bytes, "limit_share": self.share(limits),
            "cores": self.cores, "device": device, "right": self.right,
        })
    }
}
