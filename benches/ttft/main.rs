//! How long short prompts wait for their first token while streams are written and a long prompt is read: through HTTP, at any
//! OpenAI-compatible server, in an open loop (they arrive when they arrive, whatever has been answered).
//!
//! `cargo bench --bench ttft -- [--streams N] [--short N] [--prompt N] [--rate PER-SECOND] [--count N] [--json] [--url URL | -- SERVE-ARGUMENTS]`
//!
//! Checked inside: every short prompt gets the token that it gets alone.

#[path = "../common/load/mod.rs"]
mod load;
mod traffic;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use futures::future::try_join_all;
use serde_json::{Value, json};

use load::{
    Failure, LONG, QUIET, Running, Target,
    probe::{Prober, Probes},
    prompts::{Prompt, Prompts, Random},
    quantiles::Quantiles,
};
use traffic::{Background, Traffic};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    target: Target,
    /// Streams running.
    #[arg(long, default_value_t = 4)]
    streams: usize,
    /// Tokens of a short prompt.
    #[arg(long, default_value_t = 64)]
    short: usize,
    /// Tokens of the long prompts, one of which is being read at any time [default: 4096, or what the context has room for]
    #[arg(long)]
    prompt: Option<usize>,
    /// Short prompts a second, on average; when each comes is left to chance (a Poisson process).
    #[arg(long, default_value_t = 2.0)]
    rate: f64,
    /// Short prompts in all.
    #[arg(long, default_value_t = 50)]
    count: usize,
}

/// Slots besides those of the streams and the long prompt, if this bench starts the server.
const SPARE_SLOTS: usize = 5;

/// A short prompt's answer.
struct Shot {
    /// From when it arrived to its first token.
    ttft: Duration,
    text: String,
    /// Whether a long prompt was being read when it arrived.
    beside_prompt: bool,
}

fn main() -> ExitCode {
    load::conclude(bench(Args::parse_from(load::arguments())))
}

async fn bench(args: Args) -> Result<(), Failure> {
    if args.count == 0 || args.rate.is_nan() || args.rate <= 0.0 {
        return Err("--count and --rate must be more than 0".into());
    }
    let running = args.target.run(args.streams + 1 + SPARE_SLOTS).await?;
    let prompts = Prompts::new(&running.client).await?;
    let mut random = Random(running.seed);
    let mut shorts = || -> Vec<Prompt> {
        let made = (0..args.count).map(|_| prompts.make(random.number(), args.short));
        made.collect()
    };
    let (first, second) = (shorts(), shorts());
    running.warm_up(&prompts).await?;
    let background = Background {
        client: &running.client,
        prompts,
        streams: args.streams,
        prompt_tokens: args
            .prompt
            .unwrap_or(running.client.about.prompt_tokens(LONG)),
        seed: random.number(),
    };

    let prober = Prober::start(&running.client).await;
    let alone = running.within(one_by_one(&running, &first)).await?;
    let traffic = running.within(Traffic::start(&background)).await?;
    let loaded = running
        .within(fire(&running, &traffic, &second, args.rate, random))
        .await?;
    let traffic = traffic.stop().await?;
    tokio::time::sleep(QUIET).await;
    let again = running.within(one_by_one(&running, &second)).await?;
    let identical = loaded
        .iter()
        .zip(&again)
        .all(|(shot, alone)| shot.text == alone.text);

    let ttft = |shots: &[Shot]| {
        let times = shots.iter().map(|shot| shot.ttft).collect();
        Quantiles::of(times).ok_or("no answers")
    };
    let report = Report {
        alone: ttft(&alone)?,
        loaded: ttft(&loaded)?,
        beside_prompt: loaded.iter().filter(|shot| shot.beside_prompt).count(),
        gaps: Quantiles::of(traffic.gaps),
        prompts_read: traffic.prompts_read,
        probes: prober.stop().await?,
        identical,
    };
    if args.target.json {
        println!("{}", report.json(&running, &background, &args));
    } else {
        report.print(&running, &background, &args);
    }
    report.verdict(&running)
}

