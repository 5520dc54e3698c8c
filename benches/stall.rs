//! How long running streams pause while a long prompt is read: each stream's longest time between two tokens, without and with it.
//!
//! `cargo bench --bench stall -- [FILE] [--streams N] [--prompt N] [--tokens N] [--max-gap-ms N] [--chunk-rows N] [--cuda] [--threads N] [--reps N] [--json]`
//!
//! Measured where a client would: at the receiving end of the engine's handle. Checked inside every run: the streams' tokens are those
//! that each gives alone.

use std::{
    error::Error,
    num::NonZeroUsize,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use futures::StreamExt;
use serde_json::json;
use tidegate::{
    backend::Backend,
    cpu::backend::{Cpu, CpuSettings},
    cuda::{Cuda, Device},
    engine::{
        EngineSettings, Handle, Tokens,
        request::{EngineError, Output, Request, Sampling, Token},
    },
    gguf::Gguf,
    model::start,
    settings::{BackendChoice, CudaSettings, ModelSettings},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[derive(Parser)]
struct Args {
    /// Model file; the bundled one if absent.
    file: Option<PathBuf>,
    /// Streams running.
    #[arg(long, default_value_t = 4)]
    streams: usize,
    /// Tokens of the long prompt, at most what the model was made for.
    #[arg(long, default_value_t = 4000)]
    prompt: usize,
    /// Tokens of every stream without the prompt.
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// As the setting of that name.
    #[arg(long)]
    max_gap_ms: Option<u64>,
    /// As the setting of that name.
    #[arg(long)]
    chunk_rows: Option<usize>,
    /// As the setting of that name.
    #[arg(long)]
    step_stats: Option<PathBuf>,
    /// On the first CUDA device.
    #[arg(long)]
    cuda: bool,
    /// Worker threads; the cores this process may use if absent.
    #[arg(long)]
    threads: Option<usize>,
    /// Runs, of which the median counts.
    #[arg(long, default_value_t = 5)]
    reps: usize,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Tokens that every stream begins with, and writes before anything is measured.
const SETTLE: usize = 16;

type Failure = Box<dyn Error>;

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let bundled = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/tales/tales.gguf"
    ));
    let path = args.file.clone().unwrap_or(bundled);
    let settings = settings(&args);
    let default = if args.cuda {
        Cuda::GAP_MAX
    } else {
        Cpu::GAP_MAX
    };
    let target = settings.engine.gap_max.unwrap_or(default);
    let file = Arc::new(Gguf::open(&path)?);
    let (handle, stopper) = if args.cuda {
        let device = Device::open(0)?;
        let cuda = settings.cuda.clone();
        start::start(file, move || Cuda::new(device, cuda), &settings)?
    } else {
        let cpu = CpuSettings {
            threads: args.threads,
        };
        start::start(file, move || Cpu::new(cpu), &settings)?
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let report = runtime.block_on(
        Bench {
            handle,
            args: &args,
        }
        .report(target),
    )?;
    stopper.stop(Duration::from_secs(5))?;
    if args.json {
        println!("{}", report.json(&path));
    } else {
        println!("{}", path.display());
        report.print();
    }
    Ok(())
}

fn settings(args: &Args) -> ModelSettings {
    let defaults = EngineSettings::default();
    ModelSettings {
        threads: args.threads.and_then(NonZeroUsize::new),
        slots: args.streams + 1,
        context_tokens: Some(args.prompt + 1),
        kv: None,
        backend: BackendChoice::Auto,
        cuda: CudaSettings::default(),
        engine: EngineSettings {
            chunk_rows: args.chunk_rows,
            gap_max: args.max_gap_ms.map(Duration::from_millis),
            step_stats: args.step_stats.clone(),
            ..defaults
        },
    }
}

/// A token and when it came.
type Heard = (Instant, Token);

/// From which stream; none of these is the prompt.
type Event = (usize, Result<Heard, EngineError>);

/// What one run gave.
struct Run {
    /// Every stream's longest time between two tokens, without and with the prompt.
    worst: Vec<[Duration; 2]>,
    /// From the prompt's submission to its first token.
    ttft: Duration,
    /// All tokens of every stream.
    tokens: Vec<Vec<Token>>,
}

/// Medians of the runs.
struct Report {
    prompt: usize,
    target: Duration,
    worst: Vec<[Duration; 2]>,
    ttft: Duration,
    ttft_alone: Duration,
}

struct Bench<'a> {
    handle: Handle,
    args: &'a Args,
}

