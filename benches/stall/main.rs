//! How long running streams pause while a long prompt is read, and what the prompt costs them: through HTTP, at any OpenAI-compatible server.
//!
//! `cargo bench --bench stall -- [--streams 1,4,8] [--prompt N] [--second-prompt N] [--reps N] [--json] [--url URL | -- SERVE-ARGUMENTS]`
//!
//! A run is invalid unless every stream was being written before the prompt came and still after its first token. Checked inside: each stream's
//! text is what it says alone, over the first thousand tokens.

#[path = "../common/load/mod.rs"]
mod load;
mod report;
mod run;

use std::process::ExitCode;

use clap::Parser;

use load::{Failure, Running, Target, probe::Prober};
use report::Report;
use run::{Bench, Run};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    target: Target,
    /// Streams running, one report each.
    #[arg(long, value_delimiter = ',', default_value = "4")]
    streams: Vec<usize>,
    /// Tokens of the long prompt [default: 4096, or what the context has room for]
    #[arg(long)]
    prompt: Option<usize>,
    /// Tokens of a prompt sent just behind the long one, none if absent.
    #[arg(long)]
    second_prompt: Option<usize>,
    /// Pieces of text from every stream before the prompt comes.
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Milliseconds that a stream may pause: the server's own setting of that name, 150 on a CPU and 30 on a device.
    #[arg(long, default_value_t = 150)]
    max_gap_ms: u64,
    /// Runs, whose pauses are taken together.
    #[arg(long, default_value_t = 3)]
    reps: usize,
}

fn main() -> ExitCode {
    load::conclude(bench(Args::parse_from(load::arguments())))
}

async fn bench(args: Args) -> Result<(), Failure> {
    let most = args.streams.iter().copied().max().unwrap_or(0);
    let running = args.target.run(most + 2).await?;
    let bench = Bench::new(&running, &args).await?;
    if !args.target.json {
        report::print_head(&running, &bench);
    }
    let mut reports = Vec::new();
    for &streams in &args.streams {
        reports.push(one(&running, &bench, streams, args.reps.max(1)).await?);
    }
    check(&running, &bench, &mut reports).await?;
    for report in &reports {
        if args.target.json {
            println!("{}", report.json(&running, args.max_gap_ms));
        } else {
            report.print(args.max_gap_ms);
        }
    }
    reports
        .iter()
        .try_for_each(|report| report.verdict(&running))
}

/// All runs with so many streams.
async fn one(
    running: &Running,
    bench: &Bench<'_>,
    streams: usize,
    reps: usize,
) -> Result<Report, Failure> {
    let prober = Prober::start(&running.client).await;
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..reps {
        runs.push(running.within(bench.run(streams)).await?);
    }
    Ok(Report {
        streams,
        runs,
        probes: prober.stop().await?,
        identical: true,
    })
}

/// Lets every stream that ran say the same alone, once for all runs.
async fn check(
    running: &Running,
    bench: &Bench<'_>,
    reports: &mut [Report],
) -> Result<(), Failure> {
    let most = reports.iter().map(|report| report.streams).max();
    for stream in 0..most.unwrap_or(0) {
        let texts = || reports.iter().flat_map(|report| report.texts(stream));
        let longest = texts().map(str::len).max().unwrap_or(0);
        let alone = running.within(bench.says_alone(stream, longest)).await?;
        for report in reports.iter_mut() {
            let same = report.texts(stream).all(|text| {
                let shorter = text.len().min(alone.len());
                alone.as_bytes()[..shorter] == text.as_bytes()[..shorter]
            });
            report.identical &= same;
        }
    }
    Ok(())
}