/// Each after the one before has been answered.
async fn one_by_one(running: &Running, prompts: &[Prompt]) -> Result<Vec<Shot>, Failure> {
    let mut shots = Vec::new();
    for prompt in prompts {
        shots.push(shot(running, prompt, Instant::now(), false).await?);
    }
    Ok(shots)
}

/// Each when chance has it, at so many a second.
async fn fire(
    running: &Running,
    traffic: &Traffic,
    prompts: &[Prompt],
    rate: f64,
    mut random: Random,
) -> Result<Vec<Shot>, Failure> {
    let begun = Instant::now();
    let mut after = 0.0;
    let shots = prompts.iter().map(|prompt| {
        after -= random.share().ln() / rate;
        let due = begun + Duration::from_secs_f64(after);
        async move {
            tokio::time::sleep_until(due.into()).await;
            shot(running, prompt, due, traffic.reads_prompt()).await
        }
    });
    let shots: Vec<_> = shots.collect();
    try_join_all(shots).await
}

/// **Errors**: the answer is not one token.
async fn shot(
    running: &Running,
    prompt: &Prompt,
    due: Instant,
    beside_prompt: bool,
) -> Result<Shot, Failure> {
    let answer = running.client.complete(prompt, 1).await?;
    let tokens = answer
        .ending
        .usage
        .map_or(1, |usage| usage.completion_tokens);
    if tokens != 1 {
        return Err(format!("an answer has {tokens} tokens instead of 1").into());
    }
    Ok(Shot {
        ttft: answer.first - due,
        text: answer.text,
        beside_prompt,
    })
}

struct Report {
    alone: Quantiles,
    loaded: Quantiles,
    /// Short prompts that came while a long one was being read.
    beside_prompt: usize,
    gaps: Option<Quantiles>,
    prompts_read: usize,
    probes: Probes,
    identical: bool,
}

impl Report {
    fn json(&self, running: &Running, background: &Background<'_>, args: &Args) -> Value {
        json!({
            "server": running.client.about.owner, "model": running.client.model, "seed": running.seed,
            "streams": args.streams, "short_tokens": args.short, "prompt_tokens": background.prompt_tokens,
            "rate": args.rate, "count": args.count, "beside_prompt": self.beside_prompt, "prompts_read": self.prompts_read,
            "ttft_alone_ms": self.alone.json(), "ttft_ms": self.loaded.json(), "gap_ms": self.gaps.map(|gaps| gaps.json()),
            "tokens_identical": self.identical, "probes_ms": self.probes.json(),
        })
    }

    fn print(&self, running: &Running, background: &Background<'_>, args: &Args) {
        let client = &running.client;
        println!(
            "{}: {}, {} prompts of {} tokens at {} a second, beside {} streams and prompts of {} tokens, seed {}",
            client.about.owner,
            client.model.as_deref().unwrap_or("a model"),
            args.count,
            args.short,
            args.rate,
            args.streams,
            background.prompt_tokens,
            running.seed
        );
        println!("first token alone      {}", self.alone.line());
        println!("first token then       {}", self.loaded.line());
        if let Some(gaps) = self.gaps {
            println!("streams' pauses then   {}", gaps.line());
        }
        let (beside, read) = (self.beside_prompt, self.prompts_read);
        println!(
            "{beside} came while a long prompt was read; {read} of these were read to the end"
        );
        self.probes.print();
        let same = if self.identical {
            "the same as"
        } else {
            "OTHER than"
        };
        println!("tokens                 {same} alone");
    }

    /// **Errors**: a probe failed, too little happened at the same time, or this project's server gave a prompt another token than alone.
    fn verdict(&self, running: &Running) -> Result<(), Failure> {
        self.probes.check()?;
        if self.beside_prompt == 0 {
            return Err("no short prompt came while a long one was read".into());
        }
        if running.client.is_tidegate() && !self.identical {
            return Err("a short prompt got another token than alone".into());
        }
        Ok(())
    }
}