impl Bench<'_> {
    async fn report(&self, target: Duration) -> Result<Report, Failure> {
        let streams = self.args.streams;
        let (mut alone, mut runs) = (Vec::new(), Vec::new());
        for _ in 0..self.args.reps.max(1) {
            alone.push(self.prompt_alone().await?);
            runs.push(self.run().await?);
        }
        self.check(&runs).await?;
        let worst = |stream: usize| {
            [0, 1].map(|with| median(runs.iter().map(|run| run.worst[stream][with]).collect()))
        };
        Ok(Report {
            prompt: self.prompt().len(),
            target,
            worst: (0..streams).map(worst).collect(),
            ttft: median(runs.iter().map(|run| run.ttft).collect()),
            ttft_alone: median(alone),
        })
    }

    /// Fixed pseudo-random tokens, different for everybody.
    fn tokens(&self, who: usize, count: usize) -> Arc<[Token]> {
        let vocab = self.handle.capacity().vocab as u64;
        let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(who as u64 + 1);
        let mut token = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((state >> 33) % vocab) as Token
        };
        (0..count).map(|_| token()).collect()
    }

    fn prompt(&self) -> Arc<[Token]> {
        self.tokens(
            self.args.streams,
            self.args.prompt.min(self.handle.context() - 1),
        )
    }

    fn submit(&self, prompt: Arc<[Token]>, max_tokens: usize) -> Result<Tokens, EngineError> {
        self.handle.submit(Request {
            prompt,
            sampling: Sampling {
                temperature: 0.0,
                ..Sampling::default()
            },
            max_tokens,
            stop_tokens: [].into(),
            logprobs: None,
        })
    }

    async fn prompt_alone(&self) -> Result<Duration, Failure> {
        let submitted = Instant::now();
        let mut tokens = self.submit(self.prompt(), 1)?;
        tokens.next().await.ok_or("no token")??;
        Ok(submitted.elapsed())
    }

    /// Lets the streams run without the prompt, then with it.
    async fn run(&self) -> Result<Run, Failure> {
        let Args {
            streams, tokens, ..
        } = *self.args;
        let (to, mut events) = unbounded_channel();
        let mut listeners = Vec::new();
        for stream in 0..streams {
            let outputs = self.submit(self.tokens(stream, SETTLE), usize::MAX)?;
            listeners.push(tokio::spawn(listen(stream, outputs, to.clone())));
        }
        let mut heard = vec![Vec::new(); streams + 1];
        hear(&mut events, &mut heard, |heard| fewest(heard) >= SETTLE).await?;
        let settled = Instant::now();
        let all = SETTLE + tokens;
        hear(&mut events, &mut heard, |heard| fewest(heard) >= all).await?;
        let submitted = Instant::now();
        let outputs = self.submit(self.prompt(), 1)?;
        listeners.push(tokio::spawn(listen(streams, outputs, to)));
        hear(&mut events, &mut heard, |heard| !heard[streams].is_empty()).await?;
        let first = heard[streams][0].0;
        // The pause in which it came counts too.
        hear(&mut events, &mut heard, |heard| {
            heard[..streams]
                .iter()
                .all(|stream| stream.last().is_some_and(|last| last.0 > first))
        })
        .await?;
        listeners.iter().for_each(|listener| listener.abort());
        Ok(Run {
            worst: heard[..streams]
                .iter()
                .map(|stream| {
                    [
                        worst(stream, |from, to| from >= settled && to <= submitted),
                        worst(stream, |from, to| from < first && to > submitted),
                    ]
                })
                .collect(),
            ttft: first - submitted,
            tokens: heard[..streams]
                .iter()
                .map(|stream| stream.iter().map(|(_, token)| *token).collect())
                .collect(),
        })
    }

    async fn check(&self, runs: &[Run]) -> Result<(), Failure> {
        for stream in 0..self.args.streams {
            let longest = runs.iter().map(|run| run.tokens[stream].len()).max();
            let outputs = self.submit(self.tokens(stream, SETTLE), longest.unwrap_or(1))?;
            let outputs: Vec<_> = outputs.collect().await;
            let mut alone = Vec::new();
            for output in outputs {
                if let Output::Token { token, .. } = output? {
                    alone.push(token);
                }
            }
            if !runs
                .iter()
                .all(|run| alone.starts_with(&run.tokens[stream]))
            {
                return Err(format!("stream {stream} gives other tokens than alone").into());
            }
        }
        Ok(())
    }
}

