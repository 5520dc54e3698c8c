//! How fast a model reads prompts on this machine: tokens and operations a second, and the share of the 8-bit matrix instructions' limit that these are.
//!
//! `cargo bench --bench prefill -- [FILE | --like MODEL [--layers N] [--quant TYPE]] [--backend cpu|cuda|auto] [--device N] [--vram SIZE] [--threads N]
//! [--prompt 512,4096,..] [--chunk-rows N] [--reps N] [--json]`
//!
//! Operations are two for each weight that a token is multiplied with and those of attention; norms, routing and recurrences are not counted. Checked
//! inside: another chunk size gives the same next token.

use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use tidegate::engine::executor::Executor;

mod common;
use common::{
    Common, Failure, Limits, Machine, Measure,
    rig::{Rig, Spread, processor_time},
};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: Common,
    /// Tokens of a prompt.
    #[arg(long, value_delimiter = ',', default_values_t = [512, 4096])]
    prompt: Vec<usize>,
    /// Runs, after one that is not counted.
    #[arg(long, default_value_t = 3)]
    reps: usize,
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    args.common.run(Prefill(&args))
}

struct Prefill<'a>(&'a Args);

impl Measure for Prefill<'_> {
    fn run<B: Machine>(self, common: &Common, backend: B) -> Result<bool, Failure> {
        let args = self.0;
        let (name, file) = common.open()?;
        let longest = args.prompt.iter().copied().max().unwrap_or(1);
        let mut rig = Rig::load(common, &file, backend, 1, longest + 1)?;
        let (machine, limits) = (rig.backend().name(), rig.backend().limits()?);
        if !common.json {
            println!("{name}: {machine}, {} rows a window", rig.chunk);
            limits.print();
            Row::print_head();
        }
        let mut rows = Vec::new();
        for &tokens in &args.prompt {
            let row = measure(&mut rig, tokens.max(1), args.reps)?;
            if !common.json {
                row.print(limits);
            }
            rows.push(row);
        }
        if common.json {
            let prefill: Vec<_> = rows.iter().map(|row| row.json(limits)).collect();
            println!(
                "{}",
                json!({
                    "bench": "prefill", "model": name, "backend": B::NAME, "machine": machine, "chunk_rows": rig.chunk, "limits": limits.json(),
                    "prefill": prefill,
                })
            );
        }
        Ok(rows.iter().all(|row| row.right))
    }
}

/// Speed of a prompt.
struct Row {
    tokens: usize,
    time: Spread,
    ops: f64,
    /// Cores busy.
    cores: f64,
    /// Another chunk size gave the same next token, and the same logits bit by bit.
    right: bool,
    identical: bool,
}

fn measure<B: Machine>(rig: &mut Rig<B>, count: usize, reps: usize) -> Result<Row, Failure> {
    let tokens = rig.prompt(0, count);
    let chunk = rig.chunk;
    let next = rig.read(0, &tokens, chunk)?;
    let logits = rig.runner.logits(0)?.to_vec();
    let (mut times, mut right) = (Vec::new(), true);
    let (processor, begun) = (processor_time(), Instant::now());
    for _ in 0..reps.max(1) {
        let begun = Instant::now();
        right &= rig.read(0, &tokens, chunk)? == next;
        times.push(begun.elapsed());
    }
    let cores = (processor_time() - processor).as_secs_f64() / begun.elapsed().as_secs_f64();
    right &= rig.read(0, &tokens, chunk.min(count) / 2 + 1)? == next;
    let identical = rig.runner.logits(0)? == logits;
    Ok(Row {
        tokens: count,
        time: Spread::of(times),
        ops: rig.account.prompt_ops(count) as f64,
        cores,
        right,
        identical,
    })
}

impl Row {
    fn tokens_s(&self, time: Duration) -> f64 {
        self.tokens as f64 / time.as_secs_f64()
    }

    fn ops_s(&self) -> f64 {
        self.ops / self.time.median.as_secs_f64()
    }

    fn print_head() {
        println!(
            "{:>8} {:>10} {:>19} {:>10} {:>9} {:>9} {:>9} {:>6}",
            "tokens", "tok/s", "slowest-fastest", "ms", "TOP/s", "of limit", "of sheet", "cores"
        );
    }

    fn print(&self, limits: Limits) {
        let share = |limit: Option<f64>| {
            limit.map_or("-".to_owned(), |limit| {
                format!("{:.1}%", 100.0 * self.ops_s() / limit)
            })
        };
        println!(
            "{:>8} {:>10.0} {:>19} {:>10.2} {:>9.2} {:>9} {:>9} {:>6.2}{}{}",
            self.tokens,
            self.tokens_s(self.time.median),
            format!(
                "{:.0}-{:.0}",
                self.tokens_s(self.time.greatest),
                self.tokens_s(self.time.least)
            ),
            1e3 * self.time.median.as_secs_f64(),
            self.ops_s() / 1e12,
            share(limits.int8),
            share(limits.int8_sheet),
            self.cores,
            if self.right { "" } else { "  WRONG TOKEN" },
            if self.identical {
                ""
            } else {
                "  (another chunk size gives other bits)"
            },
        );
    }

    fn json(&self, limits: Limits) -> Value {
        json!({
            "tokens": self.tokens, "tokens_s": self.tokens_s(self.time.median), "tokens_s_low": self.tokens_s(self.time.greatest),
            "tokens_s_high": self.tokens_s(self.time.least), "ms": 1e3 * self.time.median.as_secs_f64(), "ops": self.ops, "tops": self.ops_s() / 1e12,
            "limit_share": limits.int8.map(|limit| self.ops_s() / limit), "sheet_share": limits.int8_sheet.map(|limit| self.ops_s() / limit),
            "cores": self.cores, "right": self.right, "identical": self.identical,
        })
    }
}