/// Passes on what a sequence gives, with the time.
async fn listen(who: usize, mut outputs: Tokens, to: UnboundedSender<Event>) {
    while let Some(output) = outputs.next().await {
        let event = match output {
            Ok(Output::Token { token, .. }) => Ok((Instant::now(), token)),
            Ok(Output::Finished { .. }) => return,
            Err(error) => Err(error),
        };
        if to.send((who, event)).is_err() {
            return;
        }
    }
}

/// Listens until `enough`.
async fn hear(
    events: &mut UnboundedReceiver<Event>,
    heard: &mut [Vec<Heard>],
    enough: impl Fn(&[Vec<Heard>]) -> bool,
) -> Result<(), Failure> {
    while !enough(heard) {
        let (who, event) = events
            .recv()
            .await
            .ok_or("the streams ended before the prompt was read: take a shorter one")?;
        heard[who].push(event?);
    }
    Ok(())
}

/// Tokens that every stream has at least; the last place is the prompt's.
fn fewest(heard: &[Vec<Heard>]) -> usize {
    let streams = &heard[..heard.len() - 1];
    streams.iter().map(Vec::len).min().unwrap_or(0)
}

/// The longest of those pauses between two tokens that `counts` is true of.
fn worst(stream: &[Heard], counts: impl Fn(Instant, Instant) -> bool) -> Duration {
    let pairs = stream.windows(2).map(|pair| (pair[0].0, pair[1].0));
    let pauses = pairs.filter(|(from, to)| counts(*from, *to));
    pauses.map(|(from, to)| to - from).max().unwrap_or_default()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

impl Report {
    /// Whether a stream paused no longer than promised.
    fn kept(&self, [without, with]: [Duration; 2]) -> bool {
        with <= self.target.max(3 * without)
    }

    fn json(&self, path: &std::path::Path) -> serde_json::Value {
        let streams = self.worst.iter().map(|&[without, with]| {
            json!({
                "worst_itl_ms": ms(without), "worst_itl_with_prompt_ms": ms(with),
                "ratio": ms(with) / ms(without), "kept": self.kept([without, with]),
            })
        });
        json!({
            "file": path, "max_gap_ms": ms(self.target), "prompt_tokens": self.prompt,
            "ttft_ms": ms(self.ttft), "ttft_alone_ms": ms(self.ttft_alone), "streams": streams.collect::<Vec<_>>(),
        })
    }

    fn print(&self) {
        println!(
            "prompt of {} tokens: first token after {:.1} ms, {:.1} ms alone",
            self.prompt,
            ms(self.ttft),
            ms(self.ttft_alone)
        );
        println!(
            "longest pause in ms (promised: {} or three times that without the prompt)",
            ms(self.target)
        );
        println!(
            "{:>8} {:>10} {:>10} {:>8}",
            "stream", "without", "with", "ratio"
        );
        for (stream, &[without, with]) in self.worst.iter().enumerate() {
            let kept = if self.kept([without, with]) {
                ""
            } else {
                "  BROKEN"
            };
            println!(
                "{stream:>8} {:>10.2} {:>10.2} {:>8.2}{kept}",
                ms(without),
                ms(with),
                ms(with) / ms(without)
            );
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
